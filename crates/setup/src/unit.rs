//! The syntax of systemd's units (systemd.syntax(7), systemd.service(5)): sections, assignments that backslashes continue
//! over lines with comments between them, and the words of commands.

use std::ops::Range;

/// `KEY=VALUE` in a section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    pub section: String,
    pub key: String,
    /// Continued lines are one, with a blank in the place of the backslash, and without comments.
    pub value: String,
    /// The lines that it takes, from 0, comments in between included.
    pub lines: Range<usize>,
}

/// Returns the assignments of a unit, in their order.
pub fn assignments(text: &str) -> Vec<Assignment> {
    let (mut found, mut section) = (Vec::new(), String::new());
    let mut pending: Option<(usize, String)> = None;
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        // Also between a line and the one that continues it.
        if line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        let (start, mut joined) = pending.take().unwrap_or((number, String::new()));
        joined.push_str(line);
        if continues(&joined) && number + 1 < lines.len() {
            joined.pop();
            joined.push(' ');
            pending = Some((start, joined));
            continue;
        }
        let line = joined.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            let [key, value] = [key, value].map(|text| text.trim().to_owned());
            found.push(Assignment { section: section.clone(), key, value, lines: start..number + 1 });
        }
    }
    found
}

/// Returns whether a line ends with a backslash that no other one quotes.
pub fn continues(line: &str) -> bool {
    line.trim_end_matches('\n').bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

/// A word of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Word {
    /// As it is written, with quotes and escapes.
    pub raw: String,
    /// Without them. Specifiers and variables stay as they are.
    pub value: String,
}

/// Splits a command into words; `None` if a quote is not closed. An unknown escape stays as it is, as in systemd.
pub fn words(text: &str) -> Option<Vec<Word>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (value, length) = word(rest)?;
        found.push(Word { raw: rest[..length].to_owned(), value });
        rest = rest[length..].trim_start();
    }
    Some(found)
}

/// Reads one word. Returns its value and how long it is as it is written.
fn word(text: &str) -> Option<(String, usize)> {
    let (mut value, mut quote) = (String::new(), None);
    let mut rest = text.chars();
    loop {
        let before = rest.as_str();
        match (rest.next(), quote) {
            (None, Some(_)) => return None,
            (None, None) => return Some((value, text.len())),
            (Some(found), None) if found.is_whitespace() => return Some((value, text.len() - before.len())),
            (Some(found @ ('"' | '\'')), None) => quote = Some(found),
            (Some(found), Some(open)) if found == open => quote = None,
            (Some('\\'), _) => {
                let (length, meaning) = escape(rest.as_str());
                match meaning {
                    Some(meaning) => value.push(meaning),
                    None => value.push_str(&before[..=length]),
                }
                rest = rest.as_str()[length..].chars();
            }
            (Some(found), _) => value.push(found),
        }
    }
}

/// Returns the length and the meaning of what follows a backslash; no meaning if it is unknown.
fn escape(text: &str) -> (usize, Option<char>) {
    let Some(first) = text.chars().next() else { return (0, None) };
    let number = |from: usize, digits: usize, radix: u32| {
        let written = text.get(from..from + digits)?;
        let is_number = written.chars().all(|digit| digit.is_digit(radix));
        char::from_u32(u32::from_str_radix(written, radix).ok().filter(|&code| is_number && code != 0)?)
    };
    let counted = |from: usize, digits: usize, radix: u32| match number(from, digits, radix) {
        Some(meaning) => (from + digits, Some(meaning)),
        None => (first.len_utf8(), None),
    };
    let meaning = match first {
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        's' => ' ',
        '\\' | '"' | '\'' => first,
        'x' => return counted(1, 2, 16),
        'u' => return counted(1, 4, 16),
        'U' => return counted(1, 8, 16),
        '0'..='7' => return counted(0, 3, 8),
        _ if first.is_whitespace() => first,
        _ => return (first.len_utf8(), None),
    };
    (first.len_utf8(), Some(meaning))
}

/// Writes a word so that [`words`] reads it back.
pub fn quote(value: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '\'' | '\\');
    if !value.is_empty() && value != ";" && value.chars().all(plain) {
        return value.to_owned();
    }
    let mut quoted = String::from("\"");
    for character in value.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            _ if character.is_ascii_control() => {
                quoted.push_str(&format!("\\x{:02x}", u32::from(character)));
            }
            _ => quoted.push(character),
        }
    }
    quoted + "\""
}

