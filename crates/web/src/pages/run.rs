//! An action that was asked for: what it would do, and then what it does.

use super::frame::{Page, hidden};
use super::parts::{badge, shown};
use crate::actions::Undo;
use crate::actions::runs::{Run, Said, State};
use crate::data::model::Health;
use crate::entry::sessions::Session;
use canopy_sys::shown::Show as _;
use maud::{Markup, html};

pub fn page(run: &Run, session: &Session) -> Page {
    let action = &run.action;
    let may = session.role.may_act();
    let content = html! {
        h1 { (action.title) " " (condition(run)) }
        @if let Some(pool) = &action.pool { p { "In the pool " span .path { (pool.shown()) } "." } }
        p { (shown(&action.words)) }
        @match action.undo {
            Undo::Nothing => {},
            Undo::By(how) => p { strong { "Back: " } (how) "." },
            Undo::Never(why) => p .notice.attention { strong { "This cannot be undone: " } (why) "." },
        }
        h2 { "The command that does the same" }
        pre .command tabindex="0" aria-label="Command" data-copy { (run.command()) }
        @if action.plan.is_some() {
            h2 { "Plan" }
            @if run.state == State::Planning { p { "It is being made. Nothing is changed." } }
            (said(&run.plan, "Plan", false))
            @if run.state != State::Planning && run.plan.count == 0 { p { "The command has nothing to say of it." } }
        }
        @if let State::Impossible(why) = &run.state { p .notice.problem { "It is not possible: " (shown(why)) } }
        @if run.state == State::Dropped { p .notice { "It was given up. Nothing was changed." } }
        @if run.state.acts() || matches!(run.state, State::Over(..)) {
            h2 { "What it says" }
            (said(&run.output, "Output", true))
            @if run.output.count == 0 { p { (if run.state.acts() { "Nothing yet." } else { "Nothing." }) } }
        }
        @if let State::Over(well, words) = &run.state {
            div .notice.(if *well { "good" } else { "problem" }) { p { "It has ended: " (shown(words)) ", after " (run.seconds()) " s." } }
        }
        @if may {
            (buttons(run, session))
            @if let (State::Over(true, _), Some((title, address))) = (&run.state, &action.next) {
                p { "Next: " a href=(address) { (title) } }
            }
        }
        p { a href="/actions" { "All actions" } }
    };
    let page = Page::new(&action.title, "/actions", content);
    if run.state.has_child() { page.live().fast() } else { page.live() }
}

fn buttons(run: &Run, session: &Session) -> Markup {
    let button = |to: &str, words: &str, main: bool| {
        html! {
            form method="post" action=(to) {
                (hidden(session))
                input type="hidden" name="id" value=(run.id);
                button .main[main] { (words) }
            }
        }
    };
    html! {
        div .buttons {
            @match &run.state {
                State::Ready if run.by == session.name() => {
                    form method="post" action="/run/start" {
                        (hidden(session))
                        input type="hidden" name="id" value=(run.id);
                        @if matches!(run.action.undo, Undo::Never(_)) {
                            label .check { input type="checkbox" name="sure" value="yes" required; " I know that this cannot be undone" }
                        }
                        button .main { "Do it" }
                    }
                    (button("/run/drop", "Leave it", false))
                },
                State::Ready => p { "Another session has asked for it, and only that one can say yes." },
                State::Running => {
                    (button("/run/pause", "Pause", false))
                    (button("/run/stop", "Stop", false))
                },
                State::Paused => {
                    (button("/run/continue", "Go on", true))
                    (button("/run/stop", "Stop", false))
                },
                State::Stopping => (button("/run/kill", "End it by force", false)),
                State::Planning => (button("/run/stop", "Give up", false)),
                State::Impossible(_) | State::Over(..) | State::Dropped => {},
            }
        }
    }
}

fn said(said: &Said, label: &str, newest: bool) -> Markup {
    html! {
        @if said.count > 0 {
            @if said.count > said.lines.len() as u64 { p .quiet { "The last " (said.lines.len()) " of " (said.count) " lines:" } }
            pre .output .newest[newest] tabindex="0" aria-label=(label) { @for line in &said.lines { (shown(line)) "\n" } }
        }
    }
}

fn condition(run: &Run) -> Markup {
    match &run.state {
        State::Planning => badge(Health::Attention, "makes the plan"),
        State::Ready => badge(Health::Attention, "waits for your yes"),
        State::Impossible(_) => badge(Health::Problem, "not possible"),
        State::Running => badge(Health::Good, "runs"),
        State::Paused => badge(Health::Attention, "paused"),
        State::Stopping => badge(Health::Attention, "stops"),
        State::Over(true, words) if words == "done" => badge(Health::Good, "done"),
        State::Over(true, _) => badge(Health::Attention, "stopped"),
        State::Over(false, words) if words.starts_with("stopped") => badge(Health::Attention, "stopped"),
        State::Over(false, _) => badge(Health::Problem, "failed"),
        State::Dropped => badge(Health::Attention, "given up"),
    }
}

/// A line of the list of actions.
pub fn line(run: &Run) -> Markup {
    html! {
        a href={ "/run?id=" (run.id) } { (run.action.title) } " " (condition(run))
        @if let Some(pool) = &run.action.pool { " in " span .path { (pool.shown()) } }
        ": " code { (run.command()) }
        @if run.state.acts() { ", for " (run.seconds()) " s" }
    }
}

/// For what is not known any more: the program was started again, or much was done since.
pub fn unknown() -> Page {
    let content = html! {
        h1 { "Action" }
        p .notice { "This action is no longer known here. The record has what was done." }
        p { a href="/actions" { "All actions" } }
    };
    Page::new("Action", "/actions", content)
}
