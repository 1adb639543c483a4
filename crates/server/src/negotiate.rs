//! What a plan asks of the kernel: at mount, at INIT, and for readahead; and whether it has SELinux.

use canopy_config::Config;
use canopy_config::resolve::Plan;
use canopy_config::values::{Choice, IoUring};
use canopy_fuse::flags::InitFlags;
use canopy_fuse::mount::MountSpec;
use canopy_fuse::transport::uring;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Enables io_uring in the FUSE module if it is wanted and permitted. To be called before mounting.
pub fn offer_uring(plan: &Plan) {
    if plan.config.kernel.io_uring == IoUring::Off {
        return;
    }
    match uring::turn_on() {
        Ok(true) => tracing::info!("enabled the module parameter fuse.enable_uring for io-uring"),
        Ok(false) => {}
        // If there is no io_uring then, the log of what was agreed says why.
        Err(why) => tracing::debug!("fuse.enable_uring: {why}"),
    }
}

/// Returns the number of workers for each processor's queue at the start, and while requests wait in all of those: four,
/// fewer on a large machine, where all of them together are many. A number of threads that was asked for is divided among
/// the queues.
pub fn queue_workers(plan: &Plan) -> (u16, usize) {
    let cpus = uring::online_cpus().len().max(1);
    let config = &plan.config;
    if config.is_given("read-thread-count") || config.is_given("process-thread-count") {
        let workers = config.threads.workers(cpus).div_ceil(cpus);
        return (u16::try_from(workers).unwrap_or(u16::MAX), workers);
    }
    (2, (64 / cpus).clamp(2, 4))
}

/// Returns the arguments for mount(2), or for the helper that mounts in its place.
pub fn mount_spec(plan: &Plan) -> MountSpec {
    let mount = &plan.config.mount;
    let fsname = plan.fsname.to_string_lossy().into_owned();
    let mut spec = MountSpec::new(&plan.mountpoint, fsname, plan.subtype);
    spec.flags = mount.flags;
    spec.replaces = plan.replaces;
    spec.default_permissions = mount.permissions_check;
    // Other users may use a pool that root mounts.
    spec.allow_other = mount.allow_other || rustix::process::geteuid().is_root();
    spec.max_read = mount.max_read;
    let contexts = [
        ("context", &mount.context),
        ("fscontext", &mount.fscontext),
        ("defcontext", &mount.defcontext),
        ("rootcontext", &mount.rootcontext),
    ];
    for (name, value) in contexts {
        if let Some(value) = value {
            spec.extra.push(format!("{name}={}", value.to_string_lossy()));
        }
    }
    spec
}

/// Returns the INIT flags that depend on options.
pub fn optional_flags(plan: &Plan) -> InitFlags {
    let (kernel, pool) = (&plan.config.kernel, &plan.config.pool);
    let table = [
        (InitFlags::ASYNC_READ, kernel.async_read),
        (InitFlags::OVER_IO_URING, kernel.io_uring != IoUring::Off),
        (InitFlags::DIRECT_IO_ALLOW_MMAP, kernel.direct_io_allow_mmap),
        (InitFlags::EXPORT_SUPPORT, kernel.export_support),
        // The older HANDLE_KILLPRIV is never asked for: it makes the pool responsible for clearing set-id bits
        // without telling it who writes. Without the newer one the kernel clears them by SETATTR.
        (InitFlags::HANDLE_KILLPRIV_V2, kernel.handle_killpriv && kernel.handle_killpriv_v2),
        // With ACLs the kernel always checks permissions itself.
        (InitFlags::POSIX_ACL, kernel.posix_acl == Choice::On && plan.config.mount.permissions_check),
        // The kernel refuses INIT if ids are mapped and it does not check permissions itself.
        (InitFlags::ALLOW_IDMAP, kernel.allow_idmap && plan.config.mount.permissions_check),
        (InitFlags::CACHE_SYMLINKS, kernel.cache_symlinks),
        (InitFlags::WRITEBACK_CACHE, pool.writeback),
        // Asked for even if the option is off, because it can be turned on later. It excludes the writeback cache.
        (InitFlags::PASSTHROUGH, !pool.writeback),
    ];
    table.into_iter().filter(|(_, wanted)| *wanted).fold(InitFlags::empty(), |all, (flag, _)| all | flag)
}

