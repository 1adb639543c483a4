use super::*;
use crate::source::set;
use crate::values::{Pages, Value};
use canopy_fuse::mount::MountFlags;
use std::collections::BTreeSet;

/// An option, the values that it accepts with the form in which it shows them (`None`: as written), and the values that
/// it refuses.
type Row = (&'static str, &'static [(&'static str, Option<&'static str>)], &'static [&'static str]);

const ROWS: &[Row] = &[
    ("mountpoint", &[("/m", None), ("m", None)], &[""]),
    ("branches-mount-timeout", &[("0", None), ("60", None)], &["", "-1", "x"]),
    ("branches-mount-timeout-fail", &[("true", None), ("false", None)], &["", "x"]),
    ("allow-missing-branches", &[("true", None), ("false", None)], &["", "x"]),
    ("insecure-no-permission-checks", &[("true", None), ("false", None)], &["", "x"]),
    ("branch-timeout", &[("auto", None), ("0", None), ("30", None)], &["", "-1", "x", "1s"]),
    ("lazy-umount-mountpoint", &[("true", None), ("false", None)], &["", "x"]),
    ("scheduling-priority", &[("-10", None), ("0", None), ("19", None)], &["", "x"]),
    ("fsname", &[("pool", None), ("", None)], &[]),
    (
        "minfreespace",
        &[("0", None), ("4G", Some("4294967296")), ("10", None)],
        &["", "-1", "4X", "16777216T"],
    ),
    ("statfs", &[("base", None), ("full", None)], &["", "none", "BASE"]),
    ("statfs-ignore", &[("none", None), ("ro", None), ("nc", None)], &["", "rw"]),
    (
        "tiers",
        &[
            ("", None),
            ("ssd=/mnt/ssd|fuller than 90% until 50%|older than 2 days;disks=/mnt/disk*", None),
            (" a = /a : /b | larger than 1 GiB ", Some("a=/a:/b|larger than 1G")),
        ],
        &["ssd", "ssd=", "ssd=ssd", "a b=/c", "a=/a|soon", "a=/a;a=/b"],
    ),
    (
        "rules",
        &[("", None), ("films/**=/mnt/a:/mnt/b;*.part=ssd", None)],
        &["films", "films=", "=ssd", "a[=ssd", "a=/["],
    ),
    (
        "trash",
        &[("", None), ("**=30 days", None), ("a/**=1 week|except *.tmp:b|overwritten", None)],
        &["**", "**=", "**=soon", "a[=1 day"],
    ),
    (
        "read-cache",
        &[
            ("", None),
            ("/a:/b=films/**:*.flac|size 200G|when opened", None),
            ("/a=**", Some("/a=**|free 10%|when read 2 times in 1 week")),
        ],
        &["/a", "a=**", "/a=x[", "/a=x|when never", "/a=x;/a=y"],
    ),
    ("category.action", &[("epall", None), ("rand", None)], &["", "best", "FF"]),
    ("category.create", &[("mfs", None), ("mspmfs", None)], &["", "best"]),
    ("category.search", &[("newest", None)], &["", "best"]),
    (
        "func.readdir",
        &[("seq", None), ("cosr", None), ("cor:4", None), ("cor:4:2", None)],
        &["", "cor:-1", "par"],
    ),
    (
        "follow-symlinks",
        &[("never", None), ("directory", None), ("regular", None), ("all", None)],
        &["", "file", "true"],
    ),
    ("symlinkify", &[("true", None), ("false", None)], &["", "x"]),
    (
        "symlinkify-timeout",
        &[("3600", None), ("-1", None), ("0", None), ("-2K", Some("-2048"))],
        &["", "-", "--1", "x", "1s", "9223372036854775808"],
    ),
    (
        "never-forget-nodes",
        &[
            ("true", None),
            ("", Some("true")),
            ("-1", Some("true")),
            ("3600", Some("true")),
            ("0", Some("false")),
            ("off", Some("false")),
        ],
        &["x", "maybe"],
    ),
    ("missing", &[("remember", None), ("hide", None)], &["", "true", "show"]),
    ("nfsopenhack", &[("off", None), ("git", None), ("all", None)], &["", "true", "on"]),
    (
        "link-exdev",
        &[
            ("passthrough", None),
            ("rel-symlink", None),
            ("abs-base-symlink", None),
            ("abs-pool-symlink", None),
        ],
        &["", "abs-symlink", "symlink"],
    ),
    (
        "rename-exdev",
        &[("passthrough", None), ("rel-symlink", None), ("abs-symlink", None)],
        &["", "abs-pool-symlink", "true"],
    ),
    ("ignorepponrename", &[("true", None), ("off", Some("false"))], &["", "maybe"]),
    (
        "cache.files",
        &[("off", None), ("partial", None), ("full", None), ("auto-full", None), ("per-process", None)],
        &["", "auto", "libfuse"],
    ),
    ("keep", &[("*.bak", None), ("b|a", Some("a|b")), ("", None)], &[]),
    ("cache.files.process-names", &[("a", None), ("b|a", Some("a|b"))], &[]),
    ("cache.writeback", &[("true", None), ("false", None)], &["", "2"]),
    ("cache.coherence", &[("auto", None), ("watch", None), ("timeout", None)], &["", "true", "off"]),
    (
        "catalogue",
        &[("off", None), ("false", Some("off")), ("auto", None), ("/ssd/canopy", None)],
        &["", "true", "ssd"],
    ),
    ("catalogue-size", &[("64M", Some("67108864")), ("0", None)], &["", "x", "-1"]),
    ("cache.attr", &[("0", None), ("60", None), ("1K", Some("1024"))], &["", "-1", "1s", "1.5"]),
    ("cache.entry", &[("0", None), ("60", None)], &["", "-1"]),
    ("cache.negative-entry", &[("0", None), ("60", None)], &["", "-1"]),
    ("cache.memory", &[("auto", None), ("64M", Some("67108864")), ("0", None)], &["", "x", "-1"]),
    ("cache.readdir", &[("true", None), ("false", None)], &["", "x"]),
    ("cache.statfs", &[("0", None), ("60", None)], &["", "x"]),
    ("cache.symlinks", &[("true", None), ("false", None)], &["", "x"]),
    ("dropcacheonclose", &[("true", None), ("false", None)], &["", "x"]),
    (
        "passthrough.io",
        &[("off", None), ("ro", None), ("wo", None), ("rw", None), ("auto", None)],
        &["", "on"],
    ),
    ("landlock", &[("true", None), ("false", None)], &["", "x"]),
    ("survive", &[("true", None), ("off", Some("false")), ("auto", None)], &["", "x"]),
    ("io-uring", &[("auto", None), ("on", None), ("off", None)], &["", "true", "yes"]),
    ("worker-priority", &[("auto", None), ("normal", None)], &["", "low"]),
    ("passthrough.max-stack-depth", &[("1", None), ("2", None)], &["", "0", "3"]),
    ("parallel-direct-writes", &[("true", None), ("false", None)], &["", "x"]),
    ("direct-io-allow-mmap", &[("true", None), ("false", None)], &["", "x"]),
    ("async-read", &[("true", None), ("false", None)], &["", "x"]),
    ("flush-on-close", &[("never", None), ("always", None), ("opened-for-write", None)], &["", "true"]),
    ("fuse-msg-size", &[("256", None), ("16", None)], &["", "0", "x"]),
    ("readahead", &[("0", None), ("2048", None)], &["", "x"]),
    (
        "moveonenospc",
        &[("true", Some("pfrd")), ("false", None), ("off", Some("false")), ("mfs", None), ("epmfs", None)],
        &["", "best", "True"],
    ),
    ("prefer-awake", &[("true", None), ("false", None)], &["", "x"]),
    ("nullrw", &[("true", None), ("false", None)], &["", "x"]),
    ("link-cow", &[("true", None), ("false", None)], &["", "x"]),
    (
        "inodecalc",
        &[
            ("passthrough", None),
            ("path-hash", None),
            ("path-hash32", None),
            ("devino-hash", None),
            ("devino-hash32", None),
            ("hybrid-hash", None),
            ("hybrid-hash32", None),
            ("oldest-hash", None),
            ("oldest-hash32", None),
        ],
        &["", "hash"],
    ),
    ("xattr", &[("passthrough", None), ("noattr", None), ("nosys", None)], &["", "off"]),
    ("security-capability", &[("true", None), ("false", None)], &["", "x"]),
    ("posix-acl", &[("true", None), ("false", None), ("auto", None)], &["", "x"]),
    ("insecure-no-permission-checks", &[("true", None), ("false", None)], &["", "x"]),
    ("kernel-permissions-check", &[("true", None), ("false", None)], &["", "x"]),
    ("handle-killpriv", &[("true", None), ("false", None)], &["", "x"]),
    ("handle-killpriv-v2", &[("true", None), ("false", None)], &["", "x"]),
    ("export-support", &[("true", None), ("false", None)], &["", "x"]),
    ("allow-idmap", &[("true", None), ("false", None)], &["", "x"]),
    ("read-thread-count", &[("0", None), ("-2", None), ("8", None), ("8K", Some("8"))], &["", "x"]),
    ("process-thread-count", &[("-1", None), ("0", None), ("8", None)], &["", "x"]),
    ("process-thread-queue-depth", &[("2", None), ("0", None), ("-1", None)], &["", "x"]),
    (
        "pin-threads",
        &[
            ("false", None),
            ("", Some("false")),
            ("R1L", None),
            ("R1P", None),
            ("RP1L", None),
            ("RP1P", None),
            ("R1LP1L", None),
            ("R1PP1P", None),
            ("RPSL", None),
            ("RPSP", None),
            ("R1PPSP", None),
        ],
        &["true", "rp1l", "R2L", "RPSL "],
    ),
    ("uid", &[("-1", None), ("1000", None), ("-7", Some("-1"))], &["", "root", "4294967296"]),
    ("gid", &[("-1", None), ("0", None)], &["", "x"]),
    ("umask", &[("-1", None), ("18", None)], &["", "u=rwx"]),
    ("debug", &[("true", None), ("off", Some("false"))], &["", "x", "2"]),
    ("log.file", &[("", None), ("/var/log/pool.log", None)], &[]),
    ("proxy-ioprio", &[("true", None), ("false", None)], &["", "x"]),
    ("max_read", &[("131072", None), ("1M", Some("1048576"))], &["", "x", "4G"]),
    ("context", &[("system_u:object_r:tmp_t:s0", None)], &[]),
    ("fscontext", &[("a", None)], &[]),
    ("defcontext", &[("a", None)], &[]),
    ("rootcontext", &[("a", None)], &[]),
];

