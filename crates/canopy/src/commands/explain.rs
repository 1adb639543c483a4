//! `canopy explain`: shows which branch an operation would use now, and why not the others.
//!
//! The running pool answers, through a key of the directory, with the code that makes the choice. This command knows
//! nothing about policies.

use crate::control_client::ControlClient;
use crate::error::Error;
use crate::mount_lookup;
use crate::terminal::{self, BOLD, bytes, paragraph, styled, table};
use canopy_config::options::closest;
use canopy_control::{BranchVerdict, EXPLAIN, ExplainReport, LONGEST_KEY, OsText, Verdict};
use canopy_policy::Category;
use canopy_pool::config::Func;
use canopy_sys::mountinfo::MountEntry;
use clap::Args;
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Show which branch an operation would use now, and why
#[derive(Args, Debug)]
#[command(after_help = NOTES, allow_missing_positional = true)]
pub struct ExplainArgs {
    /// A function of func.*: create (default), mkdir, unlink, getattr, ...
    #[arg(value_name = "OP")]
    pub op: Option<String>,
    /// A path on a pool; for create and the like it need not exist
    pub path: PathBuf,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
The running pool answers with the code that makes the choice. Nothing changes.

Examples:
  canopy explain /pool/films/new.mkv
  canopy explain unlink /pool/old";

/// The output of `--json`: the question and the pool's answer.
#[derive(Debug, Serialize)]
struct Explained {
    pool: OsText,
    path: OsText,
    #[serde(flatten)]
    report: ExplainReport,
}

pub fn run(args: &ExplainArgs) -> Result<(), Error> {
    let func = asked(args.op.as_deref(), &args.path)?;
    let path = resolve_parent(&args.path)?;
    let pool = mount_lookup::mount_of(&path)?.filter(MountEntry::is_pool);
    let pool = pool.ok_or_else(|| Error::OnNoPool(path.clone()))?;
    let (node, key) = node_and_key(func, &path, &pool.mountpoint);
    let report = ControlClient::at(&pool.mountpoint)?.explain(&node, &key)?;
    let explained = Explained {
        pool: OsText::from(pool.mountpoint.as_path()),
        path: OsText::from(path.as_path()),
        report,
    };
    if args.json {
        terminal::print_json(&explained);
    } else {
        terminal::print_styled(&show(&explained));
    }
    Ok(())
}

/// Returns the function that is asked about. A lone word of func.* lacks its path, unless it is written as one (`./create`).
fn asked(op: Option<&str>, path: &Path) -> Result<Func, Error> {
    let lacks_path = op.is_none() && path.to_str().is_some_and(|word| func(word).is_ok());
    if lacks_path { Err(Error::NoPathToExplain(path.to_owned())) } else { func(op.unwrap_or("create")) }
}

fn func(word: &str) -> Result<Func, Error> {
    let bare = word.strip_prefix("func.").unwrap_or(word);
    bare.parse().map_err(|_| Error::NoFunction {
        word: word.to_owned(),
        known: Func::WORDS.join(", "),
        nearest: closest(bare, Func::WORDS.iter().map(|&known| known.to_owned())),
    })
}

/// Resolves all but the last component of a path, which may be missing or a symlink.
fn resolve_parent(path: &Path) -> Result<PathBuf, Error> {
    let failed = |why: io::Error| mount_lookup::lookup_error(path, why);
    let absolute = std::path::absolute(path).map_err(failed)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = parent.canonicalize().map_err(failed)?;
            if fs::metadata(&parent).map_err(failed)?.is_dir() {
                Ok(parent.join(name))
            } else {
                Err(failed(io::ErrorKind::NotADirectory.into()))
            }
        }
        _ => absolute.canonicalize().map_err(failed),
    }
}

/// Returns the file or directory to ask, and the key. This is usually the directory, with the name in the key, because
/// the name may be missing, and symlinks and devices have no user attributes.
fn node_and_key(func: Func, path: &Path, mountpoint: &Path) -> (PathBuf, String) {
    let bare = format!("{EXPLAIN}{func}");
    let creates = func.category() == Category::Create;
    let (Some(dir), Some(name), true) = (path.parent(), path.file_name(), path != mountpoint) else {
        return (path.to_owned(), bare);
    };
    match name.to_str().map(|name| format!("{bare}/{name}")).filter(|key| key.len() <= LONGEST_KEY) {
        Some(key) => (dir.to_owned(), key),
        // For create policies only the directory counts.
        None if creates => (dir.to_owned(), bare),
        None => (path.to_owned(), bare),
    }
}

fn show(explained: &Explained) -> String {
    let report = &explained.report;
    let path = explained.path.one_line();
    let mut text = format!("{}\n", styled(BOLD, &format!("{} {path}", report.func)));
    let chosen: Vec<String> = report.chosen.iter().map(OsText::one_line).collect();
    let answer = match (&report.error, report.by_chance) {
        (Some(error), _) => format!("fails with {}: {}", error.name, error.why),
        (None, true) => format!("chance decides; this time it chose {}", chosen.join(", ")),
        (None, false) => format!("acts on {}", chosen.join(", ")),
    };
    text.push_str(&paragraph("  now      ", &answer));
    text.push_str(&paragraph("  policy   ", &format!("{} (func.{})", report.policy, report.func)));
    if let Some(placement) = &report.placement {
        text.push_str(&paragraph("  among    ", &placement.to_string()));
    }
    if report.looked_at.to_path() != explained.inside() {
        let pool = explained.pool.to_path();
        let inside = report.looked_at.to_path();
        let at = if inside.as_os_str().is_empty() { pool } else { pool.join(inside) };
        text.push_str(&paragraph("  looks at ", &OsText::from(at.as_path()).one_line()));
    }
    text.push('\n');
    let rows = report.branches.iter().map(|branch| row(branch, report)).collect();
    text.push_str(&table(&["BRANCH", "MODE", "FREE", "VERDICT"], rows, 2, &[2]));
    for note in notes(report) {
        text.push('\n');
        text.push_str(&paragraph("  note: ", &note));
    }
    text
}

