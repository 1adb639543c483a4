//! The runtime interface on real mounts: the control file, the keys of every file, and changes under load.

#![forbid(unsafe_code)]

mod branch_instructions;
mod commands;
mod control_file;
mod file_keys;
mod fio_and_stress_ng;
mod mount_table;
mod mount_time_options;
mod nfsopenhack;
mod option_table;
mod policies;
mod readdir_policy;
mod request_log;
mod rig;
mod runtime_options;
mod under_load;
