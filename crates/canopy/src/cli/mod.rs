//! The command line, in the grammar that belongs to the name of the program.

mod fsck;
mod help;
pub mod invocation;
mod mergerfs;
mod mount_helper;

use crate::commands::branches::{AddArgs, ModeArgs, RemoveArgs, ReplaceArgs};
use crate::commands::doctor::DoctorArgs;
use crate::commands::explain::ExplainArgs;
use crate::commands::get::GetArgs;
use crate::commands::list::ListArgs;
use crate::commands::mount::MountArgs;
use crate::commands::options::OptionsArgs;
use crate::commands::probe::ProbeArgs;
use crate::commands::remount::RemountArgs;
use crate::commands::set::SetArgs;
use crate::commands::status::StatusArgs;
use crate::commands::sync::SyncArgs;
use crate::commands::umount::UmountArgs;
use crate::commands::upgrade::UpgradeArgs;
use canopy_bench::BenchArgs;
use canopy_config::source::command_line::Arg;
use canopy_monitor::disks::DisksArgs;
use canopy_monitor::{CollectInfoArgs, LogArgs, MetricsArgs, TopArgs, WebArgs};
use canopy_notify::NotifyArgs;
use canopy_schedule::JobsArgs;
use canopy_setup::commands::init::InitArgs;
use canopy_setup::commands::migrate::MigrateArgs;
use canopy_setup::complete::CompleteArgs;
use canopy_upkeep::{
    BalanceArgs, CacheArgs, ConsolidateArgs, CopiesArgs, DedupArgs, DrainArgs, DuArgs, DupArgs, ForgetArgs,
    FsckArgs, LostArgs, LsArgs, MoveArgs, TierArgs, Tool, ToolCommand, TrashArgs, VerifyArgs, WhichArgs,
};
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use invocation::Invocation;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Joins directories on many disks into one tree; data goes straight to the disks.
#[derive(Parser, Debug)]
#[command(name = "canopy", version, arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Mount(MountArgs),
    /// `mount -o remount`, which only mount(8) requests.
    #[command(skip)]
    Remount(RemountArgs),
    Umount(UmountArgs),
    Sync(SyncArgs),
    Upgrade(UpgradeArgs),
    Get(GetArgs),
    Set(SetArgs),
    Add(AddArgs),
    Remove(RemoveArgs),
    Replace(ReplaceArgs),
    Mode(ModeArgs),
    List(ListArgs),
    Status(StatusArgs),
    Disks(DisksArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Notify(NotifyArgs),
    Jobs(JobsArgs),
    Log(LogArgs),
    Web(WebArgs),
    Explain(ExplainArgs),
    Fsck(FsckArgs),
    CollectInfo(CollectInfoArgs),
    Options(OptionsArgs),
    Bench(BenchArgs),
    Init(InitArgs),
    Migrate(MigrateArgs),
    Doctor(DoctorArgs),
    Which(WhichArgs),
    Lost(LostArgs),
    Forget(ForgetArgs),
    Ls(LsArgs),
    Du(DuArgs),
    Move(MoveArgs),
    Balance(BalanceArgs),
    Drain(DrainArgs),
    Consolidate(ConsolidateArgs),
    Tier(TierArgs),
    Copies(CopiesArgs),
    Dup(DupArgs),
    Dedup(DedupArgs),
    Verify(VerifyArgs),
    Trash(TrashArgs),
    Cache(CacheArgs),
    /// A program of mergerfs-tools.
    #[command(skip)]
    Tool(ToolCommand),
    #[command(hide = true)]
    Probe(ProbeArgs),
    #[command(hide = true)]
    Complete(CompleteArgs),
    /// Run the server that the benchmark compares pools with
    #[command(hide = true)]
    BenchFloor {
        /// Use io_uring, as the option of pools does
        #[arg(long)]
        io_uring: bool,
        /// A real directory whose files appear in `data`, with passthrough, and in `copied`, without
        #[arg(long, value_name = "DIR")]
        existing: Option<PathBuf>,
        mountpoint: PathBuf,
    },
}

