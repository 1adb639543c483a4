//! Random changes on the branches and through the pool, with concurrent lookups: no answer is older than promised.
//! (Within the promised bound an older answer may follow a newer one: of two lookups in flight, the kernel may cache
//! the older answer and still return the newer one to its caller.)
//!
//! `CANOPY_COHERENCE_CHANGES` sets the number of changes, `CANOPY_COHERENCE_SEED` the seed.

use super::rig::{DelayMeter, Opens, look, open_by, two_disks};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Branches, Kind, PATIENCE, PoolBed, Rng};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What shows does so because the kernel is told, and not because attributes expire.
const TOLD: &str = "cache.attr=3600";
const CHANGERS: u64 = 3;
const ASKERS: u64 = 3;
const DIRS: [&str; 4] = ["", "d0/", "d0/s/", "d1/"];
const NAMES: usize = 12;
/// A file in a directory that is created, removed and renamed.
const INNER: &str = "in";

#[derive(Clone, Copy, PartialEq, Debug)]
enum Object {
    File { mode: u32, size: usize },
    Dir { mode: u32, inner: Option<usize> },
}

/// The entries of one name on the branches.
type Copies = [Option<Object>; 2];

/// What the pool must show for a name, and since when.
struct Shown {
    text: (String, String),
    since: Instant,
    /// A thread is changing it at the moment.
    unsure: bool,
    changes: u64,
}

struct Slot {
    path: String,
    copies: Mutex<Copies>,
    shown: Mutex<Shown>,
}

struct Storm<'a> {
    bed: &'a PoolBed,
    delays: DelayMeter,
    slots: Vec<Slot>,
    done: AtomicU64,
    queries: AtomicU64,
    checked: AtomicU64,
    /// Outdated answers within the bound: how many, and the longest delay after the change, in microseconds.
    outdated: AtomicU64,
    worst_delay: AtomicU64,
    stop: AtomicBool,
    faults: Mutex<Vec<String>>,
}

fn shown(copies: &Copies) -> (String, String) {
    let none = || "entity not found".to_owned();
    let kinds: Vec<Object> = copies.iter().flatten().copied().collect();
    match kinds.first() {
        None => (none(), none()),
        Some(Object::File { mode, size }) => {
            (format!("{:o} {size} bytes 1 links", 0o100_000 | mode), "not a directory".into())
        }
        Some(Object::Dir { mode, .. }) => {
            let inner = kinds.iter().find_map(|object| match object {
                Object::Dir { inner, .. } => *inner,
                Object::File { .. } => None,
            });
            let inner = inner.map_or_else(none, |size| format!("{:o} {size} bytes 1 links", 0o100_644));
            (format!("{:o}", 0o040_000 | mode), inner)
        }
    }
}

fn query(path: &Path) -> (String, String) {
    (look(path), look(&path.join(INNER)))
}

fn is_dir(object: &Option<Object>) -> bool {
    matches!(object, Some(Object::Dir { .. }))
}

fn is_file(object: &Option<Object>) -> bool {
    matches!(object, Some(Object::File { .. }))
}

