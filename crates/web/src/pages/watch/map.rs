//! What is where: a directory as a map, in which each directory below it has the room that it takes, by branch.

use crate::data::background::Progress;
use crate::data::model::{Du, DuDirectory, Status};
use crate::pages::frame::Page;
use crate::pages::parts::{path, pool_choice, shown, size};
use crate::request::link;
use canopy_control::OsText;
use maud::{Markup, html};
use std::path::Path;

/// How many directories the map and its table have. The others are one together.
const MOST: usize = 40;
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 480.0;
/// How many colours the style has.
const COLOURS: usize = 8;

/// `named` is the directory, relative to the root of the pool.
pub fn page(status: &Status, mountpoint: Option<&Path>, named: &Path, counted: &Progress<Du>) -> Page {
    let chosen = mountpoint.map(OsText::from);
    let content = html! {
        h1 { "Map" }
        form .search method="get" action="/map" {
            (pool_choice(status, chosen.as_ref(), false))
            label for="path" { "Directory" }
            input #path type="search" name="path" value=(named.to_str().unwrap_or_default()) spellcheck="false";
            button { "Show" }
        }
        @match counted {
            Progress::Nothing => p { "There is no pool." },
            Progress::Looking => p .notice { "It is being counted: that takes as long as to walk through the directory." },
            Progress::Busy => p .notice { "Other directories are being counted. This one is next when they are done." },
            Progress::Failed(failure) => p .notice.problem { (shown(&failure.0)) },
            Progress::Known(du, seconds) => {
                @if let Some(mountpoint) = mountpoint { (known(du, mountpoint, named)) }
                p .quiet { "Counted " (seconds / 60) " min ago." }
            }
        }
    };
    let page = Page::new("Map", "/map", content);
    if matches!(counted, Progress::Looking | Progress::Busy) { page.live().fast() } else { page.live() }
}

/// A directory of the map.
struct Part<'d> {
    name: Option<&'d OsText>,
    total: u64,
    by_branch: Vec<u64>,
}

/// The directories below, the largest first, and what is left of the whole.
fn parts(du: &Du) -> Vec<Part<'_>> {
    let (whole, mut below): (Vec<&DuDirectory>, Vec<&DuDirectory>) =
        du.directories.iter().partition(|directory| directory.path.to_path() == Path::new("."));
    below.sort_by_key(|directory| std::cmp::Reverse(directory.total));
    below.truncate(MOST);
    let mut parts: Vec<Part<'_>> = below
        .iter()
        .map(|directory| Part {
            name: Some(&directory.path),
            total: directory.total,
            by_branch: directory.by_branch.clone(),
        })
        .collect();
    if let Some(whole) = whole.first() {
        let left = |all: u64, taken: u64| all.saturating_sub(taken);
        let by_branch = whole.by_branch.iter().enumerate().map(|(index, &all)| {
            left(all, parts.iter().map(|part| part.by_branch.get(index).copied().unwrap_or(0)).sum())
        });
        let rest = Part {
            name: None,
            total: left(whole.total, parts.iter().map(|part| part.total).sum()),
            by_branch: by_branch.collect(),
        };
        if rest.total > 0 {
            parts.push(rest);
        }
    }
    parts
}

fn known(du: &Du, mountpoint: &Path, named: &Path) -> Markup {
    let parts = parts(du);
    let to = |name: &OsText| {
        link("/map", &[("at", mountpoint.as_os_str()), ("path", named.join(name.to_path()).as_os_str())])
    };
    let above = named.parent().filter(|_| !named.as_os_str().is_empty());
    html! {
        @if let Some(above) = above {
            p { a href=(link("/map", &[("at", mountpoint.as_os_str()), ("path", above.as_os_str())])) { "The directory above" } }
        }
        (picture(&parts))
        ul .key { @for (index, branch) in du.branches.iter().enumerate() { li { svg .swatch width="14" height="14" aria-hidden="true" { rect .{ "c" (index % COLOURS) } width="14" height="14" {} } " " (path(branch)) } } }
        div .wide tabindex="0" role="region" aria-label="Directories" {
            table {
                caption { "Directories, and what they take on each branch" }
                thead { tr { th scope="col" { "Directory" } th scope="col" { "All" } @for branch in &du.branches { th scope="col" { (path(branch)) } } } }
                tbody {
                    @for part in &parts {
                        tr {
                            th scope="row" {
                                @match part.name {
                                    Some(name) => a href=(to(name)) { (path(name)) },
                                    None => "files here, and smaller directories",
                                }
                            }
                            td { (size(part.total)) }
                            @for used in &part.by_branch { td { @if *used > 0 { (size(*used)) } } }
                        }
                    }
                }
            }
        }
    }
}

