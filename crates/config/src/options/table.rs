//! The table of options. It declares each option once; the command line, `canopy options` and the manual pages are
//! derived from it.

use super::setters::{Branches, CategoryPolicy, FuncPolicy, ReadCache, Rules, Tiers, Trash, field};
use super::spec::{Kind, Spec, spec};
use canopy_fuse::mount::MountFlags;
use canopy_policy::Category;
use canopy_pool::config::Func;
use std::sync::LazyLock;

/// Returns every option, in the order in which lists show them.
pub fn table() -> &'static [Spec] {
    &TABLE
}

static TABLE: LazyLock<Vec<Spec>> = LazyLock::new(|| {
    let mut table = branches_and_mountpoint();
    table.extend(policies());
    table.extend(caching());
    table.extend(data());
    table.extend(attributes());
    table.extend(kernel_and_threads());
    table.extend(mount_words());
    table.extend(ignored());
    table
});

fn branches_and_mountpoint() -> Vec<Spec> {
    vec![
        spec(
            "config",
            Kind::ConfigFile,
            "read options from a file: one per line, # begins a comment; or TOML, in a file named *.toml",
        )
        .live(),
        spec("branches", Branches, "the directories to join").live(),
        spec("mountpoint", field!(mountpoint), "where to mount the pool").aliases(&["mount"]),
        spec("fsname", field!(fsname), "the source shown for the mount; default: made from the branches"),
        spec(
            "branches-mount-timeout",
            field!(branches_wait.timeout),
            "seconds to wait for branches that are not mounted yet; 0: do not wait",
        ),
        spec(
            "branches-mount-timeout-fail",
            field!(branches_wait.fail),
            "if branches are still not mounted after that time, do not mount the pool",
        ),
        spec(
            "allow-missing-branches",
            field!(allow_missing),
            "mount without branches that do not exist or whose disks are not mounted; add each when it comes (mergerfs: default)",
        )
        .no_key(),
        spec(
            "branch-timeout",
            field!(pool.branch_timeout),
            "seconds until a branch that does not answer is skipped; 0: never; auto: 30 if remote or FUSE, else never",
        )
        .live()
        .unlisted(),
        spec(
            "lazy-umount-mountpoint",
            field!(detach_mountpoint),
            "first detach what is mounted at the mountpoint",
        )
        .live(),
        spec(
            "minfreespace",
            field!(pool.min_free),
            "bytes that must be free on a branch for it to get new files",
        )
        .live(),
        spec(
            "keep",
            field!(keep),
            "files that stay on their disk: balance, drain and the like leave those that match alone",
        )
        .live()
        .unlisted(),
        spec(
            "statfs",
            field!(pool.statfs),
            "where free space is read on each branch: at its root (base) or at the path asked for (full)",
        )
        .live(),
        spec(
            "statfs-ignore",
            field!(pool.statfs_ignore),
            "branches that statfs leaves out; nc: of mode NC; ro: also of mode RO or mounted read-only",
        )
        .live(),
    ]
}

fn policies() -> Vec<Spec> {
    let mut table = vec![
        spec(
            "category.action",
            CategoryPolicy(Category::Action),
            "policy of all functions that change files",
        )
        .live(),
        spec(
            "category.create",
            CategoryPolicy(Category::Create),
            "policy of all functions that create files",
        )
        .live(),
        spec(
            "category.search",
            CategoryPolicy(Category::Search),
            "policy of all functions that look files up",
        )
        .live(),
    ];
    table.extend(Func::ALL.into_iter().map(|func| {
        spec(format!("func.{func}"), FuncPolicy(func), format!("which branches {func} acts on")).live()
    }));
    table.push(
        spec(
            "tiers",
            Tiers,
            "branches that get new files before others, and when files move on (docs/tiers.md)",
        )
        .live()
        .aliases(&["tier"]),
    );
    table.push(
        spec(
            "rules",
            Rules,
            "which branches or tier get new files of a path, and how many copies (docs/tiers.md)",
        )
        .live()
        .aliases(&["rule"]),
    );
    table.push(
        spec("trash", Trash, "what is kept when it is removed, and for how long (docs/trash.md)")
            .live()
            .unlisted(),
    );
    table.push(
        spec("read-cache", ReadCache, "which files are read from copies on a fast disk (docs/read-cache.md)")
            .live()
            .aliases(&["cache"])
            .unlisted(),
    );
    table.push(
        spec(
            "func.readdir",
            field!(pool.readdir),
            "how branches are listed: in order (seq), opened (cosr) or opened and read (cor) in parallel",
        )
        .live(),
    );
    table.push(
        spec(
            "ignorepponrename",
            field!(pool.ignore_path_preservation),
            "rename and link create missing directories even if the create policy preserves paths",
        )
        .live(),
    );
    table.push(
        spec(
            "link-exdev",
            field!(pool.link_exdev),
            "what link does if the file's branch cannot hold the new name: fail, or make a symlink",
        )
        .live(),
    );
    table.push(
        spec(
            "rename-exdev",
            field!(pool.rename_exdev),
            "what rename does if the file's branch cannot hold the new name: fail, or make a symlink",
        )
        .live(),
    );
    table
}

