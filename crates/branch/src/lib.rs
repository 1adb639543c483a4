//! A branch: a directory of a filesystem that holds a part of the pool. Its files are reached without leaving it (`fs/`), its
//! state and space are known (`branch/`), what it has missed is noted and replayed (`journal/`), what was removed there is kept for a while (`trash/`), copies of files on a faster disk (`cached`), what it holds is known while it is missing (`remember/`), and files are moved onto it so that nothing is lost on the way (`relocate/`).
//! What has to be looked at again and again, and what may wait for a disk that hangs, has a thread in one place (`tend`).
//! The daemon and the commands that work on branches directly both stand on it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod branch;
pub mod cached;
pub mod fs;
pub mod journal;
pub mod relocate;
pub mod remember;
pub mod tend;
pub mod trash;
