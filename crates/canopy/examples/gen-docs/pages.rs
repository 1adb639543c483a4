//! The generated pages.

use canopy::cli;
use canopy::commands::options::{self, OptionEntry};
use canopy::commands::status::model::WarningCode;
use canopy_config::options::{Spec, find};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use std::fmt::Write as _;
use std::io;

#[path = "policies.rs"]
mod policies;
#[path = "sections.rs"]
mod sections;

const COMMAND: &str = "cargo run -p canopy --example gen-docs";

/// Returns the path of each page, relative to the root of the repository, and its content.
pub(super) fn all() -> io::Result<Vec<(String, String)>> {
    policies::check();
    let mut pages = vec![("docs/options.md".to_owned(), options_page())];
    let whole = cli::definition();
    pages.push(("man/canopy.8".to_owned(), main_page(&whole)?));
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("canopy-{}", command.get_name());
        pages.push((format!("man/{name}.8"), command_page(command.clone(), &name)?));
    }
    // Other names under which the program is called.
    for (name, page) in [
        ("mount.canopy", "canopy"),
        ("mount.fuse.canopy", "canopy"),
        ("mergerfs", "canopy"),
        ("mount.mergerfs", "canopy"),
        ("mount.fuse.mergerfs", "canopy"),
        ("fsck.mergerfs", "canopy-fsck"),
        ("mergerfs.collect-info", "canopy-collect-info"),
        ("mergerfs.balance", "canopy-balance"),
        ("mergerfs.consolidate", "canopy-consolidate"),
        ("mergerfs.ctl", "canopy-set"),
        ("mergerfs.dedup", "canopy-dedup"),
        ("mergerfs.dup", "canopy-dup"),
        ("mergerfs.fsck", "canopy-fsck"),
    ] {
        pages.push((format!("man/{name}.8"), format!(".so man8/{page}.8\n")));
    }
    Ok(pages)
}

fn options_page() -> String {
    let entries = options::entries();
    let mut page = format!(
        "# Options of canopy mount\n\n<!-- Generated: {COMMAND} -->\n\n\
         Give options as `-o NAME=VALUE[,NAME=VALUE...]`, as lines of a config file, or, if *runtime* says yes, with \
         `canopy set`. In names, `_` and `-` are the same. Of several values, the last one counts. *Linux* is the \
         first version of Linux in which an option has an effect. `canopy options --json` prints the same list for \
         programs.\n\n\
         | option | values | default | runtime | Linux | what it does |\n| --- | --- | --- | --- | --- | --- |\n"
    );
    for option in entries.iter().filter(|option| !option.ignored) {
        if is_of_call(option) {
            if let Some(names) = calls_like(&entries, option) {
                let names: Vec<String> = names.into_iter().map(code).collect();
                let default = option.default.as_deref().map(code).unwrap_or_default();
                let _ = writeln!(
                    page,
                    "| {} | a [policy](#policies) | {default} | yes |  | {OF_CALL} |",
                    names.join(", ")
                );
            }
            continue;
        }
        let mut names = code(&option.name);
        for alias in option.aliases {
            let _ = write!(names, ", {}", code(alias));
        }
        let values = match &option.accepts {
            Some(_) if is_policy(option) => "a [policy](#policies)".to_owned(),
            Some(accepts) => cell(accepts),
            None => "none".to_owned(),
        };
        let default =
            option.default.as_deref().filter(|value| !value.is_empty()).map_or_else(String::new, code);
        let runtime = if option.runtime { "yes" } else { "" };
        let since = option.since.unwrap_or_default();
        let help = cell(&option.help);
        let _ = writeln!(page, "| {names} | {values} | {default} | {runtime} | {since} | {help} |");
    }
    let policies = policies::markdown();
    let (no_effect, unlisted): (Vec<_>, Vec<_>) = entries
        .iter()
        .filter(|option| option.ignored)
        .partition(|option| find(&option.name).is_some_and(Spec::is_ignored));
    let no_effect: Vec<String> = no_effect.iter().map(|option| code(&option.name)).collect();
    let unlisted: String = unlisted
        .iter()
        .map(|option| {
            let accepts = option.accepts.as_deref().map(cell).unwrap_or_default();
            format!("- {}: {} ({accepts})\n", code(&option.name), cell(&option.help))
        })
        .collect();
    let _ = write!(
        page,
        "\n## Policies\n\n{policies}\n\
         ## Unlisted options\n\n`canopy options` leaves these out:\n\n{unlisted}\n\
         ## Accepted, without effect\n\nOptions of older setups: {}.\n",
        no_effect.join(", ")
    );
    page
}

