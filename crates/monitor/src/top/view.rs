//! What `canopy top` shows.

use super::bars::Glyphs;
use super::rates::{BranchRate, History, OperationRate};
use super::screen::Line;
use crate::observe::Observation;
use crate::{read_cache, sleep};
use anstyle::{AnsiColor, Effects, Style};
use canopy_branch::branch::state::BranchState;
use canopy_control::OsText;
use canopy_terminal::{BAD, BOLD, WARNING, bytes, fitted, width};
use std::time::Duration;

const HEADING: Style = Style::new().effects(Effects::BOLD.insert(Effects::UNDERLINE));
const KEYS: &str = "q quit   ? help";

/// The widths of the columns after the first, which takes the rest.
const BRANCH_COLUMNS: [(&str, usize); 8] = [
    ("OP/S", 6),
    ("READ/S", 7),
    ("WRITE/S", 7),
    ("DISK R/S", 8),
    ("DISK W/S", 8),
    ("BUSY", 5),
    ("FREE", 6),
    ("CONDITION", 9),
];
const OPERATION_COLUMNS: [(&str, usize); 6] =
    [("OP/S", 8), ("ERRORS/S", 8), ("AVERAGE", 8), ("99%", 8), ("SLOW", 8), ("ALL", 10)];

const HELP: &str = "\
q, Ctrl-C   quit
?           this help; any key leaves it

Branches
  USED      its share of the space, where the terminal is wide
  OP/S      opens, reads and writes that came to the daemon
  READ/S    bytes that the daemon has read for clients; likewise WRITE/S.
            What passthrough carries does not come to the daemon
  DISK R/S  bytes read from its disks by all programs, passthrough included
  BUSY      the share of the time that its busiest disk had work
  FREE      the space that users can fill

Operations, as the kernel asks for them
  AVERAGE   the time in the daemon in the last ten seconds, or since the start;
            one request in 16 is timed
  99%       so many took at most this long
  SLOW      requests that took longer than about 30 ms
  ALL       since the process that serves the pool began";

/// Returns the lines of the help.
pub(super) fn help() -> Vec<Line> {
    let heading = Line::styled(BOLD, "canopy top");
    [heading, Line::default()].into_iter().chain(HELP.lines().map(Line::plain)).collect()
}

/// Returns the lines for a pool. There may be more than rows.
pub(super) fn pool(
    mountpoint: &OsText,
    history: &History,
    glyphs: Glyphs,
    (columns, rows): (usize, usize),
) -> Vec<Line> {
    let mut lines = vec![title(mountpoint, columns)];
    match history.last() {
        None => lines.push(Line::plain("looking ...")),
        Some(now) if now.daemon.is_none() => {
            lines.push(Line::styled(BAD, "the pool is not mounted, or its daemon does not answer"));
        }
        Some(now) => {
            let (operations, branches) = (history.operations(), history.branches());
            lines.extend(summary(now, &operations));
            lines.extend(speeds(history.speeds(), glyphs, columns));
            lines.push(Line::default());
            let room = rows.saturating_sub(lines.len());
            lines.extend(tables(&branches, &operations, glyphs, columns, room));
        }
    }
    lines
}

fn title(mountpoint: &OsText, columns: usize) -> Line {
    let pool = fitted(&mountpoint.one_line(), columns.saturating_sub(KEYS.len() + 14));
    let gap = columns.saturating_sub("canopy top  ".len() + width(&pool) + KEYS.len());
    Line(vec![(BOLD, "canopy top  ".into()), (BOLD, pool), (Style::new(), format!("{:gap$}{KEYS}", ""))])
}

fn summary(now: &Observation, operations: &[OperationRate]) -> Vec<Line> {
    let Some(daemon) = &now.daemon else { return Vec::new() };
    let Some(metrics) = &daemon.metrics else {
        return vec![Line::styled(WARNING, "the daemon reports only the condition of its branches")];
    };
    let sum = |of: fn(&OperationRate) -> Option<f64>| rate(operations.iter().map(of).sum());
    let (requests, caches, moves) = (&metrics.requests, &metrics.caches, &metrics.moves);
    let takeovers = daemon.pool.survival.as_ref().map_or(0, |survival| survival.takeovers);
    let memory = now.process.map_or_else(|| "-".to_owned(), |process| bytes(process.resident_bytes));
    let lines = [
        format!(
            "{} op/s, {} errors/s   requests {}, in line {}   workers {}, stuck {}, low {}",
            sum(|operation| operation.per_second),
            sum(|operation| operation.errors_per_second),
            requests.under_way,
            requests.in_line,
            requests.workers,
            requests.stuck,
            requests.low_priority_workers,
        ),
        format!(
            "open {}   known {}   memory {memory}   takeovers {takeovers}   moving {}, moved {}",
            count(caches.open_files as u64),
            count(caches.known_nodes as u64),
            moves.under_way,
            count(moves.files),
        ),
    ];
    let cached = daemon.pool.read_caches.iter().map(|cache| format!("cache {}", read_cache::line(cache)));
    lines.into_iter().chain(cached).chain(sleep::summary(&daemon.pool.disks)).map(Line::plain).collect()
}

