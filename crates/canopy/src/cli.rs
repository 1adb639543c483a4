//! The command line, in the grammar of whichever name the program was called by.

mod helper;
mod mergerfs;

use crate::bench::BenchArgs;
use crate::config::line::Arg;
use crate::names::{Called, Name};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Joins directories on many disks into one tree, with reads and writes passed through to the disks.
#[derive(Parser, Debug)]
#[command(name = "canopy", version, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "canopy mount --help shows how to mount; canopy options lists what -o takes.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Mount(MountArgs),
    Umount(UmountArgs),
    Get(GetArgs),
    Set(SetArgs),
    List(ListArgs),
    /// List the options of -o, their defaults and values
    Options,
    Bench(BenchArgs),
    /// The server that the benchmark measures pools against
    #[command(hide = true)]
    BenchFloor {
        /// As the option of pools
        #[arg(long)]
        io_uring: bool,
        mountpoint: PathBuf,
    },
}

/// Mount directories as one pool
#[derive(Args, Debug, Default)]
#[command(override_usage = "canopy mount [-f] [-o OPTION[,OPTION...]]... BRANCH[:BRANCH...]... MOUNTPOINT")]
#[command(after_help = MOUNT_NOTES)]
pub struct MountArgs {
    /// Stay in the foreground, and log to stderr
    #[arg(short, long)]
    pub foreground: bool,
    /// Options, as canopy options lists them; later ones win
    #[arg(short = 'o', value_name = "OPTION[,OPTION...]", action = clap::ArgAction::Append)]
    options: Vec<OsString>,
    /// Directories that make up the pool, then the mountpoint
    #[arg(value_name = "BRANCH... MOUNTPOINT")]
    paths: Vec<OsString>,
    /// Options and paths in the order in which they were given.
    #[arg(skip)]
    pub in_order: Vec<Arg>,
    /// What the pool is to be known as.
    #[arg(skip)]
    pub name: Name,
    /// Options that are not known are told and left out.
    #[arg(skip)]
    pub sloppy: bool,
    /// The user to serve as, when another is meant than the one who mounts.
    #[arg(skip)]
    pub user: Option<OsString>,
    /// Everything but the mount.
    #[arg(skip)]
    pub fake: bool,
    /// What was said and has no effect, each to be told.
    #[arg(skip)]
    pub warnings: Vec<String>,
}

const MOUNT_NOTES: &str = "\
A branch is a directory or a pattern ('/mnt/disk*'), followed by =RW, =RO (never written) or
=NC (no new files), and a minimum of free space if need be: /mnt/a=RW,10G:/mnt/b=NC

Returns when the pool can be used. It ends with canopy umount MOUNTPOINT, or SIGTERM.
Environment: CANOPY_LOG=debug logs more.

Examples:
  canopy mount /mnt/disk1:/mnt/disk2 /pool
  canopy mount -o category.create=mfs,minfreespace=20G '/mnt/disk*' /pool";

/// Unmount a pool
#[derive(Args, Debug)]
pub struct UmountArgs {
    pub mountpoint: PathBuf,
    /// Take it away at once, and end it when nobody uses it any more
    #[arg(short, long)]
    pub lazy: bool,
}

/// Show one value of a running pool, or all as KEY=VALUE
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The pool's mountpoint
    pub mount: PathBuf,
    /// An option, or version, pid, srcmounts; all when left out
    pub key: Option<String>,
}

/// Change an option of a running pool
#[derive(Args, Debug)]
#[command(after_help = SET_NOTES)]
pub struct SetArgs {
    /// The pool's mountpoint
    pub mount: PathBuf,
    /// An option and its new value, or a command
    #[arg(value_name = "KEY=VALUE")]
    pub pair: OsString,
}

const SET_NOTES: &str = "\
canopy list MOUNT marks what can be changed. Operations under way end as they began; open files
stay usable, also on a branch that is taken away. A change holds until the pool is unmounted.

Branches are replaced by a list, or changed: +PATH appends, +<PATH prepends, -PATTERN removes,
-< and -> remove the first and the last. Commands: cmd.gc, cmd.gc1, cmd.invalidate-all-nodes.

Examples:
  canopy set /pool category.create=mfs
  canopy set /pool branches=+/mnt/disk3
  canopy set /pool 'branches=-/mnt/disk1'";

/// Show the options of a running pool as a table
#[derive(Args, Debug)]
pub struct ListArgs {
    /// The pool's mountpoint
    pub mount: PathBuf,
}

