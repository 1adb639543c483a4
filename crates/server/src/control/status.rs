//! The reports for `canopy status` and `canopy explain`.

use super::{read_cache, rest};
use crate::branches::condition::Condition;
use crate::branches::liveness::Liveness;
use crate::branches::topology::{Presence, Topology};
use crate::parking::{self, Kind, Waits};
use crate::probes::Findings;
use crate::survival::{FORM, Ledger};
use crate::watch::Watch;
use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_branch::branch::BranchSpec;
use canopy_branch::branch::health::HealthReport;
use canopy_branch::remember::Extent;
use canopy_config::Config;
use canopy_config::options;
use canopy_control::{
    BranchReport, BranchVerdict, EXPLAIN, ExplainError, ExplainReport, IllnessReport, KernelReport, OsText,
    ParkedReport, PlacementReport, PoolReport, RememberedReport, SecurityReport, SetReport, SurvivalReport,
    TrashAlarm, Verdict, WaitReport,
};
use canopy_fuse::flags::InitFlags;
use canopy_fuse::transport::{LowWorkers, Pause, ServedRequests};
use canopy_fuse::{Agreed, Transport, abi};
use canopy_policy::Exclusion;
use canopy_pool::config::{Func, MissingNames};
use canopy_pool::ops;
use canopy_pool::ops::names::brake::Alarmed;
use canopy_pool::{Explained, Placed, PlacedSet, Pool, SetAnswer};
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What was agreed with the kernel, and how requests are carried.
pub(crate) struct Connection {
    pub(crate) agreed: Agreed,
    pub(crate) planned: TransportInfo,
    /// The transport in use, if the kernel refused the planned one.
    pub(crate) actual: OnceLock<TransportInfo>,
    /// How many workers have a low priority.
    pub(crate) low_workers: LowWorkers,
    /// What the workers count.
    pub(crate) served: ServedRequests,
    pub(crate) security: SecurityReport,
    /// What the kernel was seen to do.
    pub(crate) kernel: Findings,
    /// If the pool is to outlive this process.
    pub(crate) ledger: Option<Ledger>,
    /// What keeps requests from beginning when another program takes over.
    pub(crate) pause: Arc<Pause>,
}

fn trash_alarm(alarmed: Alarmed) -> TrashAlarm {
    TrashAlarm {
        user: alarmed.who.uid,
        program: OsText::from(OsStr::from_bytes(&alarmed.who.program)),
        files: alarmed.files,
        refused: alarmed.refused,
        path: OsText::from(OsStr::from_bytes(&alarmed.path)),
        since: alarmed.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        frozen: alarmed.frozen,
    }
}

/// Returns why nothing is kept in the trash of a branch.
fn trash_error(errno: Errno) -> String {
    match errno {
        Errno::PERM => "somebody else has made it, or could have put something into it".to_owned(),
        other => canopy_base::text::os_error(other),
    }
}

/// What carries the requests, and the number of threads.
pub(crate) struct TransportInfo {
    name: &'static str,
    threads: usize,
}

impl TransportInfo {
    /// `readers` threads serve /dev/fuse.
    pub(crate) fn new(transport: &Transport, readers: usize) -> TransportInfo {
        match transport {
            Transport::Device(_) => TransportInfo { name: "dev-fuse", threads: readers },
            // One more thread reads what still arrives on /dev/fuse.
            Transport::Uring { workers, .. } => TransportInfo { name: "io-uring", threads: workers + 1 },
        }
    }
}

