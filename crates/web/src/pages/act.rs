//! The form of an action, and the page with all of them.

use super::frame::{Page, hidden};
use super::parts::{path, pool_link, shown};
use crate::actions::build::Known;
use crate::actions::kinds::{Field, Input, KINDS, Kind, Scope};
use crate::actions::record::Line;
use crate::actions::rows::{self, Rows, YES};
use crate::actions::runs::Run;
use crate::data::model::{Pool, Status};
use crate::entry::sessions::Session;
use crate::request::{Fields, link};
use canopy_sys::shown::Show as _;
use maud::{Markup, html};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Returns the address of the form of an action in a pool, with some of its fields given.
pub fn form_link(kind: &str, pool: Option<&Path>, fields: &[(&str, &OsStr)]) -> String {
    let mut all = vec![("what", OsStr::new(kind))];
    all.extend(pool.map(|pool| ("at", pool.as_os_str())));
    all.extend(fields);
    link("/do", &all)
}

/// `fixed` is what the address gives; `typed` what the form had before, and `wrong` what was wrong with it.
pub fn form(
    kind: &'static Kind,
    known: &Known<'_>,
    session: &Session,
    fixed: &Fields,
    typed: &Fields,
    wrong: Option<&str>,
) -> Page {
    let pool = known.pool.map(|pool| pool.mountpoint.to_path());
    let fields: Vec<(&str, &OsStr)> =
        kind.fields.iter().filter_map(|field| Some((field.name, given(field, fixed)?))).collect();
    let content = html! {
        h1 { (kind.title) }
        @if let Some(wrong) = wrong { p .notice.problem role="alert" { (shown(wrong)) } }
        p { (kind.words) }
        form .act method="post" action=(form_link(kind.name, pool.as_deref(), &fields)) {
            (hidden(session))
            @if let Some(pool) = known.pool { dl { dt { "Pool" } dd { (pool_link(&pool.mountpoint)) } } }
            @for field in kind.fields {
                @if let Input::Rows(all) = field.input { (rows(all, known, typed)) }
                @else { @match given(field, fixed) {
                    Some(value) => dl { dt { (field.label) } dd { span .path { (value.shown()) } } },
                    None => (entry(field, known, typed)),
                } }
            }
            @if kind.name == "set" { (option_help(fixed, known)) }
            p .buttons { button .main { "Show what it would do" } " " a href=(back(pool.as_deref())) { "Back" } }
        }
        p .quiet { "Nothing is done yet: the next page shows the plan and asks." }
    };
    Page::new(kind.title, "/actions", content)
}

/// What a form has before somebody has typed: what a job says now, and that a change is kept where there is a file for it.
pub fn as_it_is(kind: &Kind, known: &Known<'_>, fixed: &Fields) -> Fields {
    let mut fields: Vec<(String, String)> = Vec::new();
    if matches!(kind.name, "schedule" | "receiver") {
        fields.extend(known.says(fixed));
    }
    let has_rows = kind.fields.iter().any(|field| matches!(field.input, Input::Rows(_)));
    if has_rows && !known.option("config").is_empty() {
        fields.push(("persist".into(), YES.into()));
    }
    Fields::of(fields)
}

/// All rows of an option, one below the other: a number decides where each goes, and an empty row is none.
fn rows(rows: Rows, known: &Known<'_>, typed: &Fields) -> Markup {
    let all = rows.shown(typed, known.option(rows.option()));
    let mut helped = false;
    html! {
        p .quiet { "Numbers say in which order they come, and what is emptied goes." }
        @for (index, row) in all.iter().enumerate() {
            @let is_new = row.iter().all(String::is_empty);
            @let first = !std::mem::replace(&mut helped, true);
            fieldset .row {
                legend { @if is_new { "New" } @else { (rows.one()) " " (index + 1) } }
                div .field .place {
                    @let id = rows::field(rows::PLACE, index);
                    label for=(id) { "Number" }
                    input id=(id) name=(id) type="text" inputmode="numeric" value=(index + 1);
                }
                @for (column, value) in rows.columns().iter().zip(row) {
                    @let id = rows::field(column.name, index);
                    @let help = format!("h-{}", column.name);
                    div .field {
                        @if column.is_check {
                            label .check { input id=(id) type="checkbox" name=(id) value=(YES) checked[value == YES]; " " (column.label) }
                        } @else {
                            label for=(id) { (column.label) }
                            input id=(id) type="text" name=(id) value=(value) aria-describedby=[(!column.help.is_empty()).then_some(&help)]
                                autocomplete="off" autocapitalize="off" spellcheck="false";
                            @if first && !column.help.is_empty() { p .quiet id=(help) { (column.help) } }
                        }
                    }
                }
            }
        }
    }
}

