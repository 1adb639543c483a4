//! `canopy copies`: which branches are owed changes, and what had to give way when they came back.

use crate::columns::{Side, columns};
use crate::error::{Error, Result};
use crate::output::{complain, print, print_json, report_missing, shown};
use crate::pool_link::{BranchLink, PoolLink};
use crate::survey::{FileCopy, look};
use canopy_base::text::{bytes, date, os_error};
use canopy_branch::fs::reserved::{ASIDE, is_reserved};
use canopy_branch::journal::{self, Said};
use canopy_branch::relocate::clone_dirs;
use canopy_control::OsText;
use clap::Args;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Dir, FileType, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Show what branches missed while away, and what they set aside
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct CopiesArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Put back a file that was set aside, by its listed path
    #[arg(long, value_name = "PATH")]
    pub put_back: Option<PathBuf>,
    /// Under this name of the pool, instead of its own
    #[arg(long = "as", value_name = "PATH", requires = "put_back")]
    pub name: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
Where rules set copies, a branch that comes back gets the changes that it has
missed. What has the name of something newer, or was changed on both sides, goes
to .canopy-aside in the root of the branch, until you remove it. THE POOL HAS
says what the pool shows under that name now: nothing, something alike (the same
type, size and time), or another. To keep both, put it back under another name;
to exchange them, rename the pool's first. Nothing is copied, overwritten or
deleted.

Examples:
  canopy copies /mnt/pool
  canopy copies /mnt/pool --put-back /disks/b/.canopy-aside/1764267611/d/f
  canopy copies pool --put-back /b/.canopy-aside/1764267611/f --as f.old";

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    /// Branches that are away, and that others have noted changes for.
    away: Vec<Away>,
    aside: Vec<Aside>,
}

#[derive(Serialize)]
struct Away {
    /// How many changes of names it has missed; null if they were too many to be kept.
    changes: Option<usize>,
    /// When the first of them was made, in seconds since 1970; null if there is none.
    first: Option<i64>,
}

#[derive(Serialize)]
struct Aside {
    branch: OsText,
    /// In the pool, relative to its root.
    path: OsText,
    /// Where it is kept.
    kept: OsText,
    /// When the change was made for which it gave way, in seconds since 1970.
    changed: i64,
    size: u64,
    mtime: i64,
    /// `nothing`, `alike` or `another`.
    pool_has: &'static str,
}

/// Runs the command.
pub fn copies(args: &CopiesArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    if let Some(kept) = &args.put_back {
        let path = put_back(&pool, kept, args.name.as_deref())?;
        if args.json {
            print_json(&serde_json::json!({ "path": OsText::from(path.as_path()) }));
        } else {
            print(&format!("{} is back\n", shown(&path)));
        }
        return Ok(());
    }
    report_missing(&pool);
    let (mut aside, mut failed) = (Vec::new(), 0);
    for branch in &pool.branches {
        if let Err((path, errno)) = collect(&pool, branch, Path::new(OsStr::from_bytes(ASIDE)), &mut aside) {
            complain(&format!("{}: {}", shown(&path), os_error(errno)));
            failed += 1;
        }
    }
    aside.sort_by_key(|file| file.kept.to_path());
    let report = Report { away: away(&pool), aside };
    if args.json {
        print_json(&report);
    } else {
        print(&render(&report));
    }
    match failed {
        0 => Ok(()),
        failed => Err(Error::Incomplete { failed, all: pool.branches.len() as u64 }),
    }
}

/// Returns what the journals of the branches that are there say of others.
fn away(pool: &PoolLink) -> Vec<Away> {
    let roots = pool.branches.iter().filter_map(|branch| branch.root().ok());
    let said: Vec<Said> = roots.filter_map(journal::look).collect();
    let present: BTreeSet<_> = said.iter().map(|said| said.id).collect();
    let ids: BTreeSet<_> = said.iter().flat_map(|said| said.away.keys().copied()).collect();
    let of = |id: &[u8; 16]| {
        let (mut missed, mut lost) = (BTreeSet::new(), false);
        for said in &said {
            let Some(since) = said.away.get(id) else { continue };
            match since {
                None => lost = true,
                Some(since) => missed.extend(said.changes.iter().copied().filter(|at| at > since)),
            }
        }
        let first = missed.first().map(|at| seconds(*at));
        Away { changes: (!lost).then_some(missed.len()), first }
    };
    ids.difference(&present).map(of).collect()
}

/// The number of a change is its time.
fn seconds(change: u64) -> i64 {
    i64::try_from(change / 1_000_000_000).unwrap_or_default()
}

/// Adds the files below a directory of a branch. Errors: where, and why.
fn collect(
    pool: &PoolLink,
    branch: &BranchLink,
    dir: &Path,
    into: &mut Vec<Aside>,
) -> Result<(), (PathBuf, Errno)> {
    let failed = |errno| (branch.path.join(dir), errno);
    let listed = match branch.dir(dir) {
        Err(Errno::NOENT | Errno::NODEV) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
        Ok(fd) => Dir::read_from(&fd).map_err(failed)?,
    };
    for entry in listed {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let path = dir.join(OsStr::from_bytes(name));
        let stat = branch.stat(&path).map_err(|errno| (branch.path.join(&path), errno))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            collect(pool, branch, &path, into)?;
            continue;
        }
        let Some((change, inside)) = parts(&path) else { continue };
        let file = FileCopy { branch: 0, stat };
        let (there, _) = look(pool, &inside);
        let alike = |it: &FileCopy| (it.kind(), it.size(), it.modified());
        into.push(Aside {
            branch: OsText::from(branch.path.as_path()),
            path: OsText::from(inside.as_path()),
            kept: OsText::from(branch.path.join(&path).as_path()),
            changed: seconds(change),
            size: file.size(),
            mtime: stat.st_mtime,
            pool_has: match there.first() {
                None => "nothing",
                Some(first) if alike(first) == alike(&file) => "alike",
                Some(_) => "another",
            },
        });
    }
    Ok(())
}

