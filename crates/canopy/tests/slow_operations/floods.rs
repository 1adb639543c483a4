//! What a user feels of another one's flood of requests that wait. Nothing here asserts a time: it measures, beside other load
//! whatever that costs, with as many processes as `CANOPY_FLOOD` says, by
//! `CANOPY_BIN=target/release/canopy cargo test -p canopy --test slow_operations floods -- --ignored --nocapture`.

use super::rig::Rig;
use super::waits::{parked, pool_with_file};
use canopy_fuse::Opcode;
use canopy_sys::lease;
use canopy_testkit::cmd::{self, wait_until};
use canopy_testkit::{Fault, LoopFs, PATIENCE, Pool, as_user, transports};
use rustix::fs::FallocateFlags;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const SECONDS: u64 = 6;
const ATTACKER: u32 = 65534;

/// One kind of request, over and over, by many processes: WAY SECONDS PROCESSES PATH.
const FLOOD: &str = r#"
import ctypes, os, sys, time
way, seconds, processes, path = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
libc = ctypes.CDLL(None, use_errno=True)
end = time.monotonic() + seconds

def opens(number):
    try: os.close(os.open(path, os.O_RDWR))
    except OSError: time.sleep(0.001)

def renames(number):
    one, other = f"{path}/{number}", f"{path}/{number}-renamed"
    if not os.path.isdir(one): os.mkdir(one)
    os.rename(one, other)
    os.rename(other, one)

handle = (ctypes.c_uint32 * 34)(128)
def handles(number):
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    node = handle[2] << 32 | handle[3]
    inode = (node >> 13) + 1 + (state >> 44)
    guess = node & ~(2**53 - 1) | (inode << 13) & (2**53 - 1) | state >> 30 & 0x1FFF
    made_up = (ctypes.c_uint32 * 34)(*handle)
    made_up[2], made_up[3] = guess >> 32, guess & 0xFFFFFFFF
    libc.open_by_handle_at(root, made_up, os.O_RDONLY | os.O_DIRECTORY)

if way == "handles":
    uid = os.getuid()
    if libc.unshare(0x10020000): raise OSError(ctypes.get_errno(), "unshare")
    for name, text in ("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1"):
        with open("/proc/self/" + name, "w") as file: file.write(text)
    root, mount = os.open(os.path.dirname(path), os.O_RDONLY), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
once = {"opens": opens, "renames": renames, "handles": handles}[way]
for number in range(processes):
    if os.fork() == 0:
        state, done = os.getpid(), 0
        while time.monotonic() < end:
            once(number)
            done += 1
        os._exit(0 if done else 1)
faults = sum(os.wait()[1] != 0 for _ in range(processes))
sys.exit(faults != 0)
"#;

fn flood(way: &str, path: &Path) -> Child {
    let processes = std::env::var("CANOPY_FLOOD").unwrap_or_else(|_| "600".into());
    let mut command = as_user(ATTACKER, ATTACKER, &[], "/usr/bin/python3");
    // They begin one after the other.
    command.args(["-c", FLOOD, way, &(2 * SECONDS).to_string(), &processes]).arg(path).stdin(Stdio::null());
    cmd::spawn(&mut command).expect("python3")
}

/// How long each step of another user's work takes, in milliseconds: half of them, 99 of 100, all; and their number.
struct Felt {
    steps: usize,
    half: f64,
    most: f64,
    all: f64,
}

fn feel(dir: &Path) -> Felt {
    let mut took: Vec<Duration> = Vec::new();
    let mut step = |work: &mut dyn FnMut() -> io::Result<()>| {
        let began = Instant::now();
        work().expect("another user's work");
        took.push(began.elapsed());
    };
    let until = Instant::now() + Duration::from_secs(SECONDS);
    let [one, other] = ["dir", "renamed"].map(|name| dir.join(name));
    while Instant::now() < until {
        step(&mut || fs::create_dir(&one));
        step(&mut || fs::write(one.join("file"), "data"));
        step(&mut || fs::rename(&one, &other));
        step(&mut || fs::read(other.join("file")).map(drop));
        step(&mut || fs::read_dir(&other).map(|list| assert_eq!(list.count(), 1)));
        step(&mut || fs::remove_file(other.join("file")));
        step(&mut || fs::remove_dir(&other));
        std::thread::sleep(Duration::from_millis(2));
    }
    took.sort_unstable();
    let at = |part: usize| took[(took.len() * part / 1000).min(took.len() - 1)].as_secs_f64() * 1000.0;
    Felt { steps: took.len(), half: at(500), most: at(990), all: at(1000) }
}

