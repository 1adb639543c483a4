//! `canopy dedup --link`: equal files on one branch share their space, by reflinks or as hard links of one file.

mod find;

use super::dedup::{DedupArgs, Link};
use crate::consent::{Alone, Consent};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::held::aside;
use crate::held::{HeldCopy, Lease, NotTouched};
use crate::output::{print, print_json, report_missing, shown};
use crate::pace::Pace;
use crate::pool_link::PoolLink;
use crate::progress::Progress;
use crate::relocate::{FILES, Stays, Sum, adds_up, apart};
use crate::stop::Stop;
use crate::survey::FileCopy;
use canopy_base::text::bytes;
use canopy_control::OsText;
use find::{Item, Reader};
use rustix::io::Errno;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Report {
    command: &'static str,
    pool: OsText,
    /// `reflink` or `hard`.
    link: &'static str,
    dry_run: bool,
    /// A signal has ended the command.
    stopped: bool,
    /// Files that are equal to another one of their branch: the sum of the four that follow.
    equal: Sum,
    /// What already shares its space.
    already: Sum,
    /// In a dry run, what would share its space.
    linked: Sum,
    stayed: Sum,
    not_begun: Sum,
    files: Vec<FileReport>,
    stays: Vec<Stays>,
}

#[derive(Serialize)]
struct FileReport {
    path: OsText,
    branch: OsText,
    /// The file whose space it shares.
    with: OsText,
    bytes: u64,
}

/// What has become of a file.
enum Done {
    Linked,
    Already,
}

struct Work<'w> {
    pool: &'w PoolLink,
    args: &'w DedupArgs,
    /// Whether files are linked, or only shown.
    writes: bool,
    link: Link,
    stop: &'w Stop,
    reader: Reader<'w>,
    report: Report,
    stays: Vec<Stays>,
}

/// Runs the command.
pub(super) fn share(args: &DedupArgs, link: Link) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    let consent = Consent::of(args.consent, Alone::Shows, &args.manners);
    if pool.is_read_only && matches!(consent, Consent::Given | Consent::Asked) {
        return Err(Error::PoolReadOnly(pool.mountpoint.clone()));
    }
    report_missing(&pool);
    let manners = &args.manners;
    let pace = Pace::of(manners);
    let (stop, filter) = (Stop::on_signals()?, Filter::new(&manners.filter)?);
    let starts = if args.paths.is_empty() { vec![PathBuf::new()] } else { apart(&pool, &args.paths)? };
    let looked = find::look(&pool, &starts, &filter, &stop)?;
    let all = looked.groups.iter().flatten().map(|item| item.copy.size()).sum();
    let files = looked.groups.iter().flatten().count();
    if consent == Consent::Asked && files > 0 {
        print(&format!("files of the same size: {files} ({})\n", bytes(all)));
    }
    let question = "Compare them, and let equal ones share their space?";
    let writes = consent.agrees(question, files == 0, &stop)?;
    let progress = Progress::new(all, manners.quiet || manners.json);
    let report = Report {
        command: "dedup",
        pool: OsText::from(pool.mountpoint.as_path()),
        link: link.word(),
        dry_run: !writes,
        stopped: false,
        equal: Sum::default(),
        already: Sum::default(),
        linked: Sum::default(),
        stayed: Sum::default(),
        not_begun: Sum::default(),
        files: Vec::new(),
        stays: Vec::new(),
    };
    let reader = Reader { pool: &pool, stop: &stop, pace, progress };
    let mut work =
        Work { pool: &pool, args, writes, link, stop: &stop, reader, report, stays: looked.failed };
    work.take_up(&looked.dirs);
    for group in looked.groups {
        match work.reader.divide(group) {
            Ok((contents, failed)) => {
                work.stays.extend(failed);
                contents.into_iter().for_each(|items| work.join(items));
            }
            Err(Error::Stopped) => break,
            Err(error) => return Err(error),
        }
    }
    work.reader.progress.finish();
    let is_empty = work.report.linked.files == 0;
    work.finish().and_then(|()| consent.only_shown(is_empty))
}