/// Returns the status report. Does not touch any branch, so that a disk that hangs cannot block it.
pub(crate) fn status(
    connection: &Connection,
    config: &Config,
    pool: &Pool,
    topology: &Topology,
    liveness: &Liveness,
    watch: &Watch,
) -> PoolReport {
    let agreed = &connection.agreed;
    let transport = connection.actual.get().unwrap_or(&connection.planned);
    let (conditions, unwatched) = (liveness.conditions(), watch.unwatched());
    let report = |branch: &canopy_branch::branch::Branch| BranchReport {
        path: OsText::from(branch.path.as_path()),
        mode: branch.mode.to_string(),
        min_free: branch.min_free_or(config.pool.min_free),
        dev: branch.dev,
        ino: branch.ino,
        passes_through: ops::settings::passes_through(pool, branch.id),
        illness: branch.health.report().map(|illness| illness_report(&illness)),
        waits: conditions.get(&branch.id).map(wait_report),
        unwatched: unwatched.iter().find(|one| one.branch == branch.path).map(|one| one.why.clone()),
        unfinished_moves: ops::settings::unfinished_moves(pool, branch.id),
        trash: ops::trash::bytes(pool, branch),
        trash_unusable: ops::trash::unusable(pool, branch).map(trash_error),
        unreadable_copies: ops::settings::unreadable_copies(pool, branch.id),
        set_aside: branch.health.set_aside(),
        awaited: false,
        remembered: remembered_report(topology, &branch.path, false),
    };
    let (in_force, presences) = topology.presences(config.branches.iter().map(|spec| spec.path.as_path()));
    let not_in_force = |(spec, presence): (&BranchSpec, Presence)| {
        let illness = match presence {
            Presence::InForce => return None,
            Presence::Gone(gone) => gone.health.report(),
            Presence::Awaited => None,
        };
        Some(BranchReport {
            path: OsText::from(spec.path.as_path()),
            mode: spec.mode.to_string(),
            min_free: spec.min_free.unwrap_or(config.pool.min_free),
            awaited: illness.is_none(),
            illness: illness.map(|illness| illness_report(&illness)),
            remembered: remembered_report(topology, &spec.path, true),
            ..BranchReport::default()
        })
    };
    // FAN_MARK_IGNORE (docs/decisions/coherence.md#411)
    let missing_events = watch.misses_writes().then(|| "fan_mark_ignore".to_owned());
    let value = |spec: &options::Spec| Some((spec.name.to_string(), spec.render(config)?));
    PoolReport {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        transport: transport.name.into(),
        threads: transport.threads,
        low_priority_threads: connection.low_workers.count(),
        parked: parking::waits(&connection.served.parked()).into_iter().map(parked_report).collect(),
        closed: ops::resolve::generations::closed_numbers(pool),
        kernel: KernelReport {
            protocol: format!("{}.{}", abi::MAJOR, agreed.minor),
            features: names(agreed.flags),
            missing: names(agreed.missing).into_iter().chain(missing_events).collect(),
            max_stack_depth: agreed.max_stack_depth,
            unproved: connection.kernel.report(watch.watches_all()),
        },
        options: options::table().iter().filter(|spec| !spec.hidden).filter_map(value).collect(),
        given: config.given.iter().cloned().collect(),
        branches: in_force
            .iter()
            .map(|branch| report(branch))
            .chain(config.branches.iter().zip(presences).filter_map(not_in_force))
            .collect(),
        security: SecurityReport {
            unheeded_acls: ops::resolve::acl::has_unheeded_acls(pool),
            ..connection.security.clone()
        },
        trash_alarms: ops::names::brake::alarms(pool).into_iter().map(trash_alarm).collect(),
        read_caches: read_cache::figures(pool),
        survival: connection.ledger.as_ref().filter(|ledger| ledger.is_servable()).map(survival_report),
        disks: rest::without_names(rest::disks(&in_force)),
        catalogue: rest::catalogue(pool, config),
    }
}

fn survival_report(ledger: &Ledger) -> SurvivalReport {
    let milliseconds = |pause: Duration| pause.as_secs_f64() * 1e3;
    let (death, (upgrades, upgrade_pause), (refusals, refusal)) =
        (ledger.last_death(), ledger.upgrades(), ledger.refusals());
    SurvivalReport {
        takeovers: ledger.deaths(),
        last_death: death.map(|death| death.to_string()),
        pause_ms: death.map_or(0.0, |death| milliseconds(death.pause)),
        longest_pause_ms: milliseconds(ledger.longest_pause()),
        upgrades,
        upgrade_pause_ms: milliseconds(upgrade_pause),
        refused_upgrades: refusals,
        last_refusal: refusal.map(|why| why.to_string()),
        form: FORM,
        deaths: !ledger.is_over_uring(),
        directory: ledger.directory().map(|path| OsText::from(path.as_path())),
    }
}

