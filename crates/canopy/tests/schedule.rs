//! `canopy jobs`: what a pool's file has scheduled runs at its time, once, and tells what has become of it.

use canopy_testkit::cmd::{Finished, run_unless_busy, run_within, spawn, wait_until, wait_within};
use canopy_testkit::{PATIENCE, ScratchDir};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: i64 = 24 * 60 * 60;

/// A pool `media` over the directories a and b, with a file.
struct Bed {
    scratch: ScratchDir,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = run_unless_busy(&mut self.command(&["umount", "media"]), PATIENCE);
    }
}

impl Bed {
    fn new(schedule: &str) -> Bed {
        let bed = Bed { scratch: ScratchDir::new("canopy-schedule-", &["etc", "bin", "a", "b", "pool"]) };
        bed.schedules(schedule);
        bed
    }

    fn mounted(schedule: &str) -> Bed {
        let bed = Bed::new(schedule);
        bed.mount();
        bed
    }

    fn mount(&self) {
        let done = self.run(&["mount", "media"]);
        assert!(done.success(), "{}", done.describe());
    }

    fn schedules(&self, schedule: &str) {
        let at = |name: &str| self.scratch.path(name).display().to_string();
        // Other tests have pools of this name at the same time, and a name is where its pool is.
        let text = format!(
            "branches = ['{}', '{}']\nmountpoint = '{pool}'\nfsname = '{pool}'\n{schedule}",
            at("a"),
            at("b"),
            pool = at("pool")
        );
        fs::write(self.scratch.path("etc/media.toml"), text).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_canopy"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.args(words).env("PATH", format!("{}:{path}", self.scratch.path("bin").display()));
        command
            .env("CANOPY_CONFIG_DIR", self.scratch.path("etc"))
            .env("CANOPY_STATE_DIR", self.scratch.path("state"));
        command.env("TZ", "UTC");
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        run_within(&mut self.command(words), PATIENCE)
    }

    fn start(&self, words: &[&str]) -> Child {
        let said = fs::File::options().append(true).create(true).open(self.scratch.path("said")).unwrap();
        spawn(self.command(words).stdout(Stdio::null()).stderr(said)).expect("a process")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.scratch.path("said")).unwrap_or_default()
    }

    fn job_file(&self, name: &str) -> PathBuf {
        self.scratch.path("state/jobs/media").join(name)
    }

    /// As if a job had been dealt with last so long ago.
    fn was_dealt_with(&self, job: &str, when: &str, age: i64) {
        let file = self.job_file(&format!("{job}.json"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, json!({ "when": when, "due": now() - age }).to_string()).unwrap();
    }

    /// What `canopy jobs --json` says of a job.
    fn job(&self, name: &str) -> Value {
        let done = self.run(&["jobs", "--json"]);
        let all: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{why}: {}", done.describe()));
        let jobs = all["pools"][0]["jobs"].as_array().cloned().unwrap_or_default();
        jobs.into_iter().find(|job| job["name"] == name).unwrap_or(Value::Null)
    }

    fn outcome(&self, name: &str) -> String {
        self.job(name)["last"]["outcome"].as_str().unwrap_or_default().to_owned()
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.scratch.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

#[track_caller]
fn end(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.success()));
}

