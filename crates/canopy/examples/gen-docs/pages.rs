//! Every generated page, as path and content.

use canopy::cli;
use canopy::commands::options::{self, OptionTold};
use canopy::commands::status::Code;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use std::fmt::Write as _;
use std::io;

const COMMAND: &str = "cargo run -p canopy --example gen-docs";

/// Paths are relative to the root of the repository.
pub(super) fn all() -> io::Result<Vec<(String, String)>> {
    let mut pages = vec![("docs/options.md".to_owned(), options_page())];
    let whole = cli::definition();
    pages.push(("man/canopy.8".to_owned(), main_page(&whole)?));
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("canopy-{}", command.get_name());
        pages.push((format!("man/{name}.8"), command_page(command.clone(), &name)?));
    }
    // Other names that the program is called by.
    for (name, page) in [
        ("mount.canopy", "canopy"),
        ("fsck.mergerfs", "canopy-fsck"),
        ("mergerfs.collect-info", "canopy-collect-info"),
    ] {
        pages.push((format!("man/{name}.8"), format!(".so man8/{page}.8\n")));
    }
    Ok(pages)
}

fn options_page() -> String {
    let told = options::told();
    let mut page = format!(
        "# Options of canopy mount\n\n<!-- Generated: {COMMAND} -->\n\n\
         As `-o NAME=VALUE[,NAME=VALUE...]`, as lines of a config file, and with `canopy set` where *runtime* says \
         yes. In names `_` and `-` are the same; later options win. *Linux* is the first version in which an option \
         has an effect, where that matters. `canopy options --json` gives the same to programs.\n\n\
         | option | values | default | runtime | Linux | what it does |\n| --- | --- | --- | --- | --- | --- |\n"
    );
    for option in told.iter().filter(|option| !option.ignored) {
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
    let policies = policies(&told);
    let ignored: Vec<String> =
        told.iter().filter(|option| option.ignored).map(|option| code(&option.name)).collect();
    let _ = write!(
        page,
        "\n## Policies\n\n{policies}. `canopy explain` shows what a policy chooses now, and why.\n\n\
         ## Accepted, without effect\n\nOlder setups carry these: {}.\n",
        ignored.join(", ")
    );
    page
}

fn is_policy(option: &OptionTold) -> bool {
    option.name.starts_with("category.")
        || (option.name.starts_with("func.") && option.name != "func.readdir")
}

/// The words of every option that takes a policy.
fn policies(told: &[OptionTold]) -> String {
    let option = told.iter().find(|option| is_policy(option));
    option.and_then(|option| option.accepts.clone()).unwrap_or_default()
}

fn code(text: &str) -> String {
    format!("`{}`", cell(text))
}

/// A bar would end the cell.
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
        "The directories are called branches, and what they make up is a pool. They stay ordinary filesystems: every \
         file lies whole on one of them.",
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

/// A page of section 8, without anything that differs from one build to the next.
fn page(command: clap::Command, name: &str) -> Man {
    Man::new(command).title(name).section("8").source("Canopy").manual("System administration")
}

fn command_page(command: clap::Command, name: &str) -> io::Result<String> {
    // Its name in the synopsis and in the index is that of the page.
    let usage = command.clone().bin_name(name.replacen('-', " ", 1));
    let mut out = Vec::new();
    page(usage.display_name(name.to_owned()), name).render(&mut out)?;
    let text = String::from_utf8_lossy(&out).replace(".SH EXTRA", ".SH NOTES");
    Ok(format!("{text}.SH \"SEE ALSO\"\ncanopy(8)\n"))
}

fn heading(roff: &mut Roff, text: &str) {
    roff.control("SH", [text]);
}

fn paragraph(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.text([roman(text)]);
}

/// A term, and what it means.
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
        "A line of fstab(5) names the branches, the mountpoint and the type fuse.canopy. x-systemd.* and nofail are \
         understood, setuid=USER serves as that user. In the place of the branches it may name the file of a pool. \
         Mounting over a running pool replaces it (Linux 6.5); mount -a finds nothing to do where the same line was \
         mounted.",
    );
    paragraph(
        roff,
        "Set-id programs and device files on the branches do nothing in the pool, unless allow_suid and allow_dev are \
         asked for: a chroot in it needs both, a store of containers the first. mount(8) keeps the words suid and dev for \
         itself, so in fstab they do nothing. With the type mergerfs or fuse.mergerfs they work unless \
         nosuid and nodev are, as mergerfs has it.",
    );
    paragraph(
        roff,
        "mount -o remount,ro (rw, noatime, noexec and the like) changes the flags of a running pool; its options are \
         changed with canopy-set(8).",
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
        "In names _ and - are the same; later options win. Those marked * can be changed while the pool runs, with \
         canopy-set(8).",
    );
    let told = options::told();
    for option in told.iter().filter(|option| !option.ignored) {
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
        &format!("{}. canopy-explain(8) shows what a policy chooses now, and why.", policies(&told)),
    );
}

