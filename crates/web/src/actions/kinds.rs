//! The one table of what pages can do.

use super::Undo;
use super::rows::Rows;

/// What an action is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    Pool,
    Machine,
}

/// What a field takes. Whatever comes is checked against it: a form may be made by anybody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// A branch that the pool has.
    Branch,
    /// Any directory, with its whole path.
    Directory,
    /// Something in the pool, relative to its root.
    Place,
    /// What the trash keeps, relative to the root of the pool; empty for all.
    Kept,
    /// The name of an option that a running pool can change.
    Option,
    /// Any text.
    Value,
    /// One of the pool's jobs.
    Job,
    /// A finding of `canopy doctor`.
    Finding,
    /// The name of a new pool.
    Name,
    /// One or several directories, a line each, or one field each.
    Directories,
    /// A number with a unit, as 20M, 5% or 3d.
    Quantity,
    Yes,
    /// The name of a job, also of a new one.
    JobName,
    /// One who is told of events.
    Receiver,
    /// The name of one, also of a new one.
    ReceiverName,
    /// Text that may be a secret. It is never shown, and no command line has it.
    Secret,
    /// A file with a secret, where those who are told are named: not any file, whose content would be sent away.
    SecretFile,
    /// All rows of an option that is a list.
    Rows(Rows),
    Choice(&'static [(&'static str, &'static str)]),
}

/// Where in the command line a value goes. What is free never begins a word that may be an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goes {
    /// Behind `--`, in the order of fields.
    Last,
    /// As `--option`, if it is yes.
    Flag(&'static str),
    /// As `--option=value`, if it is not empty.
    With(&'static str),
    /// As the left and the right half of `key=value`.
    Key,
    Value,
    /// As `key=value`, if the job does not say so already.
    Pair(&'static str),
    /// As a line `key=value` that the command reads, if it is not empty.
    Secret(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub label: &'static str,
    pub help: &'static str,
    pub input: Input,
    pub goes: Goes,
    pub required: bool,
}

/// How the plan of an action is found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// The command has `--dry-run`; it acts with `--yes`.
    DryRun,
    /// The command has `--dry-run`, and acts without it.
    Shown,
    /// There is none beyond the words.
    None,
}

#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    pub title: &'static str,
    pub words: &'static str,
    pub undo: Undo,
    pub scope: Scope,
    pub command: &'static [&'static str],
    pub plan: Plan,
    /// Words behind the pool.
    pub after: &'static [&'static str],
    pub fields: &'static [Field],
    /// The action that is mostly done next.
    pub next: Option<&'static str>,
    /// The heading below which it is listed; empty where a page of its own leads there.
    pub group: &'static str,
}

impl Kind {
    pub fn named(name: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.name == name)
    }
}

const fn field(name: &'static str, label: &'static str, input: Input, goes: Goes) -> Field {
    Field { name, label, help: "", input, goes, required: true }
}

const fn free(name: &'static str, label: &'static str, input: Input, goes: Goes) -> Field {
    Field { name, label, help: "", input, goes, required: false }
}

const fn helped(field: Field, help: &'static str) -> Field {
    Field { help, ..field }
}

/// Tables of `canopy bench`.
const MEASURED: &[(&str, &str)] = &[
    ("goals", "What a pool promises"),
    ("meta", "Names and attributes"),
    ("walks", "Programs that walk a tree"),
    ("programs", "Programs at work"),
    ("dd", "Large reads and writes"),
    ("reads", "Reads of several programs"),
];

/// A value that is not shown again: empty, it stays as it is.
const fn secret(name: &'static str, label: &'static str) -> Field {
    Field {
        name,
        label,
        help: "Empty: as it is. It is not shown.",
        input: Input::Secret,
        goes: Goes::Secret(name),
        required: false,
    }
}

const SECRET_FILE: &str = "A file in /etc/canopy that only root can read (chmod 600), with one line.";

