//! `canopy explain` predicts what an operation does.

use super::rig::{BINARY, canopy, explain, shown};
use canopy_testkit::{LoopFs, Pool, ScratchDir};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;

const MIB: u64 = 1 << 20;

fn verdicts(answer: &Value) -> Vec<&str> {
    let branches = answer["branches"].as_array().expect("branches");
    branches.iter().map(|branch| branch["verdict"].as_str().expect("a verdict")).collect()
}

/// Returns the text without its line breaks.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn each_verdict_has_its_reason_and_figures() {
    let (small, large, read_only) = (LoopFs::tmpfs(8 * MIB), LoopFs::tmpfs(32 * MIB), LoopFs::ext4(16 * MIB));
    let (no_create, declared) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let spec = |fs: &LoopFs, mode: &str| format!("{}={mode}", fs.path().display());
    let pool = Pool::builder(BINARY)
        .branch_spec(spec(&small, "RW,10M"))
        .branch_spec(spec(&large, "RW"))
        .branch_spec(spec(&read_only, "RW"))
        .branch_spec(spec(&no_create, "NC"))
        .branch_spec(spec(&declared, "RO"))
        .option("minfreespace=1M,category.create=mfs")
        .mount();
    read_only.set_read_only(true);
    let answer = explain(&pool, "create", "new");
    assert_eq!(verdicts(&answer), ["below-min-free", "chosen", "read-only", "mode", "mode"], "{answer:#}");
    assert_eq!(answer["chosen"], json!([large.path()]));
    assert_eq!(
        (&answer["policy"], &answer["func"], &answer["category"]),
        (&"mfs".into(), &"create".into(), &"create".into())
    );
    assert_eq!((&answer["error"], &answer["by_chance"]), (&Value::Null, &false.into()));
    assert_eq!((&answer["pool"], &answer["path"]), (&json!(pool.path()), &json!(pool.path().join("new"))));
    assert_eq!(
        (&answer["branches"][0]["min_free"], &answer["branches"][1]["min_free"]),
        (&(10 * MIB).into(), &MIB.into())
    );
    let text = shown(["explain".as_ref(), "create".as_ref(), pool.path().join("new").as_os_str()]);
    for words in ["policy mfs", "minfreespace of 10M", "NC takes nothing new", "mounted read-only", "chosen"]
    {
        assert!(unwrapped(&text).contains(words), "{words}\n{text}");
    }
    // The file is created as predicted.
    fs::write(pool.path().join("new"), "").unwrap();
    assert!(large.path().join("new").exists());
    let answer = explain(&pool, "create", "new");
    assert_eq!(answer["error"]["name"], "EEXIST");
    assert_eq!(verdicts(&explain(&pool, "unlink", "new"))[1], "chosen");
    assert_eq!(
        verdicts(&explain(&pool, "getattr", "new")),
        ["absent", "chosen", "absent", "absent", "absent"]
    );
    fs::write(declared.path().join("new"), "").unwrap();
    let answer = explain(&pool, "unlink", "new");
    assert_eq!(answer["error"]["name"], "EROFS", "the copy on the read-only branch would reappear");
    assert_eq!(fs::remove_file(pool.path().join("new")).unwrap_err().raw_os_error(), Some(30));
    pool.umount();
}

/// Whatever state the first disk is in, a file goes where `explain` says, by each policy that leaves nothing to chance.
#[test]
fn a_file_goes_to_the_disk_that_explain_names() {
    type Prepare = fn(&LoopFs, &Pool);
    let fill_inodes: Prepare = |disk, pool| {
        fs::create_dir_all(disk.path().join("many")).unwrap();
        let made = (0..1000).try_for_each(|n| fs::write(disk.path().join(format!("many/{n}")), ""));
        assert!(made.is_err(), "{}: it has free inodes", pool.path().display());
    };
    let fill: Prepare = |disk, _| {
        let file = fs::File::create(disk.path().join("large")).unwrap();
        let free = rustix::fs::statvfs(disk.path()).map(|it| it.f_bavail * it.f_frsize).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free - MIB / 2).unwrap();
    };
    let states: [(&str, &str, Prepare); 4] = [
        ("plain", "", |_, _| {}),
        ("no-inodes", "no-inodes", fill_inodes),
        ("full", "below-min-free", fill),
        ("read-only", "read-only", |disk, _| disk.set_read_only(true)),
    ];
    for (state, verdict, prepare) in states {
        for policy in ["ff", "mfs", "lus", "epff", "mspmfs", "newest"] {
            let what = format!("{state}, {policy}");
            let first = LoopFs::with(canopy_testkit::Kind::Ext4, 16 * MIB, &["-N", "128"], "");
            let second = LoopFs::tmpfs(12 * MIB);
            let disks = [&first, &second];
            disks.iter().for_each(|disk| fs::create_dir(disk.path().join("d")).unwrap());
            let builder = Pool::builder(BINARY).branch(first.path()).branch(second.path());
            // A file is tried on one disk only.
            let builder = builder.option("minfreespace=1M,moveonenospc=false");
            let pool = builder.option(format!("category.create={policy}")).mount();
            prepare(&first, &pool);
            let answer = explain(&pool, "create", "d/new");
            if !verdict.is_empty() {
                assert_eq!(verdicts(&answer)[0], verdict, "{what}");
            }
            let named = answer["chosen"][0].as_str().expect("a branch").to_owned();
            fs::write(pool.path().join("d/new"), "").unwrap_or_else(|error| panic!("{what}: {error}"));
            let used = disks.into_iter().find(|disk| disk.path().join("d/new").exists()).expect("a file");
            assert_eq!(named, used.path().to_str().unwrap(), "{what}");
            pool.umount();
            first.set_read_only(false);
        }
    }
}