fn for_programs(roff: &mut Roff) {
    heading(roff, "OUTPUT FOR PROGRAMS");
    paragraph(
        roff,
        "With --json, fields are added in later versions and never change their meaning. Sizes are in bytes. A path is \
         a string, or an array of bytes where it is not UTF-8. What is not known is null.",
    );
    for (command, fields) in [
        (
            "canopy status --json",
            "linux; pools, each with mountpoint, fstype, source, state (serving, does-not-answer, ended, mute, unreachable), error, \
             version, pid, transport, threads, kernel (protocol, features, missing, max_stack_depth), passthrough, \
             options, security (capabilities that are effective, no_new_privs, landlock, unheeded_acls), branches and warnings. A branch \
             has path, mode, min_free, passes_through, health (ok, \
             does-not-answer, missing, unreachable, replaced, read-only, failing, gone, errors, not-mounted), error, illness \
             (null, or what the pool has met with there: health, since and cause), unwatched (null, or why its changes \
             cannot be watched for) and, where it could be looked at, dev, ino, fstype, source, mounted_at, device, size, used, available, inodes, \
             inodes_free, read_only, marked and errors. A warning has code, branch, text and mend.",
        ),
        (
            "canopy explain --json",
            "pool, path, func, category, policy, looked_at (the path whose presence on a branch counts), \
             preserves_paths, by_chance, chosen (paths of branches), error (null, or errno, name and why) and \
             branches, each with path, mode, verdict (chosen, candidate, lost, mode, unwell, absent, space-unknown, read-only, \
             below-min-free), chance, present, min_free, available, used and read_only.",
        ),
        (
            "canopy options --json",
            "An array of options, each with name, aliases, type (what can be written; null for a word without value), \
             default, runtime (it can be changed while the pool runs), since (the first Linux in which it has an \
             effect), help and ignored.",
        ),
    ] {
        term(roff, vec![bold(command)], fields);
    }
    heading(roff, "WARNINGS");
    paragraph(roff, "The codes of canopy status --json:");
    for (_, word, meaning) in Code::ALL {
        term(roff, vec![bold(*word)], &format!("{meaning}."));
    }
}

fn files(roff: &mut Roff) {
    heading(roff, "FILES");
    term(
        roff,
        vec![italic("/etc/canopy/NAME.toml")],
        "The pool NAME: canopy mount NAME mounts it, every command takes its name, and so does the unit \
         canopy@NAME.service. Keys are the options, with their dots or in tables ([cache] with attr = 1); values are \
         texts, numbers, true and false; options without a value are true. branches is a list of texts (PATH, PATH=MODE, \
         PATH=MODE,SIZE) or of tables with path, mode and minfreespace. What is given on the command line wins.",
    );
    term(
        roff,
        vec![italic("MOUNTPOINT/.mergerfs")],
        "The control file. It is not listed; its extended attributes user.mergerfs.OPTION show and change the running \
         pool.",
    );
    term(
        roff,
        vec![italic("BRANCH/.mergerfs.branch")],
        "Marks a directory that is a branch though nothing is mounted there.",
    );
    heading(roff, "EXIT STATUS");
    paragraph(roff, "0 when it is done, 1 when it could not be done, 2 for a mistake in the command line.");
    heading(roff, "SEE ALSO");
    roff.text([roman("fstab(5), mount(8), getfattr(1)")]);
}
