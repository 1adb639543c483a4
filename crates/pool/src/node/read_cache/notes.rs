//! What is written down for the next process: of each file a line with its id, the times of its reads, `+` if it was added, and
//! its path. Whoever does not understand a line leaves it out.

use canopy_branch::cached::FileId;
use canopy_policy::read_cache::Reads;
use std::fmt::Write as _;

/// What is noted of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) reads: Reads,
    pub(crate) added: bool,
    pub(crate) path: Box<[u8]>,
}

/// Appends the line of a file.
pub(super) fn write(text: &mut String, id: &FileId, reads: &Reads, added: bool, path: &[u8]) {
    let _ = write!(text, "{:x} {:x} {:x} {:x}", id.branch, id.ino, id.birth.0, id.birth.1);
    for time in reads.as_slice() {
        let _ = write!(text, " {time}");
    }
    text.push_str(if added { " +" } else { "" });
    if !path.is_empty() {
        text.push_str(" /");
        for &byte in path {
            let plain = byte.is_ascii_graphic() && byte != b'%';
            let _ = if plain { write!(text, "{}", byte as char) } else { write!(text, "%{byte:02x}") };
        }
    }
    text.push('\n');
}

/// Returns what a text says; what is no such line is left out.
pub(crate) fn parse(text: &str) -> Vec<(FileId, Noted)> {
    let one = |line: &str| {
        let mut words = line.split(' ');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let (branch, ino, sec, nsec) = (number()?, number()?, number()?, number()?);
        let id = FileId { branch, ino, birth: (sec.cast_signed(), u32::try_from(nsec).ok()?) };
        let (mut times, mut noted) = (Vec::new(), Noted::default());
        for word in words {
            match word.strip_prefix('/') {
                Some(path) => noted.path = unescaped(path)?.into(),
                None if word == "+" => noted.added = true,
                None => times.push(word.parse().ok()?),
            }
        }
        noted.reads = times.into_iter().collect();
        Some((id, noted))
    };
    text.lines().filter_map(one).collect()
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut found) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        found.push(match byte {
            b'%' => u8::try_from(digit(bytes.next())? * 16 + digit(bytes.next())?).ok()?,
            byte => byte,
        });
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_understood_again() {
        let id = FileId { branch: u64::MAX, ino: 5, birth: (-1, 9) };
        let reads: Reads = [100, 200].into_iter().collect();
        for (added, path) in [(false, &b""[..]), (true, b"films/a b%\n\xff.mkv"), (false, b"+")] {
            let mut text = String::new();
            write(&mut text, &id, &reads, added, path);
            assert_eq!(text.lines().count(), 1, "{text}");
            assert_eq!(parse(&text), [(id, Noted { reads: reads.clone(), added, path: path.into() })]);
        }
        assert!(parse("x 1 2 3 4\n1 2 3\n1 2 3 4 x\n1 2 3 4 5 /%0\n").is_empty());
    }
}
