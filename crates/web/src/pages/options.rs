//! The options with their help, and the values that a pool has.

use super::act::form_link;
use super::frame::Page;
use super::parts::{search, shown};
use crate::data::model::{OptionHelp, Pool, Status};
use crate::entry::sessions::Session;
use maud::{Markup, html};

/// `sought` is what the names or the help must contain.
pub fn page(
    options: &[OptionHelp],
    status: &Status,
    pool: Option<&Pool>,
    sought: &str,
    session: &Session,
) -> Page {
    let words = sought.to_lowercase();
    let matches = |option: &&OptionHelp| {
        !option.ignored && (option.name.contains(&words) || option.help.to_lowercase().contains(&words))
    };
    let found: Vec<&OptionHelp> = options.iter().filter(matches).collect();
    let content = html! {
        h1 { "Options" }
        (search("/options", status, pool, "Name or help contains", sought))
        @if let Some(pool) = pool { p { "Values are those of " (super::parts::pool_link(&pool.mountpoint)) "." } }
        @if found.is_empty() { p { "No option contains “" (shown(sought)) "”." } }
        @for option in found { (one(option, pool, session.role.may_act())) }
    };
    Page::new("Options", "/options", content)
}

fn one(option: &OptionHelp, pool: Option<&Pool>, may: bool) -> Markup {
    let default = option.default.as_deref().unwrap_or_default();
    let value = pool.and_then(|pool| pool.options.as_ref()).and_then(|options| options.get(&option.name));
    html! {
        section .option {
            h2 #{ "o-" (option.name) } { code { (option.name) } @for alias in &option.aliases { " " code .alias { (alias) } } }
            p { (shown(&option.help)) }
            dl {
                @if let Some(value) = value {
                    dt { "Value" }
                    dd { @if value.is_empty() { "none" } @else { code { (shown(value)) } } @if value != default { " (not the default)" } }
                }
                @if !default.is_empty() { dt { "Default" } dd { code { (shown(default)) } } }
                @if let Some(accepts) = &option.accepts { dt { "Accepts" } dd { (shown(accepts)) } }
                dt { "Changes" } dd { (if option.runtime { "while the pool runs" } else { "at the next mount" }) }
                @if let Some(pool) = pool.filter(|_| may && option.runtime) {
                    dt .unseen { "Action" }
                    dd { a href=(form_link("set", Some(&pool.mountpoint.to_path()), &[("option", option.name.as_ref())])) { "Change" span .unseen { " " (option.name) } } }
                }
                @if let Some(since) = &option.since { dt { "Needs" } dd { "Linux " (shown(since)) } }
            }
        }
    }
}