const BRANCH: Field = field("branch", "Branch", Input::Branch, Goes::Last);
const MODES: Input = Input::Choice(&[("RW", "read and write"), ("NC", "no new files"), ("RO", "read only")]);
const WAYS: Input = Input::Choice(&[
    ("spread", "to a random disk, more often to one that is emptier"),
    ("most-free", "to the disk with the most free space"),
    ("together", "where their directory is"),
    ("fill", "to the first disk with room"),
]);
const BOOTS: Input = Input::Choice(&[
    ("fstab", "a line of /etc/fstab"),
    ("unit", "a unit of systemd"),
    ("nothing", "nothing"),
]);
const NO_PERSIST: Field = free(
    "no-persist",
    "Only until the pool is unmounted: leave its file as it is",
    Input::Yes,
    Goes::Flag("--no-persist"),
);
const PERSIST: Field =
    free("persist", "Also in the file of the pool, for the next mount", Input::Yes, Goes::Flag("--persist"));
const LIMIT: Field = helped(
    free("bwlimit", "At most, a second", Input::Quantity, Goes::With("--bwlimit")),
    "Such as 20M; empty for no limit.",
);
const HERE: Field = helped(
    free("path", "Only below", Input::Place, Goes::Last),
    "A file or directory of the pool; empty for all of it.",
);
const BACK: Undo = Undo::By("files stay as they are in the pool, and can be moved again");
const DISKS: &str = "Disks";
const FILES: &str = "Files";
const ORDER: &str = "What goes where";
const OLD_VALUE: Undo = Undo::By("the old value can be set again: the plan has it");

/// An action that changes all rows of an option.
const fn list(
    name: &'static str,
    title: &'static str,
    words: &'static str,
    fields: &'static [Field],
    next: Option<&'static str>,
) -> Kind {
    Kind {
        name,
        title,
        words,
        undo: OLD_VALUE,
        scope: Scope::Pool,
        command: &["set"],
        plan: Plan::Shown,
        after: &[],
        fields,
        next,
        group: ORDER,
    }
}

const fn rows(rows: Rows) -> Field {
    free("rows", "", Input::Rows(rows), Goes::Value)
}

const WHEN_TO_RUN: Input = Input::Choice(&[("true", "yes")]);

