//! Differences between two trees.

use std::fmt;

use super::{Entry, Tree};

/// The most lines that are printed.
const SHOWN: usize = 60;

/// The differences between two trees, by path.
#[derive(Debug, Default)]
pub struct Diff {
    pub lines: Vec<String>,
}

impl Diff {
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn between(expected: &Tree, actual: &Tree) -> Self {
        let mut lines = Vec::new();
        for (path, want) in &expected.entries {
            match actual.entries.get(path) {
                None => lines.push(format!("- {} ({:?})", show(path), want.kind)),
                Some(have) if have != want => {
                    lines.push(format!("~ {}: {}", show(path), fields(want, have).join(", ")));
                }
                Some(_) => {}
            }
        }
        for (path, have) in &actual.entries {
            if !expected.entries.contains_key(path) {
                lines.push(format!("+ {} ({:?})", show(path), have.kind));
            }
        }
        Self { lines }
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines.iter().take(SHOWN) {
            writeln!(f, "{line}")?;
        }
        if self.lines.len() > SHOWN {
            writeln!(f, "... and {} more", self.lines.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Describes each field that differs, as `name expected != actual`.
pub(super) fn fields(want: &Entry, have: &Entry) -> Vec<String> {
    let mut out = Vec::new();
    let mut field = |name: &str, want: String, have: String| {
        if want != have {
            out.push(format!("{name} {want} != {have}"));
        }
    };
    field("kind", format!("{:?}", want.kind), format!("{:?}", have.kind));
    field("mode", format!("{:04o}", want.mode), format!("{:04o}", have.mode));
    field("owner", format!("{}:{}", want.uid, want.gid), format!("{}:{}", have.uid, have.gid));
    field("size", want.size.to_string(), have.size.to_string());
    field("content", format!("{:x?}", want.hash), format!("{:x?}", have.hash));
    field("target", text(want.target.as_deref()), text(have.target.as_deref()));
    field("rdev", want.rdev.to_string(), have.rdev.to_string());
    field("mtime", format!("{:?}", want.mtime), format!("{:?}", have.mtime));
    field("nlink", want.nlink.to_string(), have.nlink.to_string());
    field("same file as", text(want.group.as_deref()), text(have.group.as_deref()));
    field("data", format!("{:?}", want.data), format!("{:?}", have.data));
    for name in want.xattrs.keys().chain(have.xattrs.keys().filter(|name| !want.xattrs.contains_key(*name))) {
        let value = |entry: &Entry| text(entry.xattrs.get(name).map(Vec::as_slice));
        field(&format!("xattr {}", show(name)), value(want), value(have));
    }
    out
}

fn text(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "none".to_owned(), show)
}

/// Formats bytes as readable text. Shortens long text in the middle.
fn show(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    if text.len() <= 160 {
        return if text.is_empty() { ".".to_owned() } else { text };
    }
    format!("{}...{} ({} bytes)", &text[..70], &text[text.len() - 70..], bytes.len())
}
