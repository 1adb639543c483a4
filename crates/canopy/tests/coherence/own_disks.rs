//! Programs that copy and remove between a pool and a disk of it: they see two different files.

use super::rig::{BINARY, BOUND};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Kind, LoopFs, PATIENCE, Pool, PoolBed};
use std::fs;
use std::path::Path;
use std::process::Command;

fn bed(options: &str) -> PoolBed {
    let builder = Pool::builder(BINARY).option("minfreespace=0").option(options);
    PoolBed::mount(builder, [0, 1].map(|_| LoopFs::new(Kind::Ext4, 32 << 20)))
}

fn content(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[test]
fn mv_from_the_pool_to_another_disk_leaves_the_file_there() {
    for options in ["", "passthrough.io=off", "io-uring=off", "cache.entry=0,cache.attr=0", "survive=true"] {
        let bed = bed(options);
        // The disk comes behind that of the file, or before it.
        for (from, to, name) in [(0, 1, "one"), (0, 1, "known"), (1, 0, "back"), (1, 0, "known back")] {
            fs::write(bed.on(from, name), name).expect("a file");
            if name.starts_with("known") {
                assert_eq!(content(&bed.at(name)).as_deref(), Some(name));
            }
            let mut mv = Command::new("mv");
            let done = run_within(mv.arg(bed.at(name)).arg(bed.on(to, name)), PATIENCE);
            assert!(done.success(), "{options}, {name}: {}", done.describe());
            assert_eq!(bed.branches_with(name), [to], "{options}, {name}");
            assert_eq!(content(&bed.on(to, name)).as_deref(), Some(name), "{options}");
            assert!(
                wait_until(BOUND * 10, || content(&bed.at(name)).as_deref() == Some(name)),
                "{options}, {name}"
            );
            // No later removal spares it.
            fs::remove_file(bed.at(name)).expect("unlink");
            assert!(bed.branches_with(name).is_empty(), "{options}, {name}");
        }
        std::os::unix::fs::symlink("target", bed.on(0, "link")).expect("a symlink");
        let done = run_within(Command::new("mv").arg(bed.at("link")).arg(bed.on(1, "link")), PATIENCE);
        assert!(done.success(), "{options}: {}", done.describe());
        assert_eq!(fs::read_link(bed.on(1, "link")).expect("a symlink"), Path::new("target"), "{options}");
    }
}

/// What was there before the file was opened was not brought since, though all may be in one tick of the clock.
#[test]
fn files_that_were_made_together_go_together() {
    let bed = bed("");
    let modified = |on: usize, name: &str| fs::metadata(bed.on(on, name)).and_then(|meta| meta.modified());
    let mut alike = 0;
    for at in 0..200 {
        let name = format!("f{at}");
        canopy_testkit::files::wait_for_clock_tick();
        (0..2).for_each(|on| fs::write(bed.on(on, &name), "shown").expect("a file"));
        assert_eq!(content(&bed.at(&name)).as_deref(), Some("shown"));
        alike += u32::from(modified(0, &name).expect("a time") == modified(1, &name).expect("a time"));
        fs::remove_file(bed.at(&name)).expect("unlink");
        assert!(bed.branches_with(&name).is_empty(), "{name}");
    }
    assert!(alike > 0, "no two files were written in one tick");
}

/// What is removed stays removed, unless the very thread that removes it has brought a copy since it opened the file.
#[test]
fn only_a_copy_that_the_remover_has_brought_is_spared() {
    let bed = bed("");
    let write = |name: &str| fs::write(bed.on(1, name), "other").expect("a file");
    let bring = |name: &str| {
        write(name);
        let time = fs::metadata(bed.on(0, name)).and_then(|meta| meta.modified()).expect("a time");
        fs::File::open(bed.on(1, name)).and_then(|copy| copy.set_modified(time)).expect("a time");
    };
    let open = |name: &str| assert_eq!(content(&bed.at(name)).as_deref(), Some("shown"), "{name}");
    let nothing = |_: &str| {};
    let elsewhere = |name: &str| {
        std::thread::scope(|scope| scope.spawn(|| open(name)).join().expect("a read"));
    };
    let tick = |_: &str| canopy_testkit::files::wait_for_clock_tick();
    type Step<'a> = &'a dyn Fn(&str);
    let table: [(&str, [Step<'_>; 3], bool); 7] = [
        ("opened, then brought", [&open, &tick, &bring], true),
        ("opened, then something else made", [&open, &tick, &write], false),
        ("brought, never opened", [&bring, &tick, &nothing], false),
        ("brought, then opened", [&bring, &tick, &open], false),
        ("opened by another", [&elsewhere, &tick, &bring], false),
        ("opened by another since", [&open, &bring, &elsewhere], false),
        ("no copy", [&open, &nothing, &nothing], false),
    ];
    for (at, (what, steps, spared)) in table.into_iter().enumerate() {
        let name = format!("f{at}");
        fs::write(bed.on(0, &name), "shown").expect("a file");
        steps.iter().for_each(|step| step(&name));
        fs::remove_file(bed.at(&name)).expect("unlink");
        assert_eq!(bed.branches_with(&name), if spared { vec![1] } else { vec![] }, "{what}");
        let shown = spared.then_some("other");
        assert!(wait_until(BOUND * 10, || content(&bed.at(&name)).as_deref() == shown), "{what}");
    }
}
