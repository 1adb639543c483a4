//! What a running pool tells about itself, for `canopy status` and `canopy explain`.

use crate::branches::topology::Topology;
use crate::watch::Unwatched;
use canopy_config::Config;
use canopy_config::control_api::{
    BranchReport, BranchVerdict, EXPLAIN, ExplainError, ExplainReport, IllnessReport, KernelReport, OsText,
    PoolReport, SecurityReport, Verdict,
};
use canopy_config::options;
use canopy_fuse::flags::InitFlags;
use canopy_fuse::{Agreed, Transport, abi};
use canopy_pool::branch::BranchSpec;
use canopy_pool::branch::health::HealthReport;
use canopy_pool::config::Func;
use canopy_pool::policy::Exclusion;
use canopy_pool::{Error, Explained, NodeId, Pool};
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

/// What was agreed with the kernel, and how its requests are served.
pub(crate) struct Connection {
    pub(crate) agreed: Agreed,
    pub(crate) planned: Carrier,
    /// What carries the requests in its place, should the kernel have refused that.
    pub(crate) instead: OnceLock<Carrier>,
    pub(crate) security: SecurityReport,
}

/// What carries the requests.
pub(crate) struct Carrier {
    transport: &'static str,
    threads: usize,
}

impl Carrier {
    /// `readers` serve over /dev/fuse.
    pub(crate) fn new(transport: &Transport, readers: usize) -> Carrier {
        match transport {
            Transport::Device(_) => Carrier { transport: "dev-fuse", threads: readers },
            // And the one that reads what stays on /dev/fuse.
            Transport::Uring { workers, .. } => Carrier { transport: "io-uring", threads: workers + 1 },
        }
    }
}

/// Asks no branch: a disk that hangs holds nobody up here.
pub(crate) fn status(
    connection: &Connection,
    config: &Config,
    pool: &Pool,
    topology: &Topology,
    unwatched: &[Unwatched],
) -> Vec<u8> {
    let agreed = &connection.agreed;
    let carrier = connection.instead.get().unwrap_or(&connection.planned);
    let branch = |branch: &canopy_pool::branch::Branch| BranchReport {
        path: OsText::from(branch.path.as_path()),
        mode: branch.mode.to_string(),
        min_free: branch.min_free_or(config.pool.min_free),
        dev: branch.dev,
        ino: branch.ino,
        passes_through: pool.passes_through(branch.id),
        illness: branch.health.report().map(|illness| illness_told(&illness)),
        unwatched: unwatched.iter().find(|one| one.branch == branch.path).map(|one| one.why.clone()),
        awaited: false,
    };
    // Of one moment: a branch comes and goes while somebody asks.
    let mut held = pool.branches();
    let gone_ones: Vec<Option<HealthReport>> = loop {
        let gone = config.branches.iter().map(|spec| topology.why_gone(&spec.path)).collect();
        let now = pool.branches();
        if Arc::ptr_eq(&held, &now) {
            break gone;
        }
        held = now;
    };
    let not_held = |(spec, illness): (&BranchSpec, Option<HealthReport>)| {
        held.iter().all(|branch| branch.path != spec.path).then(|| BranchReport {
            path: OsText::from(spec.path.as_path()),
            mode: spec.mode.to_string(),
            min_free: spec.min_free.unwrap_or(config.pool.min_free),
            dev: 0,
            ino: 0,
            passes_through: false,
            awaited: illness.is_none(),
            illness: illness.map(|illness| illness_told(&illness)),
            unwatched: None,
        })
    };
    let value = |spec: &options::Spec| Some((spec.name.to_string(), spec.render(config)?));
    json(&PoolReport {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        transport: carrier.transport.into(),
        threads: carrier.threads,
        kernel: KernelReport {
            protocol: format!("{}.{}", abi::MAJOR, agreed.minor),
            features: names(agreed.flags),
            missing: names(agreed.missing),
            max_stack_depth: agreed.max_stack_depth,
        },
        options: options::table().iter().filter(|spec| !spec.hidden).filter_map(value).collect(),
        given: config.given.iter().cloned().collect(),
        branches: held
            .iter()
            .map(|held| branch(held))
            .chain(config.branches.iter().zip(gone_ones).filter_map(not_held))
            .collect(),
        security: SecurityReport { unheeded_acls: pool.has_unheeded_acls(), ..connection.security.clone() },
    })
}

