//! What disks say of themselves, by a smartctl of the test's own.

use super::rig::{BINARY, codes, warning};
use canopy_testkit::cmd::{Finished, run_within, spawn, wait_until, wait_within};
use canopy_testkit::{Kind, LoopFs, PATIENCE, Pool, PoolBed, ScratchDir};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Answers for the disk in `$dir/NAME`, and notes who was asked, and how.
const SMARTCTL: &str = r#"#!/bin/sh
for disk; do :; done
echo "$*" >> "DIR/asked"
cat "DIR/${disk#/dev/}" 2>/dev/null || echo '{"smartctl":{"exit_status":1}}'
"#;

const GOOD: &str = r#"{"smartctl":{"exit_status":0},"model_name":"QUIET 1","serial_number":"S1","smart_status":{"passed":true},
    "temperature":{"current":31},"power_on_time":{"hours":17}}"#;

struct Bed {
    scratch: ScratchDir,
    bed: PoolBed,
    /// The disks of the branches.
    names: Vec<String>,
}

impl Bed {
    fn new() -> Bed {
        let scratch = ScratchDir::new("canopy-disks-", &["bin", "etc"]);
        let program = scratch.path("bin/smartctl");
        fs::write(&program, SMARTCTL.replace("DIR", &scratch.dir().display().to_string())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let disks = [0, 1].map(|_| LoopFs::new(Kind::Ext4, 64 << 20));
        let bed = PoolBed::mount(Pool::builder(BINARY).option("minfreespace=0"), disks);
        let mut bed = Bed { scratch, bed, names: Vec::new() };
        let found = bed.json(&["disks"]);
        bed.names = [0, 1]
            .map(|branch| {
                let path = bed.bed.on(branch, "").display().to_string();
                let path = path.trim_end_matches('/');
                let disks = found["disks"].as_array().unwrap();
                let on_it = disks.iter().find(|disk| disk["branches"][0] == path);
                on_it.unwrap_or_else(|| panic!("{path}: {found:#}"))["name"].as_str().unwrap().to_owned()
            })
            .to_vec();
        let _ = fs::remove_file(bed.scratch.path("disks.json"));
        bed
    }

    fn says(&self, branch: usize, json: &str) {
        fs::write(self.scratch.path(&self.names[branch]), json).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        let path = format!("{}:{}", self.scratch.path("bin").display(), std::env::var("PATH").unwrap());
        command.args(words).env("PATH", path).env("CANOPY_CONFIG_DIR", self.scratch.path("etc"));
        command.arg("--disks-file").arg(self.scratch.path("disks.json"));
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        let pool = self.bed.pool.path().to_str().unwrap();
        run_within(&mut self.command(&[&[words[0], pool], &words[1..]].concat()), PATIENCE)
    }

    fn json(&self, words: &[&str]) -> Value {
        let done = self.run(&[words, &["--json"]].concat());
        serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{why}: {}", done.describe()))
    }

    fn asked(&self) -> usize {
        fs::read_to_string(self.scratch.path("asked")).unwrap_or_default().lines().count()
    }

    /// As if the records were from so long ago.
    fn forget(&self) {
        fs::remove_file(self.scratch.path("disks.json")).unwrap();
    }
}

#[test]
fn each_disk_tells_how_it_is() {
    let bed = Bed::new();
    bed.says(0, GOOD);
    let ill = GOOD.replace("\"passed\":true", "\"passed\":false").replace("S1", "S2");
    bed.says(1, &ill);
    let found = bed.json(&["disks"]);
    let of = |branch: usize| {
        found["disks"].as_array().unwrap().iter().find(|disk| disk["name"] == *bed.names[branch])
    };
    let (good, bad) = (of(0).unwrap(), of(1).unwrap());
    assert_eq!(
        (&good["verdict"], &good["temperature"], &good["hours"]),
        (&"good".into(), &31.into(), &17.into())
    );
    assert_eq!((&bad["verdict"], &bad["serial"]), (&"failing".into(), &"S2".into()));
    // It was asked a moment ago.
    let before = bed.asked();
    let status = bed.json(&["status"]);
    let (status, pool) = (&status["pools"][0], bed.bed.pool.path().display().to_string());
    assert_eq!(bed.asked(), before);
    assert_eq!(codes(status), ["disk-failing"], "{status:#}");
    let told = warning(status, "disk-failing");
    let path = bed.bed.on(1, "").display().to_string();
    assert_eq!(told["branch"], path.trim_end_matches('/'));
    assert!(told["text"].as_str().unwrap().contains("QUIET 1, S2"), "{told}");
    assert!(told["fix"].as_str().unwrap().contains(&format!("canopy drain {pool} ")), "{told}");
    assert_eq!(bed.run(&["status"]).code(), Some(1));
    // Also for people, and in as many columns as a screen has.
    let shown = bed.run(&["disks"]);
    assert!(
        shown.stdout.contains("failing") && shown.stdout.contains("it says that it will fail"),
        "{}",
        shown.describe()
    );
    assert!(shown.stdout.lines().all(|line| line.chars().count() <= 80), "{}", shown.stdout);
    // A warning is advice.
    bed.says(1, &GOOD.replace("\"current\":31", "\"current\":71"));
    bed.forget();
    let done = bed.run(&["status", "--json"]);
    assert!(done.success(), "{}", done.describe());
    let status: Value = serde_json::from_str(&done.stdout).unwrap();
    warning(&status["pools"][0], "disk-worn");
    bed.bed.pool.umount();
}

#[test]
fn without_smartctl_one_line_says_so() {
    let bed = Bed::new();
    fs::remove_file(bed.scratch.path("bin/smartctl")).unwrap();
    let mut command = bed.command(&["disks", bed.bed.pool.path().to_str().unwrap()]);
    let done = run_within(command.env("PATH", bed.scratch.path("bin")), PATIENCE);
    assert!(done.success() && done.stdout.contains("smartctl is missing"), "{}", done.describe());
    // Of this pool alone: others are mounted beside it.
    let pool = bed.bed.pool.path().to_str().unwrap().to_owned();
    let status = run_within(bed.command(&["status", &pool]).env("PATH", bed.scratch.path("bin")), PATIENCE);
    assert!(!status.stdout.contains("smart"), "{}", status.describe());
    bed.bed.pool.umount();
}

#[test]
fn a_disk_that_begins_to_fail_gives_a_message() {
    let bed = Bed::new();
    bed.says(0, GOOD);
    bed.says(1, GOOD);
    let told = bed.scratch.path("told");
    let tell = bed.scratch.path("bin/tell");
    fs::write(&tell, format!("#!/bin/sh\ncat >> {}\n", told.display())).unwrap();
    fs::set_permissions(&tell, fs::Permissions::from_mode(0o755)).unwrap();
    let list = bed.scratch.path("notify.toml");
    fs::write(&list, format!("[[notify]]\ncommand = '{}'\n", tell.display())).unwrap();
    let mut command = bed.command(&["notify", "run", "--gather", "1"]);
    command.arg("--file").arg(&list).arg("--state").arg(bed.scratch.path("notify.json"));
    let mut child = spawn(command.stderr(Stdio::null())).expect("a process");
    let asked = wait_until(PATIENCE, || bed.asked() >= 2);
    bed.says(1, &GOOD.replace("\"passed\":true", "\"passed\":false"));
    let has = |file: &Path, words: &[&str]| {
        fs::read_to_string(file).is_ok_and(|text| words.iter().all(|word| text.contains(word)))
    };
    let begins =
        wait_until(PATIENCE, || has(&told, &["disk-failing", "canopy drain", "it says that it will fail"]));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.success()));
    assert!(asked && begins, "{:?}", fs::read_to_string(&told));
    bed.bed.pool.umount();
}