/// Returns the tables of branches and operations, in so many rows. The operations get at least a third.
fn tables(
    branches: &[BranchRate],
    operations: &[OperationRate],
    glyphs: Glyphs,
    columns: usize,
    rows: usize,
) -> Vec<Line> {
    let most = (rows.saturating_sub(3) * 2 / 3).max(1);
    let mut lines = vec![branch_heading(columns)];
    let shown = if branches.len() > most { most - 1 } else { branches.len() };
    lines.extend(branches[..shown].iter().map(|one| branch(one, glyphs, columns)));
    if shown < branches.len() {
        lines.push(Line::plain(format!("{} more (a higher terminal shows them)", branches.len() - shown)));
    }
    lines.push(Line::default());
    lines.push(heading("OPERATION", &OPERATION_COLUMNS, columns));
    lines.extend(operations.iter().map(|one| operation(one, columns)));
    lines
}

/// Returns the line with the operations of the last minutes, once there are some.
fn speeds(speeds: &[f64], glyphs: Glyphs, columns: usize) -> Option<Line> {
    let most = speeds.iter().copied().fold(0.0, f64::max);
    let (before, after) = ("op/s ", format!("  most {}", rate(Some(most))));
    let room = columns.saturating_sub(before.len() + after.len());
    let shown = glyphs.history(speeds, room);
    (speeds.len() > 1)
        .then(|| Line(vec![(Style::new(), before.into()), (HISTORY, shown), (Style::new(), after)]))
}

const HISTORY: Style = AnsiColor::Cyan.on_default();

/// How wide the bar of a branch is on a terminal of so many columns, with the blanks around it. None without room.
fn bar_width(columns: usize) -> Option<usize> {
    match columns {
        0..104 => None,
        104..150 => Some(12),
        _ => Some(24),
    }
}

fn branch_heading(columns: usize) -> Line {
    let names: Vec<String> = BRANCH_COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let bar = bar_width(columns);
    let (first, rest) = parts("BRANCH", &names, &BRANCH_COLUMNS, columns - bar.map_or(0, |bar| bar + 2));
    let used = bar.map_or_else(String::new, |bar| format!("  {:<bar$}", "USED"));
    Line::styled(HEADING, format!("{first}{used}{rest}"))
}

fn branch(branch: &BranchRate, glyphs: Glyphs, columns: usize) -> Line {
    let rates = [branch.read_bytes, branch.written_bytes, branch.disk_read_bytes, branch.disk_written_bytes];
    let [read, written, disk_read, disk_written] = rates.map(|rate| or_dash(rate, |rate| bytes(rate as u64)));
    let cells = [
        rate(branch.operations),
        read,
        written,
        disk_read,
        disk_written,
        or_dash(branch.busy, |share| format!("{:.0}%", share * 100.0)),
        or_dash(branch.available, bytes),
        branch.condition.word().to_owned(),
    ];
    let style = match branch.condition {
        BranchState::Up => Style::new(),
        BranchState::Lagging | BranchState::Asleep | BranchState::Awaited => WARNING,
        BranchState::Hung | BranchState::ReadOnly | BranchState::Failing | BranchState::Gone => BAD,
    };
    let Some(bar) = bar_width(columns) else {
        return Line::styled(style, row(&branch.path, &cells, &BRANCH_COLUMNS, columns));
    };
    let (first, rest) = parts(&branch.path, &cells, &BRANCH_COLUMNS, columns - bar - 2);
    let drawn = branch.used.map_or_else(|| (style, " ".repeat(bar)), |used| glyphs.bar(used, bar));
    Line(vec![(style, format!("{first}  ")), drawn, (style, rest)])
}

