//! What the source says: sizes and `unsafe` from the tokens of a file, imports from the syntax tree of a crate.
//!
//! `modules` holds the module tree, `reader` fills it, and `arrows` resolves its imports to files; `methods` finds the
//! files of methods that are called.

pub(crate) mod arrows;
mod attributes;
mod methods;
mod modules;
mod reader;
pub(crate) mod scan;
mod tokens;

pub(crate) use modules::Modules;
