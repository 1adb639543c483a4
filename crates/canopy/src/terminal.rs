//! Output for people. The commands of other crates print in the same way.

pub use canopy_terminal::*;
