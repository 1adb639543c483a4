//! The figures as SVG: a bar for each side's ratio to the first side, on a logarithmic scale.

use crate::report::{Report, three_digits};
use crate::statistics::{RowFigures, SideFigures, TableFigures, Unit};
use std::fmt::Write as _;

const WIDTH: f64 = 980.0;
/// The left end of the bars, and the length of the longest.
const LEFT: f64 = 390.0;
const LENGTH: f64 = 470.0;
const BAR: f64 = 13.0;
const GAP: f64 = 8.0;
const HEAD: f64 = 46.0;
/// The ratios at both ends of the scale. Values beyond are drawn at the end.
const SCALE: (f64, f64) = (0.1, 100.0);
const COLOURS: [&str; 5] = ["#2f6f9f", "#c8792b", "#5b8f4e", "#9a4f7d", "#b3a136"];
const FLOOR: &str = "#a0a0a0";

/// Returns the x coordinate of a ratio.
fn at(ratio: f64) -> f64 {
    let (low, high) = (SCALE.0.log10(), SCALE.1.log10());
    LEFT + LENGTH * ((ratio.max(1e-9).log10() - low) / (high - low)).clamp(0.0, 1.0)
}

pub(crate) fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = 30.0;
    text(&mut body, 12.0, y, "start", 13, report.head().trim_end());
    for table in &report.tables {
        y += 20.0;
        draw_table(&mut body, &mut y, table);
    }
    y += 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} {y}\" \
         font-family=\"sans-serif\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn draw_table(out: &mut String, y: &mut f64, table: &TableFigures) {
    *y += 10.0;
    let goals = table.rows.iter().flat_map(|row| &row.sides).any(|cell| cell.goal.is_some());
    let marked = if goals { " (red: the goal)" } else { "" };
    text(out, 12.0, *y, "start", 15, &format!("{}: {}{marked}", table.table, table.title));
    let top = *y + HEAD - 8.0;
    let mut scale = SCALE.0;
    let whole: f64 = table.rows.iter().map(height).sum();
    while scale <= SCALE.1 * 1.01 {
        let x = at(scale);
        let (stroke, bottom) = (if scale == 1.0 { "#444" } else { "#ddd" }, top + whole);
        let _ = writeln!(out, "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"{stroke}\"/>");
        text(out, x, top - 6.0, "middle", 11, &three_digits(scale));
        scale = if scale == 0.1 { 1.0 } else { scale * 10.0 };
    }
    *y = top;
    for row in &table.rows {
        draw_row(out, *y, row);
        *y += height(row);
    }
}

fn height(row: &RowFigures) -> f64 {
    bars(row).count() as f64 * BAR + GAP
}

/// Returns the sides that have a bar: all but the first, which the ratios are relative to.
fn bars(row: &RowFigures) -> impl Iterator<Item = &SideFigures> {
    row.sides.iter().skip(1)
}

fn draw_row(out: &mut String, y: f64, row: &RowFigures) {
    let better = match row.unit {
        Unit::Time => "times the time",
        Unit::Rate => "of the rate",
        Unit::Size => "times the bytes",
    };
    text(out, 12.0, y + GAP + BAR * 0.8, "start", 11, &row.work);
    for (index, cell) in bars(row).enumerate() {
        let top = y + GAP + index as f64 * BAR;
        let colour = if cell.floor { FLOOR } else { COLOURS[index % COLOURS.len()] };
        text(out, LEFT - 6.0, top + BAR * 0.75, "end", 10, &cell.side);
        let (from, to) = (at(1.0).min(at(cell.ratio.median)), at(1.0).max(at(cell.ratio.median)));
        let (length, thick) = ((to - from).max(1.0), BAR - 3.0);
        let _ = writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{thick}\" fill=\"{colour}\"/>"
        );
        let middle = top + thick / 2.0;
        let (low, high) = (at(cell.ratio.lowest), at(cell.ratio.highest));
        let _ = writeln!(out, "<path d=\"M{low:.1} {middle:.1}H{high:.1}\" stroke=\"#000\"/>");
        if let Some(goal) = &cell.goal {
            // Converted to a ratio to the first side.
            let (x, bottom) = (at(goal.limit * cell.ratio.median / goal.ratio), top + thick);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#d22\" stroke-width=\"2.5\"/>"
            );
        }
        let label = format!("{} {better}", three_digits(cell.ratio.median));
        text(out, to.max(high) + 5.0, top + BAR * 0.75, "start", 10, &label);
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_logarithmic_and_clamped() {
        assert_eq!(at(SCALE.0), LEFT);
        assert_eq!(at(SCALE.1), LEFT + LENGTH);
        assert_eq!((at(0.0), at(1e9)), (LEFT, LEFT + LENGTH));
        assert!((at(10.0) - at(1.0) - (at(1.0) - at(0.1))).abs() < 1e-6);
    }

    #[test]
    fn text_is_escaped() {
        let mut out = String::new();
        text(&mut out, 0.0, 0.0, "start", 10, "a<b & c>");
        assert!(out.contains("a&lt;b &amp; c&gt;"), "{out}");
    }
}
