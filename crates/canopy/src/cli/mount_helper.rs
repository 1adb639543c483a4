//! The command line that mount(8) gives the helpers `mount.TYPE` and `mount.fuse.TYPE`:
//! `SRC MNT [-sfnv] [-t TYPE] [-o OPTIONS]`, where SRC is branches or the name of a pool.

use super::{Command, EarlyExit};
use crate::commands::mount::MountArgs;
use crate::commands::remount::RemountArgs;
use canopy_config::program_name::Name;
use canopy_config::source::command_line::{Arg, pieces, split_group};
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Options in fstab that are for mount(8) and systemd, not for the filesystem.
const NOT_FOR_THE_POOL: [&str; 13] = [
    "nofail", "user", "nouser", "users", "auto", "noauto", "_netdev", "owner", "noowner", "group", "nogroup",
    "silent", "loud",
];

pub(super) fn parse(args: impl IntoIterator<Item = OsString>, name: Name) -> Result<Command, EarlyExit> {
    let mut mount =
        MountArgs { name, sloppy: name == Name::Mergerfs, by_mount: true, ..MountArgs::default() };
    let mut options: Vec<Vec<u8>> = Vec::new();
    let mut places: Vec<OsString> = Vec::new();
    let mut args = args.into_iter();
    let program = args.next().unwrap_or_default();
    let program = program.to_string_lossy();
    let usage = format!("usage: {program} BRANCH[:BRANCH...]|NAME MOUNTPOINT [-sfnv] [-t TYPE] [-o OPTIONS]");
    let mistake = |what: &str| EarlyExit::UsageError(format!("{what} ({usage})"));
    while let Some(arg) = args.next() {
        let mut value = |attached: &[u8], of: &str| match attached {
            [] => args.next().ok_or_else(|| mistake(&format!("{of} needs a value"))),
            _ => Ok(OsStr::from_bytes(attached).to_owned()),
        };
        match arg.as_bytes() {
            b"--" => places.extend(args.by_ref()),
            b"-h" | b"--help" => return Err(EarlyExit::Print(format!("{usage}\nmount(8) calls it.\n"))),
            [b'-', b'o', group @ ..] => {
                options.extend(pieces(value(group, "-o")?.as_bytes()).into_iter().map(<[u8]>::to_vec));
            }
            [b'-', b't', fstype @ ..] => {
                let fstype = value(fstype, "-t")?;
                let fstype = fstype.to_string_lossy();
                mount.name = Name::from_fstype(&fstype)
                    .ok_or_else(|| mistake(&format!("type {fstype} is neither canopy nor mergerfs")))?;
            }
            // The pool would be mounted in the current namespace instead.
            [b'-', b'N', ..] => return Err(mistake("-N is not supported: enter the namespace with nsenter")),
            [b'-', switches @ ..] if !switches.is_empty() && switches[0] != b'-' => {
                for switch in switches {
                    match switch {
                        b'f' => mount.fake = true,
                        b's' => mount.sloppy = true,
                        b'r' => options.push(b"ro".to_vec()),
                        b'w' => options.push(b"rw".to_vec()),
                        // -v, -n and any other switch of mount(8).
                        _ => {}
                    }
                }
            }
            [b'-', _, ..] => {
                mount.warnings.push(format!("unknown switch '{}': ignored", arg.to_string_lossy()))
            }
            _ => places.push(arg),
        }
    }
    let [branches, mountpoint] = <[OsString; 2]>::try_from(places).map_err(|places| {
        mistake(if places.len() < 2 { "branches or mountpoint missing" } else { "too many arguments" })
    })?;
    // mount(8) starts with one of these and then gives the complete list. Users only give what they want to change.
    let complete = options.first().is_some_and(|first| first == b"rw" || first == b"ro");
    let before = options.len();
    options.retain(|piece| piece != b"remount");
    let remount = options.len() < before;
    let kept = pool_options(options, &mut mount).map_err(EarlyExit::UsageError)?;
    if remount {
        // The mountpoint identifies the pool; the branches are not needed.
        let (mountpoint, options) = (mountpoint.into(), OsString::from_vec(kept.join(&b',')));
        return Ok(Command::Remount(RemountArgs {
            mountpoint,
            options,
            complete,
            sloppy: mount.sloppy,
            fake: mount.fake,
        }));
    }
    let options = with_implied_options(kept, &mount);
    mount.in_order = vec![Arg::Path(branches), Arg::Path(mountpoint), Arg::Options(options)];
    Ok(Command::Mount(mount))
}

