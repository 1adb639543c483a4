//! The figures as text and as JSON.

use crate::error::{Error, ErrorContext};
use crate::statistics::{RequestsEach, RowFigures, SideFigures, Spread, TableFigures, Unit, Verdict};
use crate::testbed::Testbed;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// One run: the machine, the options, and the results.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    canopy: &'static str,
    kernel: String,
    processors: usize,
    /// The filesystem of the branches.
    beneath: String,
    options: String,
    rounds: usize,
    quick: bool,
    /// The load average over one minute, before and after. Well above 1 means that the machine was busy.
    load: [f64; 2],
    pub tables: Vec<TableFigures>,
}

impl Report {
    pub(crate) fn begin(testbed: &Testbed, options: &str, rounds: usize, quick: bool) -> Report {
        let report = Report {
            canopy: env!("CARGO_PKG_VERSION"),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            beneath: testbed.branch_fstype(),
            options: options.to_owned(),
            rounds,
            quick,
            load: [load(), 0.0],
            tables: Vec::new(),
        };
        print_text(&report.head());
        report
    }

    pub(crate) fn add(&mut self, table: TableFigures) {
        self.tables.push(table);
    }

    pub(crate) fn end(&mut self) {
        self.load[1] = load();
    }

    /// Describes the run in one line.
    pub(crate) fn head(&self) -> String {
        let with = if self.options.is_empty() { String::new() } else { format!(" with -o {}", self.options) };
        let quick = if self.quick { ", QUICK: figures mean little" } else { "" };
        format!(
            "canopy {}{with} on {}, Linux {}, {} processors, median of {} rounds (lowest - highest){quick}\n",
            self.canopy, self.beneath, self.kernel, self.processors, self.rounds
        )
    }

