//! `canopy doctor`: looks for what is wrong on this machine, and says how to fix it, or does so.

use super::status::model::{BranchStatus, Health, PoolStatus, State, WarningCode};
use super::status::{self, StatusArgs};
use crate::error::Error;
use crate::exit;
use crate::terminal::{BAD, BOLD, WARNING, eprint_line, paragraph, print_json, print_styled, styled};
use canopy_config::state::DISKS;
use canopy_setup::commands::fix::fix;
use canopy_setup::doctor::{FIXABLE, Finding, Level, findings};
use canopy_setup::examine::{self, Answering};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Find what is wrong on this machine, and how to fix it
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct DoctorArgs {
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Ask and apply each fix, or apply those with CODES
    #[arg(
        long,
        value_name = "CODES",
        num_args = 0..=1,
        require_equals = true,
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(FIXABLE),
        hide_possible_values = true,
        conflicts_with = "json"
    )]
    pub fix: Option<Vec<String>>,
    /// Do not ask
    #[arg(short, long, requires = "fix")]
    pub yes: bool,
    /// The fstab to look at
    #[arg(long, value_name = "FILE", default_value = "/etc/fstab")]
    pub fstab_file: PathBuf,
}

const NOTES: &str = "\
Looks at the kernel, limits, fstab, containers, the pools that should be
mounted, and every mounted pool with its branches. Changes nothing without
--fix. Without a terminal, --fix shows what it would do.

Exit status: 0 if nothing is wrong (there may be notes), 1 if there are warnings
or problems, 2 if the command line is wrong, 3 if nobody could be asked.

Examples:
  canopy doctor
  canopy doctor --fix=fstab-nofail,fstab-order
  canopy doctor --json | jq -r '.findings[] | select(.level != \"note\") | .fix'";

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'f> {
    findings: &'f [Finding],
}

pub fn run(args: &DoctorArgs) -> ExitCode {
    let done = look(args).and_then(|found| match &args.fix {
        Some(codes) => match fix(&found, codes, &args.fstab_file, args.yes)? {
            0 => Ok(found),
            _ => look(args),
        },
        None => Ok(found),
    });
    let found = match done {
        Ok(found) => found,
        Err(error) => {
            error.lines().iter().for_each(|line| eprint_line(line));
            return exit::of(&error);
        }
    };
    if args.json {
        print_json(&Report { findings: &found })
    } else {
        print_styled(&shown(&found))
    }
    ExitCode::from(u8::from(found.iter().any(|finding| finding.level > Level::Note)))
}

fn look(args: &DoctorArgs) -> Result<Vec<Finding>, Error> {
    let fstab_file = args.fstab_file.clone();
    let pools = status::look(&StatusArgs {
        mount: None,
        json: true,
        verbose: false,
        fstab_file,
        disks_file: DISKS.into(),
    })?
    .pools;
    let serving = pools.iter().filter(|pool| pool.state == State::Serving);
    let answering: Vec<Answering> = serving.map(answering).collect();
    let mut found = findings(&examine::facts(&args.fstab_file, &answering));
    found.extend(pools.iter().flat_map(warnings));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    Ok(found)
}

fn answering(pool: &PoolStatus) -> Answering {
    // A branch that does not answer well is not asked again: it would keep this process waiting.
    let well =
        |branch: &BranchStatus| matches!(branch.health, Health::Ok | Health::ReadOnly | Health::Errors);
    let fstype = |branch: &BranchStatus| {
        let facts = branch.facts.as_ref().filter(|_| well(branch))?;
        Some(facts.fstype.clone())
    };
    let branches = pool.branches.iter().map(|one| (one.path.to_path(), fstype(one)));
    Answering { mountpoint: pool.mountpoint.to_path(), branches: branches.collect() }
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
        text.push_str(&paragraph("    fix: ", &finding.fix));
    }
    let wrong = found.iter().filter(|finding| finding.level > Level::Note).count();
    text.push_str(&match wrong {
        0 => "nothing is wrong\n".to_owned(),
        1 => "1 thing is wrong\n".to_owned(),
        _ => format!("{wrong} things are wrong\n"),
    });
    text
}

/// Returns what `canopy status` warns of.
fn warnings(pool: &PoolStatus) -> impl Iterator<Item = Finding> {
    let place = pool.mountpoint.one_line();
    pool.warnings.iter().map(move |warning| {
        let word =
            WarningCode::ALL.iter().find(|(code, ..)| *code == warning.code).map_or("", |(_, word, _)| word);
        let (text, fix) = (format!("{place}: {}", warning.text), warning.fix.clone());
        Finding { code: word.into(), level: Level::Warning, text, fix, action: None }
    })
}