fn operation(operation: &OperationRate, columns: usize) -> Line {
    let most = |times: super::rates::Times| times.most.map_or_else(|| ">10s".to_owned(), duration);
    let cells = [
        rate(operation.per_second),
        rate(operation.errors_per_second),
        or_dash(operation.times, |times| duration(times.average)),
        or_dash(operation.times, most),
        count(operation.slow),
        count(operation.answered),
    ];
    Line::plain(row(&operation.name, &cells, &OPERATION_COLUMNS, columns))
}

fn heading(first: &str, others: &[(&str, usize)], columns: usize) -> Line {
    let names: Vec<String> = others.iter().map(|(name, _)| (*name).to_owned()).collect();
    Line::styled(HEADING, row(first, &names, others, columns))
}

/// The least width of the first column.
const LEAST_ROOM: usize = 12;
/// The columns that a narrow terminal does without, the least important first. Whether a branch is well stays.
const DISPENSABLE: [&str; 11] = [
    "DISK W/S", "DISK R/S", "ALL", "SLOW", "BUSY", "WRITE/S", "READ/S", "AVERAGE", "OP/S", "ERRORS/S", "FREE",
];

/// Returns the columns that there is no room for.
fn dropped(others: &[(&str, usize)], columns: usize) -> Vec<&'static str> {
    let mut dropped: Vec<&str> = Vec::new();
    let mut taken: usize = others.iter().map(|(_, width)| width + 1).sum();
    for name in DISPENSABLE {
        if taken + LEAST_ROOM <= columns {
            break;
        }
        if let Some((_, width)) = others.iter().find(|(other, _)| *other == name) {
            taken -= width + 1;
            dropped.push(name);
        }
    }
    dropped
}

/// Returns a row of a table: the first cell takes the width that the others leave, and loses its beginning if that is not
/// enough.
fn row(first: &str, cells: &[String], others: &[(&str, usize)], columns: usize) -> String {
    let (first, rest) = parts(first, cells, others, columns);
    first + &rest
}

/// Returns the first cell of a row, and the others.
fn parts(first: &str, cells: &[String], others: &[(&str, usize)], columns: usize) -> (String, String) {
    let dropped = dropped(others, columns);
    let kept = |name: &str| !dropped.contains(&name);
    let taken: usize = others.iter().filter(|(name, _)| kept(name)).map(|(_, width)| width + 1).sum();
    let room = columns.saturating_sub(taken).max(LEAST_ROOM);
    let first = shortened(first, room);
    let first = format!("{first}{:1$}", "", room - width(&first));
    let mut text = String::new();
    for (cell, (_, width)) in cells.iter().zip(others).filter(|(_, (name, _))| kept(name)) {
        text.push_str(&format!(" {cell:>width$}"));
    }
    (first, text)
}

/// Returns the end of a text that is too long: of a path, that is what tells it from others.
fn shortened(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let ends = text.char_indices().map(|(at, _)| &text[at..]);
    let end = ends.into_iter().find(|end| width(end) + 2 <= room).unwrap_or_default();
    format!("..{end}")
}

fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn rate(per_second: Option<f64>) -> String {
    or_dash(per_second, |rate| match rate {
        rate if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        rate => count(rate.round() as u64),
    })
}

/// Formats a number in few characters.
fn count(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{}k", number / 1000),
        10_000_000..10_000_000_000 => format!("{}M", number / 1_000_000),
        _ => format!("{}G", number / 1_000_000_000),
    }
}

