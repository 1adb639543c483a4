//! A pool of three disks goes through every command while clients work in it, and with `CANOPY_KILLS` each command is killed so
//! often, at random, and then run again. Every byte, link, hole and attribute is then as in a plain copy, and no client has
//! seen an error.

mod clients;

use super::rig::{BINARY, PATIENCE};
use canopy_testkit::cmd::{run, run_within, wait_until};
use canopy_testkit::{
    Fields, Kind, LoopFs, Pool, PoolBed, Rng, ScratchDir, Tree, TreeSpec, populate, program_under_test,
};
use clients::Clients;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How many files there are, unless `CANOPY_FILES` tells another number.
const FILES: u64 = 60;
/// Within what time a command is killed as a rule. What it has done by then stays done, so the kills come to all of it.
const SOON: Duration = Duration::from_secs(4);
/// Every so many rounds, it is killed at any time until its end.
const LATE: u64 = 10;
/// Where the files are that nobody changes.
const STILL: &str = "still";
/// What `canopy verify` stores.
const CHECKSUM: &[u8] = b"user.canopy.blake3";

const COMMANDS: [&str; 8] = ["balance", "drain", "consolidate", "dup", "dedup", "tier", "verify", "fsck"];

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

struct Acceptance {
    bed: PoolBed,
    /// The plain copy, on a disk of its own.
    plain: LoopFs,
    /// What all of them are in.
    _memory: LoopFs,
    expected: Tree,
    records: ScratchDir,
    files: u64,
    immutable: Vec<PathBuf>,
}

impl Acceptance {
    fn new(files: u64) -> Acceptance {
        // The clients' files grow with every round.
        let size = (96 << 20) + files * (96 << 10) + number("CANOPY_KILLS", 0) * (2 << 20);
        let builder =
            Pool::builder(BINARY).option("category.create=rand,minfreespace=0,cache.attr=0,cache.entry=0");
        // Loop devices in memory: each file that moves is synced several times, beside clients that write.
        let memory = LoopFs::tmpfs(4 * size + (64 << 20));
        let disk = || LoopFs::with_image_in(memory.path(), Kind::Ext4, size);
        let bed = PoolBed::mount(builder, [disk(), disk(), disk()]);
        let plain = disk();
        let spec = TreeSpec {
            files: files as usize,
            max_file: 1 << 20,
            hard_links: 200,
            // Each of them is 16 MiB to read.
            sparse: if files > 1000 { 8 } else { 80 },
            xattrs: 200,
            ..TreeSpec::default()
        };
        let dirs = [plain.path().join(STILL), bed.at(STILL)];
        let counts = dirs.each_ref().map(|dir| {
            fs::create_dir(dir).expect("mkdir");
            let counts = populate(dir, &spec);
            File::open(dir).expect("open").set_modified(std::time::UNIX_EPOCH).expect("utimens");
            counts
        });
        println!("{:?}", counts[0]);
        let [links, sparse, xattrs] = [counts[0].hard_links, counts[0].sparse, counts[0].xattrs];
        assert!(counts[0] == counts[1] && links > 5 && sparse > 1 && xattrs > 5, "{counts:?}");
        let immutable = immutable(plain.path());
        for path in &immutable {
            run("chattr", [OsString::from("+i"), bed.pool.path().join(path).into()]);
        }
        let expected = Tree::capture_with(&dirs[0], Fields::all());
        let records = ScratchDir::new("canopy-acceptance-", &["run"]);
        let made = Acceptance { bed, plain, _memory: memory, expected, records, files, immutable };
        made.compare("populate", Fields::all());
        made
    }

    /// Compares the still files of the pool with the plain copy.
    #[track_caller]
    fn compare(&self, after: &str, fields: Fields) {
        let mut found = Tree::capture_with(self.bed.at(STILL), fields);
        found.entries.values_mut().for_each(|entry| drop(entry.xattrs.remove(CHECKSUM)));
        let mut expected = self.expected.clone();
        for entry in expected.entries.values_mut() {
            let is_dir = entry.kind == canopy_testkit::tree::Kind::Dir;
            entry.mtime = entry.mtime.filter(|_| fields.dir_mtime || !is_dir);
        }
        let diff = expected.diff(&found);
        assert!(diff.is_empty(), "after {after} (- expected, + found):\n{diff}");
        for path in &self.immutable {
            let flags = run("lsattr", ["-d".into(), self.bed.pool.path().join(path).into_os_string()]);
            let flags = flags.split_whitespace().next().unwrap_or_default();
            assert!(flags.contains('i'), "after {after}: {} {flags}", path.display());
        }
    }