pub static KINDS: &[Kind] = &[
    Kind {
        name: "add",
        title: "Add a disk",
        words: "The directory becomes a branch of the pool: its files show in the pool, and new files go there.",
        undo: Undo::By("remove takes it out again, and files stay on it"),
        scope: Scope::Pool,
        command: &["add"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[
            helped(
                field("dir", "Directory", Input::Directory, Goes::Last),
                "Where the disk is mounted, such as /mnt/disk4.",
            ),
            helped(free("mode", "Mode", MODES, Goes::With("--mode")), "What the pool may do there."),
            NO_PERSIST,
        ],
        next: Some("balance"),
        group: DISKS,
    },
    Kind {
        name: "replace",
        title: "Replace a disk",
        words: "Another directory takes the place, the mode and the free space to keep of a branch. Nothing is copied: copy the \
                files first, or add the new disk and empty the old one.",
        undo: Undo::By("replacing it by the old one"),
        scope: Scope::Pool,
        command: &["replace"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[
            BRANCH,
            helped(
                field("dir", "New directory", Input::Directory, Goes::Last),
                "Where the new disk is mounted, such as /mnt/disk4.",
            ),
            NO_PERSIST,
        ],
        next: Some("tier"),
        group: DISKS,
    },
    Kind {
        name: "drain",
        title: "Empty a disk",
        words: "All files of the branch move to the others, so that its disk can be taken out. New files go elsewhere meanwhile.",
        undo: BACK,
        scope: Scope::Pool,
        command: &["drain"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[
            BRANCH,
            free("remove", "Then remove it from the pool", Input::Yes, Goes::Flag("--remove")),
            LIMIT,
        ],
        next: Some("remove"),
        group: DISKS,
    },
    Kind {
        name: "remove",
        title: "Remove a disk",
        words: "The branch leaves the pool. Files that only it holds disappear from the pool, and stay on the disk. To keep them \
                in the pool, empty the disk first.",
        undo: Undo::By("add brings it back"),
        scope: Scope::Pool,
        command: &["remove"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[BRANCH, NO_PERSIST],
        next: None,
        group: DISKS,
    },
    Kind {
        name: "mode",
        title: "Change the mode of a disk",
        words: "What the pool may do on the branch.",
        undo: Undo::By("the mode that it has now can be given again"),
        scope: Scope::Pool,
        command: &["mode"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[BRANCH, field("mode", "Mode", MODES, Goes::Last), NO_PERSIST],
        next: None,
        group: DISKS,
    },
    Kind {
        name: "set",
        title: "Change an option",
        words: "Running operations finish with the old value. Files that are open stay usable.",
        undo: Undo::By("the old value can be set again"),
        scope: Scope::Pool,
        command: &["set"],
        plan: Plan::Shown,
        after: &[],
        fields: &[
            field("option", "Option", Input::Option, Goes::Key),
            free("value", "New value", Input::Value, Goes::Value),
            PERSIST,
        ],
        next: None,
        group: "",
    },
    Kind {
        name: "balance",
        title: "Even out disks",
        words: "Files move until the branches are about equally full, as few as possible.",
        undo: BACK,
        scope: Scope::Pool,
        command: &["balance"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[
            helped(
                free("to", "How far they may differ afterwards", Input::Quantity, Goes::With("--to")),
                "Such as 10%; empty for 5%.",
            ),
            LIMIT,
        ],
        next: None,
        group: FILES,
    },
    Kind {
        name: "tier",
        title: "Apply tiers and rules",
        words: "Files move to the tiers where they belong now, and get the copies that rules ask for.",
        undo: BACK,
        scope: Scope::Pool,
        command: &["tier", "--once"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[free("now", "At any time of the day", Input::Yes, Goes::Flag("--now")), LIMIT],
        next: None,
        group: FILES,
    },
    Kind {
        name: "dup",
        title: "Copy files to further disks",
        words: "Files get copies on other disks. Later writes change only one of them: rules with copies keep them alike.",
        undo: Undo::By("dedup removes surplus copies"),
        scope: Scope::Pool,
        command: &["dup"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[
            helped(field("path", "Of", Input::Place, Goes::Last), "A file or directory of the pool."),
            helped(
                free("copies", "On how many disks", Input::Quantity, Goes::With("--copies")),
                "Empty for 2.",
            ),
            LIMIT,
        ],
        next: None,
        group: FILES,
    },
    Kind {
        name: "dedup",
        title: "Remove surplus copies",
        words: "Of files that several branches hold alike, one copy stays. Copies that differ, are open, or that a rule asks for stay.",
        undo: Undo::Never("a copy that is removed is gone; its like stays"),
        scope: Scope::Pool,
        command: &["dedup"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[
            HERE,
            helped(
                free("copies", "How many copies stay", Input::Quantity, Goes::With("--copies")),
                "Empty for 1.",
            ),
        ],
        next: None,
        group: FILES,
    },
    Kind {
        name: "verify",
        title: "Check files",
        words: "Files are read and compared with their checksums. With repair, new checksums are stored, and what is damaged is \
                taken from a copy that is sound.",
        undo: Undo::Nothing,
        scope: Scope::Pool,
        command: &["verify"],
        plan: Plan::None,
        after: &[],
        fields: &[
            HERE,
            free("repair", "Store checksums, and repair what is damaged", Input::Yes, Goes::Flag("--yes")),
            LIMIT,
        ],
        next: None,
        group: FILES,
    },
    list(
        "rules",
        "Change rules",
        "A rule says on which disks files of a path belong, and how many copies there are to be. Nothing moves until tiers and rules \
         are applied; new files are placed by them at once.",
        &[rows(Rows::Rules), PERSIST],
        Some("tier"),
    ),
    list(
        "tiers",
        "Change tiers",
        "A tier is a group of disks that gets new files before others. Files leave it when it says so.",
        &[rows(Rows::Tiers), PERSIST],
        Some("tier"),
    ),
    list(
        "cache",
        "Change read caches",
        "A cache copies files that are read to a fast disk, and later reads come from there. The files stay where they are. If \
         you remove a cache, its copies stay: delete its directory .canopy-cache yourself.",
        &[rows(Rows::Caches), PERSIST],
        None,
    ),
    list(
        "keep",
        "Change what the trash keeps",
        "What is removed from the pool is kept for a while. What the trash holds and no row keeps any more stays until it is emptied; \
         what is kept for a shorter time goes within the hour.",
        &[rows(Rows::Trash), PERSIST],
        None,
    ),
    Kind {
        name: "schedule",
        title: "Schedule a job",
        words: "A command is run again and again, by the service canopy-jobs. The file of the pool says so.",
        undo: Undo::By("the job can be changed again, or taken off the schedule"),
        scope: Scope::Pool,
        command: &["jobs"],
        plan: Plan::Shown,
        after: &["set"],
        fields: &[
            helped(
                field("job", "Name", Input::JobName, Goes::Last),
                "Letters, digits, -, _ and dots, such as verify.",
            ),
            helped(
                field("do", "Command", Input::Value, Goes::Pair("do")),
                "Without the pool: verify, balance --to 5, tier, dedup, snapraid sync, or another one.",
            ),
            helped(
                field("when", "When", Input::Value, Goes::Pair("when")),
                "Such as every Sunday at 01:00, every night at 03:00, every month, every 6 hours.",
            ),
            free("idle", "Begin only while clients leave the pool alone", WHEN_TO_RUN, Goes::Pair("idle")),
            free("awake-only", "Begin only while no disk sleeps", WHEN_TO_RUN, Goes::Pair("awake-only")),
            free(
                "missed",
                "If the machine was off at that time",
                Input::Choice(&[("catch up", "run as soon as it can"), ("skip", "wait for the next time")]),
                Goes::Pair("missed"),
            ),
            helped(
                free("at-most", "Stop after", Input::Value, Goes::Pair("at-most")),
                "Such as 6 hours; empty for no limit.",
            ),
            helped(
                free(
                    "deletions",
                    "Do not sync if more files are gone",
                    Input::Quantity,
                    Goes::Pair("deletions"),
                ),
                "A number; only of snapraid sync.",
            ),
            helped(free("nice", "Nice", Input::Quantity, Goes::Pair("nice")), "0 to 19; empty for 10."),
        ],
        next: Some("job"),
        group: ORDER,
    },
    Kind {
        name: "unschedule",
        title: "Take a job off the schedule",
        words: "The file of the pool no longer has the job. What it has done stays, and so does its log.",
        undo: Undo::By("it can be scheduled again: the plan has what it said"),
        scope: Scope::Pool,
        command: &["jobs"],
        plan: Plan::Shown,
        after: &["drop"],
        fields: &[field("job", "Job", Input::Job, Goes::Last)],
        next: None,
        group: "",
    },
    Kind {
        name: "restore",
        title: "Bring back from the trash",
        words: "It comes back where it was. What has its name in the pool by now stays, and nothing is overwritten.",
        undo: Undo::By("it can be removed again"),
        scope: Scope::Pool,
        command: &["trash", "restore"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[helped(
            free("path", "What", Input::Kept, Goes::Last),
            "A path of the pool, or a pattern such as photos/**; empty for all.",
        )],
        next: None,
        group: "",
    },
    Kind {
        name: "empty",
        title: "Empty the trash",
        words: "What the trash keeps is removed for good.",
        undo: Undo::Never("what is removed from the trash is gone"),
        scope: Scope::Pool,
        command: &["trash", "empty"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[
            helped(
                free("path", "What", Input::Kept, Goes::Last),
                "A path of the pool, or a pattern such as photos/**; empty for all.",
            ),
            helped(
                free("before", "Only what was removed before", Input::Quantity, Goes::With("--before")),
                "An age such as 7d; empty for all.",
            ),
        ],
        next: None,
        group: "",
    },
    Kind {
        name: "job",
        title: "Run a job now",
        words: "What the file of the pool has scheduled runs now, with all that it does at its time.",
        undo: Undo::By("what it does itself decides that; each of its commands says so"),
        scope: Scope::Pool,
        command: &["jobs"],
        plan: Plan::None,
        after: &["run"],
        fields: &[field("job", "Job", Input::Job, Goes::Last)],
        next: None,
        group: "",
    },
    Kind {
        name: "fix",
        title: "Mend a finding",
        words: "What canopy doctor proposes for it is done.",
        undo: Undo::Never("files that it changes, it changes in place"),
        scope: Scope::Machine,
        command: &["doctor", "--yes"],
        plan: Plan::None,
        after: &[],
        fields: &[field("code", "Finding", Input::Finding, Goes::With("--fix"))],
        next: None,
        group: "",
    },
    Kind {
        name: "bench",
        title: "Measure the speed",
        words: "Canopy mounts pools of its own over directories in memory, compares them with these directories, and removes them. \
                Your pools stay as they are, but may be slower meanwhile.",
        undo: Undo::Nothing,
        scope: Scope::Machine,
        command: &["bench"],
        plan: Plan::None,
        after: &[],
        fields: &[
            field("only", "What", Input::Choice(MEASURED), Goes::With("--only")),
            helped(
                free("quick", "A short measurement", Input::Yes, Goes::Flag("--quick")),
                "Its figures vary more.",
            ),
        ],
        next: None,
        group: "",
    },
    Kind {
        name: "notify",
        title: "Send a trial message",
        words: "Everybody whom /etc/canopy/notify.toml or the file of a pool names gets a trial message.",
        undo: Undo::Nothing,
        scope: Scope::Machine,
        command: &["notify"],
        plan: Plan::None,
        after: &["test"],
        fields: &[],
        next: None,
        group: "",
    },
    Kind {
        name: "receiver",
        title: "Tell somebody of events",
        words: "The service canopy-notify sends there what canopy status warns of: once when it begins, and once when it is over. Fill in \
                one way. Web addresses are never shown again, the command reads them from its standard input, and one that is left \
                empty stays as it is. A program to run can only be named in the file.",
        undo: Undo::By("it can be changed again, or taken off"),
        scope: Scope::Machine,
        command: &["notify"],
        plan: Plan::Shown,
        after: &["set"],
        fields: &[
            helped(
                field("name", "Name", Input::ReceiverName, Goes::Last),
                "Letters, digits, -, _ and dots, such as phone.",
            ),
            helped(
                secret("ntfy", "ntfy: URL of the topic"),
                "Such as https://ntfy.sh/ and a word that nobody guesses.",
            ),
            secret("gotify", "Gotify: URL of the server"),
            helped(secret("webhook", "Webhook: URL"), "It gets an object of JSON."),
            helped(
                free("mail", "Mail to", Input::Value, Goes::Pair("mail")),
                "By the machine's sendmail, unless a server is named.",
            ),
            helped(secret("smtp", "Mail: server"), "Such as smtps://mail.example.org:465."),
            free("from", "Mail: from", Input::Value, Goes::Pair("from")),
            free("user", "Mail: user of the server", Input::Value, Goes::Pair("user")),
            helped(
                free(
                    "password-file",
                    "Mail: file with the password",
                    Input::SecretFile,
                    Goes::Pair("password-file"),
                ),
                SECRET_FILE,
            ),
            helped(
                free(
                    "token-file",
                    "ntfy, Gotify, webhook: file with the token",
                    Input::SecretFile,
                    Goes::Pair("token-file"),
                ),
                SECRET_FILE,
            ),
            free(
                "least",
                "Tell of",
                Input::Choice(&[
                    ("problem", "problems: files, or a place for new ones, are missing"),
                    ("warning", "problems and warnings"),
                    ("notice", "all that happens"),
                ]),
                Goes::Pair("least"),
            ),
            free(
                "repeat",
                "Again",
                Input::Choice(&[("daily", "each day while it lasts")]),
                Goes::Pair("repeat"),
            ),
        ],
        next: Some("notify"),
        group: "",
    },
    Kind {
        name: "unreceiver",
        title: "Tell somebody no longer",
        words: "The file no longer has this receiver. What waits to be sent there is dropped.",
        undo: Undo::Never("a secret that only the file has is gone with it"),
        scope: Scope::Machine,
        command: &["notify"],
        plan: Plan::Shown,
        after: &["drop"],
        fields: &[field("name", "Name", Input::Receiver, Goes::Last)],
        next: None,
        group: "",
    },
    Kind {
        name: "unmount",
        title: "Unmount the pool",
        words: "The pool ends; its files stay on their disks. It fails while files of it are in use.",
        undo: Undo::By("the pool can be mounted again, if it has a file or a line in fstab"),
        scope: Scope::Pool,
        command: &["umount"],
        plan: Plan::None,
        after: &[],
        fields: &[],
        next: None,
        group: "Pool",
    },
    Kind {
        name: "init",
        title: "Make a pool",
        words: "A file in /etc/canopy describes the pool, and the machine mounts it at boot as you choose. Disks and the files on \
                them stay as they are.",
        undo: Undo::By("canopy init NAME --undo takes back what is written"),
        scope: Scope::Machine,
        command: &["init"],
        plan: Plan::DryRun,
        after: &[],
        fields: &[
            helped(
                field("name", "Name", Input::Name, Goes::Last),
                "Letters, digits, - and _, such as media.",
            ),
            helped(
                field("branch", "Disks", Input::Directories, Goes::With("--branch")),
                "Directories where disks are mounted. Several make one pool.",
            ),
            helped(
                free("mountpoint", "Where the pool appears", Input::Directory, Goes::With("--mountpoint")),
                "Empty for /mnt and its name.",
            ),
            free("way", "New files go", WAYS, Goes::With("--way")),
            free("boot", "At boot it is mounted by", BOOTS, Goes::With("--boot")),
        ],
        next: Some("mount"),
        group: "",
    },
    Kind {
        name: "mount",
        title: "Mount a pool",
        words: "The pool that its file in /etc/canopy describes is mounted.",
        undo: Undo::By("it can be unmounted"),
        scope: Scope::Machine,
        command: &["mount"],
        plan: Plan::None,
        after: &[],
        fields: &[field("name", "Name", Input::Name, Goes::Last)],
        next: None,
        group: "",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_what_cannot_be_undone_says_why() {
        for (index, kind) in KINDS.iter().enumerate() {
            assert!(KINDS[..index].iter().all(|other| other.name != kind.name), "{}", kind.name);
            assert!(!kind.words.is_empty() && kind.words.ends_with('.'), "{}", kind.name);
            assert!(kind.next.is_none_or(|next| Kind::named(next).is_some()), "{}", kind.name);
            if let Undo::By(why) | Undo::Never(why) = kind.undo {
                assert!(!why.is_empty(), "{}", kind.name);
            }
        }
    }

    /// What is free is behind `--`, or behind the `=` of a word that begins with an option.
    #[test]
    fn no_value_begins_a_word_that_may_be_an_option() {
        for kind in KINDS {
            for field in kind.fields {
                match field.goes {
                    Goes::Flag(option) | Goes::With(option) => {
                        assert!(option.starts_with("--"), "{}", kind.name)
                    }
                    Goes::Last | Goes::Key | Goes::Value | Goes::Pair(_) | Goes::Secret(_) => {}
                }
                assert_eq!(
                    field.input == Input::Secret,
                    matches!(field.goes, Goes::Secret(_)),
                    "{}",
                    kind.name
                );
                assert_eq!(field.input == Input::Yes, matches!(field.goes, Goes::Flag(_)), "{}", kind.name);
            }
        }
    }
}
