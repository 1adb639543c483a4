//! The command line of `fsck.mergerfs`. fsck(8) also calls it at boot, for entries of fstab, with its own options.

use super::{Command, EarlyExit, parse_own};
use canopy_upkeep::{FixSource, FsckArgs, OldFix, OldFsck};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Options that fsck(8) may pass on. There, `-f` means force.
const FSCK_SWITCHES: &[u8] = b"aAfMnNpPrRTyV";

pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, EarlyExit> {
    let mut by_fsck = false;
    let mut kept: Vec<OsString> = vec!["canopy".into(), "fsck".into()];
    let mut args = args.into_iter().skip(1).peekable();
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-f" if args.peek().and_then(|next| next.to_str()).is_some_and(is_source) => kept.push(arg),
            [b'-', b'C', descriptor @ ..] if descriptor.iter().all(u8::is_ascii_digit) => by_fsck = true,
            [b'-', switches @ ..]
                if !switches.is_empty() && switches.iter().all(|switch| FSCK_SWITCHES.contains(switch)) =>
            {
                by_fsck = true;
            }
            _ => kept.push(arg),
        }
    }
    if by_fsck && kept.len() == 2 {
        // `fsck -A` without a path.
        return Ok(Command::Fsck(FsckArgs { by_fsck, as_mergerfs: true, ..FsckArgs::default() }));
    }
    let command = parse_own(kept).map_err(|exit| match exit {
        EarlyExit::Print(text) => EarlyExit::Print(text.replace("canopy fsck", "fsck.mergerfs")),
        EarlyExit::UsageError(line) => {
            EarlyExit::UsageError(line.replace("canopy --help", "fsck.mergerfs --help"))
        }
    })?;
    match command {
        Command::Fsck(args) => Ok(Command::Fsck(FsckArgs { by_fsck, as_mergerfs: true, ..args })),
        other => Ok(other),
    }
}

/// Translates the command line of `mergerfs.fsck`.
pub(super) fn of_tool(args: OldFsck) -> FsckArgs {
    let fix = match args.fix {
        None => FixSource::None,
        Some(OldFix::Manual) => FixSource::Manual,
        Some(OldFix::Newest) => FixSource::Newest,
        Some(OldFix::Nonroot) => FixSource::Nonroot,
    };
    let fix = Some(fix);
    FsckArgs { path: Some(args.dir), fix, same_size: args.size, as_mergerfs: true, ..FsckArgs::default() }
}

fn is_source(word: &str) -> bool {
    <FixSource as clap::ValueEnum>::from_str(word, false).is_ok()
}

/// Joins `--check-size true` to `--check-size=true`, because the value is optional.
pub(super) fn join_switches(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for arg in args {
        match joined.last_mut() {
            Some(last)
                if matches!(last.as_bytes(), b"--check-size" | b"--copy-file")
                    && matches!(
                        arg.as_bytes(),
                        b"true" | b"false" | b"1" | b"0" | b"on" | b"off" | b"yes" | b"no"
                    ) =>
            {
                last.push("=");
                last.push(arg);
            }
            _ => joined.push(arg),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fsck(words: &str) -> FsckArgs {
        match parse(words.split_whitespace().map(OsString::from)) {
            Ok(Command::Fsck(args)) => args,
            other => panic!("{words}: {other:?}"),
        }
    }

    #[test]
    fn own_options() {
        let args = fsck("fsck.mergerfs /pool");
        assert_eq!(
            (args.fix.unwrap_or_default(), args.check_size, args.copy_file, args.by_fsck),
            (FixSource::None, false, false, false)
        );
        let args = fsck("fsck.mergerfs --fix newest --check-size true --copy-file true /pool");
        assert_eq!(
            (args.fix.unwrap_or_default(), args.check_size, args.copy_file),
            (FixSource::Newest, true, true)
        );
        let args = fsck("fsck.mergerfs --check-size --fix=largest --copy-file false /pool");
        assert_eq!(
            (args.fix.unwrap_or_default(), args.check_size, args.copy_file),
            (FixSource::Largest, true, false)
        );
        let args = fsck("fsck.mergerfs -v -s -f nonroot /pool");
        assert_eq!(
            (args.fix.unwrap_or_default(), args.check_size, args.verbose),
            (FixSource::Nonroot, true, true)
        );
        for words in
            ["fsck.mergerfs", "fsck.mergerfs --fix oldest /pool", "fsck.mergerfs --check-size=x /pool"]
        {
            assert!(
                matches!(parse(words.split_whitespace().map(OsString::from)), Err(EarlyExit::UsageError(_))),
                "{words}"
            );
        }
    }

    #[test]
    fn options_of_fsck_8_are_ignored() {
        for words in ["-a /d1:/d2", "-A -p /d1:/d2", "-C0 -y /d1:/d2", "-f -C /d1:/d2", "-T -n /d1:/d2 -V"] {
            let args = fsck(&format!("fsck.mergerfs {words}"));
            assert!(args.by_fsck && args.fix.is_none(), "{words}");
            assert_eq!(args.path.as_deref(), Some(std::path::Path::new("/d1:/d2")), "{words}");
        }
        assert!(fsck("fsck.mergerfs -A").path.is_none());
    }
}