    /// Compares some files with the plain copy.
    fn sample(&self, after: &str, rng: &mut Rng) {
        let names: Vec<&Vec<u8>> = self.expected.entries.keys().collect();
        for _ in 0..200 {
            use std::os::unix::ffi::OsStrExt;
            let path =
                Path::new(STILL).join(std::ffi::OsStr::from_bytes(rng.pick::<&Vec<u8>>(&names).as_slice()));
            let [plain, pooled] = [self.plain.path(), self.bed.pool.path()].map(|root| root.join(&path));
            let [one, two] = [&plain, &pooled].map(|path| {
                fs::symlink_metadata(path)
                    .unwrap_or_else(|why| panic!("after {after}: {}: {why}", path.display()))
            });
            let of = |it: &fs::Metadata| {
                use std::os::unix::fs::MetadataExt;
                let size = if it.is_dir() { (0, 0) } else { (it.len(), it.nlink()) };
                (it.mode(), it.uid(), it.gid(), size)
            };
            assert_eq!(of(&one), of(&two), "after {after}: {}", path.display());
            if one.is_file() {
                let same = fs::read(plain).expect("read") == fs::read(pooled).expect("read");
                assert!(same, "after {after}: {}", path.display());
            }
        }
    }

    fn fullest(&self) -> usize {
        let used = |disk: &usize| {
            let space = rustix::fs::statvfs(self.bed.on(*disk, "")).expect("statvfs");
            space.f_blocks - space.f_bfree
        };
        (0..3).max_by_key(used).unwrap_or(0)
    }

    /// A command that has something to do wherever the files are.
    fn command(&self, name: &str) -> Command {
        let (bed, fullest) = (&self.bed, self.fullest());
        let branch = |index: usize| bed.on(index % 3, "").into_os_string();
        let words = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        let args = match name {
            "balance" => words(&["--to", "1%"]),
            "drain" => vec![branch(fullest)],
            "consolidate" => [words(&[STILL, "--to"]), vec![branch(fullest + 1)]].concat(),
            "dup" => words(&[STILL, "--copies", "2", "--include", "*.jpg"]),
            "dedup" | "verify" => words(&[STILL, "--yes"]),
            "fsck" => words(&["-s"]),
            _ => {
                // Every file of the disk leaves it.
                let tiers = format!("full={}|older than 0 seconds", bed.on(fullest, "").display());
                bed.pool.set("tiers", &tiers);
                words(&["--once"])
            }
        };
        let mut command = Command::new(program_under_test(BINARY));
        command.arg(name).arg(bed.pool.path()).args(args).args(["--eager", "--json"]);
        command.env("CANOPY_RUN_DIR", self.records.path("run")).stdin(Stdio::null());
        command
    }

    /// A killed drain leaves the mode NC, and the mover its tiers.
    fn reset(&self) {
        let disks = self.bed.disks.iter().map(|disk| format!("{}=RW", disk.path().display()));
        self.bed.pool.set("branches", &disks.collect::<Vec<_>>().join(":"));
        self.bed.pool.set("tiers", "");
    }

    /// Runs a command to its end. What is open, immutable or special stays, which makes the status 1.
    fn complete(&self, name: &str) -> Value {
        let patience = PATIENCE * (1 + u32::try_from(self.files / 500).expect("few"));
        let mut command = self.command(name);
        let done = run_within(&mut command, patience);
        let report: Value = serde_json::from_str(&done.stdout)
            .unwrap_or_else(|why| panic!("{command:?}: {why}: {}", done.describe()));
        let of = |part: &str| report[part]["files"].as_u64().or_else(|| report[part].as_u64());
        let sum = |parts: &[&str]| parts.iter().map(|part| of(part).expect("a number")).sum::<u64>();
        let adds_up = match name {
            "dedup" => of("surplus") == Some(sum(&["removed", "stayed", "not_begun"])),
            "dup" => of("planned") == Some(sum(&["copied", "stayed", "not_begun"])),
            "verify" => {
                let parts = ["sound", "missing", "stale", "damaged", "in_use", "unread", "not_begun"];
                assert_eq!((of("damaged"), of("unread")), (Some(0), Some(0)), "{report:#}");
                of("files") == Some(sum(&parts))
            }
            "fsck" => of("errors") == Some(0),
            _ => of("planned") == Some(sum(&["moved", "stayed", "not_begun"])),
        };
        assert!(adds_up && matches!(done.code(), Some(0 | 1)), "{command:?}: {}", done.describe());
        report
    }

    /// Hidden files in the branches' still directories that the daemon has under construction. What `dedup` has set aside, its
    /// next run takes up.
    fn under_construction(&self) -> usize {
        let mut count = 0;
        for disk in &self.bed.disks {
            let mut dirs = vec![disk.path().join(STILL)];
            while let Some(dir) = dirs.pop() {
                // A move may remove it meanwhile.
                let Ok(entries) = fs::read_dir(dir) else { continue };
                for entry in entries.flatten() {
                    let name = entry.file_name();
                    let name = name.as_encoded_bytes();
                    count += usize::from(
                        name.starts_with(b".canopy-clone.") && !name.starts_with(b".canopy-clone.dedup."),
                    );
                    if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        dirs.push(entry.path());
                    }
                }
            }
        }
        count
    }

    /// Returns how many names are on several branches, of files that `dedup` removes: those with one name.
    fn doubled(&self) -> usize {
        let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for disk in &self.bed.disks {
            let fields = Fields { content: false, ..Fields::default() };
            let Ok(tree) = Tree::try_capture(&disk.path().join(STILL), fields) else { continue };
            for (path, entry) in tree.entries {
                let is_one = entry.kind == canopy_testkit::tree::Kind::File && entry.nlink == 1;
                *seen.entry(path).or_default() += usize::from(is_one);
            }
        }
        seen.values().filter(|count| **count > 1).count()
    }
}

