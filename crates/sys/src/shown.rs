//! How a name is shown to people: in messages, in the output of commands, in the log.
//!
//! A name is any bytes. Shown as it is, it could end the line, control the terminal, turn the text around it ("fdp.exe" that
//! looks like "exe.pdf"), or look like another name.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A name that [`Display`](fmt::Display) writes on one line, with everything that misleads escaped.
#[derive(Clone, Copy)]
pub struct Shown<'a>(&'a [u8]);

/// What has a name to be shown. Clippy refuses `Path::display`, so that this is the only way to print a path.
pub trait Show {
    fn shown(&self) -> Shown<'_>;
}

impl Show for [u8] {
    fn shown(&self) -> Shown<'_> {
        Shown(self)
    }
}

impl Show for OsStr {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_bytes())
    }
}

impl Show for Path {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_os_str().as_bytes())
    }
}

impl Show for str {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_bytes())
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.width().is_none() && f.precision().is_none() {
            return self.write(f);
        }
        let mut text = String::new();
        self.write(&mut text)?;
        f.pad(&text)
    }
}

impl Shown<'_> {
    fn write(&self, f: &mut impl fmt::Write) -> fmt::Result {
        let mut before = ' ';
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() || misleads(before, c) {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    f.write_char(c)?;
                }
                before = c;
            }
            if !chunk.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
                before = char::REPLACEMENT_CHARACTER;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Returns the text with what misleads escaped, and line ends and escape sequences as they are: for a text that has lines and
/// styles of its own, as the last thing before it is printed.
pub fn legible(text: &str) -> std::borrow::Cow<'_, str> {
    if text.is_ascii() {
        return text.into();
    }
    let (mut shown, mut before) = (String::with_capacity(text.len()), ' ');
    for c in text.chars() {
        if misleads(before, c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        before = c;
    }
    shown.into()
}

/// Returns whether a character is not seen itself but changes how others are seen, or makes one name look like another.
/// These are Unicode's format characters (general category Cf), its line and paragraph separators, and letters without a
/// glyph. The two joiners belong to the spelling of many languages, and to emoji: they mislead only after ASCII.
pub fn misleads(before: char, c: char) -> bool {
    match c {
        '\u{200c}' | '\u{200d}' => before.is_ascii() || misleads(' ', before),
        // Soft hyphen, Arabic letter mark, Mongolian vowel separator.
        '\u{ad}' | '\u{61c}' | '\u{180e}' => true,
        // Zero-width space, marks of direction; separators, embeddings and overrides; joiners, isolates, and deprecated ones.
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        // Byte order mark, interlinear annotations, shorthand and musical formats, tags and what is reserved beside them.
        '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        // Hangul and Khmer letters without a glyph, grapheme joiner.
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{17b4}' | '\u{17b5}' => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_misleads_is_escaped() {
        let bidi =
            "\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\u{200e}\u{200f}\u{61c}";
        let hidden =
            "\u{ad}\u{200b}\u{2060}\u{feff}\u{2028}\u{2029}\u{e0041}\u{115f}\u{fff9}\u{206a}\u{180e}";
        for c in bidi.chars().chain(hidden.chars()).chain("\u{200c}\u{200d}".chars()) {
            let name = format!("a{c}b");
            let expected = format!("a\\u{{{:x}}}b", u32::from(c));
            assert_eq!(name.shown().to_string(), expected);
            assert_eq!(Path::new(&name).shown().to_string(), expected);
            assert_eq!(legible(&name), expected);
            assert_eq!(legible(&format!("\u{e9}{c}")).contains(c), matches!(c, '\u{200c}' | '\u{200d}'));
        }
        for (name, expected) in [
            ("a\nb\t\x1b[31m\x7f\u{9b}", "a\\nb\\t\\u{1b}[31m\\u{7f}\\u{9b}"),
            ("film (2020) [a]{b}\\'\"", "film (2020) [a]{b}\\'\""),
            ("\u{e9}\u{4e2d}\u{5e9}\u{5dc}\u{1f600}", "\u{e9}\u{4e2d}\u{5e9}\u{5dc}\u{1f600}"),
            // Persian, and a family.
            ("\u{645}\u{6cc}\u{200c}\u{62e}", "\u{645}\u{6cc}\u{200c}\u{62e}"),
            ("\u{1f468}\u{200d}\u{1f469}", "\u{1f468}\u{200d}\u{1f469}"),
            // One joiner after another is not seen.
            ("\u{645}\u{200c}\u{200c}", "\u{645}\u{200c}\\u{200c}"),
        ] {
            assert_eq!(name.shown().to_string(), expected);
        }
        assert_eq!(b"a\xffb\xe2\x80".as_slice().shown().to_string(), "a\u{fffd}b\u{fffd}");
        assert_eq!(format!("{:>5}|{:<5}|", "ab".shown(), "ab".shown()), "   ab|ab   |");
        assert_eq!(legible("a\n\x1b[1mb\u{202e}"), "a\n\x1b[1mb\\u{202e}");
    }
}