fn duration(time: Duration) -> String {
    let (value, unit) = match time.as_nanos() {
        0..1_000_000 => (time.as_secs_f64() * 1e6, "us"),
        1_000_000..1_000_000_000 => (time.as_secs_f64() * 1e3, "ms"),
        _ => (time.as_secs_f64(), "s"),
    };
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_shows_the_condition() {
        for (columns, shown, hidden) in [
            (80, &["DISK W/S", "CONDITION"][..], &[][..]),
            (60, &["OP/S", "FREE", "CONDITION"], &["DISK W/S", "DISK R/S"]),
            (30, &["CONDITION"], &["OP/S", "BUSY"]),
        ] {
            let names: Vec<String> = BRANCH_COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect();
            let line = row("BRANCH", &names, &BRANCH_COLUMNS, columns);
            assert!(width(&line) <= columns, "{columns}: {line}");
            assert!(shown.iter().all(|name| line.contains(name)), "{columns}: {line}");
            assert!(!hidden.iter().any(|name| line.contains(name)), "{columns}: {line}");
        }
    }

    fn text(line: &Line) -> String {
        line.0.iter().map(|(_, text)| text.as_str()).collect()
    }

    fn example(path: &str, condition: BranchState) -> BranchRate {
        BranchRate {
            path: path.into(),
            condition,
            available: Some(3 << 40),
            used: Some(0.97),
            operations: Some(123_456.7),
            read_bytes: Some(1e9),
            written_bytes: None,
            disk_read_bytes: Some(0.0),
            disk_written_bytes: Some(1023.0),
            busy: Some(0.996),
        }
    }

    #[test]
    fn numbers_keep_their_columns() {
        for (number, shown) in
            [(0, "0"), (9999, "9999"), (10_000, "10k"), (12_345_678, "12M"), (12_345_678_901, "12G")]
        {
            assert_eq!(count(number), shown);
        }
        assert_eq!(
            [0.0, 0.04, 9.9, 9.96, 1234.5].map(|one| rate(Some(one))),
            ["0", "0.0", "9.9", "10", "1235"]
        );
        let times = [400, 12_300, 3_400_000, 999_000_000, 12_000_000_000];
        let shown = times.map(|nanoseconds| duration(Duration::from_nanos(nanoseconds)));
        assert_eq!(shown, ["0.4us", "12us", "3.4ms", "999ms", "12s"]);
    }

    #[test]
    fn tables_fit_80_columns_and_24_rows() {
        let branches: Vec<BranchRate> = (0..40)
            .map(|number| example(&format!("/mnt/a/long/path/to/disk{number}"), BranchState::ReadOnly))
            .collect();
        let operation = OperationRate {
            name: "copy_file_range_64".into(),
            answered: 123_456_789,
            slow: 1,
            per_second: Some(1.0),
            errors_per_second: None,
            times: None,
        };
        let lines = tables(&branches, &vec![operation; 30], Glyphs::Ascii, 80, 20);
        let shown: Vec<String> = lines.iter().map(text).collect();
        assert!(shown.iter().take(20).all(|line| width(line) <= 80), "{shown:#?}");
        assert_eq!(width(&shown[0]), 80);
        assert!(
            shown[1].starts_with("..") && shown[1].contains("/disk0 ") && shown[1].ends_with("read-only"),
            "{}",
            shown[1]
        );
        assert!(shown.iter().any(|line| line.starts_with("30 more")), "{shown:#?}");
        let operations = shown.iter().take(20).filter(|line| line.contains("range_64")).count();
        assert!(operations >= 5, "{shown:#?}");
        // All fit a higher terminal.
        let high = tables(&branches, &[], Glyphs::Ascii, 80, 80);
        assert!(high.iter().any(|line| text(line).contains("/disk39 ")));
    }

    #[test]
    fn a_wide_terminal_has_bars() {
        let gone = example("/mnt/disk1", BranchState::Gone);
        for (columns, bar) in [(80, None), (120, Some(12)), (200, Some(24))] {
            let lines = tables(std::slice::from_ref(&gone), &[], Glyphs::Ascii, columns, 20);
            for line in &lines[..2] {
                assert_eq!(width(&text(line)), columns, "{columns}: {}", text(line));
            }
            let Line(pieces) = &lines[1];
            let bars: Vec<_> = pieces.iter().filter(|(_, text)| text.starts_with("##")).collect();
            assert_eq!(bars.first().map(|(style, text)| (*style, text.len())), bar.map(|bar| (BAD, bar)));
            assert!(pieces.iter().all(|(style, _)| *style == BAD), "what is gone is red");
            assert_eq!(text(&lines[0]).contains("USED"), bar.is_some());
        }
    }

    #[test]
    fn the_history_fits() {
        let many: Vec<f64> = (0..500).map(f64::from).collect();
        for columns in [60, 80, 200] {
            let line = speeds(&many, Glyphs::Blocks, columns).map(|line| text(&line)).unwrap_or_default();
            assert!(width(&line) == columns && line.ends_with("most 499"), "{columns}: {line}");
        }
        assert!(speeds(&[1.0], Glyphs::Blocks, 80).is_none());
    }

    #[test]
    fn help_fits_a_screen() {
        let lines = help();
        assert!(lines.len() <= 24 && lines.iter().all(|line| width(&text(line)) <= 80));
    }

    #[test]
    fn a_title_ends_at_the_edge() {
        for path in ["/pool".to_owned(), "/very".repeat(40)] {
            let shown = text(&title(&OsText::Text(path), 80));
            assert!(width(&shown) == 80 && shown.ends_with(KEYS), "{shown}");
        }
    }
}