#[test]
fn a_job_that_was_missed_runs_once_and_is_told() {
    let bed = Bed::mounted("[[schedule]]\ndo = 'verify'\nwhen = 'every night at 03:00'\n");
    fs::write(bed.scratch.path("a/one"), "one").unwrap();
    bed.was_dealt_with("verify", "every day at 03:00", 3 * DAY);
    let watching = bed.start(&["jobs", "watch", "--every", "1"]);
    let done = wait_until(PATIENCE, || bed.outcome("verify") == "done");
    let second = bed.run(&["jobs", "watch"]);
    // Some looks later it has not run again.
    std::thread::sleep(Duration::from_secs(4));
    let job = bed.job("verify");
    end(watching);
    assert!(done, "{job:#}\n{}", bed.said());
    assert!(
        second.describe().contains("another process runs the jobs of this machine"),
        "{}",
        second.describe()
    );
    assert_eq!(
        (&job["done"], &job["state"], &job["last"]["by_hand"]),
        (&json!(1), &json!("rests"), &json!(false))
    );
    assert!(job["next"].as_i64().unwrap() > now() && job["overdue"].is_null(), "{job:#}");
    assert!(job["last"]["command"].as_str().unwrap().ends_with("/pool --yes --resume"), "{job:#}");
    let log = bed.run(&["jobs", "media", "log", "verify"]).stdout;
    assert!(
        log.contains("begins: canopy verify ") && log.contains("files: 1 ") && log.contains(" done: "),
        "{log}"
    );
    // It is in the journal, and in the status of its pool.
    assert!(
        bed.said().contains("media: verify begins") && bed.said().contains("media: verify done"),
        "{}",
        bed.said()
    );
    let pool = bed.scratch.path("pool").display().to_string();
    let status = bed.run(&["status", &pool, "--fstab-file", "/dev/null"]).stdout;
    assert!(status.contains("jobs     verify done ("), "{status}");
    let json: Value = serde_json::from_str(&bed.run(&["status", &pool, "--json"]).stdout).unwrap();
    assert_eq!(json["pools"][0]["jobs"][0], job);
    let shown = bed.run(&["jobs"]);
    assert!(shown.success() && shown.stdout.contains("every day at 03:00"), "{}", shown.describe());
    assert!(shown.stdout.contains("nobody runs them at their times"), "{}", shown.stdout);
    assert!(shown.stdout.lines().all(|line| line.chars().count() <= 80), "{}", shown.stdout);
}

#[test]
fn a_new_job_waits_for_its_time_and_a_missed_one_may_be_skipped() {
    let bed = Bed::mounted(
        "[[schedule]]\ndo = 'verify'\nwhen = 'every night at 03:00'\n\
         [[schedule]]\ndo = 'balance'\nwhen = 'every month'\nmissed = 'skip'\n",
    );
    bed.was_dealt_with("balance", "every month on the 1st at 03:00", 70 * DAY);
    let watching = bed.start(&["jobs", "watch", "--every", "1"]);
    let skipped = wait_until(PATIENCE, || bed.said().contains("media: balance was missed on"));
    let known = wait_until(PATIENCE, || bed.job_file("verify.json").exists());
    std::thread::sleep(Duration::from_secs(2));
    end(watching);
    assert!(skipped && known, "{}", bed.said());
    assert!(bed.job("verify")["last"].is_null() && bed.job("balance")["last"].is_null(), "{}", bed.said());
}

#[test]
fn a_job_waits_for_its_pool_for_others_and_for_an_idle_pool() {
    let bed = Bed::new("[[schedule]]\ndo = 'balance'\nwhen = 'every night at 03:00'\nidle = true\n");
    bed.was_dealt_with("balance", "every day at 03:00", 2 * DAY);
    let waits = |why: &str| wait_until(PATIENCE, || bed.job("balance")["waits"].as_str() == Some(why));
    let watching = bed.start(&["jobs", "watch", "--every", "2"]);
    let for_pool = waits("the pool is not mounted");
    // A client that asks for new names all the time.
    let stop = AtomicBool::new(false);
    let (pool, stopped) = (bed.scratch.path("pool"), &stop);
    let (for_calm, ran_early) = std::thread::scope(|scope| {
        bed.mount();
        let client = scope.spawn(move || {
            let mut number = 0_u64;
            while !stopped.load(Ordering::Relaxed) {
                let _ = fs::symlink_metadata(pool.join(number.to_string()));
                number += 1;
            }
        });
        let found = waits("the pool is busy");
        let ran = bed.outcome("balance");
        stop.store(true, Ordering::Relaxed);
        client.join().unwrap();
        (found, ran)
    });
    let done = wait_until(PATIENCE, || bed.outcome("balance") == "done");
    end(watching);
    assert!(for_pool && for_calm && done, "{for_pool} {for_calm} {done}: {}", bed.said());
    assert_eq!(ran_early, "");
}

