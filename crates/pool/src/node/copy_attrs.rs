//! What is remembered of the attributes of a merged directory's copies.
//!
//! The kernel asks for a directory's attributes after each change of its names. The change was on one branch, so the
//! copies on the others need not be asked again. What changes a copy through the pool is recorded after the system call
//! and before the answer; a change by others is reported by the watch. Nothing reports that a directory was read, which
//! changes its access time, or that only one of its times was set, so nothing is remembered for long.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::stat::Attr;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::time::{Duration, Instant};

/// Up to so many copies are asked each time: to check that no events are waiting would cost as much.
pub(crate) const FEW_COPIES: usize = 2;

/// How long a copy's attributes are remembered.
const VALIDITY: Duration = Duration::from_secs(1);

/// The attributes of a directory's copies, by branch. Takes memory from the first use on.
#[derive(Default)]
pub(crate) struct CopyAttrs(Mutex<Vec<Remembered>, rank::Leaf>);

#[derive(Clone, Copy, Default)]
struct Remembered {
    attr: Attr,
    /// When they were asked for; `None` if they have changed since.
    asked: Option<Instant>,
    /// How often they have changed.
    changes: u32,
}

/// A copy that is asked again.
struct Asked {
    index: usize,
    /// Its `changes` before that.
    changes: u32,
    answer: Result<Attr, Errno>,
}

impl Remembered {
    fn changed(&mut self) {
        self.asked = None;
        self.changes = self.changes.wrapping_add(1);
    }
}

impl CopyAttrs {
    /// Records that the copy on a branch has changed.
    pub(crate) fn changed(&self, index: usize) {
        if let Some(copy) = self.0.lock().get_mut(index) {
            copy.changed();
        }
    }

    /// Records that any copy may have changed.
    pub(crate) fn all_changed(&self) {
        self.0.lock().iter_mut().for_each(Remembered::changed);
    }

    /// Returns the copies whose attributes are known, however long they have been.
    #[cfg(test)]
    pub(crate) fn known(&self) -> Vec<usize> {
        let copies = self.0.lock();
        (0..copies.len()).filter(|&index| copies[index].asked.is_some()).collect()
    }

    /// Calls `give` with the attributes of each copy, in order, and asks for those that are not remembered. `count` is the
    /// number of branches, `held_by` says which have a copy.
    pub(crate) fn each(
        &self,
        count: usize,
        held_by: impl Fn(usize) -> bool,
        mut ask: impl FnMut(usize) -> Result<Attr, Errno>,
        mut give: impl FnMut(usize, Result<Attr, Errno>),
    ) {
        let now = Instant::now();
        let mut asked: SmallVec<[Asked; 2]> = SmallVec::new();
        {
            let mut copies = self.0.lock();
            copies.resize(count, Remembered::default());
            for (index, copy) in copies.iter().enumerate().filter(|(index, _)| held_by(*index)) {
                if copy.asked.is_none_or(|asked| now.saturating_duration_since(asked) > VALIDITY) {
                    asked.push(Asked { index, changes: copy.changes, answer: Err(Errno::STALE) });
                }
            }
        }
        for copy in &mut asked {
            copy.answer = ask(copy.index);
        }
        let mut copies = self.0.lock();
        let mut asked = asked.into_iter().peekable();
        for (index, copy) in copies.iter_mut().enumerate().filter(|(index, _)| held_by(*index)) {
            let Some(Asked { changes, answer, .. }) = asked.next_if(|asked| asked.index == index) else {
                // What has changed since this began need not be shown.
                give(index, Ok(copy.attr));
                continue;
            };
            if let Ok(attr) = answer
                && copy.changes == changes
            {
                (copy.attr, copy.asked) = (attr, Some(now));
            }
            give(index, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_copies_that_have_changed_are_asked_again() {
        let copies = CopyAttrs::default();
        let ask = |changed_meanwhile: Option<usize>, size: u64| {
            let (mut asked, mut given) = (Vec::new(), Vec::new());
            let answer = |index| {
                asked.push(index);
                if changed_meanwhile == Some(index) {
                    copies.changed(index);
                }
                Ok(Attr { size, ..Attr::default() })
            };
            copies.each(
                5,
                |index| index != 3,
                answer,
                |index, answer| given.push((index, answer.unwrap().size)),
            );
            (asked, given)
        };
        assert_eq!(ask(None, 1), (vec![0, 1, 2, 4], vec![(0, 1), (1, 1), (2, 1), (4, 1)]));
        copies.changed(2);
        assert_eq!(ask(None, 2), (vec![2], vec![(0, 1), (1, 1), (2, 2), (4, 1)]));
        copies.changed(4);
        assert_eq!(ask(Some(4), 3).0, [4], "what changes while it is asked for is not remembered");
        assert_eq!(ask(None, 4), (vec![4], vec![(0, 1), (1, 1), (2, 2), (4, 4)]));
        copies.all_changed();
        assert_eq!(ask(None, 5).0, [0, 1, 2, 4]);
        for copy in copies.0.lock().iter_mut() {
            copy.asked = copy.asked.map(|asked| asked - 2 * VALIDITY);
        }
        assert_eq!(ask(None, 6).0, [0, 1, 2, 4], "nothing is remembered for long");
    }

    #[test]
    fn an_error_is_not_remembered() {
        let copies = CopyAttrs::default();
        for _ in 0..2 {
            let mut given = Vec::new();
            copies.each(1, |_| true, |_| Err(Errno::IO), |_, answer| given.push(answer));
            assert_eq!(given, [Err(Errno::IO)]);
        }
    }
}