/// Chooses some files that have one name.
fn immutable(plain: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let all = canopy_testkit::files::walk(&plain.join(STILL));
    let plain_file = |path: &&PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.nlink() == 1 && meta.len() > 0)
    };
    let found: BTreeSet<PathBuf> = all.iter().filter(plain_file).cloned().collect();
    found
        .into_iter()
        .step_by(60)
        .take(5)
        .map(|path| path.strip_prefix(plain).expect("below").into())
        .collect()
}

/// They must become removable again, or the disk could not be.
impl Drop for Acceptance {
    fn drop(&mut self) {
        for path in &self.immutable {
            for disk in 0..3 {
                let path = self.bed.disks[disk].path().join(path);
                let _ = Command::new("chattr").arg("-i").arg(path).stderr(Stdio::null()).status();
            }
        }
    }
}

#[test]
fn a_pool_goes_through_all_commands_and_is_as_before() {
    let (files, kills) = (number("CANOPY_FILES", FILES), number("CANOPY_KILLS", 0));
    let seed = number("CANOPY_SEED", 20_261_126);
    println!("CANOPY_SEED={seed}");
    let mut rng = Rng::new(seed);
    let pool = Acceptance::new(files);
    let begun = Instant::now();
    let told = |what: &str| println!("{:>6} s  {what}", begun.elapsed().as_secs());
    // Neither the times of directories nor attributes change when nothing is killed.
    let mut took: BTreeMap<&str, Duration> = BTreeMap::new();
    let mut cut: BTreeMap<&str, u64> = BTreeMap::new();
    std::thread::scope(|scope| {
        let clients = Clients::start(scope, &pool);
        for name in COMMANDS {
            let started = Instant::now();
            let report = pool.complete(name);
            took.insert(name, started.elapsed());
            clients.check();
            told(&format!("{name}: {}", summary(&report)));
            pool.compare(name, Fields::all());
            pool.reset();
        }
        for round in 0..kills {
            for name in COMMANDS {
                let mut command = pool.command(name);
                let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("canopy");
                let span = if round % LATE == 0 { took[name] } else { took[name].min(SOON) };
                let span = u64::try_from(span.as_micros()).expect("short");
                std::thread::sleep(Duration::from_micros(rng.below(span + 1)));
                let ended = child.try_wait().expect("wait").is_some();
                *cut.entry(name).or_default() += u64::from(!ended);
                child.kill().expect("kill");
                child.wait().expect("wait");
                // The daemon drops what the command has waited for.
                let after = format!("{name}, killed in round {round}");
                assert!(wait_until(PATIENCE, || pool.under_construction() == 0), "{after}");
                pool.reset();
                pool.sample(&after, &mut rng);
                clients.check();
            }
            if (round + 1) % 10 == 0 {
                told(&format!("{} rounds of kills", round + 1));
            }
        }
        told(&format!("killed before their end: {cut:?}"));
        // Without kills, there is nothing to go on with.
        for name in COMMANDS.into_iter().filter(|_| kills > 0) {
            let report = pool.complete(name);
            clients.check();
            told(&format!("{name}, run again: {}", summary(&report)));
            pool.compare(name, Fields { sparse: true, root: true, ..Fields::without_dir_times() });
            pool.reset();
        }
        told(&format!("clients: {}", clients.end()));
    });
    // Nobody has anything open any more. The daemon may close a file late.
    let settled = wait_until(PATIENCE, || {
        pool.complete("dedup");
        pool.doubled() == 0
    });
    assert!(settled && pool.under_construction() == 0, "{} names are doubled", pool.doubled());
    pool.compare("all", Fields { sparse: true, root: true, ..Fields::without_dir_times() });
    let space = File::open(pool.bed.pool.path()).expect("open");
    rustix::fs::syncfs(space).expect("syncfs");
    told("as before");
}

/// The numbers of a report, and how many files stay for which reason.
fn summary(report: &Value) -> String {
    let parts = report.as_object().expect("a report").iter().filter_map(|(name, value)| {
        let count = value["files"].as_u64().or_else(|| value.as_u64())?;
        (count > 0).then(|| format!("{name} {count}"))
    });
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for stay in report["stays"].as_array().into_iter().flatten() {
        *reasons.entry(stay["why"].as_str().expect("a reason")).or_default() += 1;
    }
    parts.chain(reasons.iter().map(|(why, count)| format!("{why}: {count}"))).collect::<Vec<_>>().join(", ")
}
