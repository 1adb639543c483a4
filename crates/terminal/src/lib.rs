//! Output for people: at most 80 columns, colours only on a terminal that supports them. And when a command that stays is to end.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod ends;

use anstyle::{AnsiColor, Style};
pub use canopy_base::text::bytes;
use canopy_config::program_name;
use canopy_sys::shown::{legible, misleads};
use comfy_table::{ContentArrangement, Table, presets};
pub use ends::ends;
use std::io::{IsTerminal as _, Write};
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// The width of a line.
pub const WIDTH: usize = 80;

pub const BOLD: Style = Style::new().bold();
pub const WARNING: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default();

/// Returns the text with the escape sequences of a style. [`print_styled`] drops them if styles are off.
pub fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Returns how many columns a text takes.
pub fn width(text: &str) -> usize {
    textwrap::core::display_width(text)
}

/// Returns the beginning of a text without escape sequences, as much as fits the columns.
pub fn fitted(text: &str, columns: usize) -> String {
    let mut left = columns;
    let fits = |c: &char| {
        let wide = width(c.encode_utf8(&mut [0; 4]));
        let fits = wide <= left;
        left -= if fits { wide } else { left };
        fits
    };
    text.chars().take_while(fits).collect()
}

/// Writes to stdout, with what misleads escaped ([`legible`]). A closed pipe, as with `head`, is not an error.
pub fn print(text: &str) {
    write_all(legible(text).as_bytes());
}

/// Writes to stdout what programs read, and people at a terminal: bytes as they are, or legible.
pub fn print_exactly(bytes: &[u8]) {
    if std::io::stdout().is_terminal() { print(&String::from_utf8_lossy(bytes)) } else { write_all(bytes) }
}

fn write_all(bytes: &[u8]) {
    let mut stdout = std::io::stdout();
    // A question has no end of line, and is to be seen.
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

/// Writes to stdout, with styles only on a terminal that supports them (`NO_COLOR`, `TERM=dumb`).
pub fn print_styled(text: &str) {
    let _ = anstream::stdout().write_all(legible(text).as_bytes());
}

/// Writes a line to stderr, prefixed with the name that the program was called by.
pub fn eprint_line(line: &str) {
    eprintln!("{}: {}", program_name::current().as_str(), legible(line));
}

/// How much a line of a program matters that runs in the background.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    Error,
    Warning,
    Notice,
}

/// Writes a line to stderr, which the journal takes with its priority (sd-daemon(3)).
pub fn journal_line(priority: Priority, line: &str) {
    let mark = match priority {
        Priority::Error => "<3>",
        Priority::Warning => "<4>",
        Priority::Notice => "<6>",
    };
    let for_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    eprint_line(&format!("{}{line}", if for_journal { mark } else { "" }));
}

/// Prints a value as indented JSON. Maps in it must have string keys.
pub fn print_json(value: &impl serde::Serialize) {
    print(&format!("{}\n", json_text(&serde_json::to_string_pretty(value).unwrap_or_default())));
}

/// Returns JSON with the escapes of JSON for what misleads and for control characters: only strings have them, and they
/// keep their value.
pub fn json_text(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let mut before = ' ';
    for c in json.chars() {
        if misleads(before, c) || (c.is_control() && !c.is_ascii_whitespace()) {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        } else {
            text.push(c);
        }
        before = c;
    }
    text
}

/// Formats a table without borders, at most [`WIDTH`] wide. Long cells are wrapped. Columns in `to_the_right` are aligned
/// to the right.
pub fn table(header: &[&str], rows: Vec<Vec<String>>, indent: usize, to_the_right: &[usize]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width((WIDTH - indent) as u16);
    table.set_header(header.to_vec());
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if to_the_right.contains(&index) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    let blank = " ".repeat(indent);
    table.lines().map(|line| format!("{blank}{}\n", line.trim_end())).collect()
}

/// Wraps a paragraph at blanks, and inside words that are longer than a line. The first line starts with `first`, the
/// others with as many blanks.
pub fn paragraph(first: &str, text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let blank = " ".repeat(textwrap::core::display_width(first));
    // Paths are not broken at hyphens.
    let options = Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(&blank)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::fill(&words.join(" "), options) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_fit_the_width() {
        let text = "word ".repeat(60);
        let wrapped = paragraph("  fix: ", &text);
        assert!(wrapped.lines().all(|line| line.len() <= WIDTH), "{wrapped}");
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with("       word")), "{wrapped}");
        assert!(wrapped.starts_with("  fix: word"));
        assert_eq!(wrapped.split_whitespace().count(), 61);
        assert_eq!(paragraph("a ", ""), "a \n");
        assert_eq!(paragraph("a ", &styled(BAD, "b")), "a \x1b[31mb\x1b[0m\n");
        let long = paragraph("- ", &"/path".repeat(40));
        assert!(long.lines().count() == 3 && long.lines().all(|line| line.len() <= WIDTH), "{long}");
    }

    #[test]
    fn json_keeps_names_and_misleads_nobody() {
        let name = "a\u{202e}4pm\u{e0041}\u{9b}\u{85}\n\"\u{e9}.exe";
        let json = serde_json::to_string_pretty(&[name]).unwrap();
        let text = json_text(&json);
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [name]);
        assert_eq!(text, "[\n  \"a\\u202e4pm\\udb40\\udc41\\u009b\\u0085\\n\\\"\u{e9}.exe\"\n]");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        for (text, columns, expected) in [
            ("abc", 5, "abc"),
            ("abc", 2, "ab"),
            ("\u{4e2d}\u{6587}", 3, "\u{4e2d}"),
            ("e\u{301}x", 1, "e\u{301}"),
            ("a", 0, ""),
        ] {
            assert_eq!(fitted(text, columns), expected, "{text} in {columns}");
        }
    }

    #[test]
    fn tables_fit_the_width() {
        let long = "/a/very/long/path/that/has/no/blank/to/be/broken/at/and/goes/on/for/more/than/a/line";
        let text = table(&["BRANCH", "FREE"], vec![vec![long.into(), "1.0G".into()]], 2, &[1]);
        assert!(text.lines().all(|line| line.len() <= WIDTH && !line.ends_with(' ')), "{text}");
        assert!(text.lines().count() > 2 && text.contains("1.0G"), "{text}");
    }
}
