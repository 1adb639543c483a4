//! The sections of a command's manual page that its help does not have as such.

use canopy::exit;
use clap_mangen::roff::{Roff, bold, italic, roman};

/// Files, what they are, and the commands that use them; without any, all that name a pool.
const FILES: &[(&str, &str, &[&str])] = &[
    ("/etc/canopy/NAME.toml", "The pool NAME (canopy(8) has its keys).", &[]),
    ("/etc/fstab", "Pools and disks that are to be mounted.", &["status", "doctor", "init", "migrate"]),
    ("/etc/fstab.canopy-DATE", "What fstab was before a change.", &["doctor", "init", "migrate"]),
    ("/etc/systemd/system", "Units that mount pools.", &["init", "migrate"]),
    ("/run/canopy", "What the mover of a pool has done, and that it runs.", &["tier"]),
    (
        "BRANCH/.mergerfs.branch",
        "Marks a directory as a branch even if nothing is mounted there.",
        &["mount"],
    ),
    ("/var/log/syslog", "Where the messages are on a system without a journal.", &["log"]),
];

/// What the statuses of all commands mean.
pub(super) const MEANINGS: &[(u8, &str)] = &[
    (exit::DONE, "done, and nothing is wrong"),
    (exit::WRONG, "something is wrong, failed or stays undone; the message says what"),
    (exit::USAGE, "the command line is wrong; nothing was done"),
    (
        exit::NOT_AGREED,
        "a plan was shown and nobody said yes; nothing was changed (--yes, or --dry-run if that was the purpose)",
    ),
];

/// Commands for which a status means something else, or more.
pub(super) const OF_COMMANDS: &[(&str, &[(u8, &str)])] = &[
    (
        "status",
        &[(
            exit::WRONG,
            "a configured pool is not mounted, or a branch is missing or failing; advice does not count",
        )],
    ),
    ("doctor", &[(exit::WRONG, "there are warnings or problems")]),
    ("migrate", &[(exit::WRONG, "something has to be changed by hand, or failed")]),
    (
        "verify",
        &[(exit::WRONG, "a file is damaged, or copies differ"), (exit::UNREAD, "not everything was read")],
    ),
    (
        "fsck",
        &[
            (exit::DONE, "no copies differ"),
            (1, "copies differed, and all were repaired"),
            (4, "copies differ still"),
            (8, "something failed"),
            (exit::FSCK_USAGE, "as fsck.mergerfs: the command line is wrong"),
            (32, "stopped by a signal"),
        ],
    ),
];

/// Returns what the statuses of a command mean, in order.
pub(super) fn meanings(command: &str) -> Vec<(u8, &'static str)> {
    let own = OF_COMMANDS.iter().find(|(name, _)| *name == command).map_or(&[][..], |(_, own)| *own);
    // fsck(8) says what those of a checker mean.
    let general = MEANINGS.iter().filter(|(status, _)| command != "fsck" || *status == exit::USAGE);
    let general = general.filter(|(status, _)| !own.iter().any(|(known, _)| known == status));
    let mut all: Vec<(u8, &str)> = general.chain(own).copied().collect();
    all.sort_by_key(|(status, _)| *status);
    all
}

/// What the help of a command has behind its options.
pub(super) struct Sections {
    pub(super) notes: String,
    command: String,
    names_pool: bool,
    /// It has the option --yes.
    asks: bool,
    /// Command lines, some with a comment.
    examples: Vec<String>,
}

/// Takes the help apart. What it says of the exit status stands in a section of its own.
pub(super) fn of(command: &clap::Command) -> Sections {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = match help.find("Example") {
        Some(at) => help.split_at(at),
        None => (help.as_str(), ""),
    };
    let lines = examples.trim_start_matches("Examples:").trim_start_matches("Example:").lines();
    let lines = lines.map(|line| line.trim().to_owned()).filter(|line| !line.is_empty());
    let paragraphs =
        notes.split("\n\n").map(|text| text.split("Exit status: ").next().unwrap_or_default().trim());
    let paragraphs: Vec<&str> = paragraphs.filter(|text| !text.is_empty()).collect();
    let names_pool = command
        .get_arguments()
        .any(|argument| matches!(argument.get_id().as_str(), "pool" | "mount" | "mountpoint"));
    Sections {
        notes: paragraphs.join("\n\n"),
        command: command.get_name().to_owned(),
        names_pool: names_pool || command.get_name() == "mount",
        asks: command.get_arguments().any(|argument| argument.get_id() == "yes"),
        examples: lines.collect(),
    }
}

impl Sections {
    pub(super) fn write(&self, roff: &mut Roff) {
        let uses = |commands: &[&str]| match commands {
            [] => self.names_pool,
            commands => commands.contains(&self.command.as_str()),
        };
        let files: Vec<_> = FILES.iter().filter(|(_, _, commands)| uses(commands)).collect();
        if !files.is_empty() {
            roff.control("SH", ["FILES"]);
            for (path, meaning, _) in files {
                roff.control("TP", []);
                roff.text([italic(*path)]);
                roff.text([roman(*meaning)]);
            }
        }
        roff.control("SH", ["EXIT STATUS"]);
        let meanings = meanings(&self.command).into_iter();
        for (status, meaning) in meanings.filter(|(status, _)| *status != exit::NOT_AGREED || self.asks) {
            roff.control("TP", []);
            roff.text([bold(status.to_string())]);
            roff.text([roman(format!("{meaning}."))]);
        }
        roff.control("SH", ["EXAMPLES"]);
        roff.control("nf", []);
        for (index, line) in self.examples.iter().enumerate() {
            if index > 0 {
                roff.control("br", []);
            }
            roff.text([roman(line.as_str())]);
        }
        roff.control("fi", []);
    }
}
