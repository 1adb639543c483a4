//! `canopy explain`: which branch an operation would act on now, and why none of the others.
//!
//! The running pool is asked, through a key of the directory: it answers by the code that chooses, with the
//! branches and options it has now. Nothing of a policy is known here.

use crate::control_client::ControlClient;
use crate::error::Error;
use crate::mount_lookup;
use crate::terminal::{self, BOLD, bytes, paragraph, styled, table};
use canopy_config::control_api::{BranchVerdict, EXPLAIN, ExplainReport, LONGEST_KEY, OsText, Verdict};
use canopy_config::options::closest;
use canopy_pool::config::Func;
use canopy_pool::policy::Category;
use canopy_sys::mountinfo::MountEntry;
use clap::Args;
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Show which branch an operation would act on now, and why
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct ExplainArgs {
    /// create, mkdir, unlink, rename, getattr, ...: a function of func.*
    #[arg(value_name = "OP")]
    pub op: String,
    /// A path on a pool; for create and its like one that need not exist
    pub path: PathBuf,
    /// For programs
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
The running pool answers, by the code that makes the choice; nothing is changed.

Examples:
  canopy explain create /pool/films/new.mkv
  canopy explain unlink /pool/old";

/// What `--json` gives: the pool's answer, and what was asked.
#[derive(Debug, Serialize)]
struct Explained {
    pool: OsText,
    path: OsText,
    #[serde(flatten)]
    told: ExplainReport,
}

pub fn run(args: &ExplainArgs) -> Result<(), Error> {
    let func = func(&args.op)?;
    let path = resolve_parent(&args.path)?;
    let pool = mount_lookup::mount_of(&path)?.filter(MountEntry::is_pool);
    let pool = pool.ok_or_else(|| Error::OnNoPool(path.clone()))?;
    let live = ControlClient::at(&pool.mountpoint)?;
    let (node, key) = node_and_key(func, &path, &pool.mountpoint);
    let told = live.explain(&node, &key)?;
    let explained =
        Explained { pool: OsText::from(pool.mountpoint.as_path()), path: OsText::from(path.as_path()), told };
    if args.json {
        terminal::print_json(&explained);
    } else {
        terminal::print_styled(&show(&explained));
    }
    Ok(())
}

fn func(word: &str) -> Result<Func, Error> {
    let bare = word.strip_prefix("func.").unwrap_or(word);
    bare.parse().map_err(|_| Error::NoFunction {
        word: word.to_owned(),
        known: Func::WORDS.join(", "),
        nearest: closest(bare, Func::WORDS.iter().map(|&known| known.to_owned())),
    })
}

/// Where the path leads, its last component apart: that may be missing, or a symlink that is itself meant.
fn resolve_parent(path: &Path) -> Result<PathBuf, Error> {
    let failed = |why: io::Error| mount_lookup::lookup_error(path, why);
    let absolute = std::path::absolute(path).map_err(failed)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = parent.canonicalize().map_err(failed)?;
            match fs::metadata(&parent).map_err(failed)?.is_dir() {
                true => Ok(parent.join(name)),
                false => Err(failed(io::ErrorKind::NotADirectory.into())),
            }
        }
        _ => absolute.canonicalize().map_err(failed),
    }
}

/// The node to ask, and the key. As a rule that is the directory, with the name in the key: the name may be
/// missing, and the kernel lets no such attribute be asked of symlinks and devices.
fn node_and_key(func: Func, path: &Path, mountpoint: &Path) -> (PathBuf, String) {
    let bare = format!("{EXPLAIN}{func}");
    let creates = func.category() == Category::Create;
    let (Some(dir), Some(name), true) = (path.parent(), path.file_name(), path != mountpoint) else {
        return (path.to_owned(), bare);
    };
    match name.to_str().map(|name| format!("{bare}/{name}")).filter(|key| key.len() <= LONGEST_KEY) {
        Some(key) => (dir.to_owned(), key),
        // Where something is made only the directory counts.
        None if creates => (dir.to_owned(), bare),
        None => (path.to_owned(), bare),
    }
}

