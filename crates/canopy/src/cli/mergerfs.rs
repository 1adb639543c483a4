//! The command line of `mergerfs`, for existing scripts, fstab entries and systemd units.
//!
//! mergerfs ignores unknown switches, so here they only cause a warning.

use super::{Command, EarlyExit};
use crate::commands::mount::MountArgs;
use canopy_config::program_name::Name;
use canopy_config::source::command_line::Arg;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

const HELP: &str = "\
Usage: mergerfs [options] <branches> <mountpoint>
This is canopy under another name; canopy options lists what -o takes.
";

/// Other tools parse the first line.
const VERSION: &str =
    concat!("mergerfs v", env!("CARGO_PKG_VERSION"), "\ncanopy ", env!("CARGO_PKG_VERSION"), "\n");

pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, EarlyExit> {
    let mut mount = MountArgs { name: Name::Mergerfs, sloppy: true, ..MountArgs::default() };
    let mut args = args.into_iter().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-h" | b"--help" => return Err(EarlyExit::Print(HELP.into())),
            b"-v" | b"-V" | b"--version" => return Err(EarlyExit::Print(VERSION.into())),
            b"-f" => mount.foreground = true,
            b"-d" => mount.in_order.push(Arg::Options("debug=true".into())),
            b"-r" => mount.in_order.push(Arg::Options("ro".into())),
            // There is no /etc/mtab to leave alone.
            b"-n" => {}
            b"-o" => match args.next() {
                Some(group) => mount.in_order.push(Arg::Options(group)),
                None => {
                    return Err(EarlyExit::UsageError("-o needs a list of options (mergerfs --help)".into()));
                }
            },
            b"--" => mount.in_order.extend(args.by_ref().map(Arg::Path)),
            [b'-', b'o', group @ ..] => {
                mount.in_order.push(Arg::Options(OsStr::from_bytes(group).to_owned()));
            }
            [b'-', _, ..] => {
                mount.warnings.push(format!("unknown switch '{}': ignored", arg.to_string_lossy()))
            }
            _ => mount.in_order.push(Arg::Path(arg)),
        }
    }
    Ok(Command::Mount(mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &str) -> Result<Command, EarlyExit> {
        parse(words.split_whitespace().map(OsString::from))
    }

    fn mount(words: &str) -> MountArgs {
        match parse_words(words) {
            Ok(Command::Mount(args)) => args,
            other => panic!("{words}: {other:?}"),
        }
    }

    #[test]
    fn order_is_kept() {
        let args = mount("mergerfs -r /a -o x=1,y -f /b -oz /m -n -- -c");
        let expected = [
            Arg::Options("ro".into()),
            Arg::Path("/a".into()),
            Arg::Options("x=1,y".into()),
            Arg::Path("/b".into()),
            Arg::Options("z".into()),
            Arg::Path("/m".into()),
            Arg::Path("-c".into()),
        ];
        assert_eq!(args.in_order, expected);
        assert!(args.foreground && args.sloppy && args.warnings.is_empty());
        assert_eq!(args.name, Name::Mergerfs);
    }

    #[test]
    fn help_and_version_are_printed() {
        for words in ["mergerfs -h", "mergerfs /a /m --help"] {
            match parse_words(words) {
                Err(EarlyExit::Print(text)) => {
                    assert!(text.starts_with("Usage: mergerfs [options] <branches> <mountpoint>\n"))
                }
                other => panic!("{words}: {other:?}"),
            }
        }
        for words in ["mergerfs -v", "mergerfs -V", "mergerfs --version"] {
            match parse_words(words) {
                Err(EarlyExit::Print(text)) => {
                    assert_eq!(text.lines().next(), Some(concat!("mergerfs v", env!("CARGO_PKG_VERSION"))));
                }
                other => panic!("{words}: {other:?}"),
            }
        }
    }

    #[test]
    fn unknown_switches_cause_warnings() {
        let args = mount("mergerfs -s -d --frob /a /m");
        let debug = Arg::Options("debug=true".into());
        assert_eq!(args.in_order, [debug, Arg::Path("/a".into()), Arg::Path("/m".into())]);
        assert_eq!(args.warnings.len(), 2, "{:?}", args.warnings);
        assert!(matches!(parse_words("mergerfs /a /m -o"), Err(EarlyExit::UsageError(_))));
    }
}
