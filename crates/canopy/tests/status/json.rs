//! What `--json` prints is what docs/json.md says.

use super::rig::BINARY;
use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed, ScratchDir};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/json.md");

/// Returns the fields that a section documents: the value and the meaning of each.
fn documented(section: &str) -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let heading = format!("\n## {section}\n");
    let (_, rest) = PAGE.split_once(&heading).unwrap_or_else(|| panic!("no section {section}"));
    let rows = rest.split("\n## ").next().unwrap_or_default().lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells.map(|cells| (cells[1].trim_matches('`'), (cells[2], cells[3]))).collect()
}

/// A path that stands for the members of an object with names of its own, if it lies below one.
fn general<'d>(path: &str, fields: &BTreeMap<&'d str, (&str, &str)>) -> Option<&'d str> {
    let below = |field: &&&'d str| field.strip_suffix('*').is_some_and(|start| path.starts_with(start));
    fields.keys().find(below).copied()
}

/// Collects the values by their paths; lists and objects count as such if they are empty.
fn flatten(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, found);
            }
        }
        Value::Array(elements) => {
            elements.iter().for_each(|element| flatten(&format!("{path}[]"), element, found));
        }
        value => found.push((path.to_owned(), value.clone())),
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    kind.split(" or ").any(|kind| match kind {
        "text" => value.is_string(),
        "path" => value.is_string() || value.is_array(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "any" => true,
        other => panic!("the page knows no {other}"),
    })
}

/// Checks what commands print against a section.
#[track_caller]
fn check(section: &str, reports: &[Value]) {
    let fields = documented(section);
    let mut seen = BTreeSet::new();
    for report in reports {
        assert!(report.is_object() || section == "options", "{section}: {report}");
        let mut found = Vec::new();
        flatten("", report, &mut found);
        for (path, value) in found {
            // An object or a list that may be null is documented by what it holds.
            let holds =
                |field: &&str| field.strip_prefix(&*path).is_some_and(|rest| rest.starts_with(['.', '[']));
            let is_null_object = value.is_null() && fields.keys().any(holds);
            let general = general(&path, &fields);
            let Some((field, (kind, _))) = fields.get_key_value(general.unwrap_or(&path)) else {
                assert!(is_null_object, "{section}: {path} is not documented: {value}");
                continue;
            };
            assert!(is_null_object || is_of(&value, kind), "{section}: {path} is no {kind}: {value}");
            seen.insert(*field);
        }
    }
    // Where one member of an object was seen, all must be.
    for (field, (_, meaning)) in &fields {
        let parent = field.rsplit_once('.').map_or("", |(parent, _)| parent);
        let is_list = field.ends_with("[]");
        let siblings = seen.iter().any(|other| other.rsplit_once('.').map_or("", |(it, _)| it) == parent);
        let may_be_absent = is_list || field.ends_with(".*") || meaning.starts_with("only ");
        assert!(
            seen.contains(field) || may_be_absent || !siblings,
            "{section}: {field} is documented, and not there"
        );
    }
}

struct Bed {
    pool: PoolBed,
    home: ScratchDir,
}

impl Bed {
    fn new() -> Bed {
        let home = ScratchDir::new("canopy-json-", &["etc", "one", "two", "ssd"]);
        let cache = format!("read-cache={}=d/**|when opened", home.path("ssd").display());
        let builder = Pool::builder(BINARY).option("minfreespace=0,cache.attr=0,cache.entry=0").option(cache);
        let pool = PoolBed::mount(builder, [0; 3].map(|_| LoopFs::ext4(64 << 20)));
        Bed { pool, home }
    }