fn show(explained: &Explained) -> String {
    let told = &explained.told;
    let path = explained.path.one_line();
    let mut text = format!("{}\n", styled(BOLD, &format!("{} {path}", told.func)));
    let chosen: Vec<String> = told.chosen.iter().map(OsText::one_line).collect();
    let answer = match (&told.error, told.by_chance) {
        (Some(error), _) => format!("fails with {}: {}", error.name, error.why),
        (None, true) => format!("chance decides; this time it would be {}", chosen.join(", ")),
        (None, false) => format!("acts on {}", chosen.join(", ")),
    };
    text.push_str(&paragraph("  now      ", &answer));
    text.push_str(&paragraph("  policy   ", &format!("{} (func.{})", told.policy, told.func)));
    if told.looked_at.to_path() != explained.inside() {
        let pool = explained.pool.to_path();
        let inside = told.looked_at.to_path();
        let at = if inside.as_os_str().is_empty() { pool } else { pool.join(inside) };
        text.push_str(&paragraph("  looks at ", &OsText::from(at.as_path()).one_line()));
    }
    text.push('\n');
    let rows = told.branches.iter().map(|branch| row(branch, told)).collect();
    text.push_str(&table(&["BRANCH", "MODE", "FREE", "VERDICT"], rows, 2, &[2]));
    for note in notes(told) {
        text.push('\n');
        text.push_str(&paragraph("  note: ", &note));
    }
    text
}

impl Explained {
    /// The path within the pool.
    fn inside(&self) -> PathBuf {
        let path = self.path.to_path();
        path.strip_prefix(self.pool.to_path()).map(Path::to_owned).unwrap_or_default()
    }
}

fn row(branch: &BranchVerdict, told: &ExplainReport) -> Vec<String> {
    let free = branch.available.map_or_else(|| "-".into(), bytes);
    vec![branch.path.one_line(), branch.mode.clone(), free, verdict(branch, told)]
}

fn verdict(branch: &BranchVerdict, told: &ExplainReport) -> String {
    match branch.verdict {
        Verdict::Chosen => "chosen".into(),
        Verdict::Candidate => {
            let this_time = if told.chosen.contains(&branch.path) { ", chosen this time" } else { "" };
            format!("{} likely{this_time}", percent(branch.chance.unwrap_or_default()))
        }
        Verdict::Lost if told.by_chance => "no share: nothing is free".into(),
        Verdict::Lost if told.error.is_some() => "could be chosen".into(),
        Verdict::Lost => format!("could be chosen; {} prefers another", told.policy),
        Verdict::Mode if branch.mode == "NC" => "refused: NC takes nothing new".into(),
        // What is made below a followed symlink is made where that leads.
        Verdict::Mode if branch.mode == "RW" => "refused: not below the symlink that is followed".into(),
        Verdict::Mode => "refused: RO is not written to".into(),
        Verdict::Unwell => "refused: it is unwell (see canopy status)".into(),
        Verdict::Absent => "does not hold it".into(),
        Verdict::SpaceUnknown => "refused: its free space cannot be read".into(),
        Verdict::ReadOnly => "refused: its filesystem is mounted read-only".into(),
        Verdict::BelowMinFree => {
            format!("refused: less than its minfreespace of {}", bytes(branch.min_free))
        }
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

fn notes(told: &ExplainReport) -> Vec<String> {
    let mut notes = Vec::new();
    if told.preserves_paths && matches!(told.func.as_str(), "rename" | "link") {
        notes.push(format!(
            "the create policy preserves paths: where a chosen branch lacks the directory of the new name, {0} fails \
             with EXDEV unless {0}-exdev says otherwise",
            told.func
        ));
    }
    let read_only = told.error.as_ref().is_some_and(|error| error.name == "EROFS");
    if read_only && matches!(told.func.as_str(), "unlink" | "rmdir" | "rename") {
        notes.push(
            "a copy on a branch that cannot be written to makes it fail, for it would come back".into(),
        );
    }
    if told.error.as_ref().is_some_and(|error| error.name == "EEXIST") {
        notes.push("what is there already is opened, not made: see canopy explain open".into());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_and_what() {
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
    fn functions_by_name() {
        assert_eq!(func("func.mkdir").unwrap(), Func::Mkdir);
        let line = func("creat").unwrap_err().line();
        assert!(line.contains("'creat' is no function") && line.contains("did you mean 'create'?"), "{line}");
    }

    #[test]
    fn chances_are_percentages() {
        assert_eq!([percent(0.5), percent(0.0123), percent(0.000_01)], ["50 %", "1.2 %", "hardly"]);
    }
}
