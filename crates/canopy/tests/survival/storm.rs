//! Clients that work while one process after the other is killed: each operation does what it says, once.

use crate::rig::{Rig, end_all};
use canopy_testkit::{PATIENCE, Rng};
use rustix::fs::XattrFlags;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const CLIENTS: u64 = 3;

/// How many processes are killed, unless `CANOPY_TEST_KILLS` tells another number.
pub(crate) fn kills() -> usize {
    std::env::var("CANOPY_TEST_KILLS").map_or(10, |text| text.parse().expect("a number"))
}

#[test]
fn clients_do_not_notice_deaths() {
    storm("passthrough.io=off", kill);
}

#[test]
fn clients_of_passthrough_do_not_notice_deaths() {
    storm("passthrough.io=rw", kill);
}

#[test]
fn clients_do_not_notice_upgrades() {
    storm("passthrough.io=off", |rig, _| rig.upgrade());
}

#[test]
fn clients_of_passthrough_do_not_notice_upgrades_and_deaths() {
    storm("passthrough.io=rw", |rig, rng| if rng.chance(500) { rig.upgrade() } else { kill(rig, rng) });
}

/// Over io_uring a process that ends by a signal with a handler leaves its queues first.
#[test]
fn clients_do_not_notice_faults_over_io_uring() {
    storm("survive=auto,passthrough.io=off", |rig, rng| {
        let signal = [Signal::SEGV, Signal::BUS, Signal::ABORT][rng.index(3)];
        if rng.chance(200) { rig.upgrade() } else { fault(rig, signal) }
    });
}

fn fault(rig: &Rig, signal: Signal) -> Result<(), String> {
    rig.try_kill(signal).then_some(()).ok_or_else(|| format!("no process takes over after {signal:?}"))
}

fn kill(rig: &Rig, _: &mut Rng) -> Result<(), String> {
    rig.try_kill(Signal::KILL).then_some(()).ok_or_else(|| "no process takes over".into())
}

/// `strike`: what ends the process that serves. Another takes over.
fn storm(options: &str, strike: fn(&Rig, &mut Rng) -> Result<(), String>) {
    let rig = Rig::build(&["a", "b", "c"], |builder| {
        builder.option(options).option("category.create=rand").env("CANOPY_TEST_DEATHS", "5000")
    });
    let (stop, failed, done) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let branches = ["a", "b", "c"].map(|name| rig.branch(name));
    let faults: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let dir = format!("client-{number}");
                fs::create_dir(rig.path(&dir)).unwrap();
                let (stop, failed, done, branches) = (&stop, &failed, &done, &branches);
                let mut client = Client::new(rig.path(&dir), dir, branches, number);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        if let Err(fault) = client.step() {
                            failed.store(true, Ordering::Relaxed);
                            return Err(format!("client {number}, step {}: {fault}", client.steps));
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    client.compare()
                })
            })
            .collect();
        let mut rng = Rng::new(15);
        let mut fault = None;
        for kill in 0..kills() {
            let before = done.load(Ordering::Relaxed);
            thread::sleep(Duration::from_micros(rng.below(40_000)));
            fault = strike(&rig, &mut rng).err().map(|why| format!("after kill {kill}: {why}"));
            // Some die before they have answered anything.
            let goes_on = || failed.load(Ordering::Relaxed) || done.load(Ordering::Relaxed) > before;
            if fault.is_none() && rng.chance(800) && !canopy_testkit::cmd::wait_until(PATIENCE, goes_on) {
                fault = Some(format!("no client goes on after kill {kill}"));
            }
            if fault.is_some() {
                end_all(&rig.pool);
            }
            if fault.is_some() || failed.load(Ordering::Relaxed) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let ends = clients.into_iter().map(|client| client.join().expect("a client that does not panic"));
        ends.filter_map(Result::err).chain(fault).collect()
    });
    assert!(faults.is_empty(), "{faults:#?}\n{}", rig.pool.log());
    println!("{} operations, {} kills", done.into_inner(), kills());
}

/// Works in a directory of its own, and knows what is there.
struct Client<'a> {
    dir: PathBuf,
    name: String,
    branches: &'a [PathBuf],
    rng: Rng,
    steps: u64,
    files: BTreeMap<String, Vec<u8>>,
    dirs: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    held: Vec<(File, Vec<u8>)>,
}

type Step = Result<(), String>;