#[test]
fn a_disk_that_fails_is_emptied_where_the_pool_asks_for_it() {
    let bed = Bed::new();
    let (pool, home) = (bed.bed.pool.path().display().to_string(), &bed.scratch);
    let list: Vec<String> = [0, 1].map(|branch| format!("'{}'", bed.bed.on(branch, "").display())).to_vec();
    let file = format!("branches = [{}]\nmountpoint = '{pool}'\n[health]\ndrain = true\n", list.join(", "));
    fs::write(home.path("etc/media.toml"), file).unwrap();
    fs::create_dir(bed.bed.on(1, "films")).unwrap();
    fs::write(bed.bed.on(1, "films/one"), "one").unwrap();
    fs::write(bed.bed.on(0, "other"), "other").unwrap();
    bed.says(0, GOOD);
    bed.says(1, &GOOD.replace("\"passed\":true", "\"passed\":false"));
    let jobs = home.path("jobs");
    let mut command = bed.command(&["jobs", "watch", "--every", "1"]);
    let said = fs::File::create(home.path("said")).unwrap();
    let mut child = spawn(command.env("CANOPY_STATE_DIR", &jobs).stderr(said)).expect("a process");
    let moved = || bed.bed.on(0, "films/one").exists() && !bed.bed.on(1, "films/one").exists();
    let told = || fs::read_to_string(home.path("said")).unwrap_or_default();
    let done = || told().contains("done: the files of ") && told().contains(" are on other disks now");
    let emptied = wait_until(PATIENCE, || moved() && done());
    // As long as the disk is said to fail, it is not emptied again before the next day.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let list = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(words).env("CANOPY_CONFIG_DIR", home.path("etc")).env("CANOPY_STATE_DIR", &jobs);
        run_within(&mut command, PATIENCE)
    };
    let found: Value = serde_json::from_str(&list(&["jobs", "--json"]).stdout).unwrap();
    // Another disk at its place is a new one.
    bed.says(1, GOOD);
    bed.forget();
    let forgotten = wait_until(PATIENCE, || !list(&["jobs", "--json"]).stdout.contains("drain-"));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.success()));
    assert!(emptied && forgotten, "{emptied} {forgotten} {}", told());
    let job = &found["pools"][0]["jobs"][0];
    assert!(job["name"].as_str().is_some_and(|name| name.starts_with("drain-")), "{found:#}");
    assert_eq!((&job["done"], &job["last"]["outcome"]), (&1.into(), &"done".into()), "{job:#}");
    assert_eq!(fs::read(bed.bed.at("films/one")).unwrap(), b"one");
    assert_eq!(told().matches(" begins: canopy drain ").count(), 1, "{}", told());
    bed.bed.pool.umount();
}
