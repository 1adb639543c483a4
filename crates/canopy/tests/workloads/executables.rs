//! Programs that run from the pool, and changes to their files while they run.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};

use canopy_testkit::cmd::{run_within, spawn, wait_until, wait_within};
use canopy_testkit::{Kind, PATIENCE};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::rig::{DATA_PATHS, Disks, plain};

/// A running program, killed on drop.
struct Running(Child);

impl Running {
    #[track_caller]
    fn start(program: &Path) -> Self {
        let child = spawn(Command::new(program).arg("60")).unwrap();
        let exe = format!("/proc/{}/exe", child.id());
        // `spawn` returns once exec has succeeded, so this only waits for the process name.
        assert!(wait_until(PATIENCE, || fs::read_link(&exe).is_ok_and(|at| at == program)));
        Self(child)
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn install(program: &Path) {
    fs::copy("/bin/sleep", program).unwrap();
    fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Tries each way to change a running program, and returns the results by name.
fn attempts(program: &Path) -> Vec<(&'static str, Result<(), Errno>)> {
    let open = |flags| openat(CWD, program, flags, Mode::empty()).map(drop);
    let truncate = || {
        let result = OpenOptions::new().write(true).open(program).and_then(|file| file.set_len(0));
        result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let shell = |script: &str| {
        let done = run_within(Command::new("sh").args(["-c", script, "sh"]).arg(program), PATIENCE);
        if done.success() { Ok(()) } else { Err(Errno::TXTBSY) }
    };
    vec![
        ("write", open(OFlags::WRONLY)),
        ("read and write", open(OFlags::RDWR)),
        ("append", open(OFlags::WRONLY | OFlags::APPEND)),
        ("write and truncate", open(OFlags::WRONLY | OFlags::TRUNC)),
        ("read and truncate", open(OFlags::RDONLY | OFlags::TRUNC)),
        ("create and truncate", open(OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)),
        ("ftruncate", truncate()),
        ("truncate", shell("truncate -s 0 \"$1\"")),
        ("dd", shell("dd if=/dev/zero of=\"$1\" conv=notrunc count=1 2>/dev/null")),
        ("read", open(OFlags::RDONLY)),
    ]
}

#[test]
fn a_running_program_can_be_replaced_but_not_changed() {
    let reference = plain();
    let mut expected = None;
    let disks = Disks::new(&[Kind::Ext4, Kind::Xfs]);
    for data_path in [None].into_iter().chain(DATA_PATHS.map(Some)) {
        let pool = data_path.map(|data_path| disks.pool(data_path));
        let root = pool.as_ref().map_or(reference.path(), |pool| pool.path());
        let program = root.join("sleep");
        install(&program);
        let content = fs::read(&program).unwrap();
        let mut running = Running::start(&program);
        let results = attempts(&program);
        for (what, result) in &results {
            let wanted = if *what == "read" { Ok(()) } else { Err(Errno::TXTBSY) };
            assert_eq!(*result, wanted, "{what} {data_path:?}");
        }
        assert_eq!(*expected.get_or_insert(results.clone()), results, "{data_path:?}");
        assert!(fs::read(&program).unwrap() == content, "{data_path:?}: the program has changed");

        // rename(2) can replace the file; the old program keeps running.
        let next = root.join("next");
        fs::write(&next, "#!/bin/sh\necho new\n").unwrap();
        fs::set_permissions(&next, PermissionsExt::from_mode(0o755)).unwrap();
        fs::rename(&next, &program).unwrap();
        let done = run_within(&mut Command::new(&program), PATIENCE);
        assert_eq!(done.stdout, "new\n", "{data_path:?}: {}", done.describe());
        assert!(running.runs());
        let mapped = fs::read(format!("/proc/{}/exe", running.0.id())).unwrap();
        assert!(mapped == content, "{data_path:?}: the running program has changed");
        // The kernel executes the interpreter, not the script, so the script can be changed.
        OpenOptions::new().append(true).open(&program).unwrap().write_all(b"echo more\n").unwrap();
        let done = run_within(&mut Command::new(&program), PATIENCE);
        assert_eq!(done.stdout, "new\nmore\n", "{data_path:?}: {}", done.describe());
        running.end();

        // Conversely, a program that is open for writing cannot be executed.
        install(&root.join("third"));
        let writer = OpenOptions::new().write(true).open(root.join("third")).unwrap();
        let refused = Command::new(root.join("third")).arg("0").spawn().map(|mut child| child.wait());
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ExecutableFileBusy, "{data_path:?}");
        drop(writer);
        let mut child = spawn(Command::new(root.join("third")).arg("0")).unwrap();
        assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.success()));
        for name in ["sleep", "third"] {
            fs::remove_file(root.join(name)).unwrap();
        }
        if let Some(pool) = pool {
            pool.umount();
        }
    }
}

/// Running a program and then replacing it by rename must not mix the content of the two files.
#[test]
fn programs_survive_many_upgrades() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Btrfs]);
    let pool = disks.pool("category.create=rand");
    let program = pool.path().join("tool");
    for version in 0..30 {
        let next = pool.path().join("tool.new");
        fs::write(&next, format!("#!/bin/sh\necho version {version}\n")).unwrap();
        fs::set_permissions(&next, PermissionsExt::from_mode(0o755)).unwrap();
        fs::rename(&next, &program).unwrap();
        let done = run_within(&mut Command::new(&program), PATIENCE);
        assert_eq!(done.stdout, format!("version {version}\n"), "{}", done.describe());
    }
    pool.umount();
    assert_eq!(disks.union().len(), 1);
}
