//! All pools at a glance.

use super::act::form_link;
use super::frame::Page;
use super::parts::{badge, bar, path, pool_link, shown, size};
use crate::data::model::{Health, Pool, Status, Unmounted};
use crate::entry::sessions::Session;
use maud::{Markup, html};
use std::ffi::OsStr;

pub fn page(status: &Status, session: &Session) -> Page {
    let may = session.role.may_act();
    let content = html! {
        h1 { "Pools" }
        @if status.pools.is_empty() && status.unmounted.is_empty() {
            @if may {
                p .notice { "There is no pool yet. " a href="/new" { "Make one from the disks of this machine" } }
            } @else {
                p .notice { "There is no pool yet. In a terminal, " code { "canopy init" } " looks for disks and makes one." }
            }
        }
        ul .cards {
            @for pool in &status.pools { li .card { (card(pool)) } }
            @for pool in &status.unmounted { li .card { (unmounted(pool, may)) } }
        }
    };
    Page::new("Pools", "/", content).live()
}

fn card(pool: &Pool) -> Markup {
    let health = pool.health();
    let warnings = pool.warnings();
    html! {
        h2 { (pool_link(&pool.mountpoint)) " " (badge(health, health.word())) }
        (space(pool))
        @match warnings.first() {
            None => p { "Nothing to do." },
            Some(first) => {
                p { (shown(&first.text)) }
                p .fix { strong { "What to do: " } (shown(&first.fix)) }
                @if warnings.len() > 1 {
                    p { a href="/warnings" { (warnings.len() - 1) " more " (if warnings.len() == 2 { "warning" } else { "warnings" }) } }
                }
            }
        }
    }
}

/// The space of a pool, as a bar and in words.
pub fn space(pool: &Pool) -> Markup {
    let branches = pool.branches.len();
    html! {
        @if let Some((all, used)) = pool.space() {
            (bar(all, used, None, Health::Good))
            p { (size(used)) " of " (size(all)) " used, " (branches) (if branches == 1 { " branch" } else { " branches" }) }
        } @else {
            p { "It is not known how full it is, " (branches) (if branches == 1 { " branch" } else { " branches" }) }
        }
    }
}

fn unmounted(pool: &Unmounted, may: bool) -> Markup {
    html! {
        h2 {
            @match (&pool.mountpoint, &pool.name) {
                (Some(mountpoint), _) => (path(mountpoint)),
                (None, Some(name)) => (shown(name)),
                (None, None) => (path(&pool.described_in)),
            }
            " " (badge(Health::Problem, "not mounted"))
        }
        p { "Described in " (path(&pool.described_in)) "." }
        p .fix { strong { "What to do: " } code { (shown(&pool.fix)) } }
        @if let Some(name) = pool.name.as_ref().filter(|_| may) {
            p { a href=(form_link("mount", None, &[("name", OsStr::new(name))])) { "Mount it" span .unseen { ": " (shown(name)) } } }
        }
    }
}
