//! Policies: which branches an operation uses. See [`model`] for what they are.

mod action;
mod create;
mod explain;
mod model;
mod random;
mod search;

pub use crate::branch::Mode;
pub use crate::branch::space::Space;
pub use action::action;
pub use create::{create, create_climbing};
pub use explain::{Judgement, judge};
pub use model::{
    Bar, BranchView, Category, Choice, Needs, Policy, Refusal, UnknownPolicy, first_only, needs,
    shows_by_copies,
};
pub use random::{Dice, ThreadDice};
pub use search::search;

#[cfg(test)]
mod tests;