fn set_ok(config: &mut Config, key: &str, value: &str) {
    set(config, key, OsStr::new(value)).unwrap_or_else(|error| panic!("{key}={value}: {error}"));
}

fn set_err(key: &str, value: &str) -> OptionError {
    let mut config = Config::default();
    set(&mut config, key, OsStr::new(value)).expect_err(&format!("{key}={value}"))
}

/// All options `func.*` share one row, because the table generates them alike.
fn row(name: &str) -> Option<Row> {
    ROWS.iter().copied().find(|row| row.0 == name).or_else(|| {
        name.starts_with("func.").then_some(("func.*", &[("ff", None), ("epmfs", None)], &["", "best", "Ff"]))
    })
}

#[test]
fn every_option_accepts_renders_and_refuses_its_row() {
    for spec in table() {
        if spec.is_ignored() || spec.accepted().is_none() || matches!(&*spec.name, "branches" | "config") {
            continue;
        }
        let (_, good, bad) = row(&spec.name).unwrap_or_else(|| panic!("no row for {}", spec.name));
        for (text, shown) in good {
            let mut config = Config::default();
            set_ok(&mut config, &spec.name, text);
            assert_eq!(spec.render(&config).as_deref(), Some(shown.unwrap_or(text)), "{}={text}", spec.name);
            assert!(config.is_given(&spec.name));
            // Setting the shown form again changes nothing.
            let rendered = spec.render(&config).unwrap();
            let mut again = Config::default();
            set_ok(&mut again, &spec.name, &rendered);
            assert_eq!(spec.render(&again).unwrap(), rendered, "{}", spec.name);
        }
        for text in bad {
            let error = set_err(&spec.name, text).to_string();
            assert!(error.contains(spec.name.as_ref()), "{error}");
            // Those of tiers and rules name the part that is wrong.
            let names_a_part = matches!(spec.name.as_ref(), "tiers" | "rules" | "trash" | "read-cache");
            assert!(error.contains("must be") || names_a_part, "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
    for (name, ..) in ROWS {
        assert!(find(name).is_some(), "{name} is no longer an option");
    }
}

#[test]
fn defaults_match_the_table() {
    let config = Config::default();
    let table = [
        ("allow-idmap", "true"),
        ("async-read", "true"),
        ("catalogue", "off"),
        ("catalogue-size", "268435456"),
        ("missing", "hide"),
        ("cache.attr", "1"),
        ("cache.entry", "1"),
        ("cache.negative-entry", "0"),
        ("cache.files", "off"),
        ("cache.files.process-names", "qbittorrent-nox|rtorrent"),
        ("cache.memory", "auto"),
        ("cache.readdir", "false"),
        ("cache.statfs", "0"),
        ("cache.symlinks", "false"),
        ("cache.writeback", "false"),
        ("category.action", "epall"),
        ("category.create", "pfrd"),
        ("category.search", "ff"),
        ("direct-io-allow-mmap", "true"),
        ("dropcacheonclose", "false"),
        ("export-support", "true"),
        ("flush-on-close", "opened-for-write"),
        ("func.readdir", "seq"),
        ("handle-killpriv", "true"),
        ("handle-killpriv-v2", "true"),
        ("ignorepponrename", "false"),
        ("insecure-no-permission-checks", "false"),
        ("kernel-permissions-check", "true"),
        ("follow-symlinks", "never"),
        ("symlinkify", "false"),
        ("symlinkify-timeout", "3600"),
        ("never-forget-nodes", "false"),
        ("nfsopenhack", "off"),
        ("link-exdev", "passthrough"),
        ("rename-exdev", "passthrough"),
        ("minfreespace", "4294967295"),
        ("branches-mount-timeout", "0"),
        ("branches-mount-timeout-fail", "false"),
        ("branch-timeout", "auto"),
        ("config", ""),
        ("lazy-umount-mountpoint", "false"),
        ("scheduling-priority", "-10"),
        ("nullrw", "false"),
        ("parallel-direct-writes", "true"),
        ("passthrough.max-stack-depth", "1"),
        ("posix-acl", "auto"),
        ("process-thread-count", "-1"),
        ("process-thread-queue-depth", "2"),
        ("pin-threads", "false"),
        ("proxy-ioprio", "false"),
        ("uid", "-1"),
        ("gid", "-1"),
        ("umask", "-1"),
        ("debug", "false"),
        ("log.file", ""),
        ("read-thread-count", "0"),
        ("readahead", "0"),
        ("security-capability", "true"),
        ("statfs", "base"),
        ("statfs-ignore", "none"),
        ("xattr", "passthrough"),
        // mergerfs numbers directories by their path.
        ("inodecalc", "oldest-hash"),
        // mergerfs has passthrough off, and lacks the others.
        ("passthrough.io", "auto"),
        ("io-uring", "auto"),
        ("worker-priority", "auto"),
        ("landlock", "false"),
        ("survive", "auto"),
    ];
    for (name, value) in table {
        assert_eq!(find(name).unwrap().render(&config).as_deref(), Some(value), "{name}");
    }
    assert_eq!(config.kernel.message, Pages::parse(OsStr::new("1M")).unwrap());
}

#[test]
fn names_and_aliases_are_unique() {
    let mut seen = BTreeSet::new();
    for spec in table() {
        for name in spec.names() {
            assert!(seen.insert(canonical(name)), "{name} twice");
        }
        assert!(!spec.help.is_empty(), "{}", spec.name);
    }
}

#[test]
fn underscore_and_dash_are_equal() {
    let mut config = Config::default();
    set_ok(&mut config, "async_read", "false");
    set_ok(&mut config, "statfs_ignore", "nc");
    set_ok(&mut config, "allow-other", "");
    set_ok(&mut config, "cache.negative_entry", "3");
    assert!(!config.kernel.async_read && config.mount.allow_other);
    assert_eq!(config.timeouts.negative.as_secs(), 3);
    // A dot is not.
    assert!(matches!(set_err("cache_attr", "1"), OptionError::Unknown { .. }));
}

#[test]
fn later_policies_replace_earlier_ones() {
    let mut config = Config::default();
    set_ok(&mut config, "func.rmdir", "rand");
    set_ok(&mut config, "category.action", "ff");
    assert_eq!(find("func.rmdir").unwrap().render(&config).unwrap(), "ff");
    set_ok(&mut config, "func.rmdir", "rand");
    assert_eq!(find("category.action").unwrap().render(&config).unwrap(), "ff,rand");
}

#[test]
fn pairs_split_at_the_first_equals_sign_and_are_trimmed() {
    let mut config = Config::default();
    crate::source::set_pair(&mut config, OsStr::new(" fsname = a=b ")).unwrap();
    assert_eq!(config.fsname.as_deref(), Some(OsStr::new("a=b")));
    crate::source::set_pair(&mut config, OsStr::new("ro")).unwrap();
    assert!(config.mount.flags.contains(MountFlags::RDONLY));
}

#[test]
fn mount_options_set_and_clear_flags() {
    let mut config = Config::default();
    assert_eq!(config.mount.flags, MountFlags::NOSUID | MountFlags::NODEV);
    for word in ["suid", "dev", "noexec", "noatime", "sync", "dirsync", "nodiratime", "relatime", "lazytime"]
    {
        set_ok(&mut config, word, "");
    }
    let flags = MountFlags::NOEXEC
        | MountFlags::SYNCHRONOUS
        | MountFlags::DIRSYNC
        | MountFlags::NODIRATIME
        | MountFlags::RELATIME
        | MountFlags::LAZYTIME;
    assert_eq!(config.mount.flags, flags);
    for word in ["nosuid", "nodev", "exec", "atime", "async", "diratime", "norelatime", "nolazytime"] {
        set_ok(&mut config, word, "");
    }
    assert_eq!(config.mount.flags, MountFlags::NOSUID | MountFlags::NODEV | MountFlags::DIRSYNC);
    let error = set_err("ro", "1");
    assert_eq!(error.to_string(), "option ro takes no value: write 'ro', not 'ro=1'");
}

#[test]
fn options_for_other_programs_and_obsolete_ones_are_ignored() {
    let mut config = Config::default();
    for pair in ["defaults", "use_ino", "nonempty", "splice_move=x", "x-systemd.requires=/a", "x-gvfs-hide"] {
        crate::source::set_pair(&mut config, OsStr::new(pair)).unwrap();
    }
    let ignored: Vec<&str> = config.ignored.iter().map(String::as_str).collect();
    assert_eq!(
        ignored,
        ["defaults", "nonempty", "splice-move", "use-ino", "x-gvfs-hide", "x-systemd.requires"]
    );
}

#[test]
fn errors_name_the_option_and_the_remedy() {
    let table = [
        ("cache.file", "off", "unknown option 'cache.file' (did you mean 'cache.files'?)"),
        ("minfreespac", "1", "unknown option 'minfreespac' (did you mean 'minfreespace'?)"),
        ("minfree", "1", "unknown option 'minfree' (did you mean 'minfreespace'?)"),
        ("passthrough", "off", "unknown option 'passthrough' (did you mean 'passthrough.io'?)"),
        // Several begin like that.
        ("func", "off", "unknown option 'func' ('canopy options' lists them all)"),
        ("func.creat", "ff", "unknown option 'func.creat' (did you mean 'func.create'?)"),
        ("zzz", "", "unknown option 'zzz' ('canopy options' lists them all)"),
        (
            "cache.files",
            "fulll",
            "option cache.files: 'fulll' is not valid: must be off, partial, full, auto-full or per-process \
             (did you mean 'full'?)",
        ),
        ("nullrw", "maybe", "option nullrw: 'maybe' is not valid: must be true or false"),
        (
            "minfreespace",
            "16777216T",
            "option minfreespace: '16777216T' is too large: must be a number, optionally with K, M, G or T",
        ),
    ];
    for (key, value, message) in table {
        assert_eq!(set_err(key, value).to_string(), message);
    }
}

#[test]
fn options_that_are_not_implemented_are_refused() {
    assert!(matches!(set_err("auto_unmount", "x"), OptionError::Unknown { .. }));
}