/// Returns the number of the change, and the path in the pool, of a path that is relative to a branch.
fn parts(path: &Path) -> Option<(u64, PathBuf)> {
    let mut names = path.strip_prefix(OsStr::from_bytes(ASIDE)).ok()?.iter();
    let change = names.next()?.to_str()?.parse().ok()?;
    let inside: PathBuf = names.collect();
    (!inside.as_os_str().is_empty()).then_some((change, inside))
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    for Away { changes, first } in &report.away {
        let first = first.map_or_else(String::new, |first| format!(" since {}", date(first)));
        text += &match changes {
            None => "A branch that is away has missed more than was kept; removed names come back with it.\n"
                .to_owned(),
            Some(1) => format!("A branch that is away has missed 1 change{first}.\n"),
            Some(changes) => format!("A branch that is away has missed {changes} changes{first}.\n"),
        };
    }
    if report.aside.is_empty() {
        return text + "Nothing is set aside.\n";
    }
    let mut rows = vec![["CHANGED", "SIZE", "THE POOL HAS", "PATH", "KEPT AS"].map(str::to_owned).to_vec()];
    for file in &report.aside {
        rows.push(vec![
            date(file.changed),
            bytes(file.size),
            file.pool_has.into(),
            shown(&file.path.to_path()),
            shown(&file.kept.to_path()),
        ]);
    }
    text + &columns(&[Side::Left, Side::Right, Side::Left, Side::Left, Side::Left], &rows)
}

/// Gives a file that was set aside a name in the pool again, on its branch. Returns it.
///
/// Errors: unless all branches can be looked at, and none holds the name.
fn put_back(pool: &PoolLink, kept: &Path, name: Option<&Path>) -> Result<PathBuf> {
    let refused = |why: &str| Error::PutBack { path: kept.to_owned(), why: why.into() };
    let failed = |errno: Errno| Error::PutBack { path: kept.to_owned(), why: os_error(errno) };
    let of_branch =
        |branch: &&BranchLink| kept.strip_prefix(&branch.path).is_ok_and(|path| parts(path).is_some());
    let is_plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
    let branch = pool.branches.iter().find(of_branch);
    let branch = branch.ok_or_else(|| refused("it is not in .canopy-aside of a branch"))?;
    let from = kept.strip_prefix(&branch.path).unwrap_or(kept);
    if !is_plain(from) {
        return Err(refused("it is not in .canopy-aside of a branch"));
    }
    let inside = match name {
        None => parts(from).map(|(_, inside)| inside).unwrap_or_default(),
        Some(name) => name.strip_prefix(&pool.mountpoint).unwrap_or(name).to_owned(),
    };
    let (Some(last), true) = (inside.file_name(), is_plain(&inside)) else {
        return Err(refused("its new name is not a path of the pool"));
    };
    if inside.iter().any(|name| is_reserved(name.as_bytes())) {
        return Err(refused("the pool shows no file under its new name"));
    }
    if pool.missing().next().is_some() {
        return Err(refused("a branch that cannot be looked at may hold the name (canopy status)"));
    }
    if !branch.gives() {
        return Err(refused("its branch cannot be changed"));
    }
    let is_taken = |besides: Option<&Path>| {
        let mut others = pool.branches.iter().filter(|other| besides != Some(&other.path));
        others.any(|other| !matches!(other.stat(&inside), Err(Errno::NOENT)))
    };
    if is_taken(None) {
        return Err(refused("the pool has something under that name (--as gives it another)"));
    }
    let above = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
    let source = branch.dir(&above(from)).map_err(failed)?;
    let target = directory(pool, branch, &above(&inside)).map_err(failed)?;
    let old = from.file_name().unwrap_or_default();
    let rename = |one: BorrowedFd<'_>, name: &OsStr, other: BorrowedFd<'_>, new: &OsStr| {
        rustix::fs::renameat_with(one, name, other, new, RenameFlags::NOREPLACE)
    };
    rename(source.as_fd(), old, target.as_fd(), last).map_err(failed)?;
    if is_taken(Some(&branch.path)) {
        // A client was faster, on another branch.
        rename(target.as_fd(), last, source.as_fd(), old).map_err(failed)?;
        return Err(refused("the pool has something under that name by now"));
    }
    rustix::fs::fsync(&target).map_err(failed)?;
    Ok(pool.mountpoint.join(inside))
}

/// Opens a directory of a branch. What is missing of it is made as on the branch that has it.
fn directory(pool: &PoolLink, branch: &BranchLink, path: &Path) -> Result<OwnedFd, Errno> {
    match branch.dir(path) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let other = pool.branches.iter().find(|other| other.stat(path).is_ok()).ok_or(Errno::NOENT)?;
    clone_dirs(other.root()?, branch.root()?, path.as_os_str().as_bytes(), &|_, _| true)?;
    branch.dir(path)
}