/// Returns the options that are for the pool.
fn pool_options(options: Vec<Vec<u8>>, mount: &mut MountArgs) -> Result<Vec<Vec<u8>>, String> {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for piece in options {
        let text = String::from_utf8_lossy(&piece);
        let key = text.split('=').next().unwrap_or_default().trim();
        match key {
            "setuid" => {
                let value = split_group(OsStr::from_bytes(&piece)).into_iter().next().unwrap_or_default();
                let user = value.as_bytes().splitn(2, |&byte| byte == b'=').nth(1).unwrap_or_default();
                if user.is_empty() {
                    return Err("setuid= needs a user".into());
                }
                mount.user = Some(OsStr::from_bytes(user).to_owned());
            }
            "comment" => {}
            _ if NOT_FOR_THE_POOL.contains(&key) || key.starts_with("x-") || key.starts_with("X-") => {}
            _ => kept.push(piece),
        }
    }
    Ok(kept)
}

/// Adds the options that an fstab entry implies.
fn with_implied_options(mut kept: Vec<Vec<u8>>, mount: &MountArgs) -> OsString {
    // For mergerfs, devices and set-id programs work unless the entry says otherwise, and existing setups may rely on
    // that. Only root can allow them. For canopy, they must be requested, because pools are for data disks.
    if mount.name == Name::Mergerfs && mount.user.is_none() && geteuid().is_root() {
        for (word, opposite) in [("dev", "nodev"), ("suid", "nosuid")] {
            if !kept.iter().any(|piece| piece == opposite.as_bytes()) {
                kept.push(word.into());
            }
        }
    }
    OsString::from_vec(kept.join(&b','))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &str) -> Result<Command, EarlyExit> {
        let name = if words.starts_with("mergerfs ") { Name::Mergerfs } else { Name::Canopy };
        parse(words.split_whitespace().map(OsString::from), name)
    }

    fn mount(words: &str) -> MountArgs {
        match parse_words(words) {
            Ok(Command::Mount(args)) => args,
            other => panic!("{words}: {other:?}"),
        }
    }

    fn options(words: &str) -> String {
        match mount(words).in_order.pop() {
            Some(Arg::Options(group)) => group.into_string().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_for_mount_8_are_dropped() {
        for (group, left) in [
            (
                "rw,nofail,x-systemd.requires=/a,X-mount.mkdir,_netdev,noauto,user,users,comment=x,cache.attr=5",
                "rw,cache.attr=5",
            ),
            (r"branches=/a\,b,nodev", r"branches=/a\,b,nodev"),
            ("nosuid,nodev,,", "nosuid,nodev"),
        ] {
            assert_eq!(options(&format!("m /a /m -o {group}")), left);
        }
    }

    #[test]
    fn only_mergerfs_implies_devices_and_set_id_programs() {
        let always = if geteuid().is_root() { ",dev,suid" } else { "" };
        for (words, expected) in [
            ("m /a /m -o ro", "ro".to_owned()),
            ("m /a /m -o suid", "suid".into()),
            ("mergerfs /a /m -o ro", format!("ro{always}")),
            ("m /a /m -t fuse.mergerfs -o ro", format!("ro{always}")),
            ("mergerfs /a /m -t canopy -o ro", "ro".into()),
            ("mergerfs /a /m -o nosuid,nodev", "nosuid,nodev".into()),
            ("mergerfs /a /m -o setuid=me,ro", "ro".into()),
        ] {
            assert_eq!(options(words), expected, "{words}");
        }
    }

    #[test]
    fn switches_may_stand_anywhere() {
        let args = mount("m -v /a:/b -n /m -sf -t fuse.mergerfs -o ro");
        assert!(args.fake && args.sloppy && args.name == Name::Mergerfs);
        assert_eq!(args.in_order[..2], [Arg::Path("/a:/b".into()), Arg::Path("/m".into())]);
        assert!(!mount("m /a /m").sloppy);
    }

    #[test]
    fn setuid_is_no_option_of_the_pool() {
        let args = mount("m /a /m -o setuid=me,ro");
        assert_eq!(args.user.as_deref(), Some(OsStr::new("me")));
        assert_eq!(options("m /a /m -o setuid=me,ro"), "ro");
    }

    #[test]
    fn the_word_remount_makes_a_remount() {
        for (words, expected) in [
            ("m a:b /m -o rw,remount,noatime,nofail,x-a=b", "rw,noatime"),
            ("mergerfs a:b /m -o remount -o ro", "ro"),
            ("m a:b /m -o remount", ""),
        ] {
            let Ok(Command::Remount(args)) = parse_words(words) else { panic!("{words}") };
            assert_eq!((args.mountpoint, args.options), ("/m".into(), expected.into()), "{words}");
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        // Only errors of grammar show the usage.
        let table = [
            ("m", "usage"),
            ("m /a", "usage"),
            ("m /a /m /c", "usage"),
            ("m /a /m -o", "usage"),
            ("m /a /m -t ext4", "usage"),
            ("m /a /m -N 1", "nsenter"),
            ("m /a /m -o setuid=", "needs a user"),
        ];
        for (words, needle) in table {
            match parse_words(words) {
                Err(EarlyExit::UsageError(line)) => {
                    assert!(!line.contains('\n') && line.contains(needle), "{line}")
                }
                other => panic!("{words}: {other:?}"),
            }
        }
    }
}