/// What else there is to say than a command.
#[derive(Debug)]
pub enum Said {
    /// Help or version, for stdout.
    Text(String),
    /// A mistake in the grammar, in one line.
    Mistake(String),
}

/// Reads the command line as whoever calls the program by this name writes it.
pub fn parse(called: Called, args: impl IntoIterator<Item = OsString>) -> Result<Command, Said> {
    match called {
        Called::Canopy => parse_own(args),
        Called::Mergerfs => mergerfs::parse(args),
        Called::Helper(name) => helper::parse(args, name),
    }
}

fn parse_own(args: impl IntoIterator<Item = OsString>) -> Result<Command, Said> {
    let matches = Cli::command().try_get_matches_from(args).map_err(said)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(said)?;
    if let (Command::Mount(args), Some(matches)) = (&mut cli.command, matches.subcommand_matches("mount")) {
        args.in_order = in_order(args, matches);
    }
    Ok(cli.command)
}

/// The order over both kinds of arguments, which clap keeps in its indices only.
fn in_order(args: &MountArgs, matches: &ArgMatches) -> Vec<Arg> {
    let mut found: Vec<(usize, Arg)> = Vec::new();
    if let Some(indices) = matches.indices_of("options") {
        found.extend(indices.zip(args.options.iter().cloned().map(Arg::Options)));
    }
    if let Some(indices) = matches.indices_of("paths") {
        found.extend(indices.zip(args.paths.iter().cloned().map(Arg::Path)));
    }
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, arg)| arg).collect()
}

fn said(error: clap::Error) -> Said {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Said::Text(text),
        // The first paragraph tells what is wrong; usage and hints follow it.
        _ => {
            let first = text.split("\n\n").next().unwrap_or_default();
            let line = first.split_whitespace().collect::<Vec<_>>().join(" ");
            Said::Mistake(format!("{} (canopy --help)", line.trim_start_matches("error: ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &str) -> Result<Command, Said> {
        parse(Called::Canopy, words.split_whitespace().map(OsString::from))
    }

    fn mount(words: &str) -> MountArgs {
        match parse_words(words) {
            Ok(Command::Mount(args)) => args,
            other => panic!("{words}: {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn order_is_kept_between_options_and_paths() {
        let args = mount("canopy mount /a -o ro -f /b -oasync,rw /m -o x-a");
        assert!(args.foreground);
        let expected = [
            Arg::Path("/a".into()),
            Arg::Options("ro".into()),
            Arg::Path("/b".into()),
            Arg::Options("async,rw".into()),
            Arg::Path("/m".into()),
            Arg::Options("x-a".into()),
        ];
        assert_eq!(args.in_order, expected);
    }

    #[test]
    fn two_dashes_end_the_options() {
        assert_eq!(mount("canopy mount -- -a /m").in_order, [Arg::Path("-a".into()), Arg::Path("/m".into())]);
    }

    #[test]
    fn umount_takes_a_mountpoint() {
        match parse_words("canopy umount /m --lazy") {
            Ok(Command::Umount(args)) => assert!(args.lazy && args.mountpoint.as_os_str() == "/m"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(parse_words("canopy umount"), Err(Said::Mistake(_))));
    }

    #[test]
    fn mistakes_are_one_line() {
        for words in [
            "canopy frob",
            "canopy mount --frob /a /m",
            "canopy umount",
            "canopy umount /a /b",
            "canopy mount -o",
        ] {
            match parse_words(words) {
                Err(Said::Mistake(line)) => {
                    assert!(!line.contains('\n') && line.len() > 20, "{words}: {line}")
                }
                other => panic!("{words}: {other:?}"),
            }
        }
        match parse_words("canopy mont /a /m") {
            Err(Said::Mistake(line)) => assert!(line.contains("mont"), "{line}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn help_fits_a_screen() {
        for words in [
            "canopy",
            "canopy --help",
            "canopy -h",
            "canopy mount --help",
            "canopy umount --help",
            "canopy get --help",
            "canopy set --help",
            "canopy list --help",
            "canopy bench --help",
        ] {
            match parse_words(words) {
                Err(Said::Text(text)) => {
                    assert!(text.lines().count() <= 30, "{words}: {} lines", text.lines().count());
                    assert!(text.lines().all(|line| line.chars().count() <= 100), "{words}:\n{text}");
                }
                other => panic!("{words}: {other:?}"),
            }
        }
        match parse_words("canopy --version") {
            Err(Said::Text(text)) => assert_eq!(text.trim(), concat!("canopy ", env!("CARGO_PKG_VERSION"))),
            other => panic!("{other:?}"),
        }
    }
}
