//! What the files of pools have scheduled.

use super::act::form_link;
use super::frame::Page;
use super::parts::{badge, pool_link, shown};
use crate::data::command::Failure;
use crate::data::model::{Health, Job, Jobs};
use crate::entry::sessions::Session;
use canopy_base::text::date;
use canopy_control::OsText;
use maud::{Markup, html};
use std::ffi::OsStr;
use std::path::Path;

pub fn page(all: &[(&OsText, Result<Jobs, Failure>)], session: &Session) -> Page {
    let known = || all.iter().filter_map(|(_, jobs)| jobs.as_ref().ok());
    let none = known().all(|jobs| jobs.pools.iter().all(|pool| pool.jobs.is_empty()));
    let content = html! {
        h1 { "Schedule" }
        @if none {
            p .notice { "Nothing is scheduled." }
        } @else if known().any(|jobs| !jobs.watched) {
            p .notice.attention { "Nothing runs at its time now: " code { "systemctl enable --now canopy-jobs" } "." }
        }
        @for (mountpoint, jobs) in all {
            @let at = mountpoint.to_path();
            section {
                h2 { (pool_link(mountpoint)) }
                @match jobs {
                    Err(failure) => p .notice.attention { (shown(&failure.0)) },
                    Ok(jobs) => @for pool in &jobs.pools {
                        @if let Some(mistake) = &pool.mistake { p .notice.problem { (shown(mistake)) } }
                        @if session.role.may_act() { p .links { a href=(form_link("schedule", Some(&at), &[])) { "Schedule a job" } } }
                        ul .cards { @for job in &pool.jobs { li .card { (card(job, session.role.may_act().then_some(&*at))) } } }
                    },
                }
            }
        }
    };
    Page::new("Schedule", "/jobs", content).live()
}

fn card(job: &Job, pool: Option<&Path>) -> Markup {
    let (health, word) = match (job.state.as_str(), &job.overdue) {
        ("runs", _) => (Health::Good, "runs"),
        (_, Some(_)) => (Health::Problem, "overdue"),
        ("waits", None) => (Health::Attention, "waits"),
        _ => (Health::Good, "rests"),
    };
    html! {
        h3 { (shown(&job.name)) " " (badge(health, word)) }
        dl {
            @if let Some(when) = &job.when { dt { "When" } dd { (shown(when)) } }
            dt { "Does" } dd { code { (shown(&job.command)) } }
            @if let Some(waits) = &job.waits { dt { "Waits" } dd { (shown(waits)) } }
            @if let Some(next) = job.next { dt { "Next" } dd { (date(next)) } }
            @if let Some(last) = &job.last {
                dt { "Last" }
                dd {
                    @if let Some(ended) = last.ended { (date(ended)) ": " }
                    @if let Some(outcome) = &last.outcome { (shown(&outcome.replace('-', " "))) }
                    @if !last.text.is_empty() { ", " (shown(&last.text)) }
                }
            }
        }
        @if let Some(pool) = pool.filter(|_| job.state != "runs") {
            @let kinds = [("job", "Run now"), ("schedule", "Change"), ("unschedule", "Take off")];
            @let of_file = if job.says.is_empty() { 1 } else { kinds.len() };
            ul .actions {
                @for (kind, words) in &kinds[..of_file] {
                    li { a href=(form_link(kind, Some(pool), &[("job", OsStr::new(&job.name))])) { (words) span .unseen { ": " (shown(&job.name)) } } }
                }
            }
        }
    }
}
