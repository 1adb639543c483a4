//! The command line, in the grammar of whichever name the program was called by.

mod fsck;
pub mod invocation;
mod mergerfs;
mod mount_helper;

use canopy_bench::BenchArgs;
use canopy_config::program_name::Name;
use canopy_config::source::command_line::Arg;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use invocation::Called;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Joins directories on many disks into one tree; data goes straight to the disks.
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
    /// What mount(8) asks of its helpers alone.
    #[command(skip)]
    Remount(RemountArgs),
    Umount(UmountArgs),
    Get(GetArgs),
    Set(SetArgs),
    List(ListArgs),
    Status(StatusArgs),
    Explain(ExplainArgs),
    Fsck(FsckArgs),
    CollectInfo(CollectInfoArgs),
    Options(OptionsArgs),
    Bench(BenchArgs),
    #[command(hide = true)]
    Probe(ProbeArgs),
    /// The server that the benchmark measures pools against
    #[command(hide = true)]
    BenchFloor {
        /// As the option of pools
        #[arg(long)]
        io_uring: bool,
        /// A directory whose files are passed through as those of `data`, and copied as those of `copied`
        #[arg(long, value_name = "DIR")]
        existing: Option<PathBuf>,
        mountpoint: PathBuf,
    },
}

/// Mount directories as one pool
#[derive(Args, Debug, Default)]
#[command(override_usage = "canopy mount [-f] [-o OPTIONS]... BRANCH[:BRANCH...]... MOUNTPOINT\n       \
    canopy mount [-f] [-o OPTIONS]... NAME [MOUNTPOINT]")]
#[command(after_help = MOUNT_NOTES)]
pub struct MountArgs {
    /// Stay in the foreground, and log to stderr
    #[arg(short, long)]
    pub foreground: bool,
    /// KEY=VALUE[,...]; canopy options lists them, later ones win
    #[arg(short = 'o', value_name = "OPTIONS", action = clap::ArgAction::Append)]
    options: Vec<OsString>,
    /// Directories that make up the pool, then the mountpoint; or a NAME
    #[arg(value_name = "PATH")]
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
    /// mount(8) asks, which comes again with each `mount -a`.
    #[arg(skip)]
    pub by_mount: bool,
    /// What was said and has no effect, each to be told.
    #[arg(skip)]
    pub warnings: Vec<String>,
}

const MOUNT_NOTES: &str = "\
A branch is a directory or a pattern ('/mnt/disk*'), followed by =RW, =RO (never
written) or =NC (no new files), and by a minimum of free space if need be:
/mnt/a=RW,10G:/mnt/b=NC
NAME: what /etc/canopy/NAME.toml says; also the path of such a file.

Returns when the pool can be used; canopy umount MOUNTPOINT ends it, or SIGTERM.
Environment: CANOPY_LOG=debug logs more; CANOPY_CONFIG_DIR for /etc/canopy.

Examples:
  canopy mount /mnt/disk1:/mnt/disk2 /pool
  canopy mount -o category.create=mfs,minfreespace=20G '/mnt/disk*' /pool";

/// Other flags for a pool that is mounted.
#[derive(Debug, Default)]
pub struct RemountArgs {
    pub mountpoint: PathBuf,
    /// As they follow a `-o`.
    pub options: OsString,
    /// They are all that is to hold: mount(8) leaves out words such as `exec`, having taken away `noexec` for it.
    pub complete: bool,
    pub sloppy: bool,
    /// Everything but the change.
    pub fake: bool,
}

/// Unmount a pool
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// The pool's mountpoint or name
    pub mountpoint: PathBuf,
    /// Take it away at once, and end it when nobody uses it any more
    #[arg(short, long)]
    pub lazy: bool,
}

/// Show one value of a running pool, or all as KEY=VALUE
#[derive(Args, Debug)]
#[command(after_help = GET_NOTES)]
pub struct GetArgs {
    /// The pool's mountpoint or name
    pub mount: PathBuf,
    /// An option, or version, pid, srcmounts; all when left out
    pub key: Option<String>,
}

const GET_NOTES: &str = "\
Output: with KEY the value and a newline, nothing else. Without, a line for each
option as KEY=VALUE, sorted by key; branches as PATH=MODE[,MINFREE] joined by
colons, sizes in bytes, times in seconds. For a file or directory of the pool
this tells where it lies: getfattr -n user.mergerfs.allpaths FILE

Examples:
  canopy get /pool category.create
  canopy get /pool srcmounts | tr : '\\n'";

/// Change an option of a running pool
#[derive(Args, Debug)]
#[command(after_help = SET_NOTES)]
pub struct SetArgs {
    /// The pool's mountpoint or name
    pub mount: PathBuf,
    /// An option and its new value, or a command
    #[arg(value_name = "KEY=VALUE")]
    pub pair: OsString,
    /// Write it into the config file of the pool as well
    #[arg(short, long)]
    pub persist: bool,
}

const SET_NOTES: &str = "\
canopy list MOUNT marks what can be changed. Operations under way end as they
began; open files stay usable, also on a branch that is taken away. A change
ends with the mount; with --persist pool and file change both or neither.

Branches are replaced by a list, or changed: +PATH appends, +<PATH prepends,
-PATTERN removes, -< and -> remove the first and the last.
Commands: cmd.gc, cmd.gc1, cmd.invalidate-all-nodes.

Examples:
  canopy set /pool category.create=mfs
  canopy set /pool branches=+/mnt/disk3
  canopy set /pool 'branches=-/mnt/disk1'";

/// Show the options of a running pool as a table
#[derive(Args, Debug)]
#[command(after_help = LIST_NOTES)]
pub struct ListArgs {
    /// The pool's mountpoint or name
    pub mount: PathBuf,
}