fn is_policy(option: &OptionEntry) -> bool {
    option.name.starts_with("category.")
        || (option.name.starts_with("func.") && option.name != "func.readdir")
}

/// What all options of calls say.
const OF_CALL: &str = "the policy of that call; setting its category sets it, too";

/// Returns whether an option is the policy of one call.
fn is_of_call(option: &OptionEntry) -> bool {
    is_policy(option) && option.name.starts_with("func.")
}

/// Returns the options of calls that share a default, at the first of them.
fn calls_like<'e>(entries: &'e [OptionEntry], first: &OptionEntry) -> Option<Vec<&'e str>> {
    let like = |other: &&OptionEntry| is_of_call(other) && other.default == first.default;
    let names: Vec<&str> = entries.iter().filter(like).map(|option| option.name.as_str()).collect();
    (names.first() == Some(&first.name.as_str())).then_some(names)
}

fn code(text: &str) -> String {
    format!("`{}`", cell(text))
}

/// Escapes the character that ends a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn main_page(whole: &clap::Command) -> io::Result<String> {
    let man = page(whole.clone(), "canopy");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    let mut roff = Roff::new();
    paragraph(
        &mut roff,
        "The directories are called branches; joined they are a pool. Branches stay ordinary directories, and each \
         file is stored whole on one of them.",
    );
    commands(&mut roff, whole);
    fstab(&mut roff);
    mount_options(&mut roff);
    for_programs(&mut roff);
    files(&mut roff);
    let mut text = String::from_utf8_lossy(&out).into_owned();
    text.push_str(&roff.to_roff());
    Ok(text)
}

/// Returns a page of section 8 that is the same in every build.
fn page(command: clap::Command, name: &str) -> Man {
    Man::new(command).title(name).section("8").source("Canopy").manual("System administration")
}

fn command_page(command: clap::Command, name: &str) -> io::Result<String> {
    // The synopsis has the name with a blank, the title and the index have it with a dash.
    let sections = sections::of(&command);
    let usage = command.after_help(sections.notes.clone()).bin_name(name.replacen('-', " ", 1));
    let mut out = Vec::new();
    page(usage.display_name(name.to_owned()), name).render(&mut out)?;
    let text = String::from_utf8_lossy(&out).replace(".SH EXTRA", ".SH NOTES");
    let mut roff = Roff::new();
    sections.write(&mut roff);
    Ok(format!("{text}{}.SH \"SEE ALSO\"\ncanopy(8)\n", roff.to_roff()))
}

fn heading(roff: &mut Roff, text: &str) {
    roff.control("SH", [text]);
}

fn paragraph(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.text([roman(text)]);
}

/// Writes a term and its meaning.
fn term(roff: &mut Roff, term: Vec<Inline>, meaning: &str) {
    roff.control("TP", []);
    roff.text(term);
    roff.text([roman(meaning)]);
}

fn commands(roff: &mut Roff, whole: &clap::Command) {
    heading(roff, "COMMANDS");
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let page = format!("canopy-{}(8)", command.get_name());
        term(roff, vec![bold(format!("canopy {}", command.get_name()))], &format!("{about}. See {page}."));
    }
}

