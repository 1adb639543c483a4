//! A branch that hangs does not freeze the pool.

#![forbid(unsafe_code)]

mod fio;
mod late_answers;
mod local_disk;
mod mount;
mod other_branches;
mod rig;
mod socket;
mod timeout_option;
mod unmount;
