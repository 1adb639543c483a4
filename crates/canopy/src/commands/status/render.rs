//! Formats a status for people.

use super::model::{BranchStatus, Health, PoolStatus, State, Status, Unmounted};
use crate::terminal::{BAD, BOLD, WARNING, bytes, paragraph, styled, table};
use canopy_control::{OsText, ParkedReport, SurvivalReport};
use canopy_monitor::{read_cache, sleep};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) fn status(status: &Status, verbose: bool) -> String {
    if status.pools.is_empty() && status.unmounted.is_empty() {
        return "no pool is mounted (canopy init sets one up; canopy mount --help shows how to mount)\n"
            .into();
    }
    let pools = status.pools.iter().map(|one| pool(one, verbose.then_some(&status.linux)));
    let shown: Vec<String> = pools.chain(status.unmounted.iter().map(unmounted)).collect();
    shown.join("\n")
}

fn unmounted(pool: &Unmounted) -> String {
    let place = pool.mountpoint.as_ref().map_or_else(|| "no mountpoint".to_owned(), OsText::one_line);
    let name = pool.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let mut text = format!("{}{name}  {}\n", styled(BOLD, &place), styled(BAD, "not mounted"));
    let words = format!("{} describes it", pool.described_in.one_line());
    text.push_str(&paragraph("  warning: ", &words));
    text.push_str(&paragraph("      fix: ", &pool.fix));
    text
}

/// `linux` is given if all facts are to be shown.
fn pool(pool: &PoolStatus, linux: Option<&String>) -> String {
    let mut text = format!("{}  {}\n", styled(BOLD, &pool.mountpoint.one_line()), pool.fstype);
    match pool.state {
        State::Serving => {}
        State::DoesNotAnswer => fact(&mut text, "daemon", &styled(BAD, "does not answer")),
        State::Ended => fact(&mut text, "daemon", &styled(BAD, "has ended")),
        State::Mute => fact(&mut text, "daemon", "does not answer (xattr=nosys)"),
        State::Unreachable => fact(&mut text, "daemon", &styled(BAD, "cannot be queried")),
    }
    if let (Some(version), Some(pid), Some(threads), Some(transport)) =
        (&pool.version, pool.pid, pool.threads, &pool.transport)
    {
        let low = match pool.low_priority_threads {
            Some(low @ 1..) => format!(" ({low} at low priority)"),
            _ => String::new(),
        };
        let transport = wire(transport);
        let daemon = format!("canopy {version}, pid {pid}, {threads} threads{low} over {transport}");
        fact(&mut text, "daemon", &daemon);
    }
    for parked in pool.parked.iter().flatten() {
        fact(&mut text, "waiting", &waits(parked));
    }
    if let (Some(kernel), Some(linux)) = (&pool.kernel, linux) {
        let missing = if kernel.missing.is_empty() {
            "has all features".to_owned()
        } else {
            format!("lacks {}", kernel.missing.join(", "))
        };
        fact(&mut text, "kernel", &format!("Linux {linux}, FUSE {}: {missing}", kernel.protocol));
    }
    if let Some(security) = pool.security.as_ref().filter(|_| linux.is_some()) {
        let privileges = match (security.capabilities.len(), security.no_new_privs) {
            (0, _) => "has no privileges".to_owned(),
            (held, true) => format!("keeps {held} capabilities and gains none"),
            (held, false) => format!("keeps {held} capabilities"),
        };
        let reach = if security.landlock { "reaches its branches only" } else { "landlock off" };
        fact(&mut text, "security", &format!("{privileges}; {reach}"));
    }
    if let Some(survival) = &pool.survival {
        fact(&mut text, "survive", &survived(survival));
    }
    if let Some(options) = &pool.options {
        let option = |name: &str| options.get(name).map_or("", String::as_str);
        let passthrough = pool.passthrough.as_deref().unwrap_or("off");
        let data = match (linux, passthrough) {
            (None, "off") => "through the daemon".to_owned(),
            (None, _) => "straight to the disks".to_owned(),
            (Some(_), _) => format!("passthrough {passthrough}, cache.files {}", option("cache.files")),
        };
        fact(&mut text, "data", &data);
        let minimum = option("minfreespace").parse().map_or_else(|_| String::new(), bytes);
        fact(&mut text, "creates", &format!("{}, minfreespace {minimum}", option("category.create")));
    }
    let trash: u64 = pool.branches.iter().filter_map(|branch| branch.trash).sum();
    if trash > 0 {
        fact(
            &mut text,
            "trash",
            &format!("{}, which go when the room is needed (canopy trash list)", bytes(trash)),
        );
    }
    for cache in pool.read_caches.iter().flatten() {
        fact(&mut text, "cache", &read_cache::line(cache));
    }
    let disks = sleep::facts(&pool.sleep, pool.catalogue.as_ref());
    pool.tiering
        .facts()
        .chain(pool.jobs.facts())
        .chain(disks)
        .for_each(|(name, value)| fact(&mut text, name, &value));
    if !pool.branches.is_empty() {
        text.push('\n');
        let rows = pool.branches.iter().map(row).collect();
        text.push_str(&table(
            &["BRANCH", "MODE", "TYPE", "SIZE", "FREE", "USED", "HEALTH"],
            rows,
            2,
            &[3, 4, 5],
        ));
    }
    for warning in &pool.warnings {
        let first = "warning: ";
        let words = paragraph(&format!("  {first}"), &warning.text);
        let _ = write!(text, "\n{}", words.replacen(first, &styled(WARNING, first), 1));
        text.push_str(&paragraph("      fix: ", &warning.fix));
    }
    text
}

