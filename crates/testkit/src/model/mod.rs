//! The reference model: one sequence of operations on a pool and on one plain directory must look the same.
//!
//! An [`Op`] is what a program asks for, an [`Outcome`] what it gets. A [`Subject`] carries operations out; [`Plain`]
//! does so by system calls below a directory, which may be a mounted pool. [`check`] makes sequences, compares, and
//! on a difference shrinks the sequence to one that is worth reading.

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

/// Something that operations can be carried out on.
pub trait Subject {
    fn apply(&mut self, op: &Op) -> Outcome;

    /// All that can be seen. The error tells what contradicts itself.
    fn capture(&mut self) -> Result<Tree, String>;

    /// Closes everything. The error tells what is left behind.
    fn finish(&mut self) -> Result<(), String>;
}
