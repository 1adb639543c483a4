//! `canopy dedup`: removes all copies of a file but one, or so many.

use crate::consent::{Alone, Consent, ConsentArgs};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::held::aside::{self, Aside, Verdict};
use crate::held::{CopyFate, HeldCopy, NotTouched};
use crate::manners::ThrottleArgs;
use crate::output::{print, print_json, report_missing, shown};
use crate::pace::Pace;
use crate::pool_link::{BranchLink, PoolLink};
use crate::progress::Progress;
use crate::relocate::{Stays, Sum, Task, Unit, adds_up, apart, drop_one};
use crate::stop::Stop;
use crate::survey::{Entry, FileCopy, current, look, walk_all};
use canopy_base::text::{bytes, date, os_error};
use canopy_control::OsText;
use canopy_policy::placement::Placement;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Remove surplus copies of files that other branches hold too
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct DedupArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Files and directories of the pool, instead of all of it
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// first, newest, oldest, largest, emptiest or a branch
    #[arg(long, value_name = "COPY")]
    pub keep: Option<PathBuf>,
    /// How many copies of a file stay
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub copies: u16,
    /// Remove copies that differ, too; needs --keep
    #[arg(long, requires = "keep")]
    pub differing: bool,
    /// Equal files on a branch share space: reflink or hard
    #[arg(long, value_name = "HOW", hide_possible_values = true)]
    #[arg(conflicts_with_all = ["keep", "copies", "differing"])]
    pub link: Option<Link>,
    #[command(flatten)]
    pub consent: ConsentArgs,
    #[command(flatten)]
    pub manners: ThrottleArgs,
    /// What `mergerfs.dedup` has besides.
    #[arg(skip)]
    pub(crate) old: Old,
    /// Print no line for a copy that goes.
    #[arg(skip)]
    pub(crate) only_totals: bool,
}

const NOTES: &str = "\
Copies that differ, are open, or that a rule asks for stay.
Example: canopy dedup /mnt/pool /mnt/pool/films --keep newest";

/// Options of `mergerfs.dedup`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Old {
    /// Leave files alone whose copies are so.
    pub(crate) ignore: Option<Ignore>,
    /// Leave files alone of which several copies are what is to stay.
    pub(crate) strict: bool,
    /// Where all copies have one size and time, the one with most free space stays.
    pub(crate) ties_by_space: bool,
    /// Ask for each file.
    pub(crate) asks: bool,
    /// It was called by that name, whose options are others.
    pub(crate) is_mergerfs: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ignore {
    SameSize,
    DiffSize,
    SameTime,
    DiffTime,
}

impl Ignore {
    fn holds(self, copies: &[FileCopy]) -> bool {
        let same_size = copies.iter().all(|copy| copy.size() == copies[0].size());
        let same_time = copies.iter().all(|copy| copy.modified() == copies[0].modified());
        match self {
            Ignore::SameSize => same_size,
            Ignore::DiffSize => !same_size,
            Ignore::SameTime => same_time,
            Ignore::DiffTime => !same_time,
        }
    }
}

/// How equal files on one branch share their space.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// Each stays a file of its own, and a write to it takes new blocks.
    Reflink,
    /// They become one file with several names.
    Hard,
}

impl Link {
    pub(super) fn word(self) -> &'static str {
        match self {
            Link::Reflink => "reflink",
            Link::Hard => "hard",
        }
    }
}

/// How many copies are listed before the question.
const SHOWN: u64 = 20;

const COPIES: Unit = ("copy", "copies");

/// Which copy of a file stays.
#[derive(Debug)]
enum Rule {
    First,
    Newest,
    Oldest,
    Largest,
    Smallest,
    /// The one whose branch has most free space, of these numbers of bytes.
    Emptiest(Vec<u64>),
    Branch(usize),
}

impl Rule {
    fn of(word: Option<&Path>, pool: &PoolLink) -> Result<Rule> {
        Ok(match word.and_then(Path::to_str) {
            Some("first") => Rule::First,
            Some("newest") => Rule::Newest,
            Some("oldest") => Rule::Oldest,
            Some("largest") => Rule::Largest,
            Some("smallest") => Rule::Smallest,
            Some("emptiest") => Rule::emptiest(pool),
            _ => match word {
                Some(branch) => Rule::Branch(pool.branch(branch)?),
                None => Rule::First,
            },
        })
    }

