//! What the trash of a pool keeps: searched, brought back, removed.

use super::act::form_link;
use super::frame::Page;
use super::parts::{path, search, shown, size};
use crate::data::command::Failure;
use crate::data::model::{Pool, Status, Trash, TrashEntry};
use crate::entry::sessions::Session;
use canopy_base::text::date;
use maud::{Markup, html};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

/// A page stays below 200 KB.
const MOST: usize = 250;

/// `sought` is what a path must contain.
pub fn page(
    status: &Status,
    pool: Option<&Pool>,
    trash: Option<Result<&Trash, &Failure>>,
    sought: &str,
    session: &Session,
) -> Page {
    let content = html! {
        h1 { "Trash" }
        (search("/trash", status, pool, "Path contains", sought))
        @match (pool, trash) {
            (None, _) | (_, None) => p { "There is no pool." },
            (_, Some(Err(failure))) => p .notice.attention { (shown(&failure.0)) },
            (Some(pool), Some(Ok(trash))) => (kept(&pool.mountpoint.to_path(), trash, sought, session.role.may_act())),
        }
    };
    Page::new("Trash", "/trash", content)
}

fn kept(pool: &Path, trash: &Trash, sought: &str, may: bool) -> Markup {
    let words = sought.to_lowercase();
    let mut found: Vec<&TrashEntry> =
        trash.kept.iter().filter(|kept| kept.path.one_line().to_lowercase().contains(&words)).collect();
    found.sort_by_key(|kept| std::cmp::Reverse(kept.removed));
    let used: u64 = found.iter().map(|kept| kept.used).sum();
    html! {
        @if may { p .links { a href=(form_link("keep", Some(pool), &[])) { "Change what it keeps" } } }
        @if found.is_empty() {
            p { @if sought.is_empty() { "It is empty." } @else { "Nothing in it contains “" (shown(sought)) "”." } }
        } @else {
            p { (found.len()) (if found.len() == 1 { " file, " } else { " files, " }) (size(used)) ". What was removed last comes first." }
            @if may {
                p .links {
                    a href=(form_link("restore", Some(pool), &[])) { "Bring back several" }
                    a href=(form_link("empty", Some(pool), &[])) { "Empty the trash" }
                }
            }
        }
        ul .entries {
            @for kept in found.iter().take(MOST) {
                li {
                    (path(&kept.path)) " "
                    span .on {
                        (size(kept.size)) ", removed " (date(kept.removed))
                        @if let Some(program) = &kept.program { " by " (shown(program)) }
                        @if let Some(user) = kept.user { ", user " (user) }
                        ", on " (path(&kept.branch))
                    }
                    @if may {
                        @let name = kept.path.to_os_string();
                        " " a href=(form_link("restore", Some(pool), &[("path", &literal(&name))])) { "Bring back" span .unseen { " " (kept.path.one_line()) } }
                    }
                }
            }
        }
        @if found.len() > MOST { p { "And " (found.len() - MOST) " more: search for some." } }
    }
}

/// A name as a pattern that only it matches.
fn literal(name: &OsStr) -> OsString {
    let mut pattern = Vec::new();
    for &byte in name.as_bytes() {
        if b"*?[{\\".contains(&byte) {
            pattern.extend([b'[', byte, b']']);
        } else {
            pattern.push(byte);
        }
    }
    OsString::from_vec(pattern)
}
