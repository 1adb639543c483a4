//! Parts of pages.

use crate::data::model::{Health, Pool, Status, Warning};
use crate::request::link;
use canopy_control::OsText;
use canopy_sys::shown::Show as _;
use maud::{Markup, html};

/// Returns a text with what misleads escaped.
pub fn shown(text: &str) -> String {
    text.shown().to_string()
}

pub fn path(path: &OsText) -> Markup {
    html! { span .path { (path.one_line()) } }
}

/// Formats bytes for people: `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 9.95);
    format!("{value:.digits$} {}", units[unit])
}

impl Health {
    pub fn word(self) -> &'static str {
        match self {
            Health::Good => "healthy",
            Health::Attention => "attention",
            Health::Problem => "problem",
        }
    }

    /// Besides the colour, for those who do not see it.
    fn sign(self) -> &'static str {
        match self {
            Health::Good => "✓",
            Health::Attention => "!",
            Health::Problem => "✕",
        }
    }

    pub fn class(self) -> &'static str {
        match self {
            Health::Good => "good",
            Health::Attention => "attention",
            Health::Problem => "problem",
        }
    }
}

/// A word in the colour of how well it is.
pub fn badge(health: Health, word: &str) -> Markup {
    html! { span class={ "badge " (health.class()) } { span aria-hidden="true" { (health.sign()) } " " (word) } }
}

/// A bar of used space. It has its width as an attribute, because the policy of pages allows no style within them.
pub fn bar(size_in_all: u64, used: u64, mark: Option<u64>, health: Health) -> Markup {
    let percent = (u128::from(used.min(size_in_all)) * 100).checked_div(u128::from(size_in_all)).unwrap_or(0);
    let label = format!("{percent} % used");
    html! {
        svg .bar role="img" aria-label=(label) viewBox="0 0 100 6" preserveAspectRatio="none" {
            rect .rest width="100" height="6" {}
            rect .used.(health.class()) width=(percent) height="6" {}
            @if let Some(mark) = mark.filter(|&mark| mark <= 100) { rect .mark x=(mark) width="0.6" height="6" {} }
        }
    }
}

/// What is the matter, and what to do.
pub fn warning(warning: &Warning) -> Markup {
    html! {
        div .notice.(warning.health().class()) {
            p {
                (badge(warning.health(), if warning.problem { "problem" } else { "advice" }))
                " " (shown(&warning.text))
            }
            p .fix { strong { "What to do: " } (shown(&warning.fix)) }
        }
    }
}

/// A pool as a link to its page.
pub fn pool_link(mountpoint: &OsText) -> Markup {
    html! { a href=(link("/pool", &[("at", &mountpoint.to_os_string())])) { (path(mountpoint)) } }
}

/// A form that leads to a page of a pool, with what to look for there.
pub fn search(page: &str, status: &Status, pool: Option<&Pool>, label: &str, sought: &str) -> Markup {
    html! {
        form .search method="get" action=(page) {
            (pool_choice(status, pool.map(|pool| &pool.mountpoint), false))
            label for="q" { (label) }
            input #q type="search" name="q" value=(sought);
            button { "Show" }
        }
    }
}

/// A choice among pools, for a form.
pub fn pool_choice(status: &Status, chosen: Option<&OsText>, all: bool) -> Markup {
    html! {
        label for="at" { "Pool" }
        select #at name="at" {
            @if all { option value="" { "all" } }
            // A name that is no text cannot be the value of a field: its page has the link.
            @for pool in status.pools.iter().map(|pool| &pool.mountpoint) {
                @if let OsText::Text(text) = pool {
                    option value=(text) selected[chosen == Some(pool)] { (pool.one_line()) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 << 30, "10 GiB"),
            (270_553_174_016, "252 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn bars_have_a_width_and_words() {
        let text = bar(200, 50, Some(70), Health::Good).into_string();
        assert!(text.contains("aria-label=\"25 % used\"") && text.contains("width=\"25\""), "{text}");
        assert!(text.contains("x=\"70\"") && !text.contains("style="), "{text}");
        assert!(bar(0, 0, None, Health::Good).into_string().contains("0 % used"));
        assert!(bar(u64::MAX, u64::MAX, None, Health::Good).into_string().contains("100 % used"));
    }
}