impl Work<'_> {
    /// Removes the names that a killed command has left in these directories.
    fn take_up(&mut self, dirs: &[PathBuf]) {
        if !self.writes {
            return;
        }
        for dir in dirs {
            for aside in aside::in_dir(self.pool, dir) {
                let branch = &self.pool.branches[aside.copy.branch];
                let done = match aside.judge() {
                    Err(why) => Err(why.to_owned()),
                    Ok(_) if !branch.gives() => Err("its branch is RO, gone or failing".into()),
                    Ok((found, _)) => {
                        aside.settle(branch, &found).map_err(|errno| match NotTouched::from(errno) {
                            NotTouched::Because(why) => why,
                            NotTouched::Stopped => "stopped".into(),
                        })
                    }
                };
                if let Err(why) = done {
                    self.stays.push(Stays { path: branch.path.join(aside.path()), why });
                }
            }
        }
    }

    /// Lets files of one content share their space, as far as nothing is in the way.
    fn join(&mut self, items: Vec<Item>) {
        // The one that most names stand for stays: its links cannot be moved. Of equal ones, the first.
        let Some(first) =
            (0..items.len()).min_by_key(|index| std::cmp::Reverse(items[*index].copy.stat.st_nlink))
        else {
            return;
        };
        let with = items[first].clone();
        for item in items.iter().enumerate().filter(|(index, _)| *index != first).map(|(_, item)| item) {
            let used = item.copy.used();
            self.report.equal.add(used);
            let done = if self.stop.is_set() { Err(NotTouched::Stopped) } else { self.pair(&with, item) };
            match done {
                Ok(Done::Linked) => {
                    self.report.linked.add(used);
                    self.tell(&with, item);
                }
                Ok(Done::Already) => self.report.already.add(used),
                Err(NotTouched::Stopped) => self.report.not_begun.add(used),
                Err(NotTouched::Because(why)) => {
                    self.report.stayed.add(used);
                    let path = self.pool.branches[item.copy.branch].path.join(&item.path);
                    self.stays.push(Stays { path, why });
                }
            }
        }
    }

    fn pair(&mut self, with: &Item, item: &Item) -> Result<Done, NotTouched> {
        let branch = &self.pool.branches[item.copy.branch];
        // Another link of it may have been made since.
        let now = FileCopy { branch: with.copy.branch, stat: branch.stat(&with.path)? };
        let is_same = now.key() == with.copy.key() && now.size() == item.copy.size();
        if !is_same || now.modified() != with.copy.modified() {
            return Err(NotTouched::from(Errno::STALE));
        }
        let [shared, own] = match (self.writes, self.link) {
            (false, _) => [Lease::None; 2],
            (true, Link::Reflink) => [Lease::Unwritten; 2],
            (true, Link::Hard) => [Lease::Unwritten, Lease::Alone],
        };
        if self.link == Link::Hard && item.copy.stat.st_nlink > 1 {
            return Err(NotTouched::Because("it has several hard links".into()));
        }
        let with = HeldCopy::open(branch, &with.path, &now, shared)?;
        let held = HeldCopy::open(branch, &item.path, &item.copy, own)?;
        match self.link {
            Link::Reflink => self.reflink(&held, &with),
            Link::Hard => {
                // What they hold has been compared; as long as nobody may write them, once more.
                held.require_same_times(&with)?;
                let hidden = Progress::new(0, true);
                held.require_equal(&with, (&mut self.reader.pace, &hidden), self.stop)?;
                if self.writes {
                    held.replace_by_link_of(&with)?;
                }
                Ok(Done::Linked)
            }
        }
    }

    fn reflink(&mut self, held: &HeldCopy<'_>, with: &HeldCopy<'_>) -> Result<Done, NotTouched> {
        if held.shares_blocks_of(with)? {
            return Ok(Done::Already);
        }
        if self.writes {
            held.share_blocks_of(with, self.stop)?;
        }
        Ok(Done::Linked)
    }

    fn tell(&mut self, with: &Item, item: &Item) {
        let [with, path] = [with, item].map(|item| self.pool.mountpoint.join(&item.path));
        let branch = &self.pool.branches[item.copy.branch].path;
        if self.args.manners.json {
            self.report.files.push(FileReport {
                path: OsText::from(path.as_path()),
                branch: OsText::from(branch.as_path()),
                with: OsText::from(with.as_path()),
                bytes: item.copy.used(),
            });
        } else if !self.args.manners.quiet {
            let word = match (self.writes, self.link) {
                (true, Link::Reflink) => "shares the blocks of",
                (false, Link::Reflink) => "would share the blocks of",
                (true, Link::Hard) => "is a link of",
                (false, Link::Hard) => "would be a link of",
            };
            let line = format!(
                "{}: {word} {} on {} ({})",
                shown(&path),
                shown(&with),
                shown(branch),
                bytes(item.copy.used())
            );
            if self.writes {
                self.reader.progress.tell(&line)
            } else {
                // That is what was asked for.
                self.reader.progress.around(|| print(&format!("{line}\n")))
            }
        }
    }

    fn finish(mut self) -> Result<()> {
        let report = &mut self.report;
        (report.stopped, report.stays) = (self.stop.is_set(), self.stays);
        if self.args.manners.json {
            print_json(report);
        } else if !self.args.manners.quiet {
            let line = |stay: &Stays| format!("stays: {} ({})\n", shown(&stay.path), stay.why);
            let word = if self.writes { "linked" } else { "to link, with --yes" };
            let rest =
                [("already", report.already), ("stay", report.stayed), ("not begun", report.not_begun)];
            let sums = adds_up(FILES, (word, report.linked), &rest, ("equal to another one", report.equal));
            print(&(report.stays.iter().map(line).collect::<String>() + &sums));
        }
        match (report.stopped, report.stays.len() as u64) {
            (true, _) => Err(Error::Stopped),
            (false, 0) => Ok(()),
            (false, left) => Err(Error::NotLinked(left)),
        }
    }
}