fn given<'f>(field: &Field, fixed: &'f Fields) -> Option<&'f OsStr> {
    let has = fixed.has(field.name) && !matches!(field.input, Input::Yes | Input::Directories);
    has.then(|| OsStr::from_bytes(fixed.bytes(field.name)))
}

fn back(pool: Option<&Path>) -> String {
    pool.map_or_else(|| "/actions".to_owned(), |pool| link("/pool", &[("at", pool.as_os_str())]))
}

fn entry(field: &Field, known: &Known<'_>, typed: &Fields) -> Markup {
    let id = format!("f-{}", field.name);
    let help = format!("h-{}", field.name);
    let described = (!field.help.is_empty()).then_some(help.as_str());
    let was = if field.input == Input::Secret { "" } else { typed.text(field.name) };
    let choose = |choices: Vec<(String, String)>| {
        html! {
            select id=(id) name=(field.name) required[field.required] aria-describedby=[described] {
                @if !field.required { option value="" { "as it is by default" } }
                @else if choices.is_empty() { option value="" { "there is none" } }
                @for (value, words) in &choices {
                    option value=(value) selected[was == value] { (shown(words)) }
                }
            }
        }
    };
    let same = |words: Vec<String>| words.into_iter().map(|word| (word.clone(), word)).collect();
    html! {
        div .field {
            @if field.input == Input::Yes {
                label .check { input id=(id) type="checkbox" name=(field.name) value="yes" checked[was == "yes"]; " " (field.label) }
            } @else {
                label for=(id) { (field.label) }
                @match field.input {
                    // A name that is no text cannot be the value of a field: the page of the pool has links.
                    Input::Branch => (choose(same(branches(known)))),
                    Input::Choice(choices) => (choose(choices.iter().map(|(word, words)| {
                        let words = if word.chars().all(char::is_uppercase) { format!("{word}: {words}") } else { (*words).to_owned() };
                        ((*word).to_owned(), words)
                    }).collect())),
                    Input::Job => (choose(same(known.jobs.iter().map(|job| job.name.clone()).collect()))),
                    Input::Receiver => (choose(same(known.told.receivers.iter().map(|receiver| receiver.name.clone()).collect()))),
                    Input::Finding => (choose(same(known.findings.clone()))),
                    Input::Option => (choose(same(known.options.iter().filter(|option| option.runtime).map(|option| option.name.clone()).collect()))),
                    Input::Directories => textarea id=(id) name=(field.name) rows="4" required[field.required] aria-describedby=[described] { (was) },
                    _ => input id=(id) type="text" name=(field.name) value=(was) required[field.required] aria-describedby=[described]
                        autocomplete="off" autocapitalize="off" spellcheck="false";,
                }
            }
            @if !field.help.is_empty() { p .quiet id=(help) { (field.help) } }
        }
    }
}

fn branches(known: &Known<'_>) -> Vec<String> {
    let branches = known.pool.map_or(&[][..], |pool| &pool.branches);
    branches.iter().filter_map(|branch| branch.path.to_path().to_str().map(str::to_owned)).collect()
}