fn caching() -> Vec<Spec> {
    vec![
        spec(
            "cache.files",
            field!(pool.cache_files),
            "how the page cache is used for files that are not passed through",
        )
        .live(),
        spec(
            "cache.files.process-names",
            field!(pool.cache_process_names),
            "programs whose files cache.files=per-process caches",
        )
        .live(),
        spec(
            "cache.writeback",
            field!(pool.writeback),
            "the kernel collects writes in its page cache; excludes passthrough",
        ),
        spec(
            "cache.coherence",
            field!(coherence),
            "how changes made on the branches are noticed: by watching them, or when cached data expires",
        )
        .live()
        .hidden()
        .since("5.17"),
        spec(
            "catalogue",
            field!(catalogue),
            "a directory to keep what is known of the branches in, so that walks do not read their disks; auto: /var/lib/canopy",
        )
        .unlisted()
        .since("6.0"),
        spec("catalogue-size", field!(catalogue_size), "the most bytes of the catalogue; 0: none")
            .unlisted()
            .since("6.0"),
        spec("missing", field!(pool.missing), "whether the names of a branch that is missing stay, or are hidden")
            .unlisted(),
        spec("cache.attr", field!(timeouts.attr), "seconds the kernel may cache attributes").live(),
        spec("cache.entry", field!(timeouts.entry), "seconds the kernel may cache names").live(),
        spec(
            "cache.negative-entry",
            field!(timeouts.negative),
            "seconds the kernel may cache that a name does not exist",
        )
        .live(),
        spec(
            "cache.memory",
            field!(pool.memory),
            "bytes for known files and directories; beyond, the kernel forgets some; auto: an eighth of the memory",
        )
        .live(),
        spec("cache.readdir", field!(kernel.cache_readdir), "the kernel may cache directory listings").live(),
        spec("cache.statfs", field!(pool.space_ttl), "seconds to cache the free space of a branch").live(),
        spec("cache.symlinks", field!(kernel.cache_symlinks), "the kernel may cache symlink targets"),
        spec(
            "dropcacheonclose",
            field!(pool.drop_cache_on_close),
            "drop the cached pages of a file when it is closed",
        )
        .live(),
    ]
}

fn data() -> Vec<Spec> {
    vec![
        spec(
            "passthrough.io",
            field!(pool.passthrough),
            "opens that bypass the daemon: for reading (ro), writing (wo) or all (rw); auto: if possible",
        )
        .live()
        .since("6.9"),
        spec(
            "passthrough.max-stack-depth",
            field!(kernel.max_stack_depth),
            "1: an overlay can use the pool as a layer; 2: a branch can be an overlay",
        )
        .since("6.9"),
        spec(
            "parallel-direct-writes",
            field!(pool.parallel_direct_writes),
            "uncached writes to one file can run in parallel",
        )
        .live()
        .since("6.2"),
        spec(
            "direct-io-allow-mmap",
            field!(kernel.direct_io_allow_mmap),
            "uncached files can be mapped shared (mmap)",
        )
        .since("6.6"),
        spec("async-read", field!(kernel.async_read), "the kernel can send several reads of a file at once"),
        spec("flush-on-close", field!(pool.flush_on_close), "which files are flushed when they are closed")
            .live(),
        spec("fuse-msg-size", field!(kernel.message), "the largest read or write in one request"),
        spec(
            "readahead",
            field!(kernel.readahead),
            "KiB to read ahead on the pool and its branches; 0: leave as it is",
        )
        .live(),
        spec(
            "moveonenospc",
            field!(pool.move_when_full),
            "the policy that picks another branch for a file when its own is full; true: pfrd",
        )
        .live(),
        spec(
            "prefer-awake",
            field!(pool.prefer_awake),
            "new files go to a disk that was used in the last five minutes, if the policy accepts one",
        )
        .live()
        .unlisted(),
        spec("nullrw", field!(pool.nullrw), "for benchmarks: reads return zeros, writes are discarded"),
    ]
}

