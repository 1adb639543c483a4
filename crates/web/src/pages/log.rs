//! What the daemons of pools said.

use super::frame::Page;
use super::parts::{pool_choice, shown};
use crate::data::command::Failure;
use crate::data::model::{Log, Status};
use canopy_control::OsText;
use canopy_sys::shown::legible;
use maud::html;

pub fn page(status: &Status, chosen: Option<&OsText>, log: Result<&Log, &Failure>) -> Page {
    let content = html! {
        h1 { "Log" }
        form .search method="get" action="/log" {
            (pool_choice(status, chosen, true))
            button { "Show" }
        }
        @match log {
            Err(failure) => p .notice.attention { (shown(&failure.0)) },
            Ok(log) => {
                @for source in &log.sources {
                    @if source.kind == "none" || source.lines.is_empty() {
                        p { "There are no messages to read." }
                    } @else {
                        h2 { "The last lines of the " (shown(&source.kind)) @if let Some(file) = &source.file { " " span .path { (shown(file)) } } }
                        pre .log tabindex="0" aria-label="Log" { @for line in &source.lines { (plain(line)) "\n" } }
                    }
                }
            }
        }
    };
    Page::new("Log", "/log", content)
}

/// Without control characters.
fn plain(line: &str) -> String {
    legible(line).chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect()
}
