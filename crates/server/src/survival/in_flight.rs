//! Requests that must not be carried out twice, while they are carried out.
//!
//! When a process dies, the kernel sends the requests again that it had taken and not answered, and marks them (since
//! Linux 6.9). It does not know how far they had come. A rename, say, that was done already would now fail with ENOENT.
//! So each such request is noted before it begins, with what tells afterwards whether it was done. The kernel keeps the
//! directory locked until it has an answer, so nobody else can have done it meanwhile through the pool.

use super::Ledger;
use crate::lock_rank as rank;
use canopy_base::lock::ranked::Mutex;
use canopy_fuse::abi::UNIQUE_RESEND;
use canopy_pool::{RENAME_INTENT_WORDS, RenameIntent};
use canopy_sys::process::AtomicU64;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The words of a request: its number, when it began, a detail, which process has begun it, and what a rename has done.
pub(super) const REQUEST: usize = RENAME + RENAME_INTENT_WORDS;
const UNIQUE: usize = 0;
const BEGAN: usize = 1;
const DETAIL: usize = 2;
const RUN: usize = 3;
const RENAME: usize = 4;
/// The number of a place that is being filled.
const CLAIMED: u64 = u64::MAX;

/// For how many processes a note stays that the kernel has not asked about: its request was answered. But a process may
/// die before it comes to a request that the one before has left.
const KEPT: u64 = 8;

/// How much earlier than the clock says a file may be born: filesystems take the time of the last tick.
const TICK: i64 = 20_000_000;

thread_local! {
    /// Where this thread notes its requests.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    /// The note of the request that this thread has carried out last.
    static LAST: Last = const { Last(Cell::new(None)) };
}

/// A note that is erased once its request was answered: when the thread begins another, or ends.
struct Last(Cell<Option<(Ledger, usize)>>);

impl Last {
    fn erase(&self) {
        if let Some((ledger, place)) = self.0.take() {
            ledger.requests()[place * REQUEST + UNIQUE].store(0, Ordering::Release);
        }
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        self.erase();
    }
}

static NEXT_PLACE: AtomicUsize = AtomicUsize::new(0);

/// The requests in flight, and those that the process before has left.
#[derive(Debug)]
pub(crate) struct InFlight {
    ledger: Ledger,
    left: Mutex<HashMap<u64, Begun>, rank::Leaf>,
}

/// A request that another process has begun, and perhaps done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Begun {
    /// When, on the clock of the filesystems, in nanoseconds since 1970.
    began: i64,
    /// What [`Noted::detail`] has told; 0 for nothing.
    pub(crate) detail: u64,
    /// Where it is noted.
    place: usize,
}

/// What a place holds that a process before has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FoundSlot {
    Nothing,
    /// A note that was not finished, or that nobody will ask about.
    Useless,
    /// The request with this number.
    Begun(u64, Begun),
}

impl FoundSlot {
    fn at(ledger: &Ledger, place: usize) -> FoundSlot {
        let words = &ledger.requests()[place * REQUEST..][..REQUEST];
        let word = |word: usize| words[word].load(Ordering::Relaxed);
        match words[UNIQUE].load(Ordering::Acquire) {
            0 => FoundSlot::Nothing,
            CLAIMED => FoundSlot::Useless,
            _ if word(RUN) + KEPT < ledger.starts() => FoundSlot::Useless,
            unique => FoundSlot::Begun(
                unique,
                Begun { began: word(BEGAN).cast_signed(), detail: word(DETAIL), place },
            ),
        }
    }
}

/// The note of a request. It outlives this value, because the request is answered only afterwards.
pub(crate) struct Noted<'a> {
    ledger: &'a Ledger,
    place: usize,
}

impl InFlight {
    /// Takes what the processes before have left.
    pub(crate) fn new(ledger: Ledger) -> InFlight {
        let mut left = HashMap::new();
        for place in 0..ledger.requests().len() / REQUEST {
            match FoundSlot::at(&ledger, place) {
                FoundSlot::Nothing => {}
                FoundSlot::Useless => ledger.requests()[place * REQUEST + UNIQUE].store(0, Ordering::Release),
                FoundSlot::Begun(unique, begun) => drop(left.insert(unique, begun)),
            }
        }
        InFlight { ledger, left: Mutex::new(left) }
    }

    /// Erases the note of the request before, which this thread has answered.
    pub(crate) fn answered(&self) {
        LAST.with(Last::erase);
    }