fn attributes() -> Vec<Spec> {
    vec![
        spec("follow-symlinks", field!(pool.follow_symlinks), "which symlinks are shown as their targets")
            .live(),
        spec(
            "symlinkify",
            field!(pool.symlinkify),
            "show files that nobody may write as symlinks to the file on its branch",
        )
        .live(),
        spec(
            "symlinkify-timeout",
            field!(pool.symlinkify_timeout),
            "seconds a file must be unchanged for symlinkify; -1: none; a mount with symlinkify: 3600",
        )
        .live(),
        spec(
            "link-cow",
            field!(pool.link_cow),
            "opening a hard link for writing first replaces it with a copy of the file",
        )
        .live(),
        spec("inodecalc", field!(pool.inode), "how inode numbers are computed").live(),
        spec(
            "nfsopenhack",
            field!(pool.nfs_open_hack),
            "read-only files that can be opened for writing, as NFS needs: none, below .git, or all",
        )
        .live(),
        spec(
            "xattr",
            field!(pool.xattr),
            "extended attributes: stored on the branches, none (noattr), or not supported (nosys)",
        )
        .live(),
        spec(
            "security-capability",
            field!(pool.security_capability),
            "file capabilities can be read and written",
        )
        .live(),
        spec("uid", field!(overrides.uid), "show this owner for all files").live().hidden(),
        spec("gid", field!(overrides.gid), "show this group for all files").live().hidden(),
        spec("umask", field!(overrides.umask), "permission bits that no file is shown with").live().hidden(),
        spec(
            "posix-acl",
            field!(kernel.posix_acl),
            "the kernel enforces POSIX ACLs; false: modes show only what an ACL grants to everybody; auto: true if the \
             filesystem of a branch has ACLs",
        ),
        spec(
            "kernel-permissions-check",
            field!(mount.permissions_check),
            "the kernel checks modes and ACLs; false has an effect only if no other user can use the pool",
        ),
        spec(
            "insecure-no-permission-checks",
            field!(mount.skip_permission_checks),
            "check no modes and no ACLs: every user can read and change everything",
        )
        .no_key(),
        spec(
            "handle-killpriv",
            field!(kernel.handle_killpriv),
            "the pool clears suid and sgid on writes; false: the kernel does, and asks before each write",
        ),
        spec(
            "handle-killpriv-v2",
            field!(kernel.handle_killpriv_v2),
            "must be true for handle-killpriv to have an effect",
        )
        .since("5.12"),
        spec("export-support", field!(kernel.export_support), "the pool can be exported over NFS"),
        spec("never-forget-nodes", field!(remember_nodes), "no effect: NFS handles stay valid without it")
            .aliases(&["remember", "remember-nodes", "noforget"]),
        spec(
            "allow-idmap",
            field!(kernel.allow_idmap),
            "the pool can be mounted again with mapped owners (idmapped mounts)",
        )
        .since("6.12"),
    ]
}

fn kernel_and_threads() -> Vec<Spec> {
    vec![
        spec(
            "read-thread-count",
            field!(threads.read),
            "worker threads at the start; 0: one per processor, at most 8; -N: processors divided by N",
        )
        .aliases(&["threads"]),
        spec(
            "process-thread-count",
            field!(threads.process),
            "as read-thread-count, and used instead of it; -1: read-thread-count is used",
        ),
        spec(
            "io-uring",
            field!(kernel.io_uring),
            "receive requests over io_uring; auto: if the kernel offers it; on: also warn if it does not",
        )
        .since("6.14")
        .no_key(),
        spec("landlock", field!(landlock), "restrict worker threads to the branches of the mount")
            .since("5.19")
            .no_key(),
        spec(
            "survive",
            field!(survive),
            "another process takes over from the one that serves, and open files stay open; true: after any death, which needs \
             /dev/fuse; auto: after upgrades and crashes, and without io_uring after any death",
        )
        .since("6.9")
        .no_key(),
        spec(
            "process-thread-queue-depth",
            field!(threads.depth),
            "no effect: each worker reads its own requests, so there is no queue",
        ),
        spec("pin-threads", field!(threads.pin), "which processors the worker threads run on"),
        spec(
            "proxy-ioprio",
            field!(threads.proxy_ioprio),
            "read and write with the I/O priority of the calling process (ionice)",
        )
        .live(),
        spec(
            "worker-priority",
            field!(threads.worker_priority),
            "the priority of worker threads; auto: below all others (SCHED_IDLE) while their processors have room",
        )
        .no_key(),
        spec(
            "scheduling-priority",
            field!(priority),
            "the nice value of the daemon; only root can go below the caller's",
        ),
        spec("debug", field!(debug), "trace each request in one line").live(),
        spec("log.file", field!(log_file), "write the trace to this file instead of the log").live(),
    ]
}