#[test]
fn a_random_choice_is_explained_with_its_probabilities() {
    let (one, three) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(48 * MIB));
    let pool = Pool::builder(BINARY).branch(one.path()).branch(three.path()).option("minfreespace=0").mount();
    let answer = explain(&pool, "create", "x");
    assert_eq!((&answer["by_chance"], verdicts(&answer)), (&true.into(), vec!["candidate", "candidate"]));
    let chance = |index: usize| answer["branches"][index]["chance"].as_f64().unwrap();
    assert!((chance(0) - 0.25).abs() < 0.01 && (chance(0) + chance(1) - 1.0).abs() < 1e-9, "{answer:#}");
    let text = shown(["explain".as_ref(), "mkdir".as_ref(), pool.path().join("x").as_os_str()]);
    assert!(
        text.contains("chance decides") && text.contains("25 % likely") && text.contains("75 % likely"),
        "{text}"
    );
    pool.umount();
}

#[test]
fn symlinks_missing_files_and_long_names_are_explained() {
    let scratch = ScratchDir::new("canopy-explain-", &["a", "b"]);
    let (a, b) = (scratch.path("a"), scratch.path("b"));
    fs::create_dir(b.join("dir")).unwrap();
    symlink("nowhere", b.join("dir/link")).unwrap();
    let long = "l".repeat(250);
    fs::write(a.join(&long), "").unwrap();
    let pool =
        Pool::builder(BINARY).branch(&a).branch(&b).option("minfreespace=0,category.create=epff").mount();
    // A symlink cannot have user attributes, a missing file has none, and a long name does not fit into a key.
    assert_eq!(explain(&pool, "readlink", "dir/link")["chosen"], json!([b]));
    assert_eq!(explain(&pool, "unlink", "dir/none")["error"]["name"], "ENOENT");
    assert_eq!(explain(&pool, "chmod", &long)["chosen"], json!([a]));
    assert_eq!(explain(&pool, "create", &format!("dir/{long}"))["chosen"], json!([b]));
    assert_eq!(explain(&pool, "getattr", "")["chosen"], json!([a]));
    let answer = explain(&pool, "rename", "dir");
    assert_eq!(answer["preserves_paths"], true);
    let text = shown(["explain".as_ref(), "rename".as_ref(), pool.path().join("dir").as_os_str()]);
    assert!(unwrapped(&text).contains("rename-exdev says otherwise"), "{text}");

    for (args, words) in [
        (["explain", "creat", "@x"], &["'creat' is not a function", "did you mean 'create'?"][..]),
        (["explain", "create", "/proc/x"], &["/proc/x is not on a pool", "canopy status"]),
        (["explain", "create", "@none/x"], &["cannot be looked up", "No such file"]),
        (["explain", "create", "@.mergerfs/x"], &["cannot be looked up: not a directory"]),
    ] {
        let point = format!("{}/", pool.path().display());
        let done = canopy(args.map(|arg| arg.replace('@', &point)));
        assert!(done.code() == Some(1) && done.stdout.is_empty(), "{}", done.describe());
        assert!(done.stderr.lines().count() == 1, "{}", done.describe());
        assert!(words.iter().all(|word| done.stderr.contains(word)), "{}", done.describe());
    }
    // These attributes are not listed, and cannot be set.
    let mut names = [0; 4096];
    assert_eq!(rustix::fs::listxattr(pool.path().join("dir"), &mut names[..]).unwrap(), 0);
    for key in
        ["canopy.status", "canopy.explain.create", "canopy.explain.frob", "canopy.explain.getattr/a/../b"]
    {
        let key = format!("user.mergerfs.{key}");
        let set =
            rustix::fs::setxattr(pool.path().join(".mergerfs"), &key, b"x", rustix::fs::XattrFlags::empty());
        assert_eq!(set, Err(rustix::io::Errno::NODATA), "{key}");
    }
    let get = |key: &str| {
        rustix::fs::getxattr(
            pool.path().join("dir"),
            format!("user.mergerfs.canopy.explain.{key}"),
            &mut [0; 9000][..],
        )
    };
    assert_eq!(get("frob"), Err(rustix::io::Errno::NODATA));
    assert_eq!(get("getattr/../a"), Err(rustix::io::Errno::INVAL));
    assert!(get("getattr/link").is_ok());
    pool.umount();
}
