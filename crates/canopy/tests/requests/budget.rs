//! The table in docs/requests.md.

use std::fs;
use std::path::Path;

/// A row of the table.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) work: String,
    /// Requests per file and directory, or per whatever the row says.
    pub(super) owner: f64,
    pub(super) other: f64,
}

/// Reads the table below the heading `## The budget`.
pub(super) fn read() -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/requests.md");
    let text = fs::read_to_string(&path).unwrap();
    let (_, section) = text.split_once("## The budget").expect("a heading");
    let rows = section.lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
    let lines: Vec<Line> = rows.take_while(|line| line.starts_with('|')).map(parse).collect();
    assert!(lines.len() > 10, "{} rows", lines.len());
    lines
}

fn parse(row: &str) -> Line {
    let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
    let number =
        |index: usize| cells[index].parse().unwrap_or_else(|_| panic!("{:?} in {row}", cells[index]));
    Line { work: cells[0].trim_matches('`').to_owned(), owner: number(2), other: number(3) }
}
