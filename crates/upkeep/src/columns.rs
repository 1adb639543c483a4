//! Text in columns.

/// Which side a column is aligned to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Formats rows in columns, two blanks apart. The last column may be of any width and is not padded.
pub(crate) fn columns(sides: &[Side], rows: &[Vec<String>]) -> String {
    let mut widths = vec![0; sides.len()];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, &width), side) in row.iter().zip(&widths).zip(sides) {
            let blanks = " ".repeat(width - cell.chars().count());
            match side {
                Side::Left => line.extend([cell, blanks.as_str(), "  "]),
                Side::Right => line.extend([blanks.as_str(), cell, "  "]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["é", "1", "x"], ["long", "12345", "a b"], ["", "3", ""]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        let text = columns(&[Side::Left, Side::Right, Side::Left], &rows);
        assert_eq!(text, "é         1  x\nlong  12345  a b\n          3\n");
    }
}