#[test]
fn a_job_never_runs_twice_at_once_and_can_be_stopped() {
    let bed = Bed::mounted("[[schedule]]\ndo = 'verify --bwlimit 1M'\nwhen = 'every year'\n");
    let data: Vec<u8> = (0..40_u32 << 20).map(|number| (number / 7) as u8).collect();
    fs::write(bed.scratch.path("a/large"), data).unwrap();
    let mut keeper = bed.start(&["jobs", "run", "verify"]);
    let runs = || bed.job("verify")["state"] == "runs";
    assert!(
        wait_until(PATIENCE, || runs() && reader_of(&bed.scratch.path("pool")).is_some()),
        "{}",
        bed.said()
    );
    let refused = |done: Finished| {
        assert_eq!(done.code(), Some(1));
        assert!(done.describe().contains("verify runs already"), "{}", done.describe());
    };
    refused(bed.run(&["jobs", "run", "verify"]));
    // Its keeper is killed, and its command goes on: it still runs.
    let command = reader_of(&bed.scratch.path("pool")).unwrap();
    kill_process(Pid::from_child(&keeper), Signal::KILL).unwrap();
    assert!(wait_within(&mut keeper, PATIENCE).is_some());
    assert!(runs());
    refused(bed.run(&["jobs", "run", "verify"]));
    kill_process(command, Signal::KILL).unwrap();
    assert!(wait_until(PATIENCE, || bed.job("verify")["state"] == "rests"));
    assert_eq!(bed.outcome("verify"), "cut-off");
    // One that is stopped stops its command.
    let keeper = bed.start(&["jobs", "run", "verify"]);
    assert!(wait_until(PATIENCE, || reader_of(&bed.scratch.path("pool")).is_some()));
    end(keeper);
    assert!(reader_of(&bed.scratch.path("pool")).is_none());
    assert_eq!(bed.outcome("verify"), "stopped");
    // So does one whose time is up.
    bed.schedules("[[schedule]]\ndo = 'verify a --bwlimit 1M --yes'\nname = 'a'\nwhen = 'every year'\nat-most = '2 seconds'\n");
    std::fs::create_dir(bed.scratch.path("a/a")).unwrap();
    fs::rename(bed.scratch.path("a/large"), bed.scratch.path("a/a/large")).unwrap();
    let done = bed.run(&["jobs", "run", "a"]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(bed.outcome("a"), "time-up");
}

#[test]
fn a_job_that_ends_with_its_watcher_begins_anew() {
    let bed = Bed::mounted("[[schedule]]\ndo = 'verify --bwlimit 1M'\nwhen = 'every night at 03:00'\n");
    fs::write(bed.scratch.path("a/large"), vec![7; 40 << 20]).unwrap();
    bed.was_dealt_with("verify", "every day at 03:00", 3 * DAY);
    let watching = bed.start(&["jobs", "watch", "--every", "1"]);
    assert!(wait_until(PATIENCE, || reader_of(&bed.scratch.path("pool")).is_some()), "{}", bed.said());
    end(watching);
    // Nothing of it runs on, and it is known to be unfinished.
    assert!(reader_of(&bed.scratch.path("pool")).is_none());
    assert_eq!((bed.outcome("verify").as_str(), &bed.job("verify")["done"]), ("cut-off", &json!(0)));
    fs::write(bed.scratch.path("a/large"), "small").unwrap();
    let watching = bed.start(&["jobs", "watch", "--every", "1"]);
    let done = wait_until(PATIENCE, || bed.outcome("verify") == "done");
    end(watching);
    assert!(done, "{:#} {}", bed.job("verify"), bed.said());
    assert_eq!(bed.said().matches("verify begins").count(), 2, "{}", bed.said());
}

/// Returns the process that verifies this pool.
fn reader_of(pool: &Path) -> Option<Pid> {
    let pool = pool.as_os_str().as_encoded_bytes();
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        (words.get(1) == Some(&b"verify".as_slice()) && words.get(2) == Some(&pool))
            .then(|| Pid::from_raw(number))?
    })
}