fn option_help(fixed: &Fields, known: &Known<'_>) -> Markup {
    let found = known.options.iter().find(|option| option.name == fixed.text("option"));
    let value = known.pool.and_then(|pool| pool.options.as_ref()?.get(fixed.text("option")));
    html! {
        @if let Some(option) = found {
            dl {
                @if let Some(value) = value { dt { "Now" } dd { code { (shown(value)) } } }
                @if let Some(default) = &option.default { dt { "Default" } dd { code { (shown(default)) } } }
                @if let Some(accepts) = &option.accepts { dt { "Accepts" } dd { (shown(accepts)) } }
            }
            p { (shown(&option.help)) }
        }
    }
}

/// Links to the actions of a pool that belong to no page of their own.
pub fn links(pool: &Pool) -> Markup {
    let at = pool.mountpoint.to_path();
    let mut groups: Vec<&str> =
        KINDS.iter().map(|kind| kind.group).filter(|group| !group.is_empty()).collect();
    groups.dedup();
    html! {
        @for group in groups {
            h3 { (group) }
            ul .actions {
                @for kind in KINDS.iter().filter(|kind| kind.group == group && kind.scope == Scope::Pool) {
                    li { a href=(form_link(kind.name, Some(&at), &[])) { (kind.title) } }
                }
            }
        }
    }
}

/// Links to the actions on one branch.
pub fn branch_links(pool: &Pool, branch: &OsStr) -> Markup {
    let at = pool.mountpoint.to_path();
    let of_branch = |kind: &&Kind| kind.fields.iter().any(|field| field.input == Input::Branch);
    html! {
        ul .actions {
            @for kind in KINDS.iter().filter(of_branch) {
                li { a href=(form_link(kind.name, Some(&at), &[("branch", branch)])) { (kind.title) span .unseen { ": " (branch.shown()) } } }
            }
        }
    }
}

/// What runs, what waits, what was done; and what can be.
pub fn list(status: &Status, runs: &[Run], record: &[Line], session: &Session) -> Page {
    let (open, over): (Vec<&Run>, Vec<&Run>) =
        runs.iter().partition(|run| run.state.has_child() || run.state == crate::actions::runs::State::Ready);
    let content = html! {
        h1 { "Actions" }
        h2 { "Under way" }
        @if open.is_empty() { p { "Nothing." } }
        ul .entries { @for run in open { li { (super::run::line(run)) } } }
        @if session.role.may_act() {
            @for pool in &status.pools {
                section { h2 { (pool_link(&pool.mountpoint)) } (links(pool)) }
            }
            section {
                h2 { "This machine" }
                ul .actions {
                    li { a href="/new" { "Make a pool" } }
                    li { a href=(form_link("mount", None, &[])) { "Mount a pool" } }
                    li { a href=(form_link("receiver", None, &[])) { "Tell somebody of events" } }
                    li { a href=(form_link("notify", None, &[])) { "Send a trial message" } }
                    li { a href="/doctor" { "Look what is wrong" } }
                }
            }
        } @else {
            p .notice { "You may see what is done, and not do anything." }
        }
        @if !over.is_empty() {
            h2 { "Ended" }
            ul .entries { @for run in over { li { (super::run::line(run)) } } }
        }
        h2 { "Record" }
        @if record.is_empty() { p { "Nothing was done from these pages yet." } }
        ul .entries {
            @for line in record {
                li { (line.date()) ", session " (shown(&line.by)) ": " code { (shown(&line.command)) } ": " (shown(&line.what)) }
            }
        }
    };
    Page::new("Actions", "/actions", content).live()
}

/// A form that only asks which pool.
pub fn which_pool(kind: &Kind, status: &Status) -> Page {
    let content = html! {
        h1 { (kind.title) }
        @if status.pools.is_empty() { p .notice { "There is no pool. " a href="/new" { "Make one" } } }
        ul .entries {
            @for pool in &status.pools {
                li { a href=(form_link(kind.name, Some(&pool.mountpoint.to_path()), &[])) { "In " (path(&pool.mountpoint)) } }
            }
        }
    };
    Page::new(kind.title, "/actions", content)
}
