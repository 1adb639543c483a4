//! The reference model: a sequence of operations has the same results on a pool as on a plain directory.
//!
//! An [`Op`] is an operation, an [`Outcome`] its result. A [`Subject`] applies operations. [`Plain`] does so by system
//! calls below a directory, which may be a mounted pool. [`check`] generates a sequence, compares the results, and shrinks
//! a sequence with different results to a short one.

mod generate;
mod listing;
mod op;
mod plain;
mod run;

pub use generate::generate;
pub use op::{
    Access, Change, Create, DIR_SLOTS, FILE_SLOTS, On, Op, Outcome, RenameHow, Reserve, Shown, Whence,
    XattrHow, is_explicit, pattern,
};
pub use plain::Plain;
pub use run::{Difference, Rules, World, check, replay};

use crate::Tree;

/// A filesystem that operations can be applied to.
pub trait Subject {
    /// Applies an operation.
    fn apply(&mut self, op: &Op) -> Outcome;

    /// Captures the whole tree. The error says where the subject contradicts itself.
    fn capture(&mut self) -> Result<Tree, String>;

    /// Closes everything. The error says what is left behind.
    fn finish(&mut self) -> Result<(), String>;
}