    pub(crate) fn json(&self) -> String {
        // Only numbers, strings and lists, so this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// A file that appears once it is complete. Errors show before it is written.
pub(crate) struct OutputFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl OutputFile {
    pub(crate) fn new(path: &Path) -> Result<OutputFile, Error> {
        let unusable = |why: String| Error::Unusable { path: path.to_owned(), why };
        if fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file()) {
            // The rename would replace it.
            return Err(unusable("it exists and is not a regular file".into()));
        }
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let permissions = Permissions::from_mode(0o644);
        let file = tempfile::Builder::new().permissions(permissions).tempfile_in(parent);
        Ok(OutputFile { file: file.map_err(|why| unusable(why.to_string()))?, path: path.to_owned() })
    }

    pub(crate) fn write(mut self, text: &str) -> Result<(), Error> {
        self.file.write_all(text.as_bytes()).context("write", &self.path)?;
        self.file.persist(&self.path).map(|_| ()).map_err(|error| error.error).context("write", &self.path)
    }
}

pub(crate) fn print(table: &TableFigures) {
    print_text(&text(table));
}

/// Prints how many goals were reached.
pub(crate) fn print_verdicts(report: &Report) {
    let cells = report.tables.iter().flat_map(|table| &table.rows).flat_map(|row| &row.sides);
    let verdicts: Vec<Verdict> = cells.filter_map(|cell| Some(cell.goal.as_ref()?.verdict)).collect();
    if verdicts.is_empty() {
        return;
    }
    let count = |wanted| verdicts.iter().filter(|&&verdict| verdict == wanted).count();
    print_text(&format!(
        "\nOf {} goals, {} are reached, {} are missed by the floor too, {} by the floor and the branch together, {} are not reached. Load: {:.1} before, {:.1} after.\n",
        verdicts.len(),
        count(Verdict::Reached),
        count(Verdict::Floor),
        count(Verdict::FloorAndBranch),
        count(Verdict::NotReached),
        report.load[0],
        report.load[1],
    ));
}

fn print_text(text: &str) {
    // The reader may have closed the pipe, as `head` does.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn text(table: &TableFigures) -> String {
    let mut text = format!("\n{}: {}\n", table.table, table.title);
    let width = table.rows.iter().map(|row| row.work.chars().count()).max().unwrap_or(0);
    let side = table.rows.iter().flat_map(|row| &row.sides).map(|cell| cell.side.len()).max().unwrap_or(0);
    let counted = table.rows.iter().flat_map(|row| &row.sides).any(|cell| cell.requests.is_some());
    let requests = |words: &str| if counted { format!("{words:>9}  ") } else { String::new() };
    let head = ["work", "side", "figure", "ratio", "lowest - highest", "x floor", "x both"];
    line(&mut text, [width, side], head, &(requests("requests") + "goal"));
    for row in &table.rows {
        for (index, cell) in row.sides.iter().enumerate() {
            let (ratio, spread) = match index {
                0 => (String::new(), String::new()),
                _ => (three_digits(cell.ratio.median), range(cell.ratio)),
            };
            let median =
                |spread: Option<Spread>| spread.map(|spread| three_digits(spread.median)).unwrap_or_default();
            let (floor, both) = (median(cell.by_floor), median(cell.by_both));
            let work = if index == 0 { row.work.as_str() } else { "" };
            let figure = figure(row.unit, cell.figure.median);
            let goal = goal(row, cell);
            let last = requests(&cell.requests.as_ref().map(request_count).unwrap_or_default()) + &goal;
            let words = [work, &cell.side, &figure, &ratio, &spread, &floor, &both];
            line(&mut text, [width, side], words, &last);
        }
    }
    for note in &table.notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn line(text: &mut String, [work, side]: [usize; 2], words: [&str; 7], last: &str) {
    let [a, b, figure, ratio, spread, floor, both] = words;
    let line = format!(
        "{a:<work$}  {b:<side$}  {figure:>10}  {ratio:>7}  {spread:>16}  {floor:>7}  {both:>6}  {last}"
    );
    let _ = writeln!(text, "{}", line.trim_end());
}

fn goal(row: &RowFigures, cell: &SideFigures) -> String {
    let Some(goal) = &cell.goal else { return String::new() };
    let sign = if row.unit == Unit::Rate { ">=" } else { "<=" };
    let limit = match goal {
        _ if goal.of == row.sides[0].side => goal.limit.to_string(),
        _ if goal.limit == 1.0 => goal.of.clone(),
        _ => format!("{} x {}", goal.limit, goal.of),
    };
    let verdict = match goal.verdict {
        Verdict::Reached => "reached",
        Verdict::Floor => "the floor",
        Verdict::FloorAndBranch => "the floor and the branch",
        Verdict::NotReached => "not reached",
    };
    format!("{sign} {limit}: {verdict}")
}

/// Formats a ratio with three digits.
pub(crate) fn three_digits(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 99.5 => format!("{ratio:.0}"),
        ratio if ratio >= 9.95 => format!("{ratio:.1}"),
        ratio => format!("{ratio:.2}"),
    }
}

/// Formats requests for an operation. A measurement may send a few of its own, such as an open.
fn request_count(each: &RequestsEach) -> String {
    let requests: f64 = each.values().sum();
    if requests < 100.0 { format!("{requests:.1}") } else { format!("{requests:.0}") }
}

fn range(spread: Spread) -> String {
    format!("{} - {}", three_digits(spread.lowest), three_digits(spread.highest))
}

fn figure(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Time if value >= 1e9 => format!("{} s", three_digits(value / 1e9)),
        Unit::Time if value >= 1e6 => format!("{} ms", three_digits(value / 1e6)),
        Unit::Time if value >= 1e3 => format!("{} us", three_digits(value / 1e3)),
        Unit::Time => format!("{value:.0} ns"),
        Unit::Rate if value >= 1e9 => format!("{} GB/s", three_digits(value / 1e9)),
        Unit::Rate => format!("{} MB/s", three_digits(value / 1e6)),
        Unit::Size => format!("{value:.0} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Goal, SideRounds, evaluate};

    #[test]
    fn a_row_shows_figure_ratios_and_verdict() {
        let side = |side: &str, figure: f64| SideRounds {
            side: side.into(),
            floor: side == "floor",
            figures: vec![figure],
            requests: None,
        };
        let mut sides = [side("branch", 300.0), side("pool", 12_000.0), side("floor", 11_500.0)];
        let goal = |of: &[usize], plus, limit| Goal { side: 1, of: of.to_vec(), plus, limit };
        let evaluate = |sides: &[SideRounds], goal| {
            let rows = vec![evaluate("stat", Unit::Time, sides, &[goal])];
            TableFigures { table: "goals", title: "T".into(), notes: vec!["N".into()], rows }
        };
        let text = super::text(&evaluate(&sides, goal(&[2], 0.0, 1.15)));
        let pool = text.lines().find(|line| line.contains("pool")).unwrap();
        let words: Vec<&str> = pool.split_whitespace().collect();
        let expected = [
            "pool", "12.0", "us", "40.0", "40.0", "-", "40.0", "1.04", "1.02", "<=", "1.15", "x", "floor:",
            "reached",
        ];
        assert_eq!(words, expected);
        assert!(text.contains("300 ns") && text.ends_with("\nN\n") && !text.contains("requests"), "{text}");

        sides[1].requests = Some([("OPEN", 0.002), ("LOOKUP", 2.0)].into());
        let text = super::text(&evaluate(&sides, goal(&[0, 2], 3000.0, 1.0)));
        let pool = text.lines().find(|line| line.contains("pool")).unwrap();
        assert!(pool.contains(" 2.0  <= branch + floor + 3 us: reached"), "{text}");
        assert!(text.lines().any(|line| line.ends_with("requests  goal")), "{text}");
    }

    #[test]
    fn long_times_are_in_seconds() {
        assert_eq!(figure(Unit::Time, 2.4e9), "2.40 s");
        assert_eq!(figure(Unit::Time, 185e6), "185 ms");
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(OutputFile::new(&link).is_err() && OutputFile::new(&dir.path().join("no/file")).is_err());
        let path = dir.path().join("file");
        OutputFile::new(&path).unwrap().write("text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        drop(OutputFile::new(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}