impl<'a> Client<'a> {
    fn new(dir: PathBuf, name: String, branches: &'a [PathBuf], number: u64) -> Self {
        let rng = Rng::new(number + 1);
        Client {
            dir,
            name,
            branches,
            rng,
            steps: 0,
            files: BTreeMap::new(),
            dirs: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn some_file(&mut self) -> Option<String> {
        let names: Vec<&String> = self.files.keys().collect();
        (!names.is_empty()).then(|| (*self.rng.pick(&names)).clone())
    }

    fn step(&mut self) -> Step {
        self.steps += 1;
        let new = format!("{:05}", self.steps);
        match self.rng.below(13) {
            0 | 1 => self.create(&new),
            2 => self.make_dir(&new),
            3 => self.rename_file(&new),
            4 => self.rename_dir(&new),
            5 => self.rename_copies(&new),
            6 => self.link(&new),
            7 => self.append(),
            8 => self.truncate(),
            9 => self.attribute(),
            10 => self.hold(&new),
            11 => self.look_at_held(),
            _ => self.remove(),
        }
    }

    fn create(&mut self, new: &str) -> Step {
        let len = self.rng.index(9000);
        let bytes = self.rng.bytes(len);
        let mut file = told("create", new, File::create_new(self.path(new)))?;
        told("write", new, file.write_all(&bytes))?;
        drop(file);
        self.files.insert(new.to_owned(), bytes);
        self.check(new)
    }

    fn make_dir(&mut self, new: &str) -> Step {
        told("mkdir", new, fs::create_dir(self.path(new)))?;
        let mut entries = BTreeMap::new();
        for name in ["x", "y", "z"] {
            told("create in", new, fs::write(self.path(new).join(name), new))?;
            entries.insert(name.to_owned(), new.as_bytes().to_vec());
        }
        self.dirs.insert(new.to_owned(), entries);
        Ok(())
    }

    fn rename_file(&mut self, new: &str) -> Step {
        let Some(old) = self.some_file() else { return Ok(()) };
        let target = if self.rng.chance(500) {
            self.some_file().filter(|target| *target != old).unwrap_or_else(|| new.to_owned())
        } else {
            new.to_owned()
        };
        told("rename", &old, fs::rename(self.path(&old), self.path(&target)))?;
        let bytes = self.files.remove(&old).expect("a known file");
        self.files.insert(target.clone(), bytes);
        self.absent(&old)?;
        self.check(&target)
    }

    fn rename_dir(&mut self, new: &str) -> Step {
        let Some(old) = self.dirs.keys().next().cloned() else { return Ok(()) };
        told("rename directory", &old, fs::rename(self.path(&old), self.path(new)))?;
        let entries = self.dirs.remove(&old).expect("a known directory");
        let found = listed(&self.path(new))?;
        if found != entries {
            return Err(format!("directory {old}, now {new}, has {:?}", found.keys()));
        }
        self.dirs.insert(new.to_owned(), entries);
        self.absent(&old)
    }

    /// Renames a file with two copies over one with two, on different branches.
    fn rename_copies(&mut self, new: &str) -> Step {
        let old = format!("{new}-old");
        for (branch, name) in [(0, &*old), (1, &*old), (1, new), (2, new)] {
            let dir = self.branches[branch].join(&self.name);
            told("directory on a branch", name, fs::create_dir_all(&dir))?;
            told(
                "copy on a branch",
                name,
                fs::write(dir.join(name), if name == old { "source" } else { "target" }),
            )?;
        }
        told("rename copies", new, fs::rename(self.path(&old), self.path(new)))?;
        let on = |branch: usize, name: &str| {
            fs::read_to_string(self.branches[branch].join(&self.name).join(name)).ok()
        };
        let found: Vec<_> = (0..3).map(|branch| (on(branch, &old), on(branch, new))).collect();
        let source = Some("source".to_owned());
        if found != [(None, source.clone()), (None, source), (None, None)] {
            return Err(format!("renamed copies: {found:?}"));
        }
        self.files.insert(new.to_owned(), b"source".to_vec());
        self.check(new)
    }

    fn link(&mut self, new: &str) -> Step {
        let Some(old) = self.some_file() else { return Ok(()) };
        told("link", &old, fs::hard_link(self.path(&old), self.path(new)))?;
        self.check(&old)?;
        if told("read link", new, fs::read(self.path(new)))? != self.files[&old] {
            return Err(format!("{new} is no link to {old}"));
        }
        // One name with its own contents, for the rest.
        told("unlink", new, fs::remove_file(self.path(new)))?;
        told("symlink", new, symlink(&old, self.path(new)))?;
        if told("readlink", new, fs::read_link(self.path(new)))?.as_os_str() != old.as_str() {
            return Err(format!("the symlink {new} does not lead to {old}"));
        }
        told("unlink", new, fs::remove_file(self.path(new)))?;
        self.absent(new)
    }

    fn append(&mut self) -> Step {
        let Some(name) = self.some_file() else { return Ok(()) };
        let mut file = told("open", &name, OpenOptions::new().append(true).open(self.path(&name)))?;
        for _ in 0..3 {
            let len = self.rng.index(3000) + 1;
            let bytes = self.rng.bytes(len);
            told("append", &name, file.write_all(&bytes))?;
            self.files.get_mut(&name).expect("a known file").extend(bytes);
        }
        drop(file);
        self.check(&name)
    }

    fn truncate(&mut self) -> Step {
        let Some(name) = self.some_file() else { return Ok(()) };
        let len = self.rng.index(6000);
        let file = told("open", &name, OpenOptions::new().write(true).open(self.path(&name)))?;
        told("truncate", &name, file.set_len(len as u64))?;
        self.files.get_mut(&name).expect("a known file").resize(len, 0);
        self.check(&name)
    }

    fn attribute(&mut self) -> Step {
        let Some(name) = self.some_file() else { return Ok(()) };
        let (path, key) = (self.path(&name), "user.storm");
        told("set xattr", &name, rustix::fs::setxattr(&path, key, b"1", XattrFlags::CREATE))?;
        told("replace xattr", &name, rustix::fs::setxattr(&path, key, b"22", XattrFlags::REPLACE))?;
        let mut value = [0; 8];
        if told("get xattr", &name, rustix::fs::getxattr(&path, key, &mut value))? != 2 {
            return Err(format!("the attribute of {name} is {value:?}"));
        }
        told("remove xattr", &name, rustix::fs::removexattr(&path, key))
    }

    fn hold(&mut self, new: &str) -> Step {
        let options = OpenOptions::new().read(true).write(true).create_new(true).clone();
        let file = told("create", new, options.open(self.path(new)))?;
        told("write", new, file.write_all_at(new.as_bytes(), 0))?;
        if self.rng.chance(500) {
            told("unlink", new, fs::remove_file(self.path(new)))?;
        } else {
            self.files.insert(format!("{new}-held"), new.as_bytes().to_vec());
            told("rename", new, fs::rename(self.path(new), self.path(&format!("{new}-held"))))?;
            return Ok(());
        }
        self.held.push((file, new.as_bytes().to_vec()));
        if self.held.len() > 8 {
            self.held.remove(0);
        }
        Ok(())
    }

    fn look_at_held(&mut self) -> Step {
        for (file, bytes) in &mut self.held {
            let mut found = vec![0; bytes.len()];
            told("read held", "file", file.read_exact_at(&mut found, 0))?;
            if found != *bytes {
                return Err(format!("a held file has {found:?}, not {bytes:?}"));
            }
            bytes.push(b'+');
            told("write held", "file", file.write_all_at(bytes, 0))?;
        }
        Ok(())
    }

    fn remove(&mut self) -> Step {
        if self.dirs.len() > 3 {
            let (name, entries) = self.dirs.pop_first().expect("a directory");
            for entry in entries.keys() {
                told("unlink in", &name, fs::remove_file(self.path(&name).join(entry)))?;
            }
            told("rmdir", &name, fs::remove_dir(self.path(&name)))?;
            self.absent(&name)?;
        }
        if self.files.len() > 20 {
            let name = self.some_file().expect("a file");
            told("unlink", &name, fs::remove_file(self.path(&name)))?;
            self.files.remove(&name);
            self.absent(&name)?;
        }
        Ok(())
    }

    fn check(&self, name: &str) -> Step {
        let found = told("read", name, fs::read(self.path(name)))?;
        if found == self.files[name] {
            Ok(())
        } else {
            Err(format!("{name} has {} bytes, {} expected, or others", found.len(), self.files[name].len()))
        }
    }

    fn absent(&self, name: &str) -> Step {
        match fs::symlink_metadata(self.path(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => {
                let on: Vec<_> = (0..self.branches.len())
                    .map(|branch| {
                        self.branches[branch].join(&self.name).join(name).symlink_metadata().is_ok()
                    })
                    .collect();
                Err(format!(
                    "{name} is still there: {:?}, on branches {on:?}",
                    other.map(|there| there.len())
                ))
            }
        }
    }

    /// Compares the whole directory with what is to be there.
    fn compare(&self) -> Step {
        let found = listed(&self.dir)?;
        let names: Vec<&String> = found.keys().collect();
        if found.keys().ne(self.files.keys()) {
            return Err(format!("files {names:?}, not {:?}", self.files.keys()));
        }
        self.files.keys().try_for_each(|name| self.check(name))?;
        for (name, entries) in &self.dirs {
            if listed(&self.path(name))? != *entries {
                return Err(format!("directory {name} has other entries"));
            }
        }
        Ok(())
    }
}

/// The files in a directory, without its directories.
fn listed(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut found = BTreeMap::new();
    for entry in told("list", "directory", fs::read_dir(dir))? {
        let entry = told("list", "directory", entry)?;
        if told("type", "entry", entry.file_type())?.is_file() {
            let name = entry.file_name().into_string().expect("a name of letters");
            found.insert(name.clone(), told("read", &name, fs::read(entry.path()))?);
        }
    }
    Ok(found)
}

fn told<T, E: std::fmt::Display>(what: &str, name: &str, result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| format!("{what} {name}: {error}"))
}
