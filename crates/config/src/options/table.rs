//! The table of options: each is declared here once, and everything that knows of options (the command line, their
//! list, their help) is derived from it.

use super::setters::{Branches, CategoryPolicy, FuncPolicy, field};
use super::spec::{Kind, Spec, spec};
use canopy_fuse::mount::MountFlags;
use canopy_pool::config::Func;
use canopy_pool::policy::Category;
use std::sync::LazyLock;

/// Every option there is, in the order in which people should read them.
pub fn table() -> &'static [Spec] {
    &TABLE
}

static TABLE: LazyLock<Vec<Spec>> = LazyLock::new(|| {
    let mut table = what_is_pooled();
    table.extend(who_decides());
    table.extend(caching());
    table.extend(data());
    table.extend(attributes());
    table.extend(kernel_and_threads());
    table.extend(mount_words());
    table.extend(without_effect());
    table
});

fn what_is_pooled() -> Vec<Spec> {
    vec![
        spec("config", Kind::ConfigFile, "a file of options, one a line; # begins a comment; or FILE.toml")
            .live(),
        spec("branches", Branches, "the directories that make up the pool").live(),
        spec("mountpoint", field!(mountpoint), "where the pool appears").aliases(&["mount"]),
        spec("fsname", field!(fsname), "the name of the mount's source"),
        spec(
            "branches-mount-timeout",
            field!(branches_wait.timeout),
            "seconds to wait for branches that are not mounted yet; 0: none",
        ),
        spec(
            "branches-mount-timeout-fail",
            field!(branches_wait.fail),
            "then no pool is mounted, rather than one with branches missing",
        ),
        spec(
            "allow-missing-branches",
            field!(allow_missing),
            "mount without branches that do not exist, and take them once they do (as mergerfs: default)",
        )
        .no_key(),
        spec(
            "branch-timeout",
            field!(pool.branch_timeout),
            "seconds until a branch that hangs is left out; 0: never; auto: 30 if remote or FUSE",
        )
        .live()
        .unlisted(),
        spec(
            "lazy-umount-mountpoint",
            field!(detach_mountpoint),
            "what is mounted at the mountpoint is detached first",
        )
        .live(),
        spec("minfreespace", field!(pool.min_free), "bytes a branch must have free to be given new files")
            .live(),
        spec("statfs", field!(pool.statfs), "free space is asked at the branch roots, or at the path itself")
            .live(),
        spec("statfs-ignore", field!(pool.statfs_ignore), "branches whose free space is not counted").live(),
    ]
}

fn who_decides() -> Vec<Spec> {
    let mut table = vec![
        spec("category.action", CategoryPolicy(Category::Action), "policy of every function that changes")
            .live(),
        spec("category.create", CategoryPolicy(Category::Create), "policy of every function that creates")
            .live(),
        spec("category.search", CategoryPolicy(Category::Search), "policy of every function that looks")
            .live(),
    ];
    table.extend(Func::ALL.into_iter().map(|func| {
        spec(format!("func.{func}"), FuncPolicy(func), format!("which branch {func} acts on")).live()
    }));
    table.push(
        spec("func.readdir", field!(pool.readdir), "how directories are read over several branches").live(),
    );
    table.push(
        spec(
            "ignorepponrename",
            field!(pool.ignore_path_preservation),
            "rename and link make missing directories even under a path-preserving create policy",
        )
        .live(),
    );
    table.push(
        spec("link-exdev", field!(pool.link_exdev), "what link makes where no branch can hold both names")
            .live(),
    );
    table.push(
        spec("rename-exdev", field!(pool.rename_exdev), "what rename leaves where the branch would change")
            .live(),
    );
    table
}

fn caching() -> Vec<Spec> {
    vec![
        spec(
            "cache.files",
            field!(pool.cache_files),
            "use of the page cache where data is not passed through",
        )
        .live(),
        spec(
            "cache.files.process-names",
            field!(pool.cache_process_names),
            "programs that cache.files=per-process caches for",
        )
        .live(),
        spec(
            "cache.writeback",
            field!(pool.writeback),
            "the kernel gathers writes in its page cache; excludes passthrough",
        ),
        spec(
            "cache.coherence",
            field!(coherence),
            "how changes made on the branches themselves are noticed: by watching, or by asking again after a time",
        )
        .live()
        .hidden()
        .since("5.17"),
        spec("cache.attr", field!(timeouts.attr), "seconds the kernel may remember attributes").live(),
        spec("cache.entry", field!(timeouts.entry), "seconds the kernel may remember names").live(),
        spec(
            "cache.negative-entry",
            field!(timeouts.negative),
            "seconds it may remember that a name is missing",
        )
        .live(),
        spec("cache.readdir", field!(kernel.cache_readdir), "the kernel may remember directory listings")
            .live(),
        spec("cache.statfs", field!(pool.space_ttl), "seconds the free space of a branch is remembered")
            .live(),
        spec("cache.symlinks", field!(kernel.cache_symlinks), "the kernel may remember symlink targets"),
        spec(
            "dropcacheonclose",
            field!(pool.drop_cache_on_close),
            "forget a file's cached pages when it is closed",
        )
        .live(),
    ]
}

