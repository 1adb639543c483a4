//! `canopy cache add`: the daemon copies files, and is asked how far it is.

use super::{CacheArgs, Word, refused};
use crate::error::{Error, Result};
use crate::output::{complain, print, print_json, shown};
use crate::pool_link::PoolLink;
use crate::progress::Progress;
use crate::stop::Stop;
use canopy_base::text::{bytes, os_error};
use canopy_control::OsText;
use canopy_control::messages::{Answer, Query};
use canopy_control::read_cache::AddedReport;
use canopy_policy::placement::Pattern;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::{HashSet, VecDeque};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// So many files wait in the daemon, which copies one after the other.
const AT_ONCE: usize = 8;
/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Serialize, Default)]
struct AddReport {
    cached: Vec<Cached>,
    refused: Vec<Refused>,
}

#[derive(Serialize)]
struct Cached {
    path: OsText,
    size: u64,
}

#[derive(Serialize)]
struct Refused {
    path: OsText,
    why: String,
}

/// A file to copy, and how much of it is known to be copied.
struct Pending {
    path: PathBuf,
    done: u64,
}

pub(super) fn add(args: &CacheArgs, pool: &PoolLink, words: &[Word]) -> Result<()> {
    if words.is_empty() {
        return Err(Error::Cache { pool: args.pool.clone(), why: "say which files to add".into() });
    }
    let stop = Stop::on_signals()?;
    let mut report = AddReport::default();
    let (files, all) = files(pool, words, &mut report.refused, &stop)?;
    let progress = Progress::new(all, args.json);
    let mut waiting: VecDeque<Pending> = files.into_iter().map(|path| Pending { path, done: 0 }).collect();
    let count = (waiting.len() + report.refused.len()) as u64;
    while !waiting.is_empty() && !stop.is_set() {
        let now: Vec<OsText> =
            waiting.iter().take(AT_ONCE).map(|file| OsText::from(file.path.as_path())).collect();
        let answer = pool.daemon.ask(&Query::CacheAdd(now)).map_err(refused(args))?;
        let Answer::CacheAdded(states) = answer else { return Err(refused(args)(Errno::NODATA)) };
        let rest = waiting.split_off(states.len().min(waiting.len()));
        let mut stays = VecDeque::new();
        for (mut file, state) in waiting.into_iter().zip(states) {
            let path = OsText::from(file.path.as_path());
            let why = match state {
                AddedReport::Waits { .. } => {
                    stays.push_back(file);
                    continue;
                }
                AddedReport::Copying { done, .. } => {
                    progress.show(&file.path);
                    progress.inc(done.saturating_sub(file.done));
                    file.done = done.max(file.done);
                    stays.push_back(file);
                    continue;
                }
                AddedReport::Cached { size } => {
                    progress.inc(size.saturating_sub(file.done));
                    progress.tell(&shown(&file.path));
                    report.cached.push(Cached { path, size });
                    continue;
                }
                AddedReport::NoCache => "no cache is for this path".to_owned(),
                AddedReport::NoFile => "it is no file with data".to_owned(),
                AddedReport::Failed(number) => why(canopy_sys::errno::from_raw(number)),
            };
            progress.around(|| complain(&format!("{}: {why}", shown(&file.path))));
            report.refused.push(Refused { path, why });
        }
        waiting = stays.into_iter().chain(rest).collect();
        if !waiting.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
    progress.finish();
    let refused = report.refused.len() as u64;
    if args.json {
        print_json(&report);
    } else {
        let size = report.cached.iter().map(|file| file.size).sum();
        print(&format!("Cached: {} files, {}\n", report.cached.len(), bytes(size)));
    }
    stop.check()?;
    if refused == 0 { Ok(()) } else { Err(Error::NotCached { refused, all: count }) }
}

fn why(errno: Errno) -> String {
    match errno {
        Errno::NOSPC => "it does not fit into its cache (canopy cache drop makes room)".to_owned(),
        Errno::EXIST => "it is on the filesystem of its cache already".to_owned(),
        Errno::BUSY => "somebody writes it".to_owned(),
        Errno::NODEV | Errno::INTR => "its cache cannot be used (canopy status)".to_owned(),
        other => os_error(other),
    }
}

/// Returns the files that are meant, in the order of the words, and their size. Words that mean none are refused.
fn files(
    pool: &PoolLink,
    words: &[Word],
    refused: &mut Vec<Refused>,
    stop: &Stop,
) -> Result<(Vec<PathBuf>, u64)> {
    let mut walk = Walk { pool, stop, seen: HashSet::new(), found: Vec::new(), size: 0 };
    for word in words {
        let patterns = word.patterns()?;
        let start: PathBuf = if word.literal {
            word.text.clone().into()
        } else {
            // Up to the first component with a special character.
            Path::new(&word.text)
                .iter()
                .take_while(|part| !part.as_bytes().iter().any(|byte| b"*?[]{}\\".contains(byte)))
                .collect()
        };
        // The pool itself, which is empty, is no mistake.
        if !walk.look(&start, &patterns)? && !word.text.is_empty() {
            let (path, why) = (Path::new(&word.text), "no file of the pool");
            complain(&format!("{}: {why}", shown(path)));
            refused.push(Refused { path: OsText::from(path), why: why.to_owned() });
        }
    }
    Ok((walk.found, walk.size))
}

struct Walk<'a> {
    pool: &'a PoolLink,
    stop: &'a Stop,
    seen: HashSet<PathBuf>,
    found: Vec<PathBuf>,
    size: u64,
}

impl Walk<'_> {
    /// Returns whether a file there is meant.
    fn look(&mut self, path: &Path, patterns: &[Pattern]) -> Result<bool> {
        self.stop.check()?;
        let at = self.pool.mountpoint.join(path);
        let Ok(found) = at.symlink_metadata() else { return Ok(false) };
        let mut is_meant = false;
        if found.is_file() {
            is_meant = patterns.iter().any(|pattern| pattern.matches(path.as_os_str().as_bytes()));
            if is_meant && self.seen.insert(path.to_owned()) {
                self.size += found.len();
                self.found.push(path.to_owned());
            }
        } else if found.is_dir() {
            let failed = |why| Error::Path { path: at.clone(), why };
            let mut names: Vec<_> = std::fs::read_dir(&at)
                .map_err(failed)?
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<Result<_, _>>()
                .map_err(failed)?;
            names.sort();
            for name in &names {
                is_meant |= self.look(&path.join(name), patterns)?;
            }
        }
        Ok(is_meant)
    }
}
