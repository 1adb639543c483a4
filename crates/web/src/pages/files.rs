//! Where a file is: `canopy which`, and `canopy ls` of a directory.

use super::frame::Page;
use super::parts::{path, pool_choice, shown, size};
use crate::data::background;
use crate::data::command::Failure;
use crate::data::model::{Copy, Entry, Listing, Status, Which, WhichPath};
use crate::request::link;
use canopy_base::text::date;
use canopy_control::OsText;
use maud::{Markup, html};
use std::ffi::OsStr;
use std::path::Path;

/// A page stays below 200 KB.
const MOST_ENTRIES: usize = 300;

/// What was found of a path of a pool.
#[derive(Debug)]
pub enum PathView {
    Nothing,
    OutOfPool,
    Failed(Failure),
    Is {
        which: Which,
        listing: Option<Result<Listing, Failure>>,
    },
    /// Names below a place that contain a text.
    Search(background::Progress<Listing>),
}

/// `named` is what was asked for, relative to the root of the pool; `sought` is a part of a name.
pub fn page(
    status: &Status,
    mountpoint: Option<&Path>,
    named: &Path,
    sought: &str,
    found: &PathView,
) -> Page {
    let chosen = mountpoint.map(OsText::from);
    let content = html! {
        h1 { "Files" }
        form .search method="get" action="/files" {
            (pool_choice(status, chosen.as_ref(), false))
            label for="path" { "Path of a file or directory" }
            input #path type="search" name="path" value=(named.to_str().unwrap_or_default()) placeholder="films/one.mkv" spellcheck="false";
            button { "Show" }
        }
        form .search method="get" action="/files" {
            @if let Some(OsText::Text(at)) = &chosen { input type="hidden" name="at" value=(at); }
            @if let Some(below) = named.to_str().filter(|below| !below.is_empty()) { input type="hidden" name="path" value=(below); }
            label for="name" { "Name contains" }
            input #name type="search" name="name" value=(sought) required spellcheck="false";
            button { "Search" @if !named.as_os_str().is_empty() { " below it" } }
        }
        @match found {
            PathView::Nothing => p { "Which disks have a file, and whether its copies are alike. Without a path, it shows the root of the pool." },
            PathView::OutOfPool => p .notice.problem { "This path leads out of the pool." },
            PathView::Failed(failure) => p .notice.problem { (shown(&failure.0)) },
            PathView::Search(found) => (searched(found, mountpoint.unwrap_or(Path::new("/")), named, sought)),
            PathView::Is { which, listing } => {
                @for one in &which.paths { (place(one)) }
                @match (listing, mountpoint) {
                    (Some(Ok(listing)), Some(mountpoint)) => (entries(listing, mountpoint, named)),
                    (Some(Err(failure)), _) => p .notice.problem { (shown(&failure.0)) },
                    _ => {},
                }
            }
        }
    };
    let page = Page::new("Files", "/files", content);
    let waits = matches!(found, PathView::Search(background::Progress::Looking | background::Progress::Busy));
    if waits { page.live().fast() } else { page }
}

fn searched(found: &background::Progress<Listing>, mountpoint: &Path, named: &Path, sought: &str) -> Markup {
    html! {
        h2 { "Names that contain “" (shown(sought)) "”" }
        @match found {
            background::Progress::Nothing => {},
            background::Progress::Looking => p .notice { "All directories are read, on all disks; those that sleep wake up. It goes on in the background." },
            background::Progress::Busy => p .notice { "Another search goes on. This one is next." },
            background::Progress::Failed(failure) => p .notice.problem { (shown(&failure.0)) },
            background::Progress::Known(listing, seconds) => {
                @if listing.entries.is_empty() { p { "There is none." } }
                ul .entries { @for entry in listing.entries.iter().take(MOST_ENTRIES) { li { (line(entry, listing, mountpoint, named)) } } }
                @if listing.more { p { "There are more: search for a longer part, or below a directory." } }
                p .quiet { "Searched " (seconds / 60) " min ago." }
            }
        }
    }
}

fn place(one: &WhichPath) -> Markup {
    html! {
        h2 { (path(&one.path)) }
        p { (shown(&one.kind)) ", on " (one.copies.len()) (if one.copies.len() == 1 { " branch" } else { " branches" }) }
        @if !one.differ.is_empty() {
            p .notice.attention { "The copies differ in " (shown(&one.differ.join(", "))) ". " code { "canopy fsck" } " can make them alike." }
        }
        ul .cards { @for copy in &one.copies { li .card { (card(copy, &one.kind)) } } }
    }
}

fn card(copy: &Copy, kind: &str) -> Markup {
    html! {
        h3 { (path(&copy.branch)) }
        @if copy.shown == Some(true) { p { "The pool reads this one." } }
        @if copy.old { p { "It is old: another copy was changed since." } }
        dl {
            @if copy.kind != kind { dt { "Type" } dd { (shown(&copy.kind)) } }
            @if copy.kind == "file" { dt { "Size" } dd { (size(copy.size)) " (takes " (size(copy.used)) ")" } }
            dt { "Changed" } dd { (date(copy.mtime)) }
            dt { "Owner" } dd { (copy.uid) ":" (copy.gid) }
            dt { "Mode" } dd { (format!("{:o}", copy.mode & 0o7777)) }
        }
    }
}

fn entries(listing: &Listing, mountpoint: &Path, named: &Path) -> Markup {
    let shown_ones = listing.entries.iter().take(MOST_ENTRIES);
    let parent = named.parent().filter(|_| !named.as_os_str().is_empty());
    html! {
        h2 { "In this directory" }
        @if let Some(parent) = parent { p { a href=(to(mountpoint, parent.as_os_str())) { "The directory above" } } }
        @if listing.entries.is_empty() { p { "It is empty." } }
        ul .entries {
            @for entry in shown_ones { li { (line(entry, listing, mountpoint, named)) } }
        }
        @if listing.entries.len() > MOST_ENTRIES {
            p { "And " (listing.entries.len() - MOST_ENTRIES) " more: " code { "canopy ls" } " lists them all." }
        }
    }
}

fn line(entry: &Entry, listing: &Listing, mountpoint: &Path, named: &Path) -> Markup {
    let below = named.join(entry.name.to_path());
    let branches = entry.branches.iter().filter_map(|&index| listing.branches.get(index));
    html! {
        a href=(to(mountpoint, below.as_os_str())) { span .path { (entry.name.one_line()) @if entry.kind == "directory" { "/" } } }
        " " span .on {
            @if entry.kind == "file" { (size(entry.size)) ", " }
            @if entry.missing { "missing, " }
            "on " @for (index, branch) in branches.enumerate() { @if index > 0 { ", " } (path(branch)) }
            @if !entry.differ.is_empty() { ", copies differ in " (shown(&entry.differ.join(", "))) }
        }
    }
}

fn to(mountpoint: &Path, named: &OsStr) -> String {
    link("/files", &[("at", mountpoint.as_os_str()), ("path", named)])
}
