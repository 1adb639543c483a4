//! What has happened, the newest first, as `canopy notify` has seen it.

use crate::data::command::Failure;
use crate::data::model::{Event, Events, Health, Receiver, Receivers};
use crate::pages::act::form_link;
use crate::pages::frame::Page;
use crate::pages::parts::{badge, shown};
use canopy_base::text::date;
use maud::{Markup, html};
use std::ffi::OsStr;

/// A page stays below 200 KB.
const MOST: usize = 250;

/// `sought` is what an event must contain; `told` who is told, for those who may change it.
pub fn page(
    events: Result<&Events, &Failure>,
    sought: &str,
    told: Option<Result<&Receivers, &Failure>>,
) -> Page {
    let content = html! {
        h1 { "Events" }
        form .search method="get" action="/events" {
            label for="q" { "Contains" }
            input #q type="search" name="q" value=(sought);
            button { "Show" }
        }
        @match events {
            Err(failure) => p .notice.attention { (shown(&failure.0)) },
            Ok(events) => (list(events, sought)),
        }
        @match told {
            None => {},
            Some(Err(failure)) => section { h2 { "Who is told" } p .notice.problem { (shown(&failure.0)) } },
            Some(Ok(told)) => (receivers(told)),
        }
    };
    Page::new("Events", "/events", content).live()
}

fn list(events: &Events, sought: &str) -> Markup {
    let words = sought.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&words);
    let is_sought = |event: &&Event| {
        [&event.text, &event.subject.pool, &event.subject.branch].into_iter().any(|text| has(text))
    };
    let found: Vec<&Event> = events.events.iter().rev().filter(is_sought).collect();
    html! {
        @if events.events.is_empty() {
            p .notice { "Nothing is kept yet: the service canopy-notify sees what happens, while it runs (" code { "systemctl enable --now canopy-notify" } ")." }
        } @else if found.is_empty() { p { "None contains “" (shown(sought)) "”." } }
        ul .entries { @for event in found.iter().take(MOST) { li { (line(event)) } } }
        @if found.len() > MOST { p { "And " (found.len() - MOST) " older ones: " code { "canopy notify events" } " shows them." } }
    }
}

fn receivers(told: &Receivers) -> Markup {
    html! {
        section {
            h2 { "Who is told" }
            @if told.receivers.is_empty() { p { "Nobody." } }
            ul .cards { @for receiver in &told.receivers { li .card { (card(receiver)) } } }
            ul .actions {
                li { a href=(form_link("receiver", None, &[])) { "Tell somebody" } }
                li { a href=(form_link("notify", None, &[])) { "Send a trial message" } }
            }
        }
    }
}

fn card(receiver: &Receiver) -> Markup {
    html! {
        h3 { (shown(&receiver.name)) }
        dl {
            dt { "By" } dd { (shown(&receiver.by)) ", " span .path { (shown(&receiver.to)) } }
            dt { "Of" } dd {
                (match receiver.least.as_str() { "problem" => "problems", "notice" => "all that happens", _ => "problems and warnings" })
                @if receiver.repeat.is_some() { ", again each day while they last" }
            }
        }
        @if let Some(pool) = &receiver.pool {
            p .quiet { "Only of " (shown(pool)) ", whose file says so." }
        } @else {
            ul .actions {
                @for (kind, words) in [("receiver", "Change"), ("unreceiver", "Take off")] {
                    li { a href=(form_link(kind, None, &[("name", OsStr::new(&receiver.name))])) { (words) span .unseen { ": " (shown(&receiver.name)) } } }
                }
            }
        }
    }
}

fn line(event: &Event) -> Markup {
    let is_over = matches!(event.phase.as_str(), "ends" | "brief" | "happened");
    let health = match event.severity.as_str() {
        _ if is_over => Health::Good,
        "problem" => Health::Problem,
        "warning" => Health::Attention,
        _ => Health::Good,
    };
    let word = match event.phase.as_str() {
        "begins" => "begins",
        "lasts" => "lasts",
        "ends" => "is over",
        "brief" => "was brief",
        _ => "has happened",
    };
    html! {
        (date(event.at)) " " (badge(health, word)) " " span .path { (shown(&event.subject.pool)) } ": " (shown(&event.text))
        @if !is_over && !event.fix.is_empty() { p .fix { strong { "What to do: " } (shown(&event.fix)) } }
    }
}
