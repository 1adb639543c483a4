//! In which state a branch is: the words, and what decides which of them is told.
//!
//! Two ideas decide, because they change for different reasons, and a branch may be left out and read-only at the same time:
//!
//! - its [`Health`]: what checks find there. Written by `health`, one check after the other.
//! - its [`Standing`]: whether operations use it. Written by [`BranchHealth::turn`](super::health::BranchHealth::turn), which
//!   knows no other way than [`Standing::after`].
//!
//! [`BranchState::of`] puts them together, and nothing else does. How quickly a branch answers decides nothing, it is only
//! told: as a state, too, and of several states the worst counts.
//!
//! A branch that is listed but has no `Branch` yet is `Awaited`. `crates/server/src/branches/topology.rs` alone says which of
//! the list are in force, gone or awaited.

/// What is told of a branch. Listed from good to bad: of several, the worst is told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum BranchState {
    Up,
    /// It answers after more than a second.
    Lagging,
    /// Its filesystem refuses changes, though the branch's mode allows them.
    ReadOnly,
    /// Changes fail with errors.
    Failing,
    /// Its disk most likely spins up.
    Asleep,
    /// It does not answer. With a deadline it is left out.
    Hung,
    /// Its mount, its root or its disk is missing: the pool has let go of it, or is about to.
    Gone,
    /// It does not exist yet, or its disk is not mounted yet.
    Awaited,
}

impl BranchState {
    pub const ALL: [BranchState; 8] = [
        BranchState::Up,
        BranchState::Lagging,
        BranchState::ReadOnly,
        BranchState::Failing,
        BranchState::Asleep,
        BranchState::Hung,
        BranchState::Gone,
        BranchState::Awaited,
    ];

    /// Returns the state of a branch that the pool has opened.
    #[must_use]
    pub fn of(standing: Standing, health: Health) -> BranchState {
        match standing {
            Standing::Gone => BranchState::Gone,
            // What a check finds later than it was left out does not make it answer.
            Standing::LeftOut | Standing::Returning => BranchState::Hung,
            Standing::InForce => health.into(),
        }
    }

    /// Returns the word for it in machine-readable output.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            BranchState::Up => "ok",
            BranchState::Lagging => "lagging",
            BranchState::ReadOnly => "read-only",
            BranchState::Failing => "failing",
            BranchState::Asleep => "asleep",
            BranchState::Hung => "hung",
            BranchState::Gone => "gone",
            BranchState::Awaited => "awaited",
        }
    }

    /// Returns what a word means; `None` for one of another version.
    #[must_use]
    pub fn of_word(word: &str) -> Option<BranchState> {
        BranchState::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// What checks find on a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    Well,
    /// Its filesystem refuses changes, though the branch's mode allows them.
    ReadOnly,
    /// Changes fail with errors.
    Failing,
    /// Its root cannot be read, or its disk or its mount is missing.
    Gone,
}

impl From<Health> for BranchState {
    fn from(health: Health) -> BranchState {
        match health {
            Health::Well => BranchState::Up,
            Health::ReadOnly => BranchState::ReadOnly,
            Health::Failing => BranchState::Failing,
            Health::Gone => BranchState::Gone,
        }
    }
}

/// Whether operations use a branch, from its opening to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Standing {
    #[default]
    InForce,
    /// It does not answer.
    LeftOut,
    /// It answers again, and is being brought up to date.
    Returning,
    /// The pool has let go of it. What comes back in its place is opened anew.
    Gone,
}

/// What changes that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    LeaveOut,
    /// It begins to be brought up to date.
    Return,
    /// That has failed.
    StayOut,
    TakeBack,
    Go,
}

impl Standing {
    /// All transitions; `None` for none.
    #[must_use]
    pub fn after(self, turn: Turn) -> Option<Standing> {
        match (self, turn) {
            (Standing::InForce, Turn::LeaveOut) | (Standing::Returning, Turn::StayOut) => {
                Some(Standing::LeftOut)
            }
            (Standing::LeftOut, Turn::Return) => Some(Standing::Returning),
            (Standing::LeftOut | Standing::Returning, Turn::TakeBack) => Some(Standing::InForce),
            (Standing::InForce | Standing::LeftOut | Standing::Returning, Turn::Go) => Some(Standing::Gone),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_goes_and_returns_on_no_other_way() {
        use Standing::{Gone, InForce, LeftOut, Returning};
        let turns = [Turn::LeaveOut, Turn::Return, Turn::StayOut, Turn::TakeBack, Turn::Go];
        for (standing, expected) in [
            (InForce, [Some(LeftOut), None, None, None, Some(Gone)]),
            (LeftOut, [None, Some(Returning), None, Some(InForce), Some(Gone)]),
            (Returning, [None, None, Some(LeftOut), Some(InForce), Some(Gone)]),
            (Gone, [None; 5]),
        ] {
            assert_eq!(turns.map(|turn| standing.after(turn)), expected, "{standing:?}");
        }
    }

    #[test]
    fn standing_and_health_make_one_state() {
        use BranchState as State;
        let healths = [Health::Well, Health::ReadOnly, Health::Failing, Health::Gone];
        for (standing, expected) in [
            (Standing::InForce, [State::Up, State::ReadOnly, State::Failing, State::Gone]),
            (Standing::LeftOut, [State::Hung; 4]),
            (Standing::Returning, [State::Hung; 4]),
            (Standing::Gone, [State::Gone; 4]),
        ] {
            assert_eq!(healths.map(|health| State::of(standing, health)), expected, "{standing:?}");
        }
    }

    #[test]
    fn words_are_understood_again_and_the_list_is_whole_and_in_order() {
        for (number, state) in BranchState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, number);
            assert_eq!(BranchState::of_word(state.word()), Some(state));
        }
        assert!(BranchState::ALL.is_sorted());
        assert_eq!(BranchState::of_word("unheard-of"), None);
    }
}
