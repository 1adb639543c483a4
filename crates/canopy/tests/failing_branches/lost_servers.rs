//! A network filesystem whose server is lost: every request to it fails, and it has no disk that could be examined.

use super::rig::PATIENCE;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, FaultyFs, LoopFs, Pool, ScratchDir};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Reads and changes a file by its name.
fn use_file(file: &Path) -> io::Result<()> {
    fs::write(file, "overwritten")?;
    OpenOptions::new().append(true).open(file)?.write_all(b" and more")?;
    assert_eq!(fs::read_to_string(file)?, "overwritten and more");
    let open = OpenOptions::new().write(true).open(file)?;
    open.set_len(4)?;
    open.set_modified(SystemTime::UNIX_EPOCH)?;
    fs::set_permissions(file, fs::metadata(file)?.permissions())
}

/// For longer than the kernel remembers the names.
#[test]
fn files_of_other_branches_stay_usable_when_a_server_is_lost() {
    for errno in [Errno::IO, Errno::NOTCONN, Errno::STALE] {
        let scratch = ScratchDir::new("canopy-lost-", &[]);
        let remote = FaultyFs::mount(&scratch.dir());
        let disk = LoopFs::tmpfs(64 << 20);
        for place in [disk.path(), remote.backing_dir()] {
            fs::create_dir(place.join("both")).unwrap();
        }
        fs::create_dir(disk.path().join("one")).unwrap();
        let files = ["file", "both/file", "one/file"];
        for file in files {
            fs::write(disk.path().join(file), "data").unwrap();
        }
        fs::write(remote.backing_dir().join("both/there"), "there").unwrap();
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(disk.path())
            .branch(remote.path())
            .option("minfreespace=0,category.create=ff")
            .mount();
        let at = |name: &str| pool.path().join(name);
        assert_eq!(fs::read_to_string(at("both/there")).unwrap(), "there");
        remote.set_all(Fault::Fail(errno));
        for round in 0..15 {
            for file in files {
                let used = use_file(&at(file));
                assert!(used.is_ok(), "{errno:?}, round {round}, {file}: {used:?}\n{}", pool.log());
            }
            for (dir, name) in [("both", "file"), ("one", "file")] {
                let mut names = fs::read_dir(at(dir)).unwrap().map(|entry| entry.unwrap().file_name());
                assert!(names.any(|found| found == *name), "{dir}");
            }
            std::thread::sleep(Duration::from_millis(150));
        }
        remote.heal();
        let is_back = || fs::read_to_string(at("both/there")).is_ok_and(|text| text == "there");
        assert!(wait_until(PATIENCE, is_back), "{}", pool.log());
        assert!(wait_until(PATIENCE, || fs::write(at("one/new"), "new").is_ok()), "{}", pool.log());
        pool.umount();
    }
}