impl Explained {
    /// Returns the path relative to the root of the pool.
    fn inside(&self) -> PathBuf {
        let path = self.path.to_path();
        path.strip_prefix(self.pool.to_path()).map(Path::to_owned).unwrap_or_default()
    }
}

fn row(branch: &BranchVerdict, report: &ExplainReport) -> Vec<String> {
    let free = branch.available.map_or_else(|| "-".into(), bytes);
    vec![branch.path.one_line(), branch.mode.clone(), free, verdict(branch, report)]
}

fn verdict(branch: &BranchVerdict, report: &ExplainReport) -> String {
    match branch.verdict {
        Verdict::Chosen => "chosen".into(),
        Verdict::Candidate => {
            let this_time = if report.chosen.contains(&branch.path) { ", chosen this time" } else { "" };
            format!("{} likely{this_time}", percent(branch.chance.unwrap_or_default()))
        }
        Verdict::Lost if report.by_chance => "no share: nothing is free".into(),
        Verdict::Lost if report.error.is_some() => "could be chosen".into(),
        Verdict::Lost => format!("could be chosen; {} prefers another", report.policy),
        Verdict::Outside => report.placement.as_ref().map_or_else(String::new, |it| it.why_not(&branch.path)),
        Verdict::Mode if branch.mode == "NC" => "refused: NC takes nothing new".into(),
        // Files below a followed symlink are created on the branch of its target.
        Verdict::Mode if branch.mode == "RW" => {
            "refused: the followed symlink leads to another branch".into()
        }
        Verdict::Mode => "refused: RO is read-only".into(),
        Verdict::Unwell => "refused: it is failing (see canopy status)".into(),
        Verdict::Absent => "does not have it".into(),
        Verdict::SpaceUnknown => "refused: its free space cannot be read".into(),
        Verdict::ReadOnly => "refused: its filesystem is mounted read-only".into(),
        Verdict::BelowMinFree => {
            format!("refused: less than its minfreespace of {}", bytes(branch.min_free))
        }
        Verdict::Asleep => "its disk may sleep, and another one is awake (prefer-awake)".into(),
        Verdict::NoInodes => "refused: its filesystem has no free inode (df -i)".into(),
    }
}

fn percent(chance: f64) -> String {
    let percent = chance * 100.0;
    match percent {
        _ if percent >= 9.95 => format!("{percent:.0} %"),
        _ if percent >= 0.1 => format!("{percent:.1} %"),
        _ => "hardly".into(),
    }
}

fn notes(report: &ExplainReport) -> Vec<String> {
    let mut notes = Vec::new();
    if report.preserves_paths && matches!(report.func.as_str(), "rename" | "link") {
        notes.push(format!(
            "the create policy preserves paths: where a chosen branch lacks the directory of the new name, {0} fails \
             with EXDEV unless {0}-exdev says otherwise",
            report.func
        ));
    }
    let read_only = report.error.as_ref().is_some_and(|error| error.name == "EROFS");
    if read_only && matches!(report.func.as_str(), "unlink" | "rmdir" | "rename") {
        notes.push("it fails because of the copy on a read-only branch, which would reappear".into());
    }
    if report.error.as_ref().is_some_and(|error| error.name == "EEXIST") {
        notes.push("an existing file is opened, not created: see canopy explain open".into());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_asked_about_a_name() {
        let ask = |func, path: &str| {
            let (node, key) = node_and_key(func, Path::new(path), Path::new("/pool"));
            (node.display().to_string(), key)
        };
        let answer = |node: &str, key: &str| (node.to_owned(), key.to_owned());
        assert_eq!(ask(Func::Create, "/pool/a/b"), answer("/pool/a", "canopy.explain.create/b"));
        assert_eq!(ask(Func::Getattr, "/pool"), answer("/pool", "canopy.explain.getattr"));
        let long = "n".repeat(240);
        assert_eq!(ask(Func::Mkdir, &format!("/pool/{long}")), answer("/pool", "canopy.explain.mkdir"));
        let path = format!("/pool/{long}");
        assert_eq!(ask(Func::Unlink, &path), answer(&path, "canopy.explain.unlink"));
    }

    #[test]
    fn functions_are_found_by_name() {
        assert_eq!(func("func.mkdir").unwrap(), Func::Mkdir);
        let line = func("creat").unwrap_err().line();
        assert!(
            line.contains("'creat' is not a function") && line.contains("did you mean 'create'?"),
            "{line}"
        );
    }

    #[test]
    fn without_a_function_it_is_create() {
        let ask = |op, path| asked(op, Path::new(path)).map_err(|error| error.line());
        assert_eq!([ask(None, "./create"), ask(Some("unlink"), "a")], [Ok(Func::Create), Ok(Func::Unlink)]);
        assert_eq!(
            ask(None, "create"),
            Err("no path given: canopy explain create PATH (canopy explain --help)".into())
        );
    }

    #[test]
    fn chances_are_percentages() {
        assert_eq!([percent(0.5), percent(0.0123), percent(0.000_01)], ["50 %", "1.2 %", "hardly"]);
    }
}