/// Returns whether a text has a variable that systemd replaces: `$NAME` or `${NAME}`, but not `$$`.
pub fn has_variable(text: &str) -> bool {
    text.replace("$$", "").contains('$')
}

/// Returns the name of the unit for a path, such as `mnt-my\x20disk.mount` (systemd-escape(1)).
pub fn mount_unit(path: &str) -> String {
    let path = path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    let mut name = String::new();
    for (index, byte) in path.bytes().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if index == 0 => name.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => name.push(char::from(byte)),
            _ => name.push_str(&format!("\\x{byte:02x}")),
        }
    }
    if name.is_empty() { "-.mount".into() } else { name + ".mount" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of systemd.syntax(7), as systemd 252 follows them.
    #[test]
    fn lines_are_joined_and_comments_are_not_part_of_them() {
        let text = "# a comment\n[Unit]\nDescription = a pool \n\n[Service]\nExecStart=/bin/a \\\n# not this\n; nor this\n  b \\\n\n\
                    Environment=x\\\\\nExecStop=\nKey=a=b\n[Install]\nLast=end\\";
        let found: Vec<_> = assignments(text)
            .into_iter()
            .map(|one| (one.section, one.key, one.value, (one.lines.start, one.lines.end)))
            .collect();
        let expected = [
            ("Unit", "Description", "a pool", (2, 3)),
            ("Service", "ExecStart", "/bin/a    b", (5, 10)),
            ("Service", "Environment", "x\\\\", (10, 11)),
            ("Service", "ExecStop", "", (11, 12)),
            ("Service", "Key", "a=b", (12, 13)),
            ("Install", "Last", "end\\", (14, 15)),
        ];
        let expected: Vec<_> = expected
            .map(|(section, key, value, lines)| (section.into(), key.into(), value.into(), lines))
            .into();
        assert_eq!(found, expected);
    }

    #[test]
    fn words_are_read_as_systemd_reads_them() {
        let table: [(&str, Option<&[&str]>); 17] = [
            ("a  b\tc", Some(&["a", "b", "c"])),
            (r#""a b" 'c d'"#, Some(&["a b", "c d"])),
            (r#"a"b c"d"#, Some(&["ab cd"])),
            (r#""it's" '"'"#, Some(&["it's", "\""])),
            (r#""a\"b" 'c\'d'"#, Some(&["a\"b", "c'd"])),
            (r"a\ b", Some(&["a b"])),
            (r"\x41\101\u00e9\s\t", Some(&["AA\u{e9} \t"])),
            (r"\x4 \9 \q", Some(&[r"\x4", r"\9", r"\q"])),
            (r"'\\' \\", Some(&["\\", "\\"])),
            (r#""""#, Some(&[""])),
            ("", Some(&[])),
            (r#""open"#, None),
            ("'open", None),
            ("%%a %i ${OPTS} $$", Some(&["%%a", "%i", "${OPTS}", "$$"])),
            (r#"-o "a=b,c=d" "/mnt/disk 1""#, Some(&["-o", "a=b,c=d", "/mnt/disk 1"])),
            (r"\x00 \U0001f4bf", Some(&[r"\x00", "\u{1f4bf}"])),
            ("\u{e9}\\\u{e9}", Some(&["\u{e9}\\\u{e9}"])),
        ];
        for (text, expected) in table {
            let found = words(text).map(|words| words.into_iter().map(|one| one.value).collect::<Vec<_>>());
            assert_eq!(
                found,
                expected.map(|words| words.iter().map(|&word| word.to_owned()).collect()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_quoted_is_read_back() {
        for value in ["a", "", ";", "a b", "it's", "\"", "\\", "a\nb\x07", "%i", "${X}", "\u{e9} \u{e9}"] {
            let read = words(&quote(value)).expect("words");
            assert_eq!(read.iter().map(|one| one.value.as_str()).collect::<Vec<_>>(), [value]);
        }
        assert_eq!(quote("a=b,c=/d"), "a=b,c=/d");
    }

    #[test]
    fn variables_and_paths() {
        for (text, expected) in [("$X", true), ("a${X}b", true), ("$$X", false), ("a", false), ("$$$X", true)]
        {
            assert_eq!(has_variable(text), expected, "{text}");
        }
        for (path, unit) in [
            ("/mnt/disk1", "mnt-disk1.mount"),
            ("/mnt/my disk/", "mnt-my\\x20disk.mount"),
            ("/a-b/.c", "a\\x2db-.c.mount"),
            ("/.a", "\\x2ea.mount"),
            ("/", "-.mount"),
        ] {
            assert_eq!(mount_unit(path), unit);
        }
    }
}
