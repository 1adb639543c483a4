//! Whether a plan is carried out. Every command that moves, removes or changes something shows its plan first, and asks here.
//!
//! `--dry-run` only shows, `--yes` does not ask, and at a terminal the user is asked. Where nobody can be asked (there is no
//! terminal, or `--quiet` or `--json` is given), a command that only moves or copies files acts, as timers and scripts expect:
//! each file stays whole, in the same place of the pool. A command that removes or overwrites something only shows its plan,
//! unless an option names what it removes.

use crate::error::{Error, Result};
use crate::manners::ThrottleArgs;
use crate::output::print;
use crate::stop::Stop;
use clap::Args;
use std::io::IsTerminal;

/// Whether a command acts.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ConsentArgs {
    /// Show what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long, alias = "write", conflicts_with = "dry_run")]
    pub yes: bool,
}

impl ConsentArgs {
    /// What the old programs have, whose option `--execute` says whether they act.
    pub(crate) fn executing(execute: bool) -> ConsentArgs {
        ConsentArgs { dry_run: !execute, yes: execute }
    }
}

/// What a command does where nobody can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alone {
    /// It acts, because nothing gets lost, or an option names what is removed.
    Acts,
    /// It shows its plan.
    Shows,
}

/// Whether a command acts, or who decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consent {
    Given,
    /// Only to show the plan.
    Refused,
    /// Only to show the plan, because nobody can be asked.
    NobodyToAsk,
    Asked,
}

impl Consent {
    pub(crate) fn of(args: ConsentArgs, alone: Alone, manners: &ThrottleArgs) -> Consent {
        let is_talking = !manners.quiet && !manners.json;
        let can_ask = is_talking && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        Consent::from(args, alone, can_ask)
    }

    fn from(args: ConsentArgs, alone: Alone, can_ask: bool) -> Consent {
        match (args, can_ask, alone) {
            (ConsentArgs { dry_run: true, .. }, ..) => Consent::Refused,
            (ConsentArgs { yes: true, .. }, ..) | (_, false, Alone::Acts) => Consent::Given,
            (_, true, _) => Consent::Asked,
            (_, false, Alone::Shows) => Consent::NobodyToAsk,
        }
    }

    /// Returns whether the command may act as far as nobody has to be asked.
    pub(crate) fn is_given(self) -> bool {
        self == Consent::Given
    }

    /// Returns whether a plan that has been shown is carried out. Asks where the user decides, unless there is nothing to do.
    ///
    /// # Errors
    /// If the user does not want it, or a signal arrives.
    pub(crate) fn agrees(self, question: &str, is_empty: bool, stop: &Stop) -> Result<bool> {
        match self {
            Consent::Given => Ok(true),
            Consent::Asked if is_empty => Ok(true),
            Consent::Asked if says_yes(question, stop)? => Ok(true),
            Consent::Asked => Err(Error::NotAgreed),
            Consent::Refused | Consent::NobodyToAsk => Ok(false),
        }
    }

    /// Returns what becomes of a command that has only shown that there is something to do.
    ///
    /// # Errors
    /// If it would have acted, had there been somebody to ask.
    pub(crate) fn only_shown(self, is_empty: bool) -> Result<()> {
        if self == Consent::NobodyToAsk && !is_empty { Err(Error::NotAgreed) } else { Ok(()) }
    }
}

/// Asks at the terminal. Only a clear yes is one.
pub(crate) fn says_yes(question: &str, stop: &Stop) -> Result<bool> {
    print(&format!("{question} [y/N] "));
    let answer = stop.line();
    stop.check()?;
    Ok(matches!(answer.as_deref().map(str::trim), Some("y" | "Y" | "yes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loses_something_needs_a_yes() {
        let args = |dry_run, yes| ConsentArgs { dry_run, yes };
        for (given, alone, can_ask, expected) in [
            (args(false, false), Alone::Acts, true, Consent::Asked),
            (args(false, false), Alone::Shows, true, Consent::Asked),
            (args(false, false), Alone::Acts, false, Consent::Given),
            (args(false, false), Alone::Shows, false, Consent::NobodyToAsk),
            (args(false, true), Alone::Shows, false, Consent::Given),
            (args(false, true), Alone::Shows, true, Consent::Given),
            (args(true, false), Alone::Acts, false, Consent::Refused),
            (args(true, false), Alone::Shows, true, Consent::Refused),
        ] {
            assert_eq!(Consent::from(given, alone, can_ask), expected, "{given:?} {alone:?} {can_ask}");
        }
        assert!(Consent::NobodyToAsk.only_shown(false).is_err());
        assert!(Consent::NobodyToAsk.only_shown(true).is_ok());
        assert!(Consent::Refused.only_shown(false).is_ok());
    }
}