const LIST_NOTES: &str = "\
Output: for people; programs use canopy get. A line for each option with its
value, branches one a line. * marks what canopy set can change.";

/// Show pools, their branches, and what is wrong with them
#[derive(Args, Debug)]
#[command(after_help = STATUS_NOTES)]
pub struct StatusArgs {
    /// A pool's mountpoint; all pools when left out
    pub mount: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    pub json: bool,
}

const STATUS_NOTES: &str = "\
Each warning comes with its mend. A branch or pool that does not answer within
three seconds is told as such. FREE is what users may fill; USED counts what is
reserved for root as well.";

/// Show which branch an operation would act on now, and why
#[derive(Args, Debug)]
#[command(after_help = EXPLAIN_NOTES)]
pub struct ExplainArgs {
    /// create, mkdir, unlink, rename, getattr, ...: a function of func.*
    #[arg(value_name = "OP")]
    pub op: String,
    /// A path on a pool; for create and its like one that need not exist
    pub path: PathBuf,
    /// For programs
    #[arg(long)]
    pub json: bool,
}

const EXPLAIN_NOTES: &str = "\
The running pool answers, by the code that makes the choice; nothing is changed.

Examples:
  canopy explain create /pool/films/new.mkv
  canopy explain unlink /pool/old";

/// Find files whose copies on several branches differ; mend them
#[derive(Args, Debug, Default)]
#[command(after_help = FSCK_NOTES)]
pub struct FsckArgs {
    /// A directory on a pool; with all that lies below
    #[arg(required = true)]
    pub path: Option<PathBuf>,
    /// Give the others the owner and mode of this copy
    #[arg(
        short,
        long,
        value_name = "COPY",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub fix: Source,
    /// Compare sizes as well
    #[arg(short = 's', long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = yes_or_no,
          action = clap::ArgAction::Set, hide_default_value = true)]
    pub check_size: bool,
    /// With --fix: copy the data and all else as well
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = yes_or_no,
          action = clap::ArgAction::Set, hide_default_value = true)]
    pub copy_file: bool,
    /// Name everything that is looked at
    #[arg(short, long)]
    pub verbose: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Called with words of fsck(8): what is no pool needs no check.
    #[arg(skip)]
    pub by_fsck: bool,
    /// Called as fsck.mergerfs, whose exit status says nothing of what was found.
    #[arg(skip)]
    pub as_mergerfs: bool,
}

/// The copy that the others are made like; of equals the first.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Source {
    #[default]
    None,
    Manual,
    Newest,
    Largest,
    Nonroot,
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    <bool as canopy_config::values::Value>::parse(text.as_ref()).map_err(|_| "must be true or false".into())
}

const FSCK_NOTES: &str = "\
COPY is newest (by mtime), largest, nonroot (the first whose owner is not root,
else the newest), manual (asked for, a file at a time), or none (the default).

Exit status: 0 all alike, 1 mended, 4 differences left, 8 failed.";

/// Gather what a report of a defect should tell
#[derive(Args, Debug)]
#[command(after_help = COLLECT_INFO_NOTES)]
pub struct CollectInfoArgs {
    /// Write to a new file, instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Called as mergerfs.collect-info, which has a file of its own.
    #[arg(skip)]
    pub as_mergerfs: bool,
}

const COLLECT_INFO_NOTES: &str = "\
Passwords and keys in mount options are left out; paths, host names and the log
of the last hour are not. Read it before you publish it.";

/// List the options of -o, their defaults and values
#[derive(Args, Debug)]
pub struct OptionsArgs {
    /// For programs
    #[arg(long)]
    pub json: bool,
}

/// Looks at what may never answer, for canopy status.
#[derive(Args, Debug)]
pub struct ProbeArgs {
    #[arg(value_parser = ["branch", "create", "pool"])]
    pub what: String,
    pub path: PathBuf,
}

/// What else there is to say than a command.
#[derive(Debug)]
pub enum Said {
    /// Help or version, for stdout.
    Text(String),
    /// A mistake in the grammar, in one line.
    Mistake(String),
}

/// The whole command line, for the manual pages.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Reads the command line as whoever calls the program by this name writes it.
pub fn parse(called: Called, args: impl IntoIterator<Item = OsString>) -> Result<Command, Said> {
    match called {
        Called::Canopy => parse_own(args),
        Called::Mergerfs => mergerfs::parse(args),
        Called::Helper(name) => mount_helper::parse(args, name),
        Called::Fsck => fsck::parse(args),
        // It takes no words.
        Called::CollectInfo => Ok(Command::CollectInfo(CollectInfoArgs { output: None, as_mergerfs: true })),
    }
}

/// What a process mounts that was started by these words, as /proc has them: with a NUL between them.
pub fn mount_words(words: &[u8]) -> Option<MountArgs> {
    let words = words.strip_suffix(b"\0").unwrap_or(words);
    let words = words.split(|&byte| byte == 0).map(|word| OsStr::from_bytes(word).to_owned());
    let words: Vec<OsString> = words.collect();
    match parse(Called::by(words.first()?), words) {
        Ok(Command::Mount(args)) => Some(args),
        _ => None,
    }
}

fn parse_own(args: impl IntoIterator<Item = OsString>) -> Result<Command, Said> {
    let matches = Cli::command().try_get_matches_from(fsck::join_switches(args)).map_err(said)?;
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
            "canopy status --help",
            "canopy explain --help",
            "canopy options --help",
            "canopy fsck --help",
            "canopy collect-info --help",
            "canopy bench --help",
        ] {
            match parse_words(words) {
                Err(Said::Text(text)) => {
                    assert!(text.lines().count() <= 24, "{words}: {} lines", text.lines().count());
                    assert!(text.lines().all(|line| line.chars().count() <= 80), "{words}:\n{text}");
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
