//! The program over HTTP, with a `canopy` of the tests' own that says what they want: who is let in, what every answer has, and
//! what hostile names, large requests and slow clients do.
#![forbid(unsafe_code)]

mod actions;
mod entry;
mod hostile;
mod limits;
mod listening;
mod mutations;
mod pages;
mod rig;
mod tls;