fn tell(what: &str, transport: &str, pool: Option<&Pool>, felt: &Felt) {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or_default();
    let parked =
        pool.map_or(0, |pool| ["lease", "move", "search"].map(|cause| parked(pool, cause)).iter().sum());
    println!(
        "{what}, io-uring={transport}: {} steps, 50 % {:.1} ms, 99 % {:.1} ms, 100 % {:.1} ms; {parked} parked, load {load}",
        felt.steps, felt.half, felt.most, felt.all
    );
}

fn beside(what: &str, transport: &str, pool: &Pool, mut flood: Child, end: impl FnOnce()) {
    std::thread::sleep(Duration::from_secs(2));
    tell(what, transport, Some(pool), &feel(&pool.path().join("victim")));
    end();
    let ended = cmd::wait_within(&mut flood, 2 * PATIENCE);
    if ended.is_none() {
        let _ = flood.kill();
    }
    assert!(ended.is_some_and(|status| status.success()), "{what}: {ended:?}: {}", pool.log());
    assert!(wait_until(PATIENCE, || ["lease", "move", "search"]
        .iter()
        .all(|cause| parked(pool, cause) == 0)));
}

fn open_to_all(path: &Path) {
    let is_dir = path.is_dir();
    fs::set_permissions(path, Permissions::from_mode(if is_dir { 0o777 } else { 0o666 })).expect("chmod");
}

#[test]
#[ignore = "measures"]
fn a_leased_file() {
    for transport in transports() {
        let disk = LoopFs::ext4(64 << 20);
        let (pool, path, holder) = pool_with_file(transport, &disk);
        open_to_all(&path);
        pool.drop_dentries();
        tell("alone", transport, None, &feel(&pool.path().join("victim")));
        lease::take_alone(holder.as_fd()).expect("a lease");
        beside("opens of a leased file", transport, &pool, flood("opens", &path), || {
            lease::release(holder.as_fd());
        });
        drop(holder);
        pool.umount();
    }
}

#[test]
#[ignore = "measures"]
fn made_up_handles() {
    for transport in transports() {
        let disk = LoopFs::tmpfs(256 << 20);
        fs::create_dir(disk.path().join("many")).expect("mkdir");
        (0..50_000).for_each(|n| fs::write(disk.path().join(format!("many/{n}")), "").expect("a file"));
        let (pool, _, holder) = pool_with_file(transport, &disk);
        tell("alone", transport, None, &feel(&pool.path().join("victim")));
        let flood = flood("handles", &pool.path().join("many/1"));
        beside("made-up handles", transport, &pool, flood, || {});
        drop(holder);
        pool.umount();
    }
}

#[test]
#[ignore = "measures"]
fn a_file_that_is_moved() {
    for transport in transports() {
        let rig = Rig::new(transport, 0, "moveonenospc=mfs", &[]);
        fs::create_dir(rig.at("victim")).expect("mkdir");
        let path = rig.at("moving");
        fs::write(&path, vec![5; 4 << 20]).expect("a file");
        open_to_all(&path);
        tell("alone", transport, None, &feel(&rig.at("victim")));
        rig.faulty.set(Fault::Hang, &[Opcode::Write]);
        let writer = {
            let path = path.clone();
            std::thread::spawn(move || {
                let file = File::options().write(true).open(path)?;
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 70 << 20).map_err(io::Error::from)
            })
        };
        assert!(wait_until(PATIENCE, || rig.faulty.hanging() > 0), "{}", rig.pool.log());
        let flood = flood("opens", &path);
        beside("opens of a file that is moved", transport, &rig.pool, flood, || rig.faulty.heal());
        writer.join().expect("a client").expect("space on the other disk");
        rig.pool.umount();
    }
}

#[test]
#[ignore = "measures"]
fn renames_of_directories() {
    for transport in transports() {
        let disk = LoopFs::ext4(256 << 20);
        let (pool, path, holder) = pool_with_file(transport, &disk);
        let [own, victim] = ["own", "victim"].map(|name| pool.path().join(name));
        open_to_all(&own);
        tell("alone", transport, None, &feel(&victim));
        beside("renames of directories", transport, &pool, flood("renames", &own), || {});
        // What the processor and the kernel cost by themselves.
        let on_branch = disk.path().join("own");
        let flood = flood("renames", &on_branch);
        beside("the same on the branch", transport, &pool, flood, || {});
        drop((holder, path));
        pool.umount();
    }
}