/// The reasons to exit without running a command.
#[derive(Debug)]
pub enum EarlyExit {
    /// Help or version, for stdout.
    Print(String),
    /// A usage error, in one line.
    UsageError(String),
}

/// Returns the definition of the command line, for the manual pages.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Parses a command line in the grammar of this invocation.
pub fn parse(invocation: Invocation, args: impl IntoIterator<Item = OsString>) -> Result<Command, EarlyExit> {
    match invocation {
        Invocation::Canopy => parse_own(args),
        Invocation::Mergerfs => mergerfs::parse(args),
        Invocation::Helper(name) => mount_helper::parse(args, name),
        Invocation::Fsck => fsck::parse(args),
        Invocation::Tool(tool) => tool_command(tool, args),
        // It takes no arguments.
        Invocation::CollectInfo => {
            Ok(Command::CollectInfo(CollectInfoArgs { output: None, as_mergerfs: true }))
        }
    }
}

/// Says whether these are the arguments of a command, or in one line why not.
pub fn takes(words: &[OsString]) -> Result<(), String> {
    match parse_own(std::iter::once("canopy".into()).chain(words.iter().cloned())) {
        Err(EarlyExit::UsageError(why)) => Err(why),
        Ok(_) | Err(EarlyExit::Print(_)) => Ok(()),
    }
}

fn tool_command(tool: Tool, args: impl IntoIterator<Item = OsString>) -> Result<Command, EarlyExit> {
    let command = canopy_upkeep::parse_tool(tool, args).map_err(|error| early_exit(error, None, None))?;
    Ok(match command {
        ToolCommand::Fsck(args) => Command::Fsck(fsck::of_tool(args)),
        other => Command::Tool(other),
    })
}

/// Parses the command line of a process that mounts a pool, as in /proc: with NULs between the arguments.
pub fn parse_mount_cmdline(cmdline: &[u8]) -> Option<MountArgs> {
    let words = cmdline.strip_suffix(b"\0").unwrap_or(cmdline);
    let words = words.split(|&byte| byte == 0).map(|word| OsStr::from_bytes(word).to_owned());
    let words: Vec<OsString> = words.collect();
    match parse(Invocation::from_program(words.first()?), words) {
        Ok(Command::Mount(args)) => Some(args),
        _ => None,
    }
}

fn parse_own(args: impl IntoIterator<Item = OsString>) -> Result<Command, EarlyExit> {
    let args = help::as_option(fsck::join_switches(args));
    let mut definition = help::grouped(definition());
    let help = help::command_of(&definition, &args);
    let matches = definition.try_get_matches_from_mut(args);
    let failed = |error| early_exit(error, Some(&help), Some(&definition));
    let matches = matches.map_err(failed)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(failed)?;
    if let (Command::Mount(args), Some(matches)) = (&mut cli.command, matches.subcommand_matches("mount")) {
        args.in_order = in_order(args, matches);
    }
    Ok(cli.command)
}

/// Returns options and paths in their common order, which clap only keeps as indices.
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