#[test]
fn snapraid_does_not_sync_what_was_deleted_by_mistake() {
    let bed = Bed::mounted("[[schedule]]\ndo = 'snapraid sync'\nwhen = 'every night'\ndeletions = 3\n");
    let (asked, removed) = (bed.scratch.path("asked"), bed.scratch.path("removed"));
    bed.script(
        "snapraid",
        &format!(
            "echo $* >> {0}\n[ $1 = diff ] || {{ echo Everything OK; echo Saving state to x...; exit 0; }}\ncat {1}\n[ ! -s {1} ] || exit 2",
            asked.display(),
            removed.display()
        ),
    );
    let said = || fs::read_to_string(&asked).unwrap_or_default();
    let summary = |number: u32| {
        format!(
            "Comparing...\n\n       2 equal\n       0 added\n       {number} removed\n       0 moved\nThere are differences!\n"
        )
    };
    fs::write(&removed, summary(4)).unwrap();
    let done = bed.run(&["jobs", "run", "snapraid-sync"]);
    assert_eq!((done.code(), said().as_str()), (Some(1), "diff\n"), "{}", done.describe());
    assert!(
        done.describe().contains("4 files were removed since the last sync, more than deletions = 3"),
        "{}",
        done.describe()
    );
    assert_eq!(bed.outcome("snapraid-sync"), "held-back");
    fs::write(&removed, summary(3)).unwrap();
    let done = bed.run(&["jobs", "run", "snapraid-sync"]);
    assert!(done.success() && said() == "diff\ndiff\nsync\n", "{} {}", said(), done.describe());
    assert_eq!(bed.job("snapraid-sync")["last"]["text"], "Everything OK");
    // What cannot be told is not risked.
    fs::write(&removed, "no summary\n").unwrap();
    let done = bed.run(&["jobs", "run", "snapraid-sync"]);
    assert!(
        !done.success() && done.describe().contains("does not tell what was removed"),
        "{}",
        done.describe()
    );
    assert_eq!(said().matches("sync").count(), 1);
}

#[test]
fn a_sync_takes_what_waits_for_it_out_of_the_trash() {
    let bed = Bed::mounted(
        "[[schedule]]\ndo = 'snapraid sync -c /x.conf'\nwhen = 'every night'\n\
         [[trash]]\npath = 'films/**'\nuntil = 'snapraid sync'\n[[trash]]\npath = '**'\n",
    );
    let asked = bed.scratch.path("asked");
    let says = "case $* in *status) echo No sync is in progress;; diff) echo '0 removed';; esac";
    bed.script("snapraid", &format!("echo $* >> {}\n{says}", asked.display()));
    let at = |name: &str| bed.scratch.path("pool").join(name);
    fs::create_dir(at("films")).unwrap();
    for name in ["films/one", "text"] {
        fs::write(at(name), "text").unwrap();
        fs::remove_file(at(name)).unwrap();
    }
    let kept = || {
        let list: Value =
            serde_json::from_str(&bed.run(&["trash", "list", "media", "--json"]).stdout).unwrap();
        let paths =
            list["kept"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap().to_owned());
        paths.collect::<Vec<_>>()
    };
    assert_eq!(kept().len(), 2);
    // What is removed in the second in which a sync begins stays.
    std::thread::sleep(Duration::from_millis(1100));
    let done = bed.run(&["jobs", "run", "snapraid-sync"]);
    let said = fs::read_to_string(&asked).unwrap();
    assert_eq!(said, "diff\n-c /x.conf sync\n-c /x.conf status\n", "{}", done.describe());
    assert!(done.success() && kept() == ["text"], "{:?} {}", kept(), done.describe());
}