fn illness_told(illness: &HealthReport) -> IllnessReport {
    IllnessReport {
        health: illness.health.word().into(),
        since: illness.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        cause: canopy_config::text::os_error(illness.cause),
    }
}

fn names(flags: InitFlags) -> Vec<String> {
    // These two carry the others and say nothing by themselves.
    let flags = flags - InitFlags::INIT_EXT - InitFlags::MAX_PAGES;
    flags.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect()
}

/// The answer to a key of any node; `None` when it is no question of this kind.
pub(crate) fn explain(pool: &Pool, id: NodeId, key: &[u8]) -> Option<Result<Vec<u8>, Error>> {
    let question = key.strip_prefix(EXPLAIN.as_bytes())?;
    let (func, name) = match question.iter().position(|&byte| byte == b'/') {
        Some(at) => (&question[..at], Some(&question[at + 1..])),
        None => (question, None),
    };
    let func = Func::ALL.into_iter().find(|known| known.word().as_bytes() == func);
    let answer = func.ok_or(Error::NoAttribute).and_then(|func| {
        let explained = pool.explain(func, id, name)?;
        Ok(json(&told(func, &explained)))
    });
    Some(answer)
}

fn told(func: Func, explained: &Explained) -> ExplainReport {
    let chosen: &[usize] = explained.outcome.as_deref().unwrap_or_default();
    let path = |index: usize| OsText::from(explained.branches[index].0.path.as_path());
    let verdicts = explained.branches.iter().enumerate().map(|(index, (branch, view))| {
        let chance = explained.chances.as_ref().map(|chances| chances[index]);
        let verdict = match explained.exclusions[index] {
            Some(Exclusion::Mode) => Verdict::Mode,
            Some(Exclusion::Unwell) => Verdict::Unwell,
            Some(Exclusion::Absent) => Verdict::Absent,
            Some(Exclusion::SpaceUnknown) => Verdict::SpaceUnknown,
            Some(Exclusion::ReadOnly) => Verdict::ReadOnly,
            Some(Exclusion::BelowMinFree) => Verdict::BelowMinFree,
            None if chance.is_some_and(|chance| chance > 0.0) => Verdict::Candidate,
            None if chosen.contains(&index) => Verdict::Chosen,
            None => Verdict::Lost,
        };
        BranchVerdict {
            path: path(index),
            mode: branch.mode.to_string(),
            verdict,
            chance,
            present: view.present,
            min_free: branch.min_free.unwrap_or(view.min_free),
            available: view.space.map(|space| space.avail),
            used: view.space.map(|space| space.used),
            read_only: view.space.map(|space| space.readonly),
        }
    });
    ExplainReport {
        func: func.to_string(),
        category: func.category().name().into(),
        policy: explained.policy.to_string(),
        looked_at: OsText::from(OsStr::from_bytes(&explained.looked_at)),
        preserves_paths: explained.preserves_paths,
        by_chance: explained.chances.is_some(),
        chosen: chosen.iter().map(|&index| path(index)).collect(),
        error: explained.outcome.as_ref().err().map(|&error| error_told(error)),
        branches: verdicts.collect(),
    }
}

fn error_told(error: Error) -> ExplainError {
    let errno = error.errno();
    let name = match errno {
        Errno::NOENT => "ENOENT",
        Errno::NOSPC => "ENOSPC",
        Errno::ROFS => "EROFS",
        Errno::EXIST => "EEXIST",
        Errno::NOTDIR => "ENOTDIR",
        Errno::IO => "EIO",
        Errno::NOTCONN => "ENOTCONN",
        Errno::ACCESS => "EACCES",
        Errno::INVAL => "EINVAL",
        Errno::STALE => "ESTALE",
        _ => "",
    };
    let number = errno.raw_os_error();
    let name = if name.is_empty() { number.to_string() } else { name.to_owned() };
    ExplainError { errno: number, name, why: error.to_string() }
}

/// Plain data with text as keys: this cannot fail.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