fn data() -> Vec<Spec> {
    vec![
        spec("passthrough.io", field!(pool.passthrough), "which opens read and write the branch directly")
            .live()
            .since("6.9"),
        spec(
            "passthrough.max-stack-depth",
            field!(kernel.max_stack_depth),
            "1: an overlay may sit on the pool; 2: a branch may be an overlay",
        )
        .since("6.9"),
        spec(
            "parallel-direct-writes",
            field!(pool.parallel_direct_writes),
            "uncached writes to one file may run side by side",
        )
        .live()
        .since("6.2"),
        spec("direct-io-allow-mmap", field!(kernel.direct_io_allow_mmap), "shared mmap of uncached files")
            .since("6.6"),
        spec("async-read", field!(kernel.async_read), "several reads of one file at once"),
        spec("flush-on-close", field!(pool.flush_on_close), "which files are flushed at close").live(),
        spec("fuse-msg-size", field!(kernel.message), "the largest read or write in one message"),
        spec(
            "readahead",
            field!(kernel.readahead),
            "KiB read ahead on the pool and its branches; 0: as it is",
        )
        .live(),
        spec(
            "moveonenospc",
            field!(pool.move_when_full),
            "the policy by which a file moves when its branch is full; true is pfrd",
        )
        .live(),
        spec("nullrw", field!(pool.nullrw), "for measuring: reads give zeros, writes go nowhere"),
    ]
}

fn attributes() -> Vec<Spec> {
    vec![
        spec(
            "follow-symlinks",
            field!(pool.follow_symlinks),
            "which symlinks are shown as what they lead to",
        )
        .live(),
        spec("symlinkify", field!(pool.symlinkify), "read-only files are shown as symlinks to their branch")
            .live(),
        spec(
            "symlinkify-timeout",
            field!(pool.symlinkify_timeout),
            "seconds a file must not have changed for that; -1: none, as without symlinkify at the mount",
        )
        .live(),
        spec(
            "link-cow",
            field!(pool.link_cow),
            "opening a hard link for writing makes a file of its own of it",
        )
        .live(),
        spec("inodecalc", field!(pool.inode), "how inode numbers are made").live(),
        spec("nfsopenhack", field!(pool.nfs_open_hack), "read-only files that open for writing over NFS")
            .live(),
        spec("xattr", field!(pool.xattr), "what becomes of extended attributes").live(),
        spec(
            "security-capability",
            field!(pool.security_capability),
            "file capabilities are read and written",
        )
        .live(),
        spec("uid", field!(overrides.uid), "the owner of every file, whatever the branches say")
            .live()
            .hidden(),
        spec("gid", field!(overrides.gid), "the group of every file, whatever the branches say")
            .live()
            .hidden(),
        spec("umask", field!(overrides.umask), "permissions are those that it leaves; decimal")
            .live()
            .hidden(),
        spec(
            "posix-acl",
            field!(kernel.posix_acl),
            "POSIX ACLs hold; false: modes are shown without what an ACL does not grant to all; auto: true where a \
             branch's filesystem has ACLs",
        ),
        spec(
            "kernel-permissions-check",
            field!(mount.permissions_check),
            "the kernel checks modes and ACLs; false counts where only the user who mounts can use the pool",
        ),
        spec(
            "insecure-no-permission-checks",
            field!(mount.skip_permission_checks),
            "nobody checks modes or ACLs: every user may read and change everything",
        )
        .no_key(),
        spec(
            "handle-killpriv",
            field!(kernel.handle_killpriv),
            "the pool clears suid and sgid on the kernel's word (else it asks)",
        ),
        spec("handle-killpriv-v2", field!(kernel.handle_killpriv_v2), "both must be true for it")
            .since("5.12"),
        spec("export-support", field!(kernel.export_support), "the pool can be exported over NFS"),
        spec("never-forget-nodes", field!(remember_nodes), "without effect: NFS handles last without it")
            .aliases(&["remember", "remember-nodes", "noforget"]),
        spec("allow-idmap", field!(kernel.allow_idmap), "the pool can be mounted with mapped owners")
            .since("6.12"),
    ]
}

