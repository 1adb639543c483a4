//! `canopy cache`: which files have a copy on a fast disk, and which are to have one.

mod add;

use crate::columns::{Side, columns};
use crate::error::{Error, Result};
use crate::output::{print, print_json, shown};
use crate::pool_link::PoolLink;
use canopy_base::text::{bytes, date, os_error};
use canopy_control::OsText;
use canopy_control::messages::{Answer, Query};
use canopy_control::read_cache::CachedReport;
use canopy_policy::placement::Pattern;
use clap::{Args, ValueEnum};
use rustix::io::Errno;
use serde::Serialize;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// List, make or remove the copies that a read cache has
#[derive(Args, Clone, Debug)]
#[command(after_help = NOTES)]
pub struct CacheArgs {
    /// list, add or drop
    #[arg(value_enum, hide_possible_values = true)]
    pub action: Action,
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Only these paths or globs; - reads paths from standard input
    #[arg(value_name = "PATH")]
    pub paths: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    List,
    Add,
    Drop,
}

const NOTES: &str = "\
A PATH also stands for all below it. add copies files now, whatever the cache
waits for, in their order, and says which do not fit. What was added stays until
it was read or dropped; after that it goes as others do when room is needed.
drop removes copies, never files: of all, if no path is given. list shows the
path by which a file was read last, the opens that its copy has served since the
pool was mounted, and when it was opened last; + marks what was added and not
read since. Only administrators may ask.

Examples:
  canopy cache list media
  canopy cache add media 'films/a*' series/b/s01
  next-episodes | canopy cache add media -
  canopy cache drop media films";

#[derive(Serialize)]
struct ListReport {
    copies: Vec<CachedReport>,
}

#[derive(Serialize)]
struct DropReport {
    dropped: Dropped,
}

#[derive(Serialize)]
struct Dropped {
    files: u64,
    bytes: u64,
}

/// Runs the command.
pub fn cache(args: &CacheArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    let words = words(args, &pool)?;
    match args.action {
        Action::List => list(args, &pool, &words),
        Action::Add => add::add(args, &pool, &words),
        Action::Drop => drop_copies(args, &pool, &words),
    }
}

/// A path of the pool, or a glob.
pub(super) struct Word {
    /// Relative to the pool.
    text: String,
    /// It was read from standard input, and is no glob.
    literal: bool,
}

/// Returns what was asked for, relative to the pool.
fn words(args: &CacheArgs, pool: &PoolLink) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    for word in &args.paths {
        if word != "-" {
            words.push(Word { text: inside(word, pool), literal: false });
            continue;
        }
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.map_err(|why| Error::System { what: "cannot read standard input", why })?;
        let lines = text.lines().filter(|line| !line.is_empty());
        words.extend(lines.map(|line| Word { text: inside(line, pool), literal: true }));
    }
    Ok(words)
}

fn inside(word: &str, pool: &PoolLink) -> String {
    let inside = Path::new(word).strip_prefix(&pool.mountpoint).ok().and_then(Path::to_str);
    inside.unwrap_or(word).trim_matches('/').to_owned()
}

impl Word {
    /// Returns the patterns of what it means: itself, and all below it.
    fn patterns(&self) -> Result<Vec<Pattern>> {
        let quoted = |text: &str| {
            text.chars().fold(String::new(), |mut all, c| {
                all.extend("*?[]{}\\".contains(c).then_some('\\'));
                all.push(c);
                all
            })
        };
        let text = if self.literal { quoted(&self.text) } else { self.text.clone() };
        let globs = if text.is_empty() {
            vec!["**".to_owned()]
        } else {
            vec![format!("/{text}"), format!("/{text}/**")]
        };
        let wrong = |why| Error::Glob { glob: self.text.clone(), why };
        globs.iter().map(|glob| Pattern::new(glob).map_err(wrong)).collect()
    }
}

/// Returns whether a path is meant. Without words, all are.
fn is_meant(words: &[Word], asked: bool) -> Result<impl Fn(&[u8]) -> bool> {
    let patterns: Vec<Pattern> =
        words.iter().map(Word::patterns).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    Ok(move |path: &[u8]| !asked || patterns.iter().any(|pattern| pattern.matches(path)))
}

fn refused(args: &CacheArgs) -> impl Fn(Errno) -> Error {
    let pool = args.pool.clone();
    move |errno| {
        let why = match errno {
            Errno::NODATA => "its server is of another version (canopy upgrade)".to_owned(),
            Errno::ACCESS | Errno::PERM => "only administrators may ask what is cached (sudo)".to_owned(),
            other => os_error(other),
        };
        Error::Cache { pool: pool.clone(), why }
    }
}

/// Returns the copies that are meant, by their paths.
fn found(args: &CacheArgs, pool: &PoolLink, words: &[Word]) -> Result<Vec<CachedReport>> {
    let meant = is_meant(words, !args.paths.is_empty())?;
    let Answer::Cached(mut copies) = pool.daemon.ask(&Query::Cached).map_err(refused(args))? else {
        return Err(refused(args)(Errno::NODATA));
    };
    copies.retain(|copy| meant(copy.path.to_os_string().as_bytes()));
    copies.sort_by(|a, b| (&a.path, &a.cache).cmp(&(&b.path, &b.cache)));
    Ok(copies)
}

fn list(args: &CacheArgs, pool: &PoolLink, words: &[Word]) -> Result<()> {
    let copies = found(args, pool, words)?;
    if args.json {
        print_json(&ListReport { copies });
        return Ok(());
    }
    if copies.is_empty() {
        print(if args.paths.is_empty() { "Nothing is cached.\n" } else { "Nothing of that is cached.\n" });
        return Ok(());
    }
    let mut rows = vec![["SIZE", "HITS", "OPENED", "", "PATH"].map(str::to_owned).to_vec()];
    for copy in &copies {
        let opened = i64::try_from(copy.opened).unwrap_or(i64::MAX);
        let path = copy.path.to_path();
        rows.push(vec![
            bytes(copy.size),
            copy.hits.to_string(),
            if opened == 0 { "-".into() } else { date(opened) },
            if copy.added { "+".into() } else { String::new() },
            if path.as_os_str().is_empty() { "-".into() } else { shown(&path) },
        ]);
    }
    print(&columns(&[Side::Right, Side::Right, Side::Left, Side::Left, Side::Left], &rows));
    let used: u64 = copies.iter().map(|copy| copy.used).sum();
    print(&format!("{} files, {}\n", copies.len(), bytes(used)));
    Ok(())
}

/// So many paths are named in one question.
const AT_ONCE: usize = 256;

fn drop_copies(args: &CacheArgs, pool: &PoolLink, words: &[Word]) -> Result<()> {
    let mut dropped = Dropped { files: 0, bytes: 0 };
    let mut ask = |paths: Option<Vec<OsText>>| match pool.daemon.ask(&Query::CacheDrop(paths)) {
        Ok(Answer::CacheDropped(files, bytes)) => {
            dropped.files += files;
            dropped.bytes += bytes;
            Ok(())
        }
        Ok(_) => Err(refused(args)(Errno::NODATA)),
        Err(errno) => Err(refused(args)(errno)),
    };
    if args.paths.is_empty() {
        ask(None)?;
    } else {
        let paths: Vec<OsText> = found(args, pool, words)?.into_iter().map(|copy| copy.path).collect();
        paths.chunks(AT_ONCE).try_for_each(|some| ask(Some(some.to_vec())))?;
    }
    if args.json {
        print_json(&DropReport { dropped });
    } else {
        print(&format!("Dropped: {} files, {}\n", dropped.files, bytes(dropped.bytes)));
    }
    Ok(())
}
