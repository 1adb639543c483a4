//! Policies choose branches by free space, presence and age.
//!
//! This module makes no system calls. The caller looks up [`needs`], gathers one [`BranchView`] per branch (in
//! branch-list order, none left out) and calls [`create()`], [`action()`] or [`search()`]. A category decides which
//! branches may be chosen at all (its filter); a policy decides which of those are taken (its pick). The two are
//! independent, so 21 names in 3 categories are three filters and ten picks.
//!
//! Names, filters, ties and the ranking of refusals are those of mergerfs 2.42, because fstab files and scripts rely
//! on them.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod action;
pub mod brake;
mod create;
mod explain;
pub mod layout;
mod model;
pub mod placement;
pub mod random;
pub mod read_cache;
mod search;
pub mod trash;

pub use action::action;
pub use canopy_base::error::Refusal;
pub use canopy_branch::branch::list::Mode;
pub use canopy_branch::branch::space::Space;
pub use create::{create, create_climbing, prefer_awake};
pub use explain::{Explanation, explain};
pub use model::{
    BranchView, Category, Choice, Exclusion, Needs, Policy, UnknownPolicy, UseOfSpace, first_only, needs,
    shows_by_copies,
};
pub use random::{Random, ThreadRandom};
pub use search::search;

#[cfg(test)]
mod tests;
