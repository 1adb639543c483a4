//! What a request says: its query and its form, in bytes, because names of files are bytes.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// What stays as it is in a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

/// The fields of a query or a form.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fields(Vec<(Vec<u8>, Vec<u8>)>);

impl Fields {
    pub fn parse(text: &[u8]) -> Fields {
        let decoded = |bytes: &[u8]| {
            let bytes: Vec<u8> = bytes.iter().map(|&b| if b == b'+' { b' ' } else { b }).collect();
            percent_decode(&bytes).collect::<Vec<u8>>()
        };
        let pairs = text.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
            let mut halves = pair.splitn(2, |&byte| byte == b'=');
            (decoded(halves.next().unwrap_or_default()), decoded(halves.next().unwrap_or_default()))
        });
        Fields(pairs.collect())
    }

    pub fn of(fields: impl IntoIterator<Item = (String, String)>) -> Fields {
        Fields(fields.into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect())
    }

    /// Returns the first value of this name; empty if there is none.
    pub fn bytes(&self, name: &str) -> &[u8] {
        let found = self.0.iter().find(|(field, _)| field == name.as_bytes());
        found.map_or(b"", |(_, value)| value)
    }

    /// Returns all values of this name.
    pub fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f [u8]> {
        self.0.iter().filter(move |(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice())
    }

    /// Returns these fields, and others behind them.
    #[must_use]
    pub fn and(&self, others: &Fields) -> Fields {
        Fields(self.0.iter().chain(&others.0).cloned().collect())
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(field, _)| field == name.as_bytes())
    }

    /// Returns a value as text; empty if it is none.
    pub fn text(&self, name: &str) -> &str {
        std::str::from_utf8(self.bytes(name)).unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        std::ffi::OsString::from_vec(self.bytes(name).to_vec()).into()
    }
}

/// Returns a link to a page with these fields.
pub fn link(page: &str, fields: &[(&str, &OsStr)]) -> String {
    let mut text = page.to_owned();
    for (index, (name, value)) in fields.iter().enumerate() {
        text.push(if index == 0 { '?' } else { '&' });
        text.push_str(name);
        text.push('=');
        text.extend(percent_encode(value.as_bytes(), ESCAPED));
    }
    text
}

/// Returns the place in a pool that a user has named, relative to its root or with the mountpoint before it; `None` if it leads
/// out of the pool.
pub fn within(mountpoint: &Path, named: &[u8]) -> Option<PathBuf> {
    use std::path::Component;
    if named.contains(&0) {
        return None;
    }
    let named = Path::new(OsStr::from_bytes(named));
    let relative = named.strip_prefix(mountpoint).unwrap_or(named);
    let mut path = mountpoint.to_owned();
    for component in relative.components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_bytes() {
        let fields = Fields::parse(b"at=/mnt/a%20b%ff&q=x+y%26&&empty&q=2&bad=%zz");
        assert_eq!(fields.bytes("at"), b"/mnt/a b\xff");
        assert_eq!((fields.text("q"), fields.text("at"), fields.text("no")), ("x y&", "", ""));
        assert!(fields.has("empty") && !fields.has("no"));
        assert_eq!(fields.bytes("bad"), b"%zz");
    }

    #[test]
    fn links_come_back_as_they_were() {
        for name in [&b"/mnt/a"[..], b"a b&c=d#e?", b"\xff\n\"'<>", "ü+%".as_bytes()] {
            let link = link("/pool", &[("at", OsStr::from_bytes(name)), ("b", OsStr::new("1"))]);
            let (page, query) = link.split_once('?').unwrap();
            let fields = Fields::parse(query.as_bytes());
            assert_eq!((page, fields.bytes("at"), fields.text("b")), ("/pool", name, "1"), "{link}");
        }
    }

    #[test]
    fn no_name_leads_out_of_the_pool() {
        let pool = Path::new("/mnt/pool");
        for (named, path) in [
            (&b"films/a"[..], Some("/mnt/pool/films/a")),
            (b"/mnt/pool/films/a", Some("/mnt/pool/films/a")),
            (b"/films", Some("/mnt/pool/films")),
            (b"", Some("/mnt/pool")),
            (b"./a//b/", Some("/mnt/pool/a/b")),
            (b"/mnt/pool/../../etc/shadow", None),
            (b"..", None),
            (b"a/../../b", None),
            (b"a\0b", None),
        ] {
            assert_eq!(within(pool, named).as_deref(), path.map(Path::new), "{named:?}");
        }
    }
}