    fn emptiest(pool: &PoolLink) -> Rule {
        let space = |branch: &BranchLink| rustix::fs::fstatvfs(branch.root().ok()?).ok();
        let free = |branch| space(branch).map_or(0, |space| space.f_bavail * space.f_frsize);
        Rule::Emptiest(pool.branches.iter().map(free).collect())
    }

    /// Returns whether another copy could be chosen as well.
    fn is_tied(&self, chosen: &FileCopy, copies: &[FileCopy]) -> bool {
        let same = |copy: &FileCopy| match self {
            Rule::Newest | Rule::Oldest => copy.modified() == chosen.modified(),
            Rule::Largest | Rule::Smallest => copy.size() == chosen.size(),
            Rule::First | Rule::Emptiest(_) | Rule::Branch(_) => false,
        };
        copies.iter().any(|copy| copy.branch != chosen.branch && same(copy))
    }

    /// Returns the copy that stays; of equal ones, the first.
    fn choose<'c>(&self, copies: &'c [FileCopy]) -> Option<&'c FileCopy> {
        match self {
            Rule::First => copies.first(),
            Rule::Newest => copies.iter().min_by_key(|copy| Reverse(copy.modified())),
            Rule::Oldest => copies.iter().min_by_key(|copy| copy.modified()),
            Rule::Largest => copies.iter().min_by_key(|copy| Reverse(copy.size())),
            Rule::Smallest => copies.iter().min_by_key(|copy| copy.size()),
            Rule::Emptiest(free) => copies.iter().min_by_key(|copy| Reverse(free[copy.branch])),
            Rule::Branch(branch) => copies.iter().find(|copy| copy.branch == *branch),
        }
    }
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    pool: OsText,
    dry_run: bool,
    /// A signal has ended the command.
    stopped: bool,
    /// Surplus copies: the sum of `removed`, `stayed` and `not_begun`.
    surplus: Sum,
    /// In a dry run, what would be removed.
    removed: Sum,
    stayed: Sum,
    not_begun: Sum,
    copies: Vec<CopyReport>,
    stays: Vec<Stays>,
}

#[derive(Serialize)]
struct CopyReport {
    path: OsText,
    kept: OsText,
    removed: OsText,
    bytes: u64,
}

/// What the command does, and what has become of it.
struct Work<'w> {
    pool: &'w PoolLink,
    args: &'w DedupArgs,
    /// Whether copies are removed, or only shown.
    writes: bool,
    rule: Rule,
    /// How many copies the pool's own rules want.
    placement: Placement,
    stop: Stop,
    pace: Pace,
    progress: Progress,
    report: Report,
    stays: Vec<Stays>,
    by_space: Rule,
    /// What the user has chosen for the file that is looked at.
    chosen: Option<FileCopy>,
    /// How many copies rules want of a file with hard links, for any of the names that were found.
    linked: HashMap<(u64, u64), usize>,
}

/// Runs the command.
pub(super) fn dedup(args: &DedupArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    let consent = Consent::of(args.consent, Alone::Shows, &args.manners);
    if pool.is_read_only && matches!(consent, Consent::Given | Consent::Asked) {
        return Err(Error::PoolReadOnly(pool.mountpoint.clone()));
    }
    report_missing(&pool);
    let rule = Rule::of(args.keep.as_deref(), &pool)?;
    let pace = Pace::of(&args.manners);
    let (stop, filter) = (Stop::on_signals()?, Filter::new(&args.manners.filter)?);
    let starts = if args.paths.is_empty() { vec![PathBuf::new()] } else { apart(&pool, &args.paths)? };
    let report = Report {
        command: "dedup",
        pool: OsText::from(pool.mountpoint.as_path()),
        dry_run: !consent.is_given(),
        stopped: false,
        surplus: Sum::default(),
        removed: Sum::default(),
        stayed: Sum::default(),
        not_begun: Sum::default(),
        copies: Vec::new(),
        stays: Vec::new(),
    };
    let mut work = Work {
        pool: &pool,
        args,
        writes: consent.is_given(),
        rule,
        // A daemon of another version has no rules.
        placement: pool.placement().unwrap_or_default(),
        stop,
        pace,
        progress: Progress::new(0, true),
        report,
        stays: Vec::new(),
        by_space: Rule::emptiest(&pool),
        chosen: None,
        linked: HashMap::new(),
    };
    let (found, asides) = work.find(&starts, &filter)?;
    for entry in &found {
        let wanted = work.placement.copies(entry.path.as_os_str().as_bytes());
        for copy in entry.copies.iter().filter(|copy| copy.stat.st_nlink > 1) {
            let most = work.linked.entry(copy.key()).or_default();
            *most = wanted.max(*most);
        }
    }
    let manners = &args.manners;
    let size = |entry: &Entry| work.surplus(entry).1.iter().map(FileCopy::size).sum::<u64>();
    let all = found.iter().map(size).sum();
    if consent == Consent::Asked && !args.old.asks {
        let is_empty = work.preview(&found, asides.len());
        let question =
            if args.differing { "Remove them?" } else { "Compare them, and remove those that are equal?" };
        work.writes = consent.agrees(question, is_empty, &work.stop)?;
    }
    work.progress = Progress::new(all, manners.quiet || manners.json);
    for aside in &asides {
        work.take_up(aside);
    }
    for entry in found {
        if args.old.asks && !work.ask(&entry) {
            continue;
        }
        work.reduce(&entry);
    }
    work.progress.finish();
    let is_empty = work.report.removed.files == 0;
    work.finish().and_then(|()| consent.only_shown(is_empty))
}

