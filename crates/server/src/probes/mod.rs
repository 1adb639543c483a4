//! What the kernel must do for what it may cache, tried out before it may.
//!
//! A version number proves nothing: a defect comes with one release, and its mending with any update of a distribution.
//! So each demand is tried as the pool is mounted, on a filesystem of this process that is attached nowhere (`trial`).
//! What is not seen to hold is not relied on ([`TABLE`], `canopy status`).

mod trial;

use crate::test_switches;
use canopy_branch::tend;
use canopy_control::UnprovedReport;
use canopy_fuse::{KernelLimits, SessionOptions};
use rustix::io::Errno;
use std::fmt;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use trial::Trial;

/// What the kernel must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behaviour {
    /// An absence that it was told can be taken back.
    Absence,
    /// Every name and absence can be taken back at once (a new epoch).
    All,
    /// A name expires when it is told so.
    Names,
    /// Attributes expire when it is told so.
    Attributes,
    /// The listing of a directory is dropped when it is told so.
    Listings,
    /// After a write that passes the daemon by, it asks for the size, or knows it.
    PassedSizes,
}

/// A demand on the kernel.
struct Demand {
    behaviour: Behaviour,
    /// In the report, and for tests.
    word: &'static str,
    /// What a kernel does that does not meet it.
    fault: &'static str,
    /// What then follows.
    follows: &'static str,
    probe: fn(&Trial) -> Result<Outcome, Errno>,
}

/// What follows is applied where it belongs: the first five in `coherence::ttl`, the last one at the start.
const TABLE: [Demand; 6] = [
    Demand {
        behaviour: Behaviour::Absence,
        word: "absence",
        fault: "remembers that a name is missing after it was told that there is one",
        follows: "absence is cached for a second at most",
        probe: Trial::takes_back_an_absence,
    },
    Demand {
        behaviour: Behaviour::All,
        word: "all",
        fault: "remembers names after it was told to look up all of them again",
        follows: "absence is not cached",
        probe: Trial::takes_back_everything,
    },
    Demand {
        behaviour: Behaviour::Names,
        word: "names",
        fault: "remembers a name after it was told that it has changed",
        follows: "names are cached as if nothing were watched",
        probe: Trial::expires_a_name,
    },
    Demand {
        behaviour: Behaviour::Attributes,
        word: "attributes",
        fault: "remembers attributes after it was told that they have changed",
        follows: "attributes are cached as if nothing were watched",
        probe: Trial::expires_attributes,
    },
    Demand {
        behaviour: Behaviour::Listings,
        word: "listings",
        fault: "remembers a listing after it was told that the directory has changed",
        follows: "listings are not cached",
        probe: Trial::drops_a_listing,
    },
    Demand {
        behaviour: Behaviour::PassedSizes,
        word: "passed-sizes",
        fault: "shows an old size after a write that passed the daemon by",
        follows: "all data passes through the daemon",
        probe: Trial::sees_passed_sizes,
    },
];

/// How a probe ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Held,
    Failed,
    /// The kernel does not offer that at all, and is known not to.
    NotOffered,
}

impl From<bool> for Outcome {
    fn from(held: bool) -> Outcome {
        if held { Outcome::Held } else { Outcome::Failed }
    }
}

/// A set of behaviours.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Set(u8);

impl Set {
    fn of(behaviour: Behaviour) -> Set {
        Set(1 << behaviour as u8)
    }

    fn has(self, behaviour: Behaviour) -> bool {
        self.0 & Set::of(behaviour).0 != 0
    }

    fn add(&mut self, behaviour: Behaviour) {
        self.0 |= Set::of(behaviour).0;
    }

    /// Returns the behaviours with these words.
    fn of_words(words: &str) -> Set {
        let mut set = Set::default();
        let named = |demand: &&Demand| words.split([',', '|']).any(|word| word == demand.word);
        TABLE.iter().filter(named).for_each(|demand| set.add(demand.behaviour));
        set
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = TABLE.iter().filter(|demand| self.has(demand.behaviour));
        f.debug_set().entries(named.map(|demand| demand.word)).finish()
    }
}

/// What was found out about this kernel.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Findings {
    tried: bool,
    held: Set,
    failed: Set,
}

impl Findings {
    /// Nothing could be tried.
    pub(crate) const NONE: Findings = Findings { tried: false, held: Set(0), failed: Set(0) };
    /// For what is no kernel, but the other side of a connection to a test.
    #[cfg(any(test, feature = "test-switches"))]
    pub(crate) const ALL: Findings = Findings { tried: true, held: Set(u8::MAX), failed: Set(0) };

    /// Returns what it would be if the kernel did not do this.
    #[cfg(test)]
    pub(crate) fn without(mut self, behaviour: Behaviour) -> Findings {
        self.held.0 &= !Set::of(behaviour).0;
        self.failed.add(behaviour);
        self
    }

    /// Returns whether the kernel was seen to do it.
    pub(crate) fn holds(self, behaviour: Behaviour) -> bool {
        self.held.has(behaviour)
    }

    /// Returns whether the kernel was seen not to do it.
    pub(crate) fn fails(self, behaviour: Behaviour) -> bool {
        self.failed.has(behaviour)
    }

    /// Returns it as a number for the next process, which is 0 if nothing was tried.
    pub(crate) fn to_word(self) -> u64 {
        if self.tried { 1 << 16 | u64::from(self.failed.0) << 8 | u64::from(self.held.0) } else { 0 }
    }

    /// Returns what the process before has found out, if it has.
    pub(crate) fn from_word(word: u64) -> Option<Findings> {
        let [held, failed, tried, ..] = word.to_le_bytes();
        (tried != 0).then_some(Findings { tried: true, held: Set(held), failed: Set(failed) })
    }