fn mount_words() -> Vec<Spec> {
    let flag = |name, flag, on, help| spec(name, Kind::MountFlag { flag, on }, help);
    let mut words = vec![
        spec(
            "allow_other",
            Kind::Switch(|config| &mut config.mount.allow_other),
            "other users can use the pool (always so if root mounts)",
        ),
        spec(
            "default_permissions",
            Kind::Switch(|config| &mut config.mount.permissions_check),
            "same as kernel-permissions-check=true",
        ),
        spec("max_read", field!(mount.max_read), "the largest read, in bytes"),
        spec("context", field!(mount.context), "SELinux context of all files"),
        spec("fscontext", field!(mount.fscontext), "SELinux context of the filesystem"),
        spec("defcontext", field!(mount.defcontext), "SELinux context of files without one"),
        spec("rootcontext", field!(mount.rootcontext), "SELinux context of the root directory"),
        flag("ro", MountFlags::RDONLY, true, "read-only"),
        flag("rw", MountFlags::RDONLY, false, "read and write (default)"),
        flag(
            "suid",
            MountFlags::NOSUID,
            false,
            "honor set-user-id and set-group-id bits (a chroot or containers need it; fstab: allow_suid)",
        ),
        flag(
            "nosuid",
            MountFlags::NOSUID,
            true,
            "ignore these bits (default, except with mount -t mergerfs)",
        ),
        flag("dev", MountFlags::NODEV, false, "device files work (a chroot needs it; fstab: allow_dev)"),
        flag(
            "nodev",
            MountFlags::NODEV,
            true,
            "device files do not work (default, except with mount -t mergerfs)",
        ),
        flag("allow_suid", MountFlags::NOSUID, false, "same as suid, which mount(8) does not pass on"),
        flag("allow_dev", MountFlags::NODEV, false, "same as dev, which mount(8) does not pass on"),
        flag("exec", MountFlags::NOEXEC, false, "programs can be executed (default)"),
        flag("noexec", MountFlags::NOEXEC, true, "programs cannot be executed"),
        flag("sync", MountFlags::SYNCHRONOUS, true, "all writes are synchronous"),
        flag("async", MountFlags::SYNCHRONOUS, false, "writes are not synchronous (default)"),
        flag("dirsync", MountFlags::DIRSYNC, true, "directory changes are synchronous"),
        flag("atime", MountFlags::NOATIME, false, "update access times as the branches' mounts do (default)"),
        flag(
            "noatime",
            MountFlags::NOATIME,
            true,
            "do not update access times, whatever the branches' mounts do",
        ),
        flag("diratime", MountFlags::NODIRATIME, false, "update access times of directories (default)"),
        flag("nodiratime", MountFlags::NODIRATIME, true, "do not update access times of directories"),
        flag(
            "relatime",
            MountFlags::RELATIME,
            true,
            "update access times older than the last change, whatever the branches' mounts do",
        ),
        flag("norelatime", MountFlags::RELATIME, false, "turn relatime off"),
        flag(
            "strictatime",
            MountFlags::STRICTATIME,
            true,
            "update access times always, whatever the branches' mounts do",
        ),
        flag("nostrictatime", MountFlags::STRICTATIME, false, "turn strictatime off"),
        flag("lazytime", MountFlags::LAZYTIME, true, "write times to disk late"),
        flag("nolazytime", MountFlags::LAZYTIME, false, "turn lazytime off"),
    ];
    words.iter_mut().for_each(|word| word.key = false);
    words
}

/// Options of older setups that neither the kernel nor this program uses any more.
fn ignored() -> Vec<Spec> {
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
        "sync-read",
        "use-ino",
        "user",
    ]
    .map(|name| spec(name, Kind::Ignored, "accepted, no effect").hidden().live())
    .into()
}