/// `help` is the command that shows the help, `commands` the definition of a program that has commands.
fn early_exit(error: clap::Error, help: Option<&str>, commands: Option<&clap::Command>) -> EarlyExit {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => EarlyExit::Print(text),
        // The first paragraph is the error; usage and hints follow.
        _ => {
            let first = text.split("\n\n").next().unwrap_or_default();
            let line = first.split_whitespace().collect::<Vec<_>>().join(" ");
            let line = line.trim_start_matches("error: ");
            let meant = help::meant(commands, &error);
            let hints: Vec<String> = meant.into_iter().chain(help.map(str::to_owned)).collect();
            EarlyExit::UsageError(if hints.is_empty() {
                line.to_owned()
            } else {
                format!("{line} ({})", hints.join("; "))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &str) -> Result<Command, EarlyExit> {
        parse(Invocation::Canopy, words.split_whitespace().map(OsString::from))
    }

    fn mount(words: &str) -> MountArgs {
        match parse_words(words) {
            Ok(Command::Mount(args)) => args,
            other => panic!("{words}: {other:?}"),
        }
    }

    #[test]
    fn the_definition_passes_claps_checks() {
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
        assert!(matches!(parse_words("canopy umount"), Err(EarlyExit::UsageError(_))));
    }

    #[test]
    fn usage_errors_are_one_line() {
        for words in [
            "canopy frob",
            "canopy mount --frob /a /m",
            "canopy umount",
            "canopy umount /a /b",
            "canopy mount -o",
        ] {
            match parse_words(words) {
                Err(EarlyExit::UsageError(line)) => {
                    assert!(!line.contains('\n') && line.len() > 20, "{words}: {line}")
                }
                other => panic!("{words}: {other:?}"),
            }
        }
        for (words, hint) in [
            ("canopy mont /a /m", "did you mean 'mount'?; canopy --help"),
            ("canopy stauts", "did you mean 'status'?; canopy --help"),
            ("canopy drain --dry-rnu /p /a", "did you mean '--dry-run'?; canopy drain --help"),
            ("canopy explain", "canopy explain --help"),
            ("canopy help stauts", "did you mean 'status'?; canopy --help"),
            ("canopy umount", "canopy umount --help"),
        ] {
            match parse_words(words) {
                Err(EarlyExit::UsageError(line)) => {
                    assert!(line.ends_with(&format!("({hint})")), "{words}: {line}")
                }
                other => panic!("{words}: {other:?}"),
            }
        }
    }

    #[test]
    fn help_is_a_command_too() {
        let shown = |words: &str| match parse_words(words) {
            Err(EarlyExit::Print(text)) => text,
            other => panic!("{words}: {other:?}"),
        };
        assert_eq!(shown("canopy help"), shown("canopy --help"));
        assert_eq!(shown("canopy help help"), shown("canopy --help"));
        assert_eq!(shown("canopy help drain"), shown("canopy drain --help"));
    }

    /// Each command has examples in its help, and the program takes them.
    #[test]
    fn every_command_has_examples_that_parse() {
        for command in definition().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let (_, examples) = help
                .split_once("\nExample")
                .or(help.strip_prefix("Example").map(|rest| ("", rest)))
                .unwrap_or_default();
            let lines = examples.lines().filter_map(|line| line.find("canopy ").map(|at| &line[at..]));
            let lines: Vec<&str> = lines.collect();
            assert!(!lines.is_empty(), "canopy {name} --help has no example");
            for line in lines {
                assert!(line.starts_with(&format!("canopy {name}")), "{name}: {line}");
                // Without comments and pipes, and without the quotes that the shell takes away.
                let words =
                    line.split(" #").next().and_then(|line| line.split(" | ").next()).unwrap_or_default();
                let words = words.split_whitespace().map(|word| OsString::from(word.trim_matches('\'')));
                let parsed = parse(Invocation::Canopy, words);
                assert!(parsed.is_ok(), "{line}: {parsed:?}");
            }
        }
    }

    #[test]
    fn help_fits_a_screen() {
        let whole = definition();
        let shown = whole.get_subcommands().filter(|command| !command.is_hide_set());
        let of_commands = shown.map(|command| (format!("canopy {} --help", command.get_name()), 44));
        let of_all =
            ["canopy", "canopy --help", "canopy -h", "canopy help"].map(|words| (words.to_owned(), 62));
        for (words, most) in of_commands.chain(of_all) {
            match parse_words(&words) {
                Err(EarlyExit::Print(text)) => {
                    assert!(text.lines().count() <= most, "{words}: {} lines", text.lines().count());
                    assert!(text.lines().all(|line| line.chars().count() <= 80), "{words}:\n{text}");
                }
                other => panic!("{words}: {other:?}"),
            }
        }
        match parse_words("canopy --version") {
            Err(EarlyExit::Print(text)) => {
                assert_eq!(text.trim(), concat!("canopy ", env!("CARGO_PKG_VERSION")))
            }
            other => panic!("{other:?}"),
        }
    }
}