    /// Returns what does not hold and what follows from it. `relied_on`: more would be cached if it held.
    pub(crate) fn report(self, relied_on: bool) -> Vec<UnprovedReport> {
        // Without the right to mount, nothing passes the daemon by.
        let would_matter = |behaviour| relied_on && behaviour != Behaviour::PassedSizes;
        let is_told =
            |demand: &&Demand| self.fails(demand.behaviour) || !self.tried && would_matter(demand.behaviour);
        let row = |demand: &Demand| UnprovedReport {
            behaviour: demand.word.into(),
            fault: demand.fault.into(),
            follows: demand.follows.into(),
            tried: self.tried,
        };
        TABLE.iter().filter(is_told).map(row).collect()
    }
}

/// How long all probes may take. They wait for nothing but this process.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tries what a kernel does that has agreed on these options.
pub(crate) fn run(options: &SessionOptions, limits: KernelLimits) -> Findings {
    let begun = Instant::now();
    match start(options, limits, Set::of_words(&test_switches::untold())) {
        Ok(found) => match found.recv_timeout(PATIENCE) {
            Ok(findings) => {
                tracing::debug!("the kernel was tried within {:?}: {findings:?}", begun.elapsed());
                findings
            }
            Err(_) => {
                tracing::warn!("the kernel could not be tried: the probes do not end");
                Findings::NONE
            }
        },
        Err(why) => {
            tracing::info!("the kernel cannot be tried, so little is cached: {why}");
            Findings::NONE
        }
    }
}

/// Has everything tried. The kernel is not told of changes to `untold`, for tests.
fn start(options: &SessionOptions, limits: KernelLimits, untold: Set) -> Result<Receiver<Findings>, String> {
    let trial = Trial::start(options, limits, untold)?;
    let (report, found) = channel();
    let probe = move || {
        let _ = report.send(try_all(&trial));
        trial.end();
    };
    tend::apart((c"canopy-trial", 0), probe);
    Ok(found)
}

fn try_all(trial: &Trial) -> Findings {
    let mut findings = Findings { tried: true, ..Findings::NONE };
    for Demand { behaviour, word, fault, follows, probe } in TABLE {
        let outcome = probe(trial).unwrap_or_else(|errno| {
            tracing::warn!("trying {word} has failed: {errno}");
            Outcome::Failed
        });
        match outcome {
            Outcome::Held => findings.held.add(behaviour),
            Outcome::NotOffered => tracing::debug!("the kernel does not offer {word}"),
            Outcome::Failed => {
                findings.failed.add(behaviour);
                tracing::warn!("this kernel {fault}: {follows}");
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_fuse::flags::InitFlags;

    fn options() -> SessionOptions {
        let flags = InitFlags::PASSTHROUGH | InitFlags::PARALLEL_DIROPS | InitFlags::MAX_PAGES;
        SessionOptions { flags, ..SessionOptions::default() }
    }

    fn try_with(limits: KernelLimits, untold: Set) -> Findings {
        start(&options(), limits, untold).unwrap().recv_timeout(PATIENCE).unwrap()
    }

    fn can_mount() -> bool {
        let can = rustix::process::geteuid().is_root() && std::path::Path::new("/dev/fuse").exists();
        if !can {
            eprintln!("skipped: needs root and /dev/fuse");
        }
        can
    }

    /// A kernel that is not told keeps what it has. So this shows that each probe looks at what the kernel has, and fails if
    /// telling it has no effect.
    #[test]
    fn each_probe_fails_where_the_kernel_does_not_hear() {
        if !can_mount() {
            return;
        }
        let all = try_with(KernelLimits::NONE, Set::default());
        for demand in TABLE {
            let offered = all.holds(demand.behaviour) || all.fails(demand.behaviour);
            let deaf = try_with(KernelLimits::NONE, Set::of_words(demand.word));
            assert_eq!(deaf.fails(demand.behaviour), offered, "{}: {deaf:?}", demand.word);
            for other in TABLE.iter().filter(|other| other.behaviour != demand.behaviour) {
                assert_eq!(
                    deaf.holds(other.behaviour),
                    all.holds(other.behaviour),
                    "{}: {deaf:?}, {all:?}",
                    other.word
                );
            }
        }
    }

    #[test]
    fn what_a_kernel_does_not_offer_is_no_defect() {
        if !can_mount() {
            return;
        }
        let found = try_with(KernelLimits::minor(38), Set::default());
        for behaviour in [Behaviour::All, Behaviour::PassedSizes] {
            assert!(!found.holds(behaviour) && !found.fails(behaviour), "{found:?}");
        }
        assert!(found.holds(Behaviour::Names) && found.holds(Behaviour::Attributes), "{found:?}");
    }

    #[test]
    fn the_next_process_reads_what_was_found() {
        let mut found = Findings { tried: true, ..Findings::NONE };
        found.held.add(Behaviour::Names);
        found.failed.add(Behaviour::PassedSizes);
        assert_eq!(Findings::from_word(found.to_word()), Some(found));
        assert_eq!(Findings::from_word(Findings::NONE.to_word()), None, "the next process tries again");
    }

    #[test]
    fn what_fails_is_told_and_what_was_not_tried_where_it_matters() {
        let words = |found: Findings, relied_on| -> Vec<String> {
            found.report(relied_on).into_iter().map(|row| row.behaviour).collect()
        };
        let mut found = Findings { tried: true, ..Findings::NONE };
        found.failed.add(Behaviour::Listings);
        assert_eq!(words(found, false), ["listings"]);
        assert!(words(Findings::ALL, true).is_empty() && words(Findings::NONE, false).is_empty());
        assert_eq!(words(Findings::NONE, true), ["absence", "all", "names", "attributes", "listings"]);
    }
}