/// Returns the largest read or write in one message, in bytes.
pub fn max_write(plan: &Plan) -> u32 {
    let bytes = plan.config.kernel.message.0.saturating_mul(rustix::param::page_size() as u64);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Returns whether the kernel runs with SELinux, or cannot be asked. Without a reboot that does not change.
pub(crate) fn has_selinux() -> bool {
    fs::read_to_string("/proc/filesystems").map_or(true, |list| lists_selinux(&list))
}

/// The kernel registers selinuxfs only where SELinux is on (security/selinux/selinuxfs.c).
fn lists_selinux(filesystems: &str) -> bool {
    filesystems.split_whitespace().any(|word| word == "selinuxfs")
}

/// Sets the readahead of the pool and of the disks behind it, if the option is given and the system permits it.
pub(crate) fn set_readahead(config: &Config, pool: Option<(u32, u32)>) {
    let kib = config.kernel.readahead;
    if kib == 0 {
        return;
    }
    let branches = config.branches.iter().filter_map(|spec| fs::metadata(&spec.path).ok()).map(|meta| {
        let dev = meta.dev();
        (rustix::fs::major(dev), rustix::fs::minor(dev))
    });
    let mut devices: Vec<(u32, u32)> = pool.into_iter().chain(branches).collect();
    devices.sort_unstable();
    devices.dedup();
    for (major, minor) in devices {
        // A partition has no readahead setting of its own, but its disk has.
        let places = [
            format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"),
            format!("/sys/dev/block/{major}:{minor}/../queue/read_ahead_kb"),
        ];
        if !places.iter().any(|place| fs::write(place, kib.to_string()).is_ok()) {
            tracing::debug!("device {major}:{minor}: cannot set the readahead");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_config::resolve::resolve;
    use canopy_config::source::command_line::{Arg, apply};

    fn plan(options: &str) -> Plan {
        let mut config = Config::default();
        let args = [Arg::Options(options.into()), Arg::Path("/no-a".into()), Arg::Path("/no-m".into())];
        apply(&mut config, args).unwrap();
        resolve(config).unwrap()
    }

    #[test]
    fn every_feature_option_sets_its_flag() {
        let table = [
            ("async-read", InitFlags::ASYNC_READ),
            ("direct-io-allow-mmap", InitFlags::DIRECT_IO_ALLOW_MMAP),
            ("export-support", InitFlags::EXPORT_SUPPORT),
            ("handle-killpriv", InitFlags::HANDLE_KILLPRIV_V2),
            ("handle-killpriv-v2", InitFlags::HANDLE_KILLPRIV_V2),
            ("posix-acl", InitFlags::POSIX_ACL),
            ("allow-idmap", InitFlags::ALLOW_IDMAP),
            ("cache.symlinks", InitFlags::CACHE_SYMLINKS),
            ("cache.writeback", InitFlags::WRITEBACK_CACHE),
        ];
        for (name, flag) in table {
            assert!(optional_flags(&plan(&format!("{name}=true"))).contains(flag), "{name}");
            assert!(!optional_flags(&plan(&format!("{name}=false"))).contains(flag), "{name}");
        }
        assert!(optional_flags(&plan("io-uring=auto")).contains(InitFlags::OVER_IO_URING));
        assert!(optional_flags(&plan("io-uring=on")).contains(InitFlags::OVER_IO_URING));
        assert!(!optional_flags(&plan("io-uring=off")).contains(InitFlags::OVER_IO_URING));
        assert!(!optional_flags(&plan("handle-killpriv=true")).contains(InitFlags::HANDLE_KILLPRIV));
        assert!(optional_flags(&plan("passthrough.io=auto")).contains(InitFlags::PASSTHROUGH));
        assert!(optional_flags(&plan("passthrough.io=off")).contains(InitFlags::PASSTHROUGH));
        assert!(!optional_flags(&plan("cache.writeback=true")).contains(InitFlags::PASSTHROUGH));
        assert!(!optional_flags(&plan("kernel-permissions-check=false")).contains(InitFlags::ALLOW_IDMAP));
    }

    #[test]
    fn selinux_is_found_among_the_filesystems() {
        assert!(lists_selinux("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n"));
        assert!(!lists_selinux("nodev\tsysfs\n\text4\nnodev\tfuse\n"));
    }

    #[test]
    fn mount_options_reach_the_mount() {
        let spec =
            mount_spec(&plan("ro,max_read=4096,context=a:b,fsname=x\\,y,kernel-permissions-check=false"));
        assert!(spec.flags.contains(canopy_fuse::mount::MountFlags::RDONLY));
        assert_eq!(
            (spec.max_read, spec.fsname.as_str(), spec.default_permissions),
            (Some(4096), "x,y", false)
        );
        assert_eq!(spec.extra, ["context=a:b"]);
        assert_eq!(spec.subtype, "canopy");
        assert!(mount_spec(&plan("allow_other")).allow_other);
    }

    #[test]
    fn threads_are_divided_among_queues() {
        let cpus = uring::online_cpus().len();
        assert_eq!(usize::from(queue_workers(&plan(&format!("threads={}", 5 * cpus))).0), 5);
        assert_eq!(usize::from(queue_workers(&plan(&format!("threads={}", 5 * cpus + 1))).0), 6);
        let (first, waiting) = queue_workers(&plan("minfreespace=1"));
        assert!(first == 2 && (2..=4).contains(&waiting));
    }

    #[test]
    fn message_sizes_are_in_bytes() {
        assert_eq!(max_write(&plan("fuse-msg-size=2M")), 2 << 20);
        assert_eq!(max_write(&plan("fuse-msg-size=99999999999")), u32::MAX);
    }
}
