//! A message as mail (RFC 5322).

use crate::message::Message;
use std::fmt::Write as _;

/// The longest line of a mail, in bytes: 998 may be (RFC 5322, 2.1.1).
const LONGEST_LINE: usize = 900;
/// The most bytes of an encoded word: 75 characters with its frame (RFC 2047, 2), a byte taking three.
const WORD: usize = 18;

/// Returns the mail with its header. Without `from`, the program that sends it fills that in.
pub(crate) fn text(message: &Message, from: Option<&str>, to: &str) -> String {
    let mut text = String::new();
    if let Some(from) = from {
        let _ = writeln!(text, "From: Canopy <{from}>");
    }
    let _ = writeln!(text, "To: {to}");
    let _ = writeln!(text, "Subject: {}", subject(&message.title()));
    text.push_str("MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n");
    // No program is to answer it (RFC 3834).
    text.push_str("Content-Transfer-Encoding: 8bit\nAuto-Submitted: auto-generated\n\n");
    for line in message.body().lines() {
        let mut rest = line;
        while rest.len() > LONGEST_LINE {
            let end = (0..=LONGEST_LINE).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
            let _ = writeln!(text, "{}", &rest[..end]);
            rest = &rest[end..];
        }
        let _ = writeln!(text, "{rest}");
    }
    text
}

/// Returns a title as the header has it: encoded in words of UTF-8 unless it is short and plain.
fn subject(title: &str) -> String {
    let plain = title.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && !title.contains("=?");
    if plain && title.len() < LONGEST_LINE {
        return title.to_owned();
    }
    let mut words: Vec<String> = Vec::new();
    let mut bytes = 0;
    for c in title.chars() {
        if words.is_empty() || bytes + c.len_utf8() > WORD {
            words.push(String::new());
            bytes = 0;
        }
        bytes += c.len_utf8();
        let word = words.last_mut().expect("one was pushed");
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            let _ = write!(word, "={byte:02X}");
        }
    }
    let words: Vec<String> = words.into_iter().map(|word| format!("=?utf-8?Q?{word}?=")).collect();
    words.join("\n ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_plain_or_encoded() {
        assert_eq!(subject("host: problem: /mnt/a is gone"), "host: problem: /mnt/a is gone");
        assert_eq!(subject("ä"), "=?utf-8?Q?=C3=A4?=");
        let long = subject(&"ä".repeat(20));
        assert!(long.lines().all(|line| line.len() <= 76), "{long}");
        assert_eq!(long.matches("=C3=A4").count(), 20);
    }
}