fn fact(text: &mut String, name: &str, value: &str) {
    text.push_str(&paragraph(&format!("  {name:<8} "), value));
}

fn wire(transport: &str) -> &str {
    match transport {
        "dev-fuse" => "/dev/fuse",
        other => other,
    }
}

fn row(branch: &BranchStatus) -> Vec<String> {
    let facts = branch.facts.as_ref();
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let percent = |size: u64, used: u64| match size {
        0 => "-".into(),
        size => format!("{:.0}%", used as f64 * 100.0 / size as f64),
    };
    vec![
        branch.path.one_line(),
        or_dash(branch.mode.clone()),
        or_dash(facts.map(|facts| facts.fstype.clone())),
        or_dash(facts.map(|facts| bytes(facts.size))),
        or_dash(facts.map(|facts| bytes(facts.available))),
        or_dash(facts.map(|facts| percent(facts.size, facts.used))),
        health(branch.health).into(),
    ]
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Ok => "ok",
        Health::Lagging => "lagging",
        Health::Asleep => "asleep",
        Health::DoesNotAnswer => "does not answer",
        Health::Missing => "missing",
        Health::Unreachable => "unreachable",
        Health::Replaced => "replaced",
        Health::ReadOnly => "read-only",
        Health::Errors => "errors",
        Health::NotMounted => "not mounted",
        Health::Failing => "failing",
        Health::Gone => "gone",
        Health::Awaited => "awaited",
    }
}

/// Returns what waits for a cause.
fn waits(parked: &ParkedReport) -> String {
    let number = |count: usize, one: &str, more: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {more}"),
    };
    let requests = match parked.requests {
        1 => "1 request waits".to_owned(),
        requests => format!("{requests} requests of {} wait", number(parked.users, "user", "users")),
    };
    let cause = match parked.cause.as_str() {
        "lease" => number(parked.causes, "lease on a file", "leases on files"),
        "move" => number(parked.causes, "file that is being moved", "files that are being moved"),
        "search" => number(
            parked.causes,
            "branch that is searched for a file handle",
            "branches that are searched for file handles",
        ),
        other => other.to_owned(),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{requests} for {cause}, since {} s", now.saturating_sub(parked.since))
}

/// Returns what the processes that have served a pool went through.
fn survived(survival: &SurvivalReport) -> String {
    let times = |number: u64| format!("{number} {}", if number == 1 { "time" } else { "times" });
    let mut text = match &survival.last_death {
        None if survival.deaths => "no other process had to take over".to_owned(),
        None => "upgrades and crashes need no unmount; kill -9 ends the mount (io_uring)".to_owned(),
        Some(death) => format!(
            "another process took over {}, last after {death}: {:.0} ms without answers (longest {:.0} ms)",
            times(survival.takeovers),
            survival.pause_ms,
            survival.longest_pause_ms
        ),
    };
    if survival.upgrades > 0 {
        let pause = survival.upgrade_pause_ms;
        text += &format!("; upgraded {}, last in {pause:.0} ms", times(survival.upgrades));
    }
    if let Some(why) = &survival.last_refusal {
        text += &format!("; not upgraded {}, last because {why}", times(survival.refused_upgrades));
    }
    text
}