    fn put(&self, branch: usize, path: &str, content: impl AsRef<[u8]>) {
        let path = self.pool.on(branch, path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
        fs::write(path, content).expect("write");
    }

    fn command(&self, line: &str) -> Command {
        let pool = self.pool.pool.path().display().to_string();
        let mut line = line.replace("POOL", &pool).replace("HOME", &self.home.dir().display().to_string());
        for branch in 0..3 {
            line = line.replace(&format!("DISK{branch}"), &self.pool.on(branch, "").display().to_string());
        }
        let mut command = Command::new(BINARY);
        command.args(line.split(' ')).env("CANOPY_CONFIG_DIR", self.home.path("etc"));
        command.env("CANOPY_STATE_DIR", self.home.path("jobs"));
        command
    }

    fn json(&self, line: &str) -> Value {
        let mut command = self.command(line);
        command.arg("--json");
        let done = run_within(&mut command, PATIENCE);
        serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{line}: {why}: {}", done.describe()))
    }
}

#[test]
fn json_is_as_documented() {
    let bed = Bed::new();
    for branch in [0, 1] {
        bed.put(branch, "d/twice", "the same");
        bed.put(branch, "d/sizes", "x".repeat(branch + 1));
    }
    for name in ["d/once", "d/equal-1", "d/equal-2", "big/file"] {
        bed.put(1, name, vec![5; 1 << 20]);
    }
    fs::set_permissions(bed.pool.on(0, "d/twice"), fs::Permissions::from_mode(0o600)).unwrap();
    let file = format!(
        "branches = ['/a']\nmountpoint = '{}'\n[[schedule]]\ndo = 'which'\nwhen = 'every month'\n",
        bed.pool.pool.path().display()
    );
    fs::write(bed.home.path("etc/planned.toml"), file).unwrap();
    let fstab = "DISKS /p fuse.mergerfs use_ino,frob,config=/none 0 0\n";
    fs::write(bed.home.path("fstab"), fstab.replace("DISKS", "/a:/b")).unwrap();
    let all = |lines: &[&str]| lines.iter().map(|line| bed.json(line)).collect::<Vec<_>>();

    check("status", &all(&["status POOL --fstab-file HOME/fstab", "status --fstab-file HOME/fstab"]));
    check("disks", &all(&["disks POOL"]));
    let run = bed.command("jobs planned run which").output().expect("canopy");
    assert!(run.status.success(), "{run:?}");
    check("jobs", &all(&["jobs planned", "jobs planned log which"]));
    check("status", &all(&["status POOL --fstab-file HOME/fstab"]));
    check("doctor", &all(&["doctor --fstab-file HOME/fstab"]));
    check("explain", &all(&["explain create POOL/new", "explain unlink POOL/d/once"]));
    check("get", &all(&["get POOL", "get POOL pid"]));
    check("options", &all(&["options"]));
    check("which", &all(&["which POOL/d/sizes POOL/d"]));
    bed.put(0, ".canopy-aside/1764267611000000000/d/once", "before");
    check("copies", &all(&["copies POOL"]));
    check("ls", &all(&["ls POOL/d"]));
    check("cache", &all(&["cache add POOL d big", "cache list POOL", "cache drop POOL d"]));
    check("du", &all(&["du POOL"]));
    let log = bed.json("log POOL");
    let (source, point) = (&log["sources"][0], bed.pool.pool.path().to_str().unwrap());
    let said = |line: &Value| line.as_str().is_some_and(|line| line.contains(point));
    // The pool of a test is in the foreground, and writes to a file.
    assert!(source["kind"] == "file" && source["lines"].as_array().unwrap().iter().any(said), "{log:#}");
    check("log", &[log, bed.json("log")]);
    check(
        "init",
        &all(&[
            "init films -b HOME/one -m HOME/films --boot fstab --fstab-file HOME/fstab --dry-run",
            "init films -b HOME/one -m HOME/films --yes",
        ]),
    );
    check("migrate", &all(&["migrate HOME/fstab"]));
    let mode = bed.json("mode POOL DISK2 RO --dry-run");
    assert_eq!((&mode["changed"], &mode["out_of_sight"]["all"]), (&false.into(), &true.into()), "{mode:#}");
    let changes =
        ["mode POOL DISK2 NC", "mode POOL DISK2 RW", "remove POOL DISK1 --dry-run", "remove POOL DISK1"];
    check("add, remove, replace, mode", &all(&changes));
    check(
        "move, balance, drain, consolidate, dup, tier",
        &all(&[
            "move POOL POOL/big --to DISK2 --dry-run",
            "move POOL POOL/big --to DISK2",
            "balance POOL --dry-run",
            "consolidate POOL POOL/d --dry-run",
            "dup POOL POOL/big --dry-run",
            "dup POOL POOL/big",
            "drain POOL DISK0 --dry-run",
        ]),
    );
    let dedup = ["dedup POOL POOL/big", "dedup POOL POOL/d/sizes", "dedup POOL POOL/big --yes"];
    check("dedup", &all(&dedup));
    check("dedup --link", &all(&["dedup POOL POOL/d --link hard", "dedup POOL POOL/d --link hard --yes"]));
    check("verify", &all(&["verify POOL", "verify POOL --yes"]));
    check("fsck", &all(&["fsck POOL", "fsck POOL --check-size --keep newest --yes"]));
}