/// The table says the same, for those who do not see it.
fn picture(parts: &[Part<'_>]) -> Markup {
    let sizes: Vec<u64> = parts.iter().map(|part| part.total).collect();
    html! {
        svg .map viewBox="0 0 1000 480" aria-hidden="true" {
            @for (part, place) in parts.iter().zip(places(&sizes)) {
                @for (index, x, width) in shares(part, &place) {
                    rect .{ "c" (index % COLOURS) } x=(number(x)) y=(number(place.y)) width=(number(width)) height=(number(place.height)) {}
                }
                rect .edge x=(number(place.x)) y=(number(place.y)) width=(number(place.width)) height=(number(place.height)) {}
                @if place.width > 90.0 && place.height > 26.0 {
                    text x=(number(place.x + 6.0)) y=(number(place.y + 19.0)) { (label(part, place.width)) }
                }
            }
        }
    }
}

/// The parts of a directory by branch, side by side.
fn shares(part: &Part<'_>, place: &Rect) -> Vec<(usize, f64, f64)> {
    let all: u64 = part.by_branch.iter().sum();
    let mut x = place.x;
    let mut shares = Vec::new();
    for (index, &used) in part.by_branch.iter().enumerate().filter(|(_, used)| **used > 0) {
        let width = place.width * used as f64 / all.max(1) as f64;
        shares.push((index, x, width));
        x += width;
    }
    shares
}

fn label(part: &Part<'_>, width: f64) -> String {
    let name = part.name.map_or_else(|| "…".to_owned(), OsText::one_line);
    let room = (width / 10.5) as usize;
    if name.chars().count() <= room {
        name
    } else {
        name.chars().take(room.saturating_sub(1)).chain(['…']).collect()
    }
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Rect {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Divides the picture among sizes that fall: halves, of about the same sum, along the longer side.
fn places(sizes: &[u64]) -> Vec<Rect> {
    let mut found = Vec::new();
    divide(sizes, Rect { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT }, &mut found);
    found
}

fn divide(sizes: &[u64], place: Rect, found: &mut Vec<Rect>) {
    let all: u128 = sizes.iter().map(|&size| u128::from(size)).sum();
    if sizes.len() <= 1 || all == 0 {
        found.extend(sizes.iter().map(|_| place));
        return;
    }
    let mut sum = u128::from(sizes[0]);
    let mut first = 1;
    while first + 1 < sizes.len() && (sum + u128::from(sizes[first])) * 2 <= all {
        sum += u128::from(sizes[first]);
        first += 1;
    }
    let share = sum as f64 / all as f64;
    let (one, two) = if place.width >= place.height {
        let width = place.width * share;
        (Rect { width, ..place }, Rect { x: place.x + width, width: place.width - width, ..place })
    } else {
        let height = place.height * share;
        (Rect { height, ..place }, Rect { y: place.y + height, height: place.height - height, ..place })
    };
    divide(&sizes[..first], one, found);
    divide(&sizes[first..], two, found);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_as_the_sizes_and_fill_the_picture() {
        for sizes in [
            vec![],
            vec![0],
            vec![7],
            vec![0, 0],
            vec![50, 30, 10, 5, 5],
            vec![u64::MAX; 40],
            vec![1 << 40, 1, 0],
        ] {
            let found = places(&sizes);
            assert_eq!(found.len(), sizes.len());
            let all: u128 = sizes.iter().map(|&size| u128::from(size)).sum();
            if all == 0 {
                continue;
            }
            for (place, &size) in found.iter().zip(&sizes) {
                let expected = WIDTH * HEIGHT * size as f64 / all as f64;
                assert!((place.width * place.height - expected).abs() < 1.0, "{sizes:?} {place:?}");
                assert!(place.x >= 0.0 && place.x + place.width <= WIDTH + 0.01);
                assert!(place.y >= 0.0 && place.y + place.height <= HEIGHT + 0.01);
            }
        }
    }

    #[test]
    fn what_is_not_below_is_left_over() {
        let du: Du = serde_json::from_str(
            r#"{"branches":["/a","/b"],"directories":[{"path":"x","total":10,"by_branch":[10,0]},
            {"path":"y","total":30,"by_branch":[10,20]},{"path":".","total":45,"by_branch":[25,20]}]}"#,
        )
        .unwrap();
        let parts = parts(&du);
        let totals: Vec<(u64, Vec<u64>)> =
            parts.iter().map(|part| (part.total, part.by_branch.clone())).collect();
        assert_eq!(totals, [(30, vec![10, 20]), (10, vec![10, 0]), (5, vec![5, 0])]);
        assert!(parts[2].name.is_none());
        let shares = shares(&parts[0], &Rect { x: 10.0, y: 0.0, width: 30.0, height: 5.0 });
        assert_eq!(shares, [(0, 10.0, 10.0), (1, 20.0, 20.0)]);
    }
}