impl Storm<'_> {
    fn at(&self, slot: usize) -> PathBuf {
        self.bed.at(&self.slots[slot].path)
    }
    fn on(&self, branch: usize, slot: usize) -> PathBuf {
        self.bed.on(branch, &self.slots[slot].path)
    }

    fn begin(&self, slot: usize) {
        self.slots[slot].shown.lock().expect("what is shown").unsure = true;
    }

    fn end(&self, slot: usize, copies: &Copies) {
        let mut now = self.slots[slot].shown.lock().expect("what is shown");
        let text = shown(copies);
        now.changes += 1;
        now.unsure = false;
        now.since = Instant::now();
        now.text = text;
    }

    fn fault(&self, text: String) {
        self.faults.lock().expect("a list").push(text);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Looks up a name at an arbitrary moment; returns whether the answer was the current one, or `None` if the name may have
    /// changed meanwhile.
    fn query(&self, slot: usize) -> Option<bool> {
        let state = &self.slots[slot].shown;
        let (before, unsure) = {
            let now = state.lock().expect("what is shown");
            (now.changes, now.unsure)
        };
        let begun = Instant::now();
        let answer = self.delays.timed(|| query(&self.at(slot)));
        self.queries.fetch_add(1, Ordering::Relaxed);
        let now = state.lock().expect("what is shown");
        // The two lookups are not atomic, and either entry may have changed in between.
        if unsure || now.unsure || now.changes != before {
            return None;
        }
        self.checked.fetch_add(1, Ordering::Relaxed);
        if answer == now.text {
            return Some(true);
        }
        let (since, right) = (now.since, now.text.clone());
        drop(now);
        let past = begun.saturating_duration_since(since);
        self.outdated.fetch_add(1, Ordering::Relaxed);
        self.worst_delay.fetch_max(past.as_micros() as u64, Ordering::Relaxed);
        let path = &self.slots[slot].path;
        if self.delays.exceeds_bound(since, begun) {
            self.fault(format!("{path}: {answer:?} {past:?} after it became {right:?}"));
        }
        Some(false)
    }

    /// Looks up a name. If the answer is outdated, holds up changes of this name until it shows what it is: no later change
    /// makes up for a notification that is missing.
    fn insist(&self, slot: usize) {
        if self.query(slot) == Some(false) {
            let _held = self.slots[slot].copies.lock().expect("copies");
            self.wait_until_current(slot);
        }
    }

    /// Waits until the pool shows the current state.
    fn wait_until_current(&self, slot: usize) -> bool {
        while !self.stop.load(Ordering::Relaxed) {
            if self.query(slot) == Some(true) {
                return true;
            }
        }
        false
    }

    fn change(&self, rng: &mut Rng) {
        let (one, other) = (rng.index(self.slots.len()), rng.index(self.slots.len()));
        let lock = |slot: usize| self.slots[slot].copies.lock().expect("copies");
        if one == other || rng.chance(700) {
            let mut copies = lock(one);
            if rng.chance(500) {
                self.change_on_branch(rng, one, &mut copies)
            } else {
                self.change_through_pool(rng, one, &mut copies)
            }
            return;
        }
        // Locked in a fixed order, to avoid deadlock.
        let mut held: Vec<(usize, MutexGuard<'_, Copies>)> =
            [one.min(other), one.max(other)].map(|slot| (slot, lock(slot))).into();
        if held[0].0 != one {
            held.swap(0, 1);
        }
        let [(_, from), (_, to)] = &mut held[..] else { unreachable!("two were locked") };
        if rng.chance(600) {
            self.rename_on_branch(rng.index(2), (one, from), (other, to))
        } else {
            self.rename_through_pool((one, from), (other, to))
        }
    }

    fn change_on_branch(&self, rng: &mut Rng, slot: usize, copies: &mut Copies) {
        let branch = rng.index(2);
        let (path, size) = (self.on(branch, slot), 1 + rng.index(1000));
        let mode = *rng.pick(&[0o600, 0o640, 0o644, 0o755]);
        let beside = copies[1 - branch];
        let choice = rng.below(5);
        self.begin(slot);
        let now = copies[branch];
        copies[branch] = self.delays.timed(|| match now {
            None if !is_dir(&beside) && (choice < 3 || is_file(&beside)) => {
                if choice.is_multiple_of(2) {
                    fs::write(&path, vec![b'x'; size]).expect("a file");
                } else {
                    let aside = self.bed.on(branch, &format!(".aside{slot}"));
                    fs::write(&aside, vec![b'x'; size]).expect("a file");
                    fs::rename(&aside, &path).expect("a rename");
                }
                Some(Object::File { mode: 0o644, size })
            }
            None => {
                fs::create_dir(&path).expect("mkdir");
                let inner = choice.is_multiple_of(2).then_some(size);
                if let Some(size) = inner {
                    fs::write(path.join(INNER), vec![b'x'; size]).expect("a file");
                }
                Some(Object::Dir { mode: 0o755, inner })
            }
            Some(Object::File { mode: was, .. }) if choice == 0 => {
                fs::write(&path, vec![b'x'; size]).expect("a file");
                Some(Object::File { mode: was, size })
            }
            Some(Object::Dir { mode: was, inner }) if choice == 0 => {
                let inside = path.join(INNER);
                match inner {
                    Some(_) => fs::remove_file(inside).expect("removal"),
                    None => fs::write(inside, vec![b'x'; size]).expect("a file"),
                }
                Some(Object::Dir { mode: was, inner: inner.is_none().then_some(size) })
            }
            Some(object) if choice < 3 => {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
                Some(match object {
                    Object::File { size, .. } => Object::File { mode, size },
                    Object::Dir { inner, .. } => Object::Dir { mode, inner },
                })
            }
            Some(Object::File { .. }) => {
                fs::remove_file(&path).expect("removal");
                None
            }
            Some(Object::Dir { .. }) => {
                fs::remove_dir_all(&path).expect("removal");
                None
            }
        });
        self.end(slot, copies);
    }

    fn change_through_pool(&self, rng: &mut Rng, slot: usize, copies: &mut Copies) {
        if !self.wait_until_current(slot) {
            return;
        }
        let (path, size) = (self.at(slot), 1 + rng.index(1000));
        let mode = *rng.pick(&[0o600, 0o640, 0o644, 0o755]);
        let choice = rng.below(5);
        self.begin(slot);
        let context = || format!("{} through the pool: {copies:?}", self.slots[slot].path);
        let must = |what: &str, result: std::io::Result<()>| {
            result.unwrap_or_else(|why| panic!("{what} {}: {why}", context()));
        };
        let next: Copies = self.delays.timed(|| match *copies {
            [None, None] if choice < 3 => {
                must("write", fs::write(&path, vec![b'x'; size]));
                [Some(Object::File { mode: 0o644, size }), None]
            }
            [None, None] => {
                must("mkdir", fs::create_dir(&path));
                [Some(Object::Dir { mode: 0o755, inner: None }), None]
            }
            _ if choice < 3 => {
                must("chmod", fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
                copies.map(|object| {
                    object.map(|object| match object {
                        Object::File { size, .. } => Object::File { mode, size },
                        Object::Dir { inner, .. } => Object::Dir { mode, inner },
                    })
                })
            }
            [Some(Object::File { mode, .. }), None] if choice == 3 => {
                must("rewrite", fs::write(&path, vec![b'x'; size]));
                [Some(Object::File { mode, size }), None]
            }
            _ if copies.iter().any(is_file) => {
                must("remove", fs::remove_file(&path));
                [None, None]
            }
            _ => {
                if shown(copies).1.contains("bytes") {
                    must("remove inside", fs::remove_file(path.join(INNER)));
                }
                must("rmdir", fs::remove_dir(&path));
                [None, None]
            }
        });
        *copies = next;
        self.end(slot, copies);
    }

    fn rename_on_branch(&self, branch: usize, from: (usize, &mut Copies), to: (usize, &mut Copies)) {
        let (object, over) = (from.1[branch], to.1[branch]);
        let beside = to.1[1 - branch];
        let fits = match object {
            None => false,
            Some(Object::File { .. }) => !is_dir(&over) && !is_dir(&beside),
            Some(Object::Dir { .. }) => over.is_none() && !is_file(&beside),
        };
        if !fits {
            return;
        }
        self.begin(from.0);
        self.begin(to.0);
        self.delays.timed(|| fs::rename(self.on(branch, from.0), self.on(branch, to.0))).expect("a rename");
        to.1[branch] = from.1[branch].take();
        self.end(from.0, from.1);
        self.end(to.0, to.1);
    }

    /// Renames a file over a file or to a free name, or a directory to a free name: all copies move, and replaced ones
    /// are removed.
    fn rename_through_pool(&self, from: (usize, &mut Copies), to: (usize, &mut Copies)) {
        let file = from.1.iter().any(is_file) && !to.1.iter().any(is_dir);
        let dir = from.1.iter().any(is_dir) && to.1.iter().all(Option::is_none);
        if !(file || dir) || !self.wait_until_current(from.0) || !self.wait_until_current(to.0) {
            return;
        }
        self.begin(from.0);
        self.begin(to.0);
        if let Err(why) = self.delays.timed(|| fs::rename(self.at(from.0), self.at(to.0))) {
            panic!(
                "rename {} to {}: {:?} {:?}: {why}",
                self.slots[from.0].path, self.slots[to.0].path, from.1, to.1
            );
        }
        *to.1 = std::mem::take(from.1);
        self.end(from.0, from.1);
        self.end(to.0, to.1);
    }
}

/// Stops the other threads when this one ends, even by a panic.
struct Stop<'a>(&'a AtomicBool);
impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

pub(super) fn storm(bed: PoolBed, what: &str, share: u64) {
    let changes = number("CANOPY_COHERENCE_CHANGES", 30_000) / share;
    let seed = number("CANOPY_COHERENCE_SEED", 0x00ca_0095);
    for branch in 0..2 {
        DIRS.iter().for_each(|dir| fs::create_dir_all(bed.on(branch, dir)).expect("mkdir"));
    }
    let slots: Vec<Slot> = DIRS
        .iter()
        .flat_map(|dir| (0..NAMES).map(move |name| format!("{dir}n{name}")))
        .map(|path| Slot {
            path,
            copies: Mutex::default(),
            shown: Mutex::new(Shown {
                text: shown(&[None, None]),
                since: Instant::now(),
                unsure: false,
                changes: 0,
            }),
        })
        .collect();
    let storm = Storm {
        bed: &bed,
        delays: DelayMeter::new(),
        slots,
        done: AtomicU64::new(0),
        queries: AtomicU64::new(0),
        checked: AtomicU64::new(0),
        outdated: AtomicU64::new(0),
        worst_delay: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        faults: Mutex::default(),
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for asker in 0..ASKERS {
            let storm = &storm;
            scope.spawn(move || {
                let _stop = Stop(&storm.stop);
                let mut rng = Rng::new(seed ^ (asker << 32));
                while !storm.stop.load(Ordering::Relaxed) {
                    storm.insist(rng.index(storm.slots.len()));
                }
            });
        }
        let changers: Vec<_> = (0..CHANGERS)
            .map(|changer| {
                let storm = &storm;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed ^ ((changer + 1) << 40));
                    while !storm.stop.load(Ordering::Relaxed)
                        && storm.done.fetch_add(1, Ordering::Relaxed) < changes
                    {
                        storm.change(&mut rng);
                    }
                })
            })
            .collect();
        let _stop = Stop(&storm.stop);
        for changer in changers {
            changer.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
        }
    });
    let asked = Branches::asked().map_or(String::new(), |branches| format!(" over {branches:?}"));
    println!(
        "{what}{asked}: {} changes, {} answers of which {} could be checked and {} were outdated by at most {:?}, \
         in {:?}; scheduling delays of up to {:?}",
        storm.done.load(Ordering::Relaxed).min(changes),
        storm.queries.load(Ordering::Relaxed),
        storm.checked.load(Ordering::Relaxed),
        storm.outdated.load(Ordering::Relaxed),
        Duration::from_micros(storm.worst_delay.load(Ordering::Relaxed)),
        begun.elapsed(),
        storm.delays.worst()
    );
    let faults = storm.faults.into_inner().expect("a list");
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}\n{}", bed.pool.log());
    // The final state shows all of it and nothing else.
    let right = || {
        let named = storm
            .slots
            .iter()
            .all(|slot| query(&bed.at(&slot.path)) == shown(&slot.copies.lock().expect("copies")));
        let listed = DIRS.iter().all(|dir| {
            let there = |slot: &&Slot| slot.copies.lock().expect("copies").iter().any(Option::is_some);
            let within = storm.slots.iter().filter(there).filter_map(|slot| {
                let rest = slot.path.strip_prefix(dir)?;
                (!rest.contains('/')).then(|| rest.to_owned())
            });
            let below = DIRS.iter().filter_map(|path| {
                let rest = path.strip_prefix(dir)?.strip_suffix('/')?;
                (!rest.contains('/')).then(|| rest.to_owned())
            });
            let names: BTreeSet<String> = within.chain(below).collect();
            let listed = fs::read_dir(bed.at(dir)).expect("a listing");
            listed
                .map(|e| e.expect("an entry").file_name().into_string().expect("text"))
                .collect::<BTreeSet<_>>()
                == names
        });
        named && listed
    };
    assert!(wait_until(PATIENCE, right), "seed {seed}: the final state is wrong");
    bed.pool.umount();
}

#[test]
fn changes_on_both_sides_in_memory() {
    storm(open_by(Opens::Kernel, Kind::Tmpfs, TOLD), "tmpfs", 1);
}

#[test]
fn changes_on_both_sides_where_the_daemon_opens_directories() {
    storm(open_by(Opens::Daemon, Kind::Tmpfs, TOLD), "tmpfs, the daemon opens directories", 3);
}

#[test]
fn changes_on_both_sides_on_ext4() {
    storm(two_disks(Kind::Ext4, TOLD), "ext4", 3);
}

#[test]
fn changes_on_both_sides_with_cached_listings() {
    storm(two_disks(Kind::Btrfs, "cache.readdir=true,cache.attr=3600"), "btrfs, cache.readdir=true", 10);
}

#[test]
fn changes_on_both_sides_with_two_workers() {
    storm(two_disks(Kind::Xfs, "read-thread-count=2,cache.attr=3600"), "XFS, two workers", 10);
}