#[test]
fn what_fails_or_is_overdue_is_a_message_and_so_is_what_is_done() {
    let bed = Bed::mounted(
        "[[schedule]]\nname = 'look'\ndo = ['which', 'nothing']\nwhen = 'every month'\n\
         [[schedule]]\ndo = 'verify'\nwhen = 'every night at 03:00'\n",
    );
    bed.was_dealt_with("verify", "every day at 03:00", 3 * DAY);
    let told = bed.scratch.path("told");
    bed.script("tell", &format!("cat >> {}", told.display()));
    let tell = bed.scratch.path("bin/tell").display().to_string();
    fs::write(bed.scratch.path("notify.toml"), format!("[[notify]]\ncommand = '{tell}'\nleast = 'notice'\n"))
        .unwrap();
    let (file, state) = (bed.scratch.path("notify.toml"), bed.scratch.path("notify.json"));
    let notifying = bed.start(&[
        "notify",
        "run",
        "--gather",
        "1",
        "--fstab-file",
        "/dev/null",
        "--file",
        file.to_str().unwrap(),
        "--state",
        state.to_str().unwrap(),
    ]);
    let has = |words: &[&str]| {
        let text = fs::read_to_string(&told).unwrap_or_default();
        words.iter().all(|word| text.contains(word))
    };
    let overdue =
        wait_until(PATIENCE, || has(&["job-overdue", "the job verify should have run on", "run verify"]));
    let failed = bed.run(&["jobs", "run", "look"]);
    let failure =
        wait_until(PATIENCE, || has(&["job-failed", "the job look failed", "canopy jobs media log look"]));
    // Done, and no longer overdue.
    let watching = bed.start(&["jobs", "watch", "--every", "1"]);
    let done = wait_until(PATIENCE, || has(&["job-done", "the job verify is done", "\"phase\":\"ends\""]));
    end(watching);
    end(notifying);
    assert_eq!(failed.code(), Some(1), "{}", failed.describe());
    assert!(overdue && failure && done, "{overdue} {failure} {done}: {:?}", fs::read_to_string(&told));
}

#[test]
fn a_mistake_names_its_line_and_nothing_runs() {
    let bed = Bed::mounted(
        "[[schedule]]\ndo = 'verify'\nwhen = 'every night at 03:00'\n[[schedule]]\ndo = 'verify --frob'\nwhen = 'every day'\nname = 'two'\n",
    );
    bed.was_dealt_with("verify", "every day at 03:00", 3 * DAY);
    let shown = bed.run(&["jobs"]);
    let text = shown.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("media.toml:7: do: ") && text.contains("--frob"), "{}", shown.describe());
    let run = bed.run(&["jobs", "run", "verify"]);
    assert!(!run.success() && run.describe().contains("media.toml:7: do: "), "{}", run.describe());
    let watching = bed.start(&["jobs", "watch", "--every", "1"]);
    assert!(wait_until(PATIENCE, || bed.said().contains("media.toml:7: do: ")));
    std::thread::sleep(Duration::from_secs(2));
    // Told once, and the mend is seen without a restart.
    assert_eq!(bed.said().matches("media.toml:7").count(), 1, "{}", bed.said());
    assert!(bed.job("verify").is_null());
    bed.schedules("[[schedule]]\ndo = 'verify'\nwhen = 'every night at 03:00'\n");
    let done = wait_until(PATIENCE, || bed.outcome("verify") == "done");
    end(watching);
    assert!(done, "{}", bed.said());
    for (words, part) in [
        (&["jobs", "run", "frob"][..], "no job is called 'frob' (there is: verify)"),
        (&["jobs", "nosuch"], "nosuch"),
        (&["jobs", "run"], "is not understood (write canopy jobs [POOL]"),
        (&["jobs", "lst"], "'lst' is no pool (did you mean 'canopy jobs list'?)"),
        (&["jobs", "media", "log", "frob"], "frob has not run yet"),
        (&["jobs", "run", "drain-mnt-x"], "no job is called 'drain-mnt-x'"),
    ] {
        let done = bed.run(words);
        assert!(!done.success() && done.describe().contains(part), "{part}: {}", done.describe());
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
    }
}