fn fstab(roff: &mut Roff) {
    heading(roff, "FSTAB");
    paragraph(
        roff,
        "A line of fstab(5) has the branches, the mountpoint and the type fuse.canopy. Instead of the branches it can \
         have the path of a pool's file. The options x-systemd.* and nofail work as usual; with setuid=USER, the daemon \
         runs as that user. Mounting over a running pool replaces it (Linux 6.5). mount -a skips a line that is \
         mounted already.",
    );
    paragraph(
        roff,
        "In a pool, set-user-id bits and device files of the branches have no effect without the options allow_suid and \
         allow_dev. A chroot in the pool needs both, a container store needs the first. In fstab, suid and dev do \
         nothing, because mount(8) does not pass them on. With the type mergerfs or fuse.mergerfs it is the other way \
         round, as in mergerfs: both have an effect unless nosuid and nodev are given.",
    );
    paragraph(
        roff,
        "mount -o remount changes flags of a running pool, such as ro, rw, noatime and noexec. canopy-set(8) changes its \
         options.",
    );
    roff.control("PP", []);
    roff.control("nf", []);
    roff.text([roman("/mnt/disk*  /pool  fuse.canopy  category.create=mfs,minfreespace=20G,nofail  0 0")]);
    roff.control("br", []);
    roff.text([roman("/etc/canopy/media.toml  /pool  fuse.canopy  defaults  0 0")]);
    roff.control("fi", []);
}

fn mount_options(roff: &mut Roff) {
    heading(roff, "MOUNT OPTIONS");
    paragraph(
        roff,
        "In names, _ and - are the same. Of several values, the last one counts. canopy-set(8) can change options marked \
         * while the pool runs.",
    );
    let entries = options::entries();
    for option in entries.iter().filter(|option| !option.ignored) {
        if is_of_call(option) {
            for (index, name) in calls_like(&entries, option).unwrap_or_default().into_iter().enumerate() {
                roff.control(if index == 0 { "TP" } else { "TQ" }, []);
                roff.text([
                    bold(name),
                    roman(format!("={} *", option.default.as_deref().unwrap_or_default())),
                ]);
            }
            if calls_like(&entries, option).is_some() {
                roff.text([roman(format!("{OF_CALL}. A policy."))]);
            }
            continue;
        }
        let mut name = vec![bold(option.name.as_str())];
        match (&option.default, &option.accepts) {
            (Some(value), _) if !value.is_empty() => name.push(roman(format!("={value}"))),
            (_, Some(_)) => name.push(roman("=")),
            _ => {}
        }
        if option.runtime {
            name.push(roman(" *"));
        }
        let mut help = option.help.clone();
        if let Some(linux) = option.since {
            let _ = write!(help, " (Linux {linux})");
        }
        for alias in option.aliases {
            let _ = write!(help, "; also {alias}");
        }
        help.push('.');
        match &option.accepts {
            Some(_) if is_policy(option) => help.push_str(" A policy."),
            Some(accepts) => {
                let _ = write!(help, " Values: {accepts}.");
            }
            None => {}
        }
        term(roff, name, &help);
    }
    heading(roff, "POLICIES");
    paragraph(
        roff,
        "A policy chooses among the branches that may take a file: those of mode RW that are not read-only and have at \
         least minfreespace. The first four suit most pools. canopy-explain(8) shows which branches a policy would choose \
         now, and why.",
    );
    for (name, meaning) in policies::terms() {
        term(roff, vec![bold(name)], &meaning);
    }
}

