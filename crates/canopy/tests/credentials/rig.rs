//! Shared helpers: acting as different users, and running one table on several filesystems.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use canopy_testkit::{Kind, LoopFs, Pool};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user who acts in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Actor {
    pub(super) name: &'static str,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: &'static [u32],
}

impl Actor {
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// Owner and group of the entries that the tables act upon.
pub(super) const OWNER: u32 = 6001;
pub(super) const GROUP: u32 = 7001;

pub(super) const ROOT: Actor = Actor { name: "root", uid: 0, gid: 0, groups: &[] };
pub(super) const THE_OWNER: Actor = Actor { name: "owner", uid: OWNER, gid: GROUP, groups: &[] };
pub(super) const OWNER_OUTSIDE: Actor =
    Actor { name: "owner outside the group", uid: OWNER, gid: 7009, groups: &[7008] };
pub(super) const MEMBER: Actor = Actor { name: "member", uid: 6002, gid: GROUP, groups: &[] };
pub(super) const BY_SUPPLEMENT: Actor =
    Actor { name: "member by supplementary group", uid: 6003, gid: 7003, groups: &[7005, GROUP] };
pub(super) const STRANGER: Actor = Actor { name: "stranger", uid: 6004, gid: 7004, groups: &[] };

pub(super) const EVERYBODY: [Actor; 6] = [ROOT, THE_OWNER, OWNER_OUTSIDE, MEMBER, BY_SUPPLEMENT, STRANGER];

type Job<'scope> = Box<dyn FnOnce() + Send + 'scope>;

/// One thread for each actor, with that actor's credentials; on Linux each thread has its own.
pub(super) struct Actors<'scope> {
    threads: Vec<(Actor, mpsc::Sender<Job<'scope>>)>,
}

impl<'scope> Actors<'scope> {
    pub(super) fn start<'env>(scope: &'scope thread::Scope<'scope, 'env>) -> Self {
        let start = |actor: Actor| {
            let (sender, jobs) = mpsc::channel::<Job<'scope>>();
            scope.spawn(move || {
                switch_to(actor);
                jobs.into_iter().for_each(|job| job());
            });
            (actor, sender)
        };
        Self { threads: EVERYBODY.map(start).into() }
    }

    /// Runs the job as the actor and returns its result.
    #[track_caller]
    pub(super) fn act<T: Send + 'scope>(&self, actor: Actor, job: impl FnOnce() -> T + Send + 'scope) -> T {
        let (_, thread) = self.threads.iter().find(|(known, _)| *known == actor).expect("a known actor");
        let (sender, answer) = mpsc::sync_channel(1);
        thread.send(Box::new(move || sender.send(job()).expect("a caller waits"))).expect("the thread lives");
        answer.recv().expect("an answer")
    }
}

fn switch_to(actor: Actor) {
    if actor.is_root() {
        return;
    }
    let groups: Vec<Gid> = actor.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let (uid, gid) = (Uid::from_raw(actor.uid), Gid::from_raw(actor.gid));
    set_thread_groups(&groups).expect("setgroups");
    set_thread_res_gid(gid, gid, gid).expect("setgid");
    // Also drops the capabilities.
    set_thread_res_uid(uid, uid, uid).expect("setuid");
}

/// Returns the errno's symbolic name, or `ok`.
pub(super) fn outcome<T>(result: Result<T, impl Into<std::io::Error>>) -> String {
    let Err(error) = result else { return "ok".to_owned() };
    let error: std::io::Error = error.into();
    let names = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::ACCESS, "EACCES"),
        (Errno::EXIST, "EEXIST"),
        (Errno::XDEV, "EXDEV"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::ROFS, "EROFS"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
        (Errno::NOTEMPTY, "ENOTEMPTY"),
        (Errno::NODATA, "ENODATA"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    ];
    let found = names.iter().find(|(errno, _)| Errno::from_io_error(&error) == Some(*errno));
    found.map_or_else(|| error.to_string(), |(_, name)| (*name).to_owned())
}

/// The filesystems on which a table runs.
pub(super) struct Places {
    plain: LoopFs,
    disks: [LoopFs; 2],
}

impl Places {
    #[track_caller]
    pub(super) fn new() -> Self {
        let disk = || LoopFs::new(Kind::Ext4, 1 << 30);
        Self { plain: disk(), disks: [disk(), disk()] }
    }

    pub(super) fn branches(&self) -> [PathBuf; 2] {
        [0, 1].map(|index| self.disks[index].path().to_owned())
    }

    #[track_caller]
    pub(super) fn pool(&self, options: &str) -> Pool {
        let [one, two] = self.branches();
        let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy")).branch(one).branch(two);
        builder.option("minfreespace=0,category.create=rand").option(options).mount()
    }

    /// The filesystem that pools are compared with.
    pub(super) fn plain(&self) -> &Path {
        self.plain.path()
    }

    /// Runs the table on ext4 and on one pool for each set of options. Each run returns lines of the form
    /// `cell: result`, which must be the same.
    #[track_caller]
    pub(super) fn compare(&self, options: &[&str], table: impl Fn(&Path) -> Vec<String>) {
        let expected = table(&fresh(self.plain.path()));
        assert!(expected.len() > 3, "{expected:?}");
        let mut faults = Vec::new();
        for options in options {
            let pool = self.pool(options);
            let found = table(&fresh(pool.path()));
            assert!(pool.is_alive(), "{}", pool.log());
            pool.umount();
            assert_eq!(expected.len(), found.len(), "[{options}]");
            for (wanted, found) in expected.iter().zip(&found).filter(|(wanted, found)| wanted != found) {
                faults.push(format!("[{options}]\n  ext4 {wanted}\n  pool {found}"));
            }
        }
        let count = faults.len();
        faults.truncate(30);
        let cells = expected.len();
        assert!(faults.is_empty(), "{count} cells of {cells} differ:\n{}", faults.join("\n"));
    }
}

/// Creates an empty directory that every user may use.
pub(super) fn fresh(root: &Path) -> PathBuf {
    let dir = root.join("table");
    if dir.exists() {
        fs::remove_dir_all(&dir).unwrap();
    }
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
    dir
}