impl Work<'_> {
    /// Returns the names that several branches hold, except directories, and the copies that a killed command has set aside.
    fn find(&mut self, starts: &[PathBuf], filter: &Filter) -> Result<(Vec<Entry>, Vec<Aside>)> {
        let (mut found, mut asides) = (Vec::new(), Vec::new());
        let (pool, stop) = (self.pool, self.stop.clone());
        let (old, rule) = (self.args.old, &self.rule);
        let mut take = |entry: &Entry| {
            if pool.keep.stays(&entry.path) {
                return false;
            }
            let admitted =
                || filter.admits(&pool.mountpoint, std::iter::once(entry.path.as_path()), entry.first());
            let copies = &entry.copies;
            let tied = || rule.choose(copies).is_some_and(|chosen| rule.is_tied(chosen, copies));
            let ignored = old.ignore.is_some_and(|ignore| ignore.holds(copies)) || old.strict && tied();
            if entry.is_dir() {
                asides.extend(aside::in_dir(pool, &entry.path));
            } else if entry.copies.len() > 1 && !ignored && admitted() {
                found.push(entry.clone());
            }
            !stop.is_set()
        };
        let failed = walk_all(pool, starts, &mut take)?;
        self.stop.check()?;
        for start in starts {
            // Directories have been looked through.
            let dir = start.parent().unwrap_or(Path::new(""));
            let is_it = |aside: &Aside| {
                aside.entry.as_ref().is_some_and(|entry| entry.path == *start && !entry.is_dir())
            };
            asides.extend(aside::in_dir(pool, dir).into_iter().filter(is_it));
        }
        self.stays.extend(failed.into_iter().map(|(path, errno)| Stays { path, why: os_error(errno) }));
        Ok((found, asides))
    }

    /// Shows the copies that go if they are equal to the one that stays. Returns whether there are none.
    fn preview(&self, found: &[Entry], asides: usize) -> bool {
        let (mut sum, mut text) = (Sum::default(), String::new());
        for entry in found {
            let (kept, surplus) = self.surplus(entry);
            let Some(kept) = kept else { continue };
            for copy in &surplus {
                sum.add(copy.used());
                if sum.files <= SHOWN {
                    let path = shown(&self.pool.mountpoint.join(&entry.path));
                    let [kept, goes] =
                        [kept.branch, copy.branch].map(|branch| shown(&self.pool.branches[branch].path));
                    let _ = writeln!(text, "{path}: kept on {kept}, to be removed from {goes}");
                }
            }
        }
        if sum.files > SHOWN {
            let _ = writeln!(text, "... and {} more (--dry-run lists all)", sum.files - SHOWN);
        }
        if asides > 0 {
            let _ = writeln!(text, "begun by an interrupted command: {asides}");
        }
        if sum.files > 0 {
            let word = if self.args.differing { "to remove, equal or not" } else { "to compare and remove" };
            let _ = writeln!(text, "{word}: {}", sum.counted(COPIES));
        }
        print(&text);
        sum.files == 0 && asides == 0
    }

    /// Finishes the removal of a copy that a killed command has set aside.
    fn take_up(&mut self, aside: &Aside) {
        let used = aside.copy.used();
        self.report.surplus.add(used);
        let branch = &self.pool.branches[aside.copy.branch];
        let done = match aside.judge() {
            Err(why) => Err(why.to_owned()),
            Ok(_) if !branch.gives() => Err("its branch is RO, gone or failing".into()),
            Ok((_, other)) if !self.pool.branches[other.branch].is_well => {
                Err("the branch with the other copy is gone or failing".into())
            }
            Ok((found, other)) => match self.writes.then(|| aside.settle(branch, &found)) {
                Some(Err(errno)) => match NotTouched::from(errno) {
                    NotTouched::Because(why) => Err(why),
                    NotTouched::Stopped => Err("stopped".into()),
                },
                _ if matches!(found, Verdict::Written) => {
                    Err("a program wrote to it in the meantime, so it was put back".into())
                }
                _ => Ok(other.branch),
            },
        };
        match (done, &aside.entry) {
            (Ok(kept), Some(entry)) => {
                self.report.removed.add(used);
                self.tell(entry, kept, &aside.copy, CopyFate::Removed);
            }
            (done, _) => {
                let why = done.err().unwrap_or_default();
                self.report.stayed.add(used);
                self.stays.push(Stays { path: branch.path.join(aside.path()), why });
            }
        }
    }

    /// Returns the copy that stays in any case, and those that are too many.
    fn surplus(&self, entry: &Entry) -> (Option<FileCopy>, Vec<FileCopy>) {
        let by_links = entry.copies.iter().filter_map(|copy| self.linked.get(&copy.key())).copied().max();
        let wanted = self.placement.copies(entry.path.as_os_str().as_bytes()).max(by_links.unwrap_or(0));
        let current = current(self.pool, &entry.path, &entry.copies);
        let is_old = |copy: &FileCopy| !current.contains(&copy.branch);
        let good: Vec<FileCopy> = entry.copies.iter().filter(|copy| !is_old(copy)).copied().collect();
        let is_tied = |chosen: &FileCopy| {
            let equal =
                |copy: &FileCopy| (copy.size(), copy.modified()) == (chosen.size(), chosen.modified());
            self.args.old.ties_by_space && good.iter().all(equal) && self.rule.is_tied(chosen, &good)
        };
        let kept = match self.rule.choose(&good) {
            _ if self.chosen.is_some() => self.chosen,
            Some(chosen) if is_tied(chosen) => self.by_space.choose(&good).copied(),
            chosen => chosen.copied(),
        };
        // A copy that the rule does not find leaves all but one as surplus.
        let stays = kept.unwrap_or(*entry.first());
        let mut others: Vec<FileCopy> =
            entry.copies.iter().filter(|copy| copy.branch != stays.branch).copied().collect();
        if wanted > 1 {
            // Those that the rule wants are up to date, and on other disks.
            others.sort_by_key(|copy| (is_old(copy), copy.stat.st_dev == stays.stat.st_dev));
        }
        (kept, others.split_off((usize::from(self.args.copies).max(wanted) - 1).min(others.len())))
    }

    /// Asks which copy of a file is to stay. Returns false if none was named.
    fn ask(&mut self, entry: &Entry) -> bool {
        let mut text = format!("{}\n", shown(&self.pool.mountpoint.join(&entry.path)));
        let current = current(self.pool, &entry.path, &entry.copies);
        let copies: Vec<_> = entry.copies.iter().filter(|copy| current.contains(&copy.branch)).collect();
        for (index, copy) in copies.iter().enumerate() {
            let (branch, modified) = (&self.pool.branches[copy.branch].path, date(copy.stat.st_mtime));
            let _ = writeln!(text, "  {}: {}, {}, {modified}", index + 1, shown(branch), bytes(copy.size()));
        }
        self.progress.around(|| print(&text));
        while !self.stop.is_set() {
            print("Which one do you want to keep? (s skips the file) ");
            let Some(answer) = self.stop.line() else { return false };
            if matches!(answer.trim(), "s" | "S" | "skip" | "") {
                return false;
            }
            let number = answer.trim().parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            if let Some(copy) = number.and_then(|index| copies.get(index)) {
                self.chosen = Some(**copy);
                return true;
            }
        }
        false
    }

    /// Removes the surplus copies of one file.
    fn reduce(&mut self, entry: &Entry) {
        // A copy with hard links may have gone with another name since.
        let now = if entry.copies.iter().any(|copy| copy.stat.st_nlink > 1) {
            look(self.pool, &entry.path).0
        } else {
            entry.copies.clone()
        };
        if now.len() < 2 {
            return;
        }
        let entry = &Entry { path: entry.path.clone(), copies: now };
        let (kept, surplus) = self.surplus(entry);
        let stays = kept.map_or(entry.first().branch, |kept| kept.branch);
        for surplus in &surplus {
            self.report.surplus.add(surplus.used());
            let before = self.progress.position();
            self.progress.show(&self.pool.mountpoint.join(&entry.path));
            let done = match kept {
                _ if self.stop.is_set() => Err(NotTouched::Stopped),
                None => Err(NotTouched::Because("the branch to keep holds no copy".into())),
                Some(kept) => self.remove(entry, &kept, surplus),
            };
            self.progress.set_position(before + surplus.size());
            match done {
                Ok(gone) => {
                    self.report.removed.add(surplus.used());
                    self.tell(entry, stays, surplus, gone);
                }
                Err(NotTouched::Stopped) => self.report.not_begun.add(surplus.used()),
                Err(NotTouched::Because(why)) => {
                    self.report.stayed.add(surplus.used());
                    let path = self.pool.branches[surplus.branch].path.join(&entry.path);
                    self.stays.push(Stays { path, why });
                }
            }
        }
    }

    fn remove(&mut self, entry: &Entry, kept: &FileCopy, surplus: &FileCopy) -> Result<CopyFate, NotTouched> {
        // One that is known to be out of date need not be the same, and none of its names is shown.
        let is_old = !current(self.pool, &entry.path, &entry.copies).contains(&surplus.branch);
        if surplus.stat.st_nlink > 1 && !is_old {
            return self.remove_links(entry, kept, surplus).map(|()| CopyFate::Removed);
        }
        let [stays, goes] = HeldCopy::pair(self.pool, &entry.path, [kept, surplus], self.writes)?;
        if !self.args.differing && !is_old {
            goes.require_equal(&stays, (&mut self.pace, &self.progress), &self.stop)?;
        }
        Ok(if self.writes { goes.remove_in_favour_of(&stays)? } else { CopyFate::Removed })
    }

    /// Has the daemon remove a copy with hard links, under all names: clients must not see one name of each copy.
    fn remove_links(&mut self, entry: &Entry, kept: &FileCopy, surplus: &FileCopy) -> Result<(), NotTouched> {
        let [stays, goes] = HeldCopy::pair(self.pool, &entry.path, [kept, surplus], false)?;
        if !self.writes {
            return goes.require_equal(&stays, (&mut self.pace, &self.progress), &self.stop);
        }
        // The daemon compares the content.
        goes.require_same_attributes(&stays)?;
        drop([stays, goes]);
        let task = Task::dropping(vec![entry.path.clone()], surplus.branch, kept.branch, surplus.used());
        drop_one(self.pool, &self.stop, &task)
    }

    fn tell(&mut self, entry: &Entry, stays: usize, surplus: &FileCopy, gone: CopyFate) {
        let path = self.pool.mountpoint.join(&entry.path);
        let [kept, removed] = [stays, surplus.branch].map(|branch| &self.pool.branches[branch].path);
        if self.args.manners.json {
            self.report.copies.push(CopyReport {
                path: OsText::from(path.as_path()),
                kept: OsText::from(kept.as_path()),
                removed: OsText::from(removed.as_path()),
                bytes: surplus.used(),
            });
        } else if !self.args.manners.quiet && !self.args.only_totals {
            let word = match gone {
                CopyFate::SetAside => "changed apart, and set aside (canopy copies) on",
                CopyFate::Removed if self.writes => "removed from",
                CopyFate::Removed => "would be removed from",
            };
            let (path, kept, removed) = (shown(&path), shown(kept), shown(removed));
            let line = format!("{path}: kept on {kept}, {word} {removed} ({})", bytes(surplus.used()));
            if self.writes {
                self.progress.tell(&line)
            } else {
                // That is what was asked for.
                self.progress.around(|| print(&format!("{line}\n")))
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
            let word = match (self.writes, self.args.old.is_mergerfs) {
                (true, _) => "removed",
                (false, true) => "to remove, with --execute",
                (false, false) => "to remove, with --yes",
            };
            let rest = [("stay", report.stayed), ("not begun", report.not_begun)];
            let sums = adds_up(COPIES, (word, report.removed), &rest, ("surplus", report.surplus));
            print(&(report.stays.iter().map(line).collect::<String>() + &sums));
        }
        match (report.stopped, report.stays.len() as u64) {
            (true, _) => Err(Error::Stopped),
            (false, 0) => Ok(()),
            (false, left) => Err(Error::CopiesLeft(left, report.removed.files + left)),
        }
    }
}
