//! Branches that fail, turn read-only, or fall off: the pool goes on without them, and takes them back.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod sick {
    mod failing;
    mod gone;
    mod pulled;
    mod rig;
}
