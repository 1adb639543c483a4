//! The program: command line, commands, and the life of the daemon.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cli;
pub mod commands;
pub mod control_client;
pub mod daemon;
pub mod error;
pub mod exit;
pub mod mount;
pub mod mount_lookup;
pub mod terminal;

use canopy_base::text;
use canopy_config::program_name;
use canopy_pool::config::Func;
use canopy_server::survival::Refusal;
use canopy_setup::complete::Program;
use cli::invocation::Invocation;
use cli::{Command, EarlyExit};
use daemon::handover::Handover;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Runs the program under any of its names. Every error is one line on stderr.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let invocation =
        Invocation::from_program(args.first().map_or_else(Default::default, OsString::as_os_str));
    program_name::set_current(invocation.name());
    let command = match cli::parse(invocation, args) {
        Ok(command) => command,
        Err(EarlyExit::Print(text)) => {
            terminal::print(&text);
            return ExitCode::SUCCESS;
        }
        Err(EarlyExit::UsageError(line)) => {
            if let Some(handover) = Handover::received() {
                // The program before has read the same command line.
                handover.go_back(Refusal::Ended);
            }
            terminal::eprint_line(&text::one_line(&line));
            return match invocation {
                Invocation::Canopy => ExitCode::from(exit::USAGE),
                Invocation::Fsck => ExitCode::from(exit::FSCK_USAGE),
                // In mount(8), 2 means something else; mergerfs only uses 1.
                _ => ExitCode::FAILURE,
            };
        }
    };
    let done = match command {
        Command::Mount(args) => commands::mount::run(args),
        Command::Remount(args) => commands::remount::run(&args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Sync(args) => commands::sync::run(&args),
        Command::Upgrade(args) => commands::upgrade::run(&args, cli::parse_mount_cmdline),
        Command::Get(args) => commands::get::run(&args),
        Command::Set(args) => commands::set::run(&args, cli::parse_mount_cmdline),
        Command::Add(args) => commands::branches::add(&args, cli::parse_mount_cmdline),
        Command::Remove(args) => commands::branches::remove(&args, cli::parse_mount_cmdline),
        Command::Replace(args) => commands::branches::replace(&args, cli::parse_mount_cmdline),
        Command::Mode(args) => commands::branches::mode(&args, cli::parse_mount_cmdline),
        Command::List(args) => commands::list::run(&args),
        Command::Top(args) => {
            canopy_monitor::top(&args, canopy_server::badge::published_report).map_err(Into::into)
        }
        Command::Metrics(args) => {
            canopy_monitor::metrics(&args, canopy_server::badge::published_report).map_err(Into::into)
        }
        Command::Disks(args) => commands::status::disks(&args),
        Command::Notify(args) => commands::status::notify::run(&args, &cli::takes),
        Command::Jobs(args) => commands::status::jobs(&args, &cli::takes),
        Command::Log(args) => {
            canopy_monitor::log(&args, canopy_server::badge::servers_of).map_err(Into::into)
        }
        Command::Web(args) => canopy_monitor::web(&args).map_err(Into::into),
        Command::Explain(args) => commands::explain::run(&args),
        Command::CollectInfo(args) => canopy_monitor::collect_info(&args).map_err(Into::into),
        Command::Bench(args) => canopy_bench::run(&args).map_err(Into::into),
        Command::BenchFloor { io_uring, existing, mountpoint } => {
            canopy_bench::floor::serve(&mountpoint, io_uring, existing.as_deref()).map_err(Into::into)
        }
        Command::Which(args) => canopy_upkeep::which(&args).map_err(Into::into),
        Command::Lost(args) => canopy_upkeep::lost(&args).map_err(Into::into),
        Command::Forget(args) => canopy_upkeep::forget(&args).map_err(Into::into),
        Command::Ls(args) => canopy_upkeep::ls(&args).map_err(Into::into),
        Command::Du(args) => canopy_upkeep::du(&args).map_err(Into::into),
        Command::Tool(command) => canopy_upkeep::run_tool(&command).map_err(Into::into),
        Command::Move(args) => canopy_upkeep::move_files(&args).map_err(Into::into),
        Command::Balance(args) => canopy_upkeep::balance(&args).map_err(Into::into),
        Command::Consolidate(args) => canopy_upkeep::consolidate(&args).map_err(Into::into),
        Command::Tier(args) => canopy_upkeep::tier(&args).map_err(Into::into),
        Command::Copies(args) => canopy_upkeep::copies(&args).map_err(Into::into),
        Command::Dup(args) => canopy_upkeep::dup(&args).map_err(Into::into),
        Command::Dedup(args) => canopy_upkeep::dedup(&args).map_err(Into::into),
        Command::Trash(args) => canopy_upkeep::trash(&args).map_err(Into::into),
        Command::Cache(args) => canopy_upkeep::cache(&args).map_err(Into::into),
        Command::Drain(args) => {
            let set = |pool: &Path, list: &OsStr| {
                let kept = commands::set::branches(pool, list, true, cli::parse_mount_cmdline);
                kept.map(drop).map_err(|error| error.line())
            };
            canopy_upkeep::drain(&args, &set).map_err(Into::into)
        }
        Command::Init(args) => canopy_setup::commands::init::run(&args).map_err(Into::into),
        Command::Migrate(args) => canopy_setup::commands::migrate::run(&args).map_err(Into::into),
        // These have their own exit statuses.
        Command::Verify(args) => return commands::verify::run(&args),
        Command::Status(args) => return commands::status::run(&args, &cli::takes),
        Command::Doctor(args) => return commands::doctor::run(&args),
        Command::Fsck(args) => return canopy_upkeep::fsck(&args),
        Command::Options(args) => {
            commands::options::run(&args);
            Ok(())
        }
        Command::Complete(args) => {
            canopy_setup::complete::run(
                &args,
                &Program {
                    definition: cli::definition(),
                    functions: Func::WORDS,
                    branches: &commands::status::branches_of,
                },
            );
            Ok(())
        }
        Command::Probe(args) => {
            commands::probe::run(&args);
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The parent reports the errors of a background child.
            if !daemon::background::is_child() {
                error.lines().iter().for_each(|line| terminal::eprint_line(line));
            }
            exit::of(&error)
        }
    }
}