#[test]
fn a_job_is_made_changed_and_taken_off_by_a_command() {
    let bed = Bed::mounted("# mine\n[[schedule]]\ndo = 'verify' # all\nwhen = 'every month'\n");
    let file = || fs::read_to_string(bed.scratch.path("etc/media.toml")).unwrap();
    let before = file();
    let set =
        ["jobs", "media", "set", "even-out", "do=balance --to 5", "when=every Sunday at 04:00", "idle=true"];
    let shown = bed.run(&[&set[..], &["--dry-run"]].concat());
    assert!(shown.success() && shown.stdout.contains("+ do = \"balance --to 5\"\n"), "{}", shown.describe());
    assert!(shown.stdout.contains("even-out runs every Sunday at 04:00, next: "), "{}", shown.describe());
    assert_eq!(file(), before);
    assert!(bed.run(&set).success());
    let job = bed.job("even-out");
    assert_eq!(
        (&job["when"], &job["says"]["idle"]),
        (&"every Sunday at 04:00".into(), &"true".into()),
        "{job:#}"
    );
    assert!(file().starts_with(&before), "{}", file());
    assert!(bed.run(&["jobs", "media", "set", "verify", "when=every week", "nice=19"]).success());
    let text = file();
    assert!(
        text.contains("# mine\n[[schedule]]\ndo = 'verify' # all\nwhen = \"every week\"\nnice = 19\n"),
        "{text}"
    );
    assert!(bed.run(&["jobs", "drop", "even-out"]).success());
    assert!(bed.job("even-out").is_null() && !bed.job("verify").is_null(), "{}", file());
    let before = file();
    for (words, part) in [
        (&["jobs", "media", "set", "verify", "when=sometimes"][..], "'sometimes' is not understood"),
        (&["jobs", "media", "set", "verify", "do=umount"], "umount"),
        (&["jobs", "media", "set", "verify", "frob"], "'frob' is not KEY=VALUE"),
        (&["jobs", "media", "set", "other", "do=verify"], "needs when"),
        (&["jobs", "media", "drop", "other"], "no job is called 'other' (there is: verify)"),
        (&["jobs", "media", "set", "verify"], "say what verify is to do, or what changes: KEY=VALUE"),
    ] {
        let done = bed.run(words);
        assert!(!done.success() && done.describe().contains(part), "{part}: {}", done.describe());
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
    }
    assert_eq!(file(), before);
}

/// The example of docs/schedule.md is one.
#[test]
fn the_example_of_the_manual_is_understood() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schedule.md");
    let text = fs::read_to_string(page).unwrap();
    let example =
        text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    assert!(example.matches("[[schedule]]").count() >= 4, "{example}");
    let bed = Bed::mounted(example);
    let jobs: Value = serde_json::from_str(&bed.run(&["jobs", "--json"]).stdout).unwrap();
    assert!(jobs["pools"][0]["mistake"].is_null(), "{jobs:#}");
    assert_eq!(jobs["pools"][0]["jobs"].as_array().unwrap().len(), example.matches("[[schedule]]").count());
    // And what the page shows of it is what it says.
    let shown = bed.run(&["jobs"]).stdout;
    for job in jobs["pools"][0]["jobs"].as_array().unwrap() {
        let (name, when) = (job["name"].as_str().unwrap(), job["when"].as_str().unwrap());
        assert!(shown.contains(name) && text.contains(&format!("  {name} ")), "{name}: {shown}");
        assert!(text.contains(when), "{when}: {shown}");
    }
    // The words of the table of the page are accepted, each.
    let table =
        text.split("| words | times |").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a table");
    let words =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(words, _)| words);
    let mut number = 0;
    for words in words {
        bed.schedules(&format!("[[schedule]]\ndo = 'verify'\nwhen = '{words}'\n"));
        assert!(bed.job("verify")["when"].is_string(), "{words}");
        number += 1;
    }
    assert!(number >= 8, "{number}");
}
