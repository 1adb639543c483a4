//! The options and paths of a command line, in order.

use crate::Config;
use crate::error::OptionError;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// An argument. Of several that set the same thing, the last one counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arg {
    /// The value of a `-o`.
    Options(OsString),
    /// A branch, or the mountpoint.
    Path(OsString),
}

/// Applies arguments in order. A path becomes a branch when another path follows it. The last path is the mountpoint, or
/// one more branch if an option names the mountpoint. So `-o branches=` after the paths replaces them, and before the
/// paths it is extended by them.
pub fn apply(config: &mut Config, args: impl IntoIterator<Item = Arg>) -> Result<(), OptionError> {
    let mut pending: Option<OsString> = None;
    for arg in args {
        match arg {
            Arg::Options(group) => {
                for pair in split_group(&group) {
                    match super::set_pair(config, &pair) {
                        Err(error @ OptionError::Unknown { .. }) if config.sloppy => {
                            config.warnings.push(format!("{error}: ignored"));
                        }
                        result => result?,
                    }
                }
            }
            Arg::Path(path) => {
                if let Some(branch) = pending.replace(path) {
                    append(config, &branch)?;
                }
            }
        }
    }
    match pending {
        Some(path) if config.mountpoint.is_none() => config.mountpoint = Some(PathBuf::from(path)),
        Some(branch) => append(config, &branch)?,
        None => {}
    }
    Ok(())
}

fn append(config: &mut Config, branch: &OsStr) -> Result<(), OptionError> {
    let mut instruction = OsString::from("+>");
    instruction.push(branch);
    super::set(config, "branches", &instruction)
}

