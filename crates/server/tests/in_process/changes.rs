//! Changes made directly on branches: the kernel comes to know of each, whatever it believed.

use crate::rig::{Rig, fails};
use canopy_fuse::Opcode;
use canopy_testkit::kernel::Kernel;
use canopy_testkit::{PATIENCE, cmd};
use rustix::io::Errno;
use std::process::Command;
use std::time::Duration;

/// What the kernel believes of `name` after it was asked once, the command that changes the branch, and whether what is
/// shown then is right.
struct Case {
    what: &'static str,
    command: &'static str,
    holds: fn(&Kernel) -> bool,
}

const CASES: [Case; 8] = [
    Case {
        what: "a missing name is made",
        command: "echo new > absent",
        holds: |k| k.stat("absent").is_ok(),
    },
    Case { what: "a file is removed", command: "rm file", holds: |k| fails(k.stat("file"), Errno::NOENT) },
    Case {
        what: "a file is renamed",
        command: "mv file absent",
        holds: |k| fails(k.stat("file"), Errno::NOENT) && k.stat("absent").is_ok(),
    },
    Case {
        what: "a file is replaced",
        command: "echo longer content > other && mv other file",
        holds: |k| k.stat("file").is_ok_and(|stat| stat.size == 15),
    },
    Case {
        what: "a file is written",
        command: "echo longer content > file",
        holds: |k| k.stat("file").is_ok_and(|stat| stat.size == 15),
    },
    Case {
        what: "a mode is changed",
        command: "chmod 4711 file",
        holds: |k| k.stat("file").is_ok_and(|stat| stat.mode & 0o7777 == 0o4711),
    },
    Case {
        what: "a directory is removed with all in it",
        command: "rm -r dir",
        holds: |k| fails(k.stat("dir/inner"), Errno::NOENT) && fails(k.stat("dir"), Errno::NOENT),
    },
    Case {
        what: "a directory is renamed",
        command: "mv dir moved",
        holds: |k| fails(k.stat("dir/inner"), Errno::NOENT) && k.stat("moved/inner").is_ok(),
    },
];

#[test]
fn changes_on_a_branch_are_shown() {
    for Case { what, command, holds } in CASES {
        // Nothing shows because it has expired.
        let mut rig = Rig::watched(2, "cache.attr=3600");
        rig.outside(1, "echo old > file && mkdir dir && echo inner > dir/inner");
        rig.comes_true("what is there at first", |kernel| kernel.stat("dir/inner").is_ok());
        let kernel = rig.kernel();
        // Known, absence included.
        kernel.stat("file").unwrap();
        assert!(fails(kernel.stat("absent"), Errno::NOENT));
        assert!(fails(kernel.stat("moved"), Errno::NOENT));
        kernel.list("").unwrap();
        assert!(!holds(kernel), "{what}: before the change");
        rig.outside(1, command);
        rig.comes_true(what, holds);
    }
}

#[test]
fn an_answer_that_a_change_overtakes_is_not_believed_for_long() {
    let mut rig = Rig::watched(1, "");
    rig.outside(0, "echo old > file");
    let held = rig.kernel().hold_answers(Opcode::Lookup);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| rig.kernel().stat("file"));
        assert!(cmd::wait_until(PATIENCE, || held.count() == 1));
        // The answer is under way when its file goes.
        let removed = Command::new("rm").arg(rig.branch(0).join("file")).status().unwrap();
        assert!(removed.success());
        // Most likely the kernel is told before it has the answer.
        std::thread::sleep(Duration::from_millis(50));
        drop(held);
        // It was there when it was asked for; its attributes may have been asked for once more.
        let _ = looker.join().unwrap();
    });
    rig.comes_true("the file is gone", |kernel| fails(kernel.stat("file"), Errno::NOENT));
}

#[test]
fn what_nobody_changes_stays_known() {
    let mut rig = Rig::watched(2, "");
    rig.outside(0, "mkdir quiet busy && echo known > quiet/file");
    rig.comes_true("it is there", |kernel| kernel.stat("quiet/file").is_ok());
    let kernel = rig.kernel();
    assert!(fails(kernel.stat("quiet/missing"), Errno::NOENT));
    rig.outside(0, "cd busy && for n in 1 2 3 4 5 6 7 8; do echo $n > $n; done");
    rig.comes_true("the last is there", |kernel| kernel.stat("busy/8").is_ok());
    drop(rig.kernel().take_counts());
    for _ in 0..100 {
        rig.kernel().stat("quiet/file").unwrap();
        assert!(fails(rig.kernel().stat("quiet/missing"), Errno::NOENT));
    }
    let counts = rig.kernel().take_counts();
    assert!(counts.is_empty(), "{counts:?}");
}