fn for_programs(roff: &mut Roff) {
    heading(roff, "OUTPUT FOR PROGRAMS");
    paragraph(
        roff,
        "Later versions can add fields to the JSON, but do not change the meaning of a field. Sizes are in bytes. A path \
         is a string, or an array of bytes if it is not UTF-8. Unknown values are null.",
    );
    for (command, fields) in [
        (
            "canopy status --json",
            "linux; pools, each with mountpoint, fstype, source, state (serving, does-not-answer, ended, mute, unreachable), error, \
             version, pid, transport, threads, low_priority_threads, parked (what waits for something else than a disk: cause (lease, move, search), causes, requests, users and since), kernel (protocol, features, missing, max_stack_depth), passthrough, \
             options, disks (as canopy disks --json), sleep (of each disk: name, branches, state, idle, woken, rested, wakes), catalogue (null, or what is known without the disks), security (capabilities in effect, no_new_privs, landlock, unheeded_acls), survival (null, or deaths, takeovers, last_death, pause_ms and longest_pause_ms), trash_alarms (programs that remove or overwrite too much: user, program, files, refused, path, since and frozen), read_caches (path, files, bytes, hits, hit_bytes, misses, missed_bytes, read_bytes and unusable), branches, tiering (tiers, each with its name, branches, size, used, mark and move_when, and mover, which is null or has running, pid, began, ended, state, files and bytes) and warnings. A branch \
             has path, mode, min_free, passes_through, health (ok, \
             lagging, asleep, does-not-answer, missing, unreachable, replaced, read-only, failing, gone, errors, not-mounted), error, illness \
             (null, or the fault that the pool has found: health, since and cause), waits (null, or what operations have to wait \
             for: answers (lagging, asleep, hung), since, requests, deadline (null, or after how many seconds they fail), and \
             disks, each with name, reads_in_flight, writes_in_flight, idle and state), unwatched (null, or why its changes \
             cannot be watched), unfinished_moves (what is the matter with moves to it that were cut off), trash (bytes), trash_unusable (null, or why nothing is kept there), unreadable_copies (how many copies its disk could not read, and are still to be made again), set_aside (names on it that were changed there alone, and gave way to newer copies), remembered (null, or what is known of it for the time when it is missing: directories, names, unknown, whole, shown, file) and, if it could be examined, dev, ino, has_aside, filesystem (a number that branches on one filesystem share), fstype, source, mounted_at, device, size, used, available, inodes, \
             inodes_free, read_only, marked, errors and disks (their names). A warning has code, problem, branch, text and fix.",
        ),
        (
            "canopy disks --json",
            "disks, each with name, model, serial, temperature (degrees Celsius), hours, verdict (unknown, good, worn, failing), findings, \
             asleep, asked (when it answered last) and branches; and obstacle (null, or why disks were not asked).",
        ),
        (
            "canopy doctor --json",
            "findings, the worst first, each with code, level (problem, warning, note), text and fix.",
        ),
        (
            "canopy explain --json",
            "pool, path, func, category, policy, looked_at (the path whose presence on a branch counts), \
             preserves_paths, by_chance, chosen (paths of branches), error (null, or errno, name and why) and \
             branches, each with path, mode, verdict (chosen, candidate, lost, outside, mode, unwell, absent, space-unknown, read-only, \
             below-min-free), chance, present, min_free, available, used and read_only; and placement (null, or rule, which may be null, and \
             sets, each with name, branches and answer: passed-over, chosen or not-asked).",
        ),
        (
            "canopy options --json",
            "An array of options, each with name, aliases, type (the accepted values; null for an option without a value), \
             default, runtime (true if it can be changed while the pool runs), since (the first version of Linux in which \
             it has an effect), help and ignored.",
        ),
    ] {
        term(roff, vec![bold(command)], fields);
    }
    heading(roff, "WARNINGS");
    paragraph(roff, "The warning codes of canopy status --json:");
    for (_, word, meaning) in WarningCode::ALL {
        term(roff, vec![bold(*word)], &format!("{meaning}."));
    }
}

fn files(roff: &mut Roff) {
    heading(roff, "FILES");
    term(
        roff,
        vec![italic("/etc/canopy/NAME.toml")],
        "The pool NAME. canopy mount NAME mounts it; all commands accept the name, and so does the unit \
         canopy@NAME.service. Keys are option names, with their dots or in tables ([cache] with attr = 1). Values are \
         strings, numbers and booleans; an option without a value is true. branches is a list of strings (PATH, \
         PATH=MODE, PATH=MODE,SIZE) or of tables with path, mode and minfreespace. Options on the command line \
         override the file.",
    );
    term(
        roff,
        vec![italic("MOUNTPOINT/.mergerfs")],
        "The control file, which listings leave out. Its extended attributes user.mergerfs.OPTION show and change the \
         options of the running pool.",
    );
    term(
        roff,
        vec![italic("BRANCH/.mergerfs.branch")],
        "Marks a directory as a branch even if nothing is mounted there.",
    );
    heading(roff, "EXIT STATUS");
    for (status, meaning) in sections::MEANINGS {
        term(roff, vec![bold(status.to_string())], &format!("{meaning}."));
    }
    paragraph(
        roff,
        "canopy-fsck(8) has the statuses of fsck(8), and canopy-verify(8) one more. Under the names of mergerfs, a mistake \
         in the command line is 1.",
    );
    heading(roff, "SEE ALSO");
    roff.text([roman("fstab(5), mount(8), getfattr(1)")]);
}