    /// Notes a request that is about to begin, or go on; `None` if too many are in flight.
    pub(crate) fn begin(&self, unique: u64, before: Option<&Begun>) -> Option<Noted<'_>> {
        let requests = self.ledger.requests();
        if let Some(Begun { place, .. }) = before {
            return Some(Noted { ledger: &self.ledger, place: *place });
        }
        let places = requests.len() / REQUEST;
        let first = PLACE.get().unwrap_or_else(|| {
            let place = NEXT_PLACE.fetch_add(1, Ordering::Relaxed) % places;
            PLACE.set(Some(place));
            place
        });
        // Another thread may have the place if there have been very many.
        (0..places).find_map(|step| {
            let place = (first + step) % places;
            let words = &requests[place * REQUEST..][..REQUEST];
            words[UNIQUE].compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).ok()?;
            // None of these moves before what has ended the former note.
            words[BEGAN].store(clock().cast_unsigned(), Ordering::Release);
            words[DETAIL].store(0, Ordering::Release);
            words[RUN].store(self.ledger.starts(), Ordering::Release);
            let noted = Noted { ledger: &self.ledger, place };
            noted.rename().clear();
            words[UNIQUE].store(unique & !UNIQUE_RESEND, Ordering::Release);
            Some(noted)
        })
    }

    /// Returns what a process before has begun of a request; `None` if it had not begun, or was not sent before.
    pub(crate) fn begun_before(&self, unique: u64) -> Option<Begun> {
        if unique & UNIQUE_RESEND == 0 {
            return None;
        }
        self.left.lock().remove(&(unique & !UNIQUE_RESEND))
    }

    /// Takes back what a process before has begun of a request, which has yet to be carried out.
    pub(crate) fn put_back(&self, unique: u64, begun: Begun) {
        self.left.lock().insert(unique & !UNIQUE_RESEND, begun);
    }
}

impl Noted<'_> {
    fn words(&self) -> &[AtomicU64] {
        &self.ledger.requests()[self.place * REQUEST..][..REQUEST]
    }

    /// Notes what tells later whether the request was done, or what it has made.
    pub(crate) fn detail(&self, detail: u64) {
        self.words()[DETAIL].store(detail, Ordering::Release);
    }

    /// Returns where a rename notes what it does.
    pub(crate) fn rename(&self) -> RenameIntent<'_> {
        RenameIntent::new(&self.words()[RENAME..])
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        LAST.with(|last| {
            last.erase();
            last.0.set(Some((self.ledger.clone(), self.place)));
        });
    }
}

impl Begun {
    /// Returns whether a file that was born then can be the one that the request has made.
    pub(crate) fn may_have_made(&self, birth: canopy_branch::fs::stat::Time) -> bool {
        let born = birth.sec.saturating_mul(1_000_000_000).saturating_add(birth.nsec.into());
        // Without birth times, nobody but this request is suspected.
        born == 0 || born >= self.began.saturating_sub(TICK)
    }
}

fn clock() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_branch::fs::stat::Time;

    #[test]
    fn a_request_that_was_not_answered_is_known_to_the_next_process_once() {
        let ledger = Ledger::new().unwrap();
        let before = InFlight::new(ledger.clone());
        let noted = before.begin(10, None).unwrap();
        noted.detail(7);
        drop(before.begin(12, None).unwrap());
        assert_eq!(
            InFlight::new(ledger.clone()).left.lock().len(),
            2,
            "it is answered after it was carried out"
        );
        before.answered();
        // As if the process had been killed.
        std::mem::forget(noted);
        // The next process dies before it comes to it.
        InFlight::new(ledger.clone());
        let now = InFlight::new(ledger.clone());
        assert_eq!(now.begun_before(10), None);
        assert_eq!(now.begun_before(12 | UNIQUE_RESEND), None);
        let begun = now.begun_before(10 | UNIQUE_RESEND).unwrap();
        assert_eq!((begun.detail, now.begun_before(10 | UNIQUE_RESEND)), (7, None));
        let at = |nanoseconds: i64| Time {
            sec: nanoseconds / 1_000_000_000,
            nsec: (nanoseconds % 1_000_000_000) as u32,
        };
        assert!(begun.may_have_made(at(clock())) && begun.may_have_made(at(0)));
        assert!(!begun.may_have_made(at(begun.began - 1_000_000_000)));
        drop(now.begin(10, Some(&begun)));
        now.answered();
        assert_eq!(InFlight::new(ledger).begun_before(10 | UNIQUE_RESEND), None);
    }

    #[test]
    fn requests_of_one_thread_may_overlap() {
        let ledger = Ledger::new().unwrap();
        let requests = InFlight::new(ledger.clone());
        let both = (requests.begin(2, None).unwrap(), requests.begin(4, None).unwrap());
        std::mem::forget(both);
        assert_eq!(InFlight::new(ledger).left.lock().len(), 2);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use canopy_sys::process::left_by_the_dead;

    #[test]
    fn a_note_is_that_of_one_request() {
        let write = |ledger: &Ledger| {
            let requests = InFlight { ledger: ledger.clone(), left: Mutex::new(HashMap::new()) };
            for (unique, detail) in [(10, 7), (12, 8)] {
                let noted = requests.begin(unique, None).expect("a place");
                noted.detail(detail);
                drop(noted);
                requests.answered();
            }
        };
        let read = |ledger: &Ledger| match FoundSlot::at(ledger, 0) {
            FoundSlot::Begun(unique, begun) => Some((unique, begun.detail)),
            FoundSlot::Nothing | FoundSlot::Useless => None,
        };
        let mut found = left_by_the_dead(|| Ledger::new().expect("memory"), write, read);
        found.sort_unstable();
        assert_eq!(found, [None, Some((10, 0)), Some((10, 7)), Some((12, 0)), Some((12, 8))]);
    }
}