/// Returns what is remembered of a branch; nothing if it was forgotten.
fn remembered_report(topology: &Topology, path: &Path, shown: bool) -> Option<RememberedReport> {
    let Some(record) = topology.record(path) else {
        // Of one that was never read, nothing is known.
        let never = RememberedReport {
            directories: 0,
            names: 0,
            unknown: 0,
            whole: false,
            shown,
            file: OsText::from(Path::new("")),
        };
        let remembers = topology.settings.config().pool.missing == MissingNames::Remember;
        return (shown && remembers).then_some(never);
    };
    if record.is_forgotten() {
        return None;
    }
    let Extent { directories, names, stale, whole } = record.extent();
    let file = OsText::from(record.file());
    Some(RememberedReport { directories, names, unknown: stale, whole, shown, file })
}

fn illness_report(illness: &HealthReport) -> IllnessReport {
    IllnessReport {
        health: illness.state.word().into(),
        since: illness.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        cause: canopy_base::text::os_error(illness.cause),
    }
}

fn wait_report(condition: &Condition) -> WaitReport {
    let since = SystemTime::now().checked_sub(condition.quiet).unwrap_or(UNIX_EPOCH);
    WaitReport {
        answers: condition.answers.word().into(),
        since: since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        requests: condition.requests,
        deadline: condition.deadline.map(|deadline| deadline.as_secs()),
        disks: condition.disks.clone(),
    }
}

fn parked_report((kind, waits): (Kind, Waits)) -> ParkedReport {
    let Waits { requests, users, causes, since } = waits;
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    ParkedReport { cause: kind.word().into(), causes, requests, users, since }
}

fn names(flags: InitFlags) -> Vec<String> {
    // These two only make room for others.
    let flags = flags - InitFlags::INIT_EXT - InitFlags::MAX_PAGES;
    flags.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect()
}

/// Answers the key for `canopy explain` on a node; `None` for any other key.
pub(crate) fn explain(pool: &Pool, id: NodeId, key: &[u8]) -> Option<Result<Vec<u8>, Error>> {
    let question = key.strip_prefix(EXPLAIN.as_bytes())?;
    let (func, name) = match question.iter().position(|&byte| byte == b'/') {
        Some(at) => (&question[..at], Some(&question[at + 1..])),
        None => (question, None),
    };
    let func = Func::ALL.into_iter().find(|known| known.word().as_bytes() == func);
    let answer = func.ok_or(Error::NoAttribute).and_then(|func| {
        let explained = ops::explain::explain(pool, func, id, name)?;
        Ok(json(&explain_report(func, &explained)))
    });
    Some(answer)
}

fn explain_report(func: Func, explained: &Explained) -> ExplainReport {
    let chosen: &[usize] = explained.outcome.as_deref().unwrap_or_default();
    let path = |index: usize| OsText::from(explained.branches[index].0.path.as_path());
    let verdicts = explained.branches.iter().enumerate().map(|(index, (branch, view))| {
        let chance = explained.chances.as_ref().map(|chances| chances[index]);
        let verdict = match explained.exclusions[index] {
            Some(Exclusion::Outside) => Verdict::Outside,
            Some(Exclusion::Mode) => Verdict::Mode,
            Some(Exclusion::Unwell) => Verdict::Unwell,
            Some(Exclusion::Absent) => Verdict::Absent,
            Some(Exclusion::SpaceUnknown) => Verdict::SpaceUnknown,
            Some(Exclusion::ReadOnly) => Verdict::ReadOnly,
            Some(Exclusion::BelowMinFree) => Verdict::BelowMinFree,
            Some(Exclusion::NoInodes) => Verdict::NoInodes,
            Some(Exclusion::Asleep) => Verdict::Asleep,
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
        error: explained.outcome.as_ref().err().map(|&error| explain_error(error)),
        branches: verdicts.collect(),
        placement: explained.placed.as_ref().map(|placed| placement_report(placed, &path)),
    }
}

fn placement_report(placed: &Placed, path: &dyn Fn(usize) -> OsText) -> PlacementReport {
    let set = |set: &PlacedSet| SetReport {
        name: set.name.clone(),
        branches: set.branches.iter().map(|&index| path(index)).collect(),
        answer: match set.answer {
            SetAnswer::PassedOver => "passed-over",
            SetAnswer::Chosen => "chosen",
            SetAnswer::NotAsked => "not-asked",
        }
        .into(),
    };
    let sets = placed.sets.iter().map(set).collect();
    PlacementReport { rule: placed.rule.clone(), copies: placed.copies, sets }
}

fn explain_error(error: Error) -> ExplainError {
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

/// Serializes plain data with text as keys, which cannot fail.
pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
