//! `canopy notify`: what `canopy status` says of pools, for those who do not look.

use super::StatusArgs;
use super::model::{PoolStatus, Status, Unmounted, Warning};
use crate::error::Error;
use canopy_control::OsText;
use canopy_notify::event::{Condition, Counter, Seen, Severity, Subject};
use canopy_notify::{NotifyArgs, notify};
use canopy_schedule::Check;

pub fn run(args: &NotifyArgs, takes: Check<'_>) -> Result<(), Error> {
    let all = StatusArgs {
        mount: None,
        json: true,
        verbose: false,
        fstab_file: args.fstab_file.clone(),
        disks_file: args.disks_file.clone(),
    };
    Ok(notify(args, &|| super::look_at_all(&all, takes).map(|status| of(&status)).map_err(|why| why.line()))?)
}

fn of(status: &Status) -> Seen {
    let warnings = status.pools.iter().flat_map(|pool| {
        let place = pool.mountpoint.one_line();
        let advice = {
            let pool = place.clone();
            move |(branch, code, text, fix): (String, &str, String, String)| Condition {
                subject: Subject { pool: pool.clone(), code: code.to_owned(), branch },
                severity: Severity::Warning,
                text,
                fix,
            }
        };
        let tiering = pool.tiering.troubles().map(|(code, text, fix)| (String::new(), code, text, fix));
        let advice = tiering.chain(pool.jobs.troubles()).map(advice);
        pool.warnings.iter().map(move |warning| condition(&place, warning)).chain(advice)
    });
    Seen {
        conditions: warnings.chain(status.unmounted.iter().map(unmounted)).collect(),
        counters: status.pools.iter().flat_map(counters).collect(),
    }
}

fn subject(pool: &str, code: &str, branch: Option<&OsText>) -> Subject {
    let branch = branch.map(OsText::one_line).unwrap_or_default();
    Subject { pool: pool.to_owned(), code: code.to_owned(), branch }
}

fn condition(pool: &str, warning: &Warning) -> Condition {
    Condition {
        subject: subject(pool, warning.code.word(), warning.branch.as_ref()),
        severity: if warning.code.is_problem() { Severity::Problem } else { Severity::Warning },
        text: warning.text.clone(),
        fix: warning.fix.clone(),
    }
}

fn unmounted(pool: &Unmounted) -> Condition {
    let place = pool.mountpoint.as_ref().map(OsText::one_line);
    let name = place.or_else(|| pool.name.clone()).unwrap_or_default();
    Condition {
        subject: subject(&name, "pool-not-mounted", None),
        severity: Severity::Problem,
        text: format!("the pool that {} describes is not mounted", pool.described_in.one_line()),
        fix: pool.fix.clone(),
    }
}

fn counters(pool: &PoolStatus) -> impl Iterator<Item = Counter> {
    let place = pool.mountpoint.one_line();
    let jobs = pool.jobs.done().map({
        let pool = place.clone();
        move |(branch, count, text)| {
            let subject = Subject { pool: pool.clone(), code: "job-done".into(), branch };
            Counter { subject, count, text }
        }
    });
    let servers = pool.survival.iter().flat_map(move |survival| {
        let of = |code, count, text| Counter { subject: subject(&place, code, None), count, text };
        let death = survival.last_death.as_deref().unwrap_or("it is not known how");
        [
            of(
                "server-taken-over",
                survival.takeovers,
                format!("the process that served the pool has ended ({death}), and another has taken over"),
            ),
            of(
                "server-upgraded",
                survival.upgrades,
                "the program that was installed since has taken over".to_owned(),
            ),
        ]
    });
    servers.chain(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::model::WarningCode;

    #[test]
    fn a_warning_is_a_condition_of_its_branch() {
        let warning = Warning {
            code: WarningCode::BranchGone,
            branch: Some(OsText::Text("/mnt/a".into())),
            text: "/mnt/a is gone".into(),
            fix: "look at the disk".into(),
        };
        let found = condition("/pool", &warning);
        assert_eq!(found.severity, Severity::Problem);
        let Subject { pool, code, branch } = found.subject;
        assert_eq!((&*pool, &*code, &*branch), ("/pool", "branch-gone", "/mnt/a"));
    }

    #[test]
    fn a_pool_that_is_not_mounted_is_a_problem() {
        let pool = Unmounted {
            name: Some("media".into()),
            mountpoint: None,
            described_in: OsText::Text("/etc/canopy/media.toml".into()),
            fix: "canopy mount media MOUNTPOINT".into(),
        };
        let found = unmounted(&pool);
        assert_eq!((&*found.subject.pool, found.severity), ("media", Severity::Problem));
        assert_eq!(found.text, "the pool that /etc/canopy/media.toml describes is not mounted");
    }
}