/// Splits a `-o` group at its commas. A backslash quotes the next character; a backslash and three octal digits, the
/// first at most 3, stand for that byte, as in fstab.
pub fn split_group(group: &OsStr) -> Vec<OsString> {
    let mut items = Vec::new();
    let mut item = Vec::new();
    let mut rest = group.as_bytes();
    loop {
        match rest {
            [] | [b',', ..] => {
                if !item.is_empty() {
                    items.push(OsString::from_vec(std::mem::take(&mut item)));
                }
                match rest {
                    [] => return items,
                    _ => rest = &rest[1..],
                }
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                item.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            [b'\\', quoted, tail @ ..] => {
                item.push(*quoted);
                rest = tail;
            }
            [byte, tail @ ..] => {
                item.push(*byte);
                rest = tail;
            }
        }
    }
}

/// Joins options into a group that `split_group` splits into the same options.
pub fn join_group(items: &[OsString]) -> OsString {
    let quoted = |item: &OsString| -> Vec<u8> {
        let bytes = item.as_bytes().iter();
        bytes.flat_map(|&byte| if b",\\".contains(&byte) { vec![b'\\', byte] } else { vec![byte] }).collect()
    };
    OsString::from_vec(items.iter().map(quoted).collect::<Vec<_>>().join(&b','))
}

/// Splits a group at its unquoted commas and keeps the escapes.
pub fn pieces(group: &[u8]) -> Vec<&[u8]> {
    let mut quoted = false;
    group
        .split(|&byte| {
            let splits = byte == b',' && !quoted;
            quoted = byte == b'\\' && !quoted;
            splits
        })
        .filter(|piece| !piece.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn items(group: &str) -> Vec<String> {
        split_group(OsStr::new(group)).into_iter().map(|item| item.into_string().unwrap()).collect()
    }

    #[test]
    fn groups_split_at_unquoted_commas() {
        assert_eq!(items("ro,cache.attr=5"), ["ro", "cache.attr=5"]);
        assert_eq!(items(",ro,,noatime,"), ["ro", "noatime"]);
        assert!(items("").is_empty());
    }

    #[test]
    fn pieces_keep_their_escapes() {
        let pieces = pieces(br"a\,b\,c,,d\\,e\054f");
        assert_eq!(pieces, [&br"a\,b\,c"[..], br"d\\", br"e\054f"]);
    }

    #[test]
    fn a_backslash_quotes_a_character_or_an_octal_byte() {
        assert_eq!(items(r"branches=/a=RW\,1G,ro"), ["branches=/a=RW,1G", "ro"]);
        assert_eq!(items(r"branches=/a\040b,ro"), ["branches=/a b", "ro"]);
        assert_eq!(items(r"fsname=a\054b"), ["fsname=a,b"]);
        assert_eq!(items(r"fsname=a\\b"), [r"fsname=a\b"]);
        assert_eq!(items(r"fsname=\400"), ["fsname=400"], "not a byte, so a quoted 4");
        assert_eq!(items(r"fsname=\08"), ["fsname=08"], "not three octal digits");
        assert_eq!(items(r"fsname=a\"), [r"fsname=a\"], "nothing to quote");
        assert_eq!(split_group(OsStr::new(r"\377"))[0].as_bytes(), [0xff]);
    }

    #[test]
    fn joined_options_split_into_the_same() {
        let items: Vec<OsString> =
            [r"branches=/a=RW,1G:/b", r"fsname=a\b\054,", "ro"].map(OsString::from).into();
        assert_eq!(split_group(&join_group(&items)), items);
    }

    fn parse(args: &[&str]) -> (Vec<String>, Option<PathBuf>) {
        let mut config = Config::default();
        let mut words = args.iter();
        let mut parsed = Vec::new();
        while let Some(word) = words.next() {
            parsed.push(match *word {
                "-o" => Arg::Options(words.next().unwrap().into()),
                path => Arg::Path(path.into()),
            });
        }
        apply(&mut config, parsed).unwrap();
        (config.branches.iter().map(|spec| spec.path.display().to_string()).collect(), config.mountpoint)
    }

    #[test]
    fn the_last_path_is_the_mountpoint() {
        assert_eq!(parse(&["/no-a:/no-b", "/m"]), (vec!["/no-a".into(), "/no-b".into()], Some("/m".into())));
        assert_eq!(
            parse(&["/no-a", "/no-b", "/m"]),
            (vec!["/no-a".into(), "/no-b".into()], Some("/m".into()))
        );
    }

    #[test]
    fn all_paths_are_branches_if_an_option_names_the_mountpoint() {
        let branches = vec!["/no-a".to_owned(), "/no-b".to_owned()];
        assert_eq!(parse(&["-o", "mountpoint=/m", "/no-a", "/no-b"]), (branches.clone(), Some("/m".into())));
        assert_eq!(parse(&["/no-a", "/no-b", "-o", "mount=/m"]), (branches, Some("/m".into())));
    }

    #[test]
    fn paths_and_branch_options_apply_in_order() {
        let (branches, mountpoint) = parse(&["-o", "branches=/no-x", "/no-a", "/m"]);
        assert_eq!(branches, ["/no-x", "/no-a"]);
        assert_eq!(mountpoint.as_deref(), Some(Path::new("/m")));
        let (branches, _) = parse(&["/no-a", "/no-b", "/m", "-o", "branches=/no-x"]);
        assert_eq!(branches, ["/no-x"]);
        let (branches, _) = parse(&["/no-a", "-o", "branches=/no-x", "/no-b", "/m"]);
        assert_eq!(
            branches,
            ["/no-x", "/no-a", "/no-b"],
            "a path becomes a branch when the next one follows"
        );
    }

    #[test]
    fn later_options_win() {
        let mut config = Config::default();
        apply(&mut config, [Arg::Options("cache.attr=5,cache.attr=7".into()), Arg::Options("ro,rw".into())])
            .unwrap();
        assert_eq!(config.timeouts.attr.as_secs(), 7);
        assert!(!config.mount.flags.contains(canopy_fuse::mount::MountFlags::RDONLY));
    }
}
