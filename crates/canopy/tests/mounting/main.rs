//! Mounts: options that take effect at mount time, pools on pools, pools under overlayfs, replacing a mounted pool, and
//! running as a systemd service. Needs root.

#![forbid(unsafe_code)]

mod mount_options;
mod overlayfs;
mod replace;
mod stacked_pools;
mod systemd;
mod watchdog;
