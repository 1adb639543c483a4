//! What is where in a pool, what is wanted, and the steps that lead there. Each command that moves or copies files is a goal over
//! one [`Layout`]: [`Layout::balance`], [`Layout::drain`], [`Layout::gather`], [`Layout::bring`], [`Layout::apply_tiers`] and
//! [`Layout::spread`]. A goal leaves the layout as its steps leave the pool, so that goals can follow one another.
//!
//! Pure: without system calls. Steps are carried out elsewhere, and what others do to the pool meanwhile is for the next plan.

mod balance;
mod bounds;
mod bring;
mod draft;
mod drain;
mod gather;
mod model;
#[cfg(test)]
mod properties;
mod spread;
mod tiers;

pub use bounds::{Bounds, Ground, bounds, rule_of};
pub use gather::Pick;
pub use model::{CopyAt, Disk, File, Going, Layout, LayoutBranch, Plan, Step, Takes, Use, Why};
pub use spread::{Spread, Twins};
pub use tiers::{Now, is_time, mark};
