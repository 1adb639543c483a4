//! Everything that can happen to a pool, at random, beside a plain directory.
//!
//! A seed gives a world ([`plan`]) and steps ([`script`]): operations of clients, and what happens between them, the
//! [`weather`]. [`drive`] plays the steps, applies what clients do to a plain directory as well, and compares. How the pool may
//! differ is in [`allowed`]. A failure is shortened ([`shrink`]).

#![forbid(unsafe_code)]

mod allowed;
mod args;
mod compare;
mod disk;
mod drive;
mod plan;
mod script;
mod server;
mod shrink;
mod trash;
mod watchdog;
mod weather;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use args::{Args, Task};
use drive::Watched;
use plan::Plan;
use shrink::Numbered;

fn main() -> ExitCode {
    let args = match args::parse(std::env::args().skip(1)) {
        Ok(Task::Storm(args)) => args,
        Ok(Task::List) => {
            print!("{}", args::weathers());
            return ExitCode::SUCCESS;
        }
        Ok(Task::Help) => {
            print!("{}", args::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprint!("storm: {why}\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&drive::STOP)) {
            eprintln!("storm: {error}");
            return ExitCode::from(2);
        }
    }
    // What is caught is told by who catches it.
    std::panic::set_hook(Box::new(|_| {}));
    storms(&args)
}

/// Plays storms until the time is over.
fn storms(args: &Args) -> ExitCode {
    let (started, mut failures, mut seed, mut played) = (Instant::now(), 0, args.seed, 0);
    println!("storm: seed {seed}, weathers {}", args.weathers.names());
    loop {
        let plan = Plan::of(seed, &args.weathers);
        let all = script::write(seed, args.operations, &args.weathers);
        let mut steps: Numbered = all.into_iter().enumerate().collect();
        if let Some(only) = &args.steps {
            steps.retain(|(number, _)| only.contains(number));
        }
        let begun = Instant::now();
        let failure = drive::play(&plan, &steps, Watched { chatty: args.chatty, hold: args.hold });
        if drive::stopped() {
            eprintln!("storm: interrupted; nothing is left");
            return ExitCode::from(130);
        }
        played += steps.len();
        match failure {
            None => println!("storm: seed {seed}: {} steps in {:.0?}: ok", steps.len(), begun.elapsed()),
            Some(failure) => {
                failures += 1;
                println!("storm: seed {seed} fails at step {}: {}", failure.at, failure.what);
                tell(args, &plan, steps, failure);
                if !args.keep_going {
                    return ExitCode::FAILURE;
                }
            }
        }
        seed += 1;
        if started.elapsed() > args.time || args.steps.is_some() {
            break;
        }
    }
    println!(
        "storm: {played} steps in {:.0?}, seeds {} to {}, failures: {failures}",
        started.elapsed(),
        args.seed,
        seed - 1
    );
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Shortens a failure and prints it.
fn tell(args: &Args, plan: &Plan, steps: Numbered, failure: drive::Failure) {
    println!("storm: shortening it");
    let (steps, failure) = shrink::shrink(plan, steps, failure, args.shrink);
    println!("\nstorm: seed {} fails in {} steps\n", plan.seed, steps.len());
    println!(
        "disks: {:?}\noptions: {} rules={} tiers={} trash={}",
        plan.disks,
        plan.options.join(","),
        plan.rules,
        plan.tiers,
        plan.trash
    );
    for (number, step) in &steps {
        println!("  {number}: {step:?}");
    }
    let numbers: Vec<usize> = steps.iter().map(|(number, _)| *number).collect();
    // Last, so that it is there where a log was cut off.
    println!("\nseed {} fails: {}", plan.seed, failure.what);
    println!(
        "\nrepeat it: scripts/test.sh --storm {} --operations {} --weathers {} --steps {}",
        plan.seed,
        args.operations,
        plan.weathers.names(),
        args::listed(&numbers)
    );
}
