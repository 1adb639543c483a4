//! `canopy doctor`: looks for what is amiss on this machine, and says how to mend it.

use super::status::model::{BranchStatus, Health, PoolStatus, WarningCode};
use super::status::{self, StatusArgs};
use crate::terminal::{BAD, BOLD, WARNING, eprint_line, paragraph, print_json, print_styled, styled};
use canopy_setup::doctor::{Finding, Level, findings};
use canopy_setup::examine;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Look for what is amiss on this machine, and say how to mend it
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct DoctorArgs {
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// The fstab to look at
    #[arg(long, value_name = "FILE", default_value = "/etc/fstab")]
    pub fstab_file: PathBuf,
}

const NOTES: &str = "\
Looks at the kernel, limits, fstab, containers, and every mounted pool with its
branches. A note needs nothing to be done. Exits with 0 if there are only notes,
with 1 if there are warnings or problems. Changes nothing.

Examples:
  canopy doctor
  canopy doctor --json | jq -r '.[] | select(.level != \"note\") | .mend'";

pub fn run(args: &DoctorArgs) -> ExitCode {
    let pools = match status::look(&StatusArgs { mount: None, json: true }) {
        Ok(status) => status.pools,
        Err(error) => {
            error.lines().iter().for_each(|line| eprint_line(line));
            return ExitCode::FAILURE;
        }
    };
    // A branch that does not answer well is not asked again: it would keep this process waiting.
    let answers =
        |branch: &&BranchStatus| matches!(branch.health, Health::Ok | Health::ReadOnly | Health::Errors);
    let branches = pools.iter().flat_map(|pool| pool.branches.iter().filter(answers));
    let branches = branches.filter_map(|one| Some((one.path.to_path(), one.facts.as_ref()?.fstype.clone())));
    let mut found = findings(&examine::facts(&args.fstab_file, branches.collect()));
    found.extend(pools.iter().flat_map(warnings));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    match args.json {
        true => print_json(&found),
        false => print_styled(&shown(&found)),
    }
    ExitCode::from(u8::from(found.iter().any(|finding| finding.level > Level::Note)))
}

fn shown(found: &[Finding]) -> String {
    let mut text = String::new();
    for finding in found {
        let (word, style) = match finding.level {
            Level::Problem => ("problem: ", BAD),
            Level::Warning => ("warning: ", WARNING),
            Level::Note => ("note:    ", BOLD),
        };
        let words = paragraph(word, &finding.text);
        text.push_str(&words.replacen(word, &styled(style, word), 1));
        text.push_str(&paragraph("   mend: ", &finding.mend));
    }
    let amiss = found.iter().filter(|finding| finding.level > Level::Note).count();
    text.push_str(&match amiss {
        0 => "nothing is amiss\n".to_owned(),
        1 => "1 thing is amiss\n".to_owned(),
        _ => format!("{amiss} things are amiss\n"),
    });
    text
}

/// Returns what `canopy status` warns of.
fn warnings(pool: &PoolStatus) -> impl Iterator<Item = Finding> {
    let place = pool.mountpoint.one_line();
    pool.warnings.iter().map(move |warning| {
        let word =
            WarningCode::ALL.iter().find(|(code, ..)| *code == warning.code).map_or("", |(_, word, _)| word);
        let (text, mend) = (format!("{place}: {}", warning.text), warning.mend.clone());
        Finding { code: word.into(), level: Level::Warning, text, mend }
    })
}