fn kernel_and_threads() -> Vec<Spec> {
    vec![
        spec(
            "read-thread-count",
            field!(threads.read),
            "worker threads at first; 0: one a processor, at most 8; -N: processors/N",
        )
        .aliases(&["threads"]),
        spec(
            "process-thread-count",
            field!(threads.process),
            "as read-thread-count; -1: that figure alone counts",
        ),
        spec("io-uring", field!(kernel.io_uring), "requests come over io_uring; auto: where it is to be had")
            .since("6.14")
            .no_key(),
        spec("landlock", field!(landlock), "threads that serve reach nothing but the branches of the mount")
            .since("5.19")
            .no_key(),
        spec(
            "process-thread-queue-depth",
            field!(threads.depth),
            "accepted, without effect: a worker reads its requests itself, and none waits in between",
        ),
        spec("pin-threads", field!(threads.pin), "the processors that worker threads run on"),
        spec(
            "proxy-ioprio",
            field!(threads.proxy_ioprio),
            "read and write with the I/O priority of whoever asks (ionice)",
        )
        .live(),
        spec(
            "scheduling-priority",
            field!(priority),
            "the nice value to serve with; only root can go below the caller's",
        ),
        spec("debug", field!(debug), "every request is traced, in one line").live(),
        spec("log.file", field!(log_file), "the file to trace requests to, instead of the log").live(),
    ]
}

fn mount_words() -> Vec<Spec> {
    let flag = |name, flag, on, help| spec(name, Kind::MountFlag { flag, on }, help);
    let mut words = vec![
        spec(
            "allow_other",
            Kind::Switch(|config| &mut config.mount.allow_other),
            "other users may use the pool (root: always)",
        ),
        spec(
            "default_permissions",
            Kind::Switch(|config| &mut config.mount.permissions_check),
            "as kernel-permissions-check=true",
        ),
        spec("max_read", field!(mount.max_read), "the largest read, in bytes"),
        spec("context", field!(mount.context), "SELinux context of every file"),
        spec("fscontext", field!(mount.fscontext), "SELinux context of the filesystem"),
        spec("defcontext", field!(mount.defcontext), "SELinux context of files without one"),
        spec("rootcontext", field!(mount.rootcontext), "SELinux context of the root"),
        flag("ro", MountFlags::RDONLY, true, "read-only"),
        flag("rw", MountFlags::RDONLY, false, "read and write (default)"),
        flag(
            "suid",
            MountFlags::NOSUID,
            false,
            "set-user-id programs work (a chroot or containers need it; in fstab: allow_suid)",
        ),
        flag("nosuid", MountFlags::NOSUID, true, "they do not (default, but with mount -t mergerfs)"),
        flag("dev", MountFlags::NODEV, false, "device files work (a chroot needs it; in fstab: allow_dev)"),
        flag("nodev", MountFlags::NODEV, true, "they do not (default, but with mount -t mergerfs)"),
        flag("allow_suid", MountFlags::NOSUID, false, "as suid, a word that mount(8) keeps for itself"),
        flag("allow_dev", MountFlags::NODEV, false, "as dev, a word that mount(8) keeps for itself"),
        flag("exec", MountFlags::NOEXEC, false, "programs can be run (default)"),
        flag("noexec", MountFlags::NOEXEC, true, "they cannot"),
        flag("sync", MountFlags::SYNCHRONOUS, true, "every write is synchronous"),
        flag("async", MountFlags::SYNCHRONOUS, false, "they are not (default)"),
        flag("dirsync", MountFlags::DIRSYNC, true, "directory changes are synchronous"),
        flag(
            "atime",
            MountFlags::NOATIME,
            false,
            "access times are kept, as the branches' mounts say (default)",
        ),
        flag("noatime", MountFlags::NOATIME, true, "they are not, whatever the branches' mounts say"),
        flag("diratime", MountFlags::NODIRATIME, false, "access times of directories are kept (default)"),
        flag("nodiratime", MountFlags::NODIRATIME, true, "they are not"),
        flag(
            "relatime",
            MountFlags::RELATIME,
            true,
            "they are kept when older than changes, whatever those say",
        ),
        flag("norelatime", MountFlags::RELATIME, false, "they are not held back"),
        flag("strictatime", MountFlags::STRICTATIME, true, "they are always kept, whatever those say"),
        flag("nostrictatime", MountFlags::STRICTATIME, false, "they need not be"),
        flag("lazytime", MountFlags::LAZYTIME, true, "times are written late"),
        flag("nolazytime", MountFlags::LAZYTIME, false, "they are not"),
    ];
    words.iter_mut().for_each(|word| word.key = false);
    words
}

/// What older setups carry and this kernel, or this program, has no use for any more.
fn without_effect() -> Vec<Spec> {
    [
        "atomic-o-trunc",
        "auto-cache",
        "big-writes",
        "cache.open",
        "defaults",
        "direct-io",
        "gid-cache.expire-timeout",
        "gid-cache.remove-timeout",
        "hard-remove",
        "kernel-cache",
        "large-read",
        "negative-entry",
        "no-splice-move",
        "no-splice-read",
        "no-splice-write",
        "nonempty",
        "splice-move",
        "splice-read",
        "splice-write",
        "use-ino",
        "user",
    ]
    .map(|name| spec(name, Kind::Ignored, "accepted, without effect").hidden().live())
    .into()
}
