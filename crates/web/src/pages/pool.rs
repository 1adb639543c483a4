//! One pool: its tiers, branches and disks.

use super::act;
use super::frame::Page;
use super::overview::space;
use super::parts::{badge, bar, path, shown, size, warning};
use crate::data::model::{Branch, Disk, Health, Pool, Tier};
use crate::entry::sessions::Session;
use crate::request::link;
use maud::{Markup, html};

pub fn page(pool: &Pool, session: &Session) -> Page {
    let role = session.role;
    let title = pool.mountpoint.one_line();
    let health = pool.health();
    let at = pool.mountpoint.to_os_string();
    let grouped = groups(pool);
    let content = html! {
        h1 { (title) " " (badge(health, health.word())) }
        (space(pool))
        p .links {
            @if role.may_see("/files") { a href=(link("/files", &[("at", &at)])) { "Files" } }
            " " a href=(link("/options", &[("at", &at)])) { "Options" }
            @if role.may_see("/trash") { " " a href=(link("/trash", &[("at", &at)])) { "Trash" } }
            @if role.may_see("/log") { " " a href=(link("/log", &[("at", &at)])) { "Log" } }
        }
        @for one in pool.warnings() { (warning(one)) }
        @for (tier, branches) in &grouped {
            section {
                @match tier {
                    Some(tier) => (tier_head(tier)),
                    None if grouped.len() > 1 => h2 { "Branches in no tier" },
                    None => h2 { "Branches" },
                }
                ul .cards { @for branch in branches { li .card { (card(pool, branch)) @if role.may_act() { (act::branch_links(pool, &branch.path.to_os_string())) } } } }
            }
        }
        @if let Some(mover) = &pool.tiering.mover {
            p { "Mover: " (if mover.running { "runs" } else { "does not run" })
                @if let Some(state) = mover.state.as_str() { ", " (shown(state)) } }
        }
        (facts(pool))
        @if session.role.may_act() { section { h2 { "Actions" } (act::links(pool)) } }
    };
    Page::new(&title, "/", content).live()
}

/// Branches by tier, in the order of tiers; those in several are shown in the first.
fn groups(pool: &Pool) -> Vec<(Option<&Tier>, Vec<&Branch>)> {
    let mut left: Vec<&Branch> = pool.branches.iter().collect();
    let mut groups = Vec::new();
    for tier in &pool.tiering.tiers {
        let (inside, outside) = left.into_iter().partition(|branch| tier.branches.contains(&branch.path));
        left = outside;
        groups.push((Some(tier), inside));
    }
    if !left.is_empty() || groups.is_empty() {
        groups.push((None, left));
    }
    groups
}

fn tier_head(tier: &Tier) -> Markup {
    html! {
        h2 { "Tier " (shown(&tier.name)) }
        @if tier.size > 0 {
            (bar(tier.size, tier.used, tier.mark, Health::Good))
            p { (size(tier.used)) " of " (size(tier.size)) " used" @for when in &tier.move_when { "; files leave it when " (shown(when)) } }
        }
    }
}

fn card(pool: &Pool, branch: &Branch) -> Markup {
    let health = pool.health_of(branch);
    let word = branch.health.replace('-', " ");
    // Of its own it says that it is well, while a warning is about it.
    let word = if health != Health::Good && word == "ok" { health.word() } else { &word };
    html! {
        h3 { (path(&branch.path)) " " (badge(health, word)) }
        @if let Some(error) = &branch.error { p { (shown(error)) } }
        @if let (Some(all), Some(used)) = (branch.size, branch.used) {
            (bar(all, used, None, health))
            p {
                (size(used)) " of " (size(all)) " used"
                @if let Some(available) = branch.available { ", " (size(available)) " free" }
            }
        }
        dl {
            @if let Some(mode) = &branch.mode { dt { "Mode" } dd { (shown(mode)) " (" (meaning(mode)) ")" } }
            @if let Some(min_free) = branch.min_free { dt { "Kept free" } dd { (size(min_free)) } }
            @if let Some(fstype) = &branch.fstype {
                dt { "Filesystem" }
                dd { (shown(fstype)) @if let Some(source) = &branch.source { " on " (path(source)) } }
            }
            @if let Some(passes) = branch.passes_through {
                dt { "Passthrough" } dd { (if passes { "the kernel reads and writes it directly" } else { "no" }) }
            }
            @for name in &branch.disks { dt { "Disk" } dd { (disk(name, pool.disks.iter().find(|disk| &disk.name == name))) } }
        }
    }
}

fn meaning(mode: &str) -> &'static str {
    match mode {
        "RW" => "read and write",
        "RO" => "read only",
        "NC" => "no new files",
        _ => "not known here",
    }
}

/// What a disk says of itself.
fn disk(name: &str, found: Option<&Disk>) -> Markup {
    html! {
        (shown(name))
        @if let Some(disk) = found {
            @if let Some(model) = &disk.model { ", " (shown(model)) }
            @if let Some(serial) = &disk.serial { ", " span .path { (shown(serial)) } }
            ": " (verdict(&disk.verdict))
            @if let Some(temperature) = disk.temperature { ", " (temperature) " °C" }
            @if let Some(hours) = disk.hours { ", " (hours) " h powered on" }
            @if disk.asleep { ", asleep" }
            @for finding in &disk.findings { "; " (shown(finding)) }
        }
    }
}

fn verdict(word: &str) -> Markup {
    match word {
        "good" => badge(Health::Good, "SMART good"),
        "worn" => badge(Health::Attention, "SMART worn"),
        "failing" => badge(Health::Problem, "SMART failing"),
        _ => html! { "SMART not known" },
    }
}

fn facts(pool: &Pool) -> Markup {
    let state = pool.state.replace('-', " ");
    html! {
        section {
            h2 { "This pool" }
            dl {
                dt { "State" } dd { (shown(&state)) @if let Some(error) = &pool.error { ": " (shown(error)) } }
                dt { "Name in the mount table" } dd { (path(&pool.source)) }
                @if let Some(version) = &pool.version { dt { "Version" } dd { (shown(version)) } }
                @if let Some(pid) = pool.pid { dt { "Process" } dd { (pid) } }
                @if let Some(transport) = &pool.transport { dt { "Requests come by" } dd { (shown(transport)) } }
                @if let Some(passthrough) = &pool.passthrough { dt { "Passthrough" } dd { (shown(passthrough)) } }
            }
        }
    }
}
