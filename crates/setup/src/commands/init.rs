//! `canopy init`: asks what a pool should be, and writes its description.
//!
//! Nothing is written that was not shown before, and no file is replaced. What there was of fstab is kept beside it.

use crate::error::Error;
use crate::fstab::{self, Line};
use crate::machine::{self, Filesystem};
use crate::pool_file::{PoolFile, WAYS, Way};
use crate::proposal::{self, Candidate};
use canopy_config::source::named::NamedPool;
use canopy_config::text::os_error;
use canopy_sys::shown::Show as _;
use canopy_terminal::{BOLD, WARNING, bytes, paragraph, print, print_styled, styled, table};
use clap::Args;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Describe a new pool: look at the disks, ask, show, write
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct InitArgs {
    /// The pool's name
    #[arg(default_value = "pool")]
    pub name: String,
    /// A branch; repeat it [default: each data disk]
    #[arg(short, long = "branch", value_name = "DIR")]
    pub branches: Vec<PathBuf>,
    /// Where the pool appears [default: /mnt/NAME]
    #[arg(short, long, value_name = "DIR")]
    pub mountpoint: Option<PathBuf>,
    /// New files go: spread, most-free, together or fill
    #[arg(long, value_name = "WAY", value_parser = parse_way, hide_possible_values = true)]
    pub way: Option<Way>,
    /// Mounted at boot by: fstab, unit or nothing
    #[arg(long, value_name = "BY", value_enum, hide_possible_values = true)]
    pub boot: Option<Boot>,
    /// Ask nothing; what is not given is the default
    #[arg(short, long)]
    pub yes: bool,
    /// The file for --boot fstab
    #[arg(long, value_name = "FILE", default_value = "/etc/fstab")]
    pub fstab_file: PathBuf,
}

const NOTES: &str = "\
Examples:
  canopy init media                 # asks
  canopy init media -b /mnt/disk1 -b /mnt/disk2 --way fill --boot fstab --yes";

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Boot {
    Fstab,
    Unit,
    Nothing,
}

/// Free space that a disk keeps, as pools do by default.
const MIN_FREE: &str = "4G";

fn parse_way(word: &str) -> Result<Way, String> {
    let words: Vec<&str> = WAYS.iter().map(|way| way.word).collect();
    WAYS.into_iter().find(|way| way.word == word).ok_or_else(|| format!("one of {}", words.join(", ")))
}

pub fn run(args: &InitArgs) -> Result<(), Error> {
    let named = NamedPool::by_name(OsStr::new(&args.name)).ok_or_else(|| {
        Error::Refused(format!("'{}' cannot be the name of a pool (a word without / and .)", args.name))
    })?;
    if named.file.exists() {
        let (file, name) = (named.file.shown(), &args.name);
        return Err(Error::Refused(format!(
            "{file} exists already (canopy mount {name} mounts it; edit it, or take another name)"
        )));
    }
    let asks = !args.yes && io::stdin().is_terminal();
    let branches = choose_branches(args, asks)?;
    for warning in proposal::warnings(&branches) {
        print_styled(&paragraph(&styled(WARNING, "warning: "), &warning));
    }
    let mountpoint = choose_mountpoint(args, asks)?;
    if let Some(why) = proposal::refuse_mountpoint(&mountpoint, &branches) {
        return Err(Error::Refused(format!("{why} (--mountpoint DIR names another)")));
    }
    let way = choose_way(args, asks)?;
    let boot = choose_boot(args, asks)?;
    let paths = branches.iter().map(|branch| branch.path.clone()).collect();
    let pool = PoolFile { branches: paths, mountpoint: mountpoint.clone(), way, min_free: MIN_FREE.into() };
    let text = pool.render().map_err(|refused| {
        Error::Refused(format!(
            "{} cannot be written in a list of branches (rename it, or make a link to it)",
            refused.0.shown()
        ))
    })?;
    let plan = Plan {
        fstab: (boot == Boot::Fstab)
            .then(|| fstab_line(args, &named.file, &mountpoint, &branches))
            .transpose()?,
        file: named.file,
        text,
        mountpoint,
    };
    print_styled(&plan.shown());
    if asks && !matches!(ask("Write this? [y/N]", "n")?.as_str(), "y" | "Y" | "yes") || !asks && !args.yes {
        let how = if asks { "as you wish" } else { "--yes writes it" };
        return Err(Error::Refused(format!("nothing was written ({how})")));
    }
    plan.write()?;
    print_styled(&format!("\n{}\n{}", styled(BOLD, "Next"), next_steps(&args.name, &plan, boot)));
    Ok(())
}

/// Asks a question; an empty answer is the default.
fn ask(question: &str, default: &str) -> Result<String, Error> {
    print(&format!("{question} "));
    let _ = io::stdout().flush();
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err(Error::Refused("nothing was written (the input ended)".into())),
        Ok(_) => Ok(Some(line.trim()).filter(|text| !text.is_empty()).unwrap_or(default).to_owned()),
        Err(why) => Err(Error::Refused(format!("the answer cannot be read: {}", os_error(&why)))),
    }
}

/// Asks until the answer is one of some words, or the number of one.
fn ask_which(question: &str, choices: &[(&str, &str)]) -> Result<usize, Error> {
    print_styled(&format!("\n{}\n", styled(BOLD, question)));
    for (index, (word, meaning)) in choices.iter().enumerate() {
        print(&paragraph(&format!("  {} {word:<10} ", index + 1), meaning));
    }
    loop {
        let answer = ask("Number [1]:", "1")?;
        let by_number = answer.parse::<usize>().ok().filter(|number| (1..=choices.len()).contains(number));
        let by_word = || choices.iter().position(|(word, _)| *word == answer);
        match by_number.map(|number| number - 1).or_else(by_word) {
            Some(index) => return Ok(index),
            None => print(&format!("1 to {}, please.\n", choices.len())),
        }
    }
}

fn choose_branches(args: &InitArgs, asks: bool) -> Result<Vec<Filesystem>, Error> {
    if !args.branches.is_empty() {
        return args.branches.iter().map(|path| look_at(path)).collect();
    }
    let found = machine::filesystems().map_err(Error::Mounts)?;
    let candidates = proposal::candidates(found);
    print_styled(&format!("{}\n", styled(BOLD, "Disks that are mounted")));
    match candidates.is_empty() {
        true => print("  none besides the system's\n"),
        false => print(&listing(&candidates)),
    }
    let proposed: Vec<Filesystem> =
        candidates.into_iter().filter(|one| one.left_out.is_none()).map(|one| one.filesystem).collect();
    if !asks {
        return match proposed.is_empty() {
            true => Err(Error::Refused(
                "no disk is proposed (mount the disks first, or name directories with --branch)".into(),
            )),
            false => Ok(proposed),
        };
    }
    let paths: Vec<String> = proposed.iter().map(|one| one.path.shown().to_string()).collect();
    loop {
        let answer = ask(&format!("\nBranches, separated by blanks [{}]:", paths.join(" ")), "")?;
        if answer.is_empty() && !proposed.is_empty() {
            return Ok(proposed);
        }
        let chosen: Result<Vec<Filesystem>, Error> =
            answer.split_whitespace().map(|path| look_at(Path::new(path))).collect();
        match chosen {
            Ok(chosen) if !chosen.is_empty() => return Ok(chosen),
            Ok(_) => print("At least one, please.\n"),
            Err(error) => print(&format!("{}\n", error)),
        }
    }
}

fn look_at(path: &Path) -> Result<Filesystem, Error> {
    machine::directory(path)
        .map_err(|why| Error::Refused(format!("branch {} cannot be used: {}", path.shown(), os_error(&why))))
}

fn listing(candidates: &[Candidate]) -> String {
    let row = |one: &Candidate| {
        let filesystem = &one.filesystem;
        let disks: Vec<&str> = filesystem.disks.iter().map(String::as_str).collect();
        vec![
            filesystem.path.shown().to_string(),
            filesystem.label.clone().unwrap_or_default(),
            filesystem.fstype.clone(),
            bytes(filesystem.size),
            bytes(filesystem.available),
            disks.join(" "),
            one.left_out.map_or_else(|| "proposed".into(), |why| format!("not proposed: {why}")),
        ]
    };
    let rows = candidates.iter().map(row).collect();
    table(&["MOUNTED AT", "LABEL", "TYPE", "SIZE", "FREE", "DISK", ""], rows, 2, &[3, 4])
}

fn choose_mountpoint(args: &InitArgs, asks: bool) -> Result<PathBuf, Error> {
    let default = format!("/mnt/{}", args.name);
    match (&args.mountpoint, asks) {
        (Some(path), _) => Ok(path.clone()),
        (None, true) => Ok(ask(&format!("\nWhere shall the pool appear? [{default}]:"), &default)?.into()),
        (None, false) => Ok(default.into()),
    }
}

fn choose_way(args: &InitArgs, asks: bool) -> Result<Way, Error> {
    match (args.way, asks) {
        (Some(way), _) => Ok(way),
        (None, true) => {
            let choices: Vec<_> = WAYS.iter().map(|way| (way.word, way.meaning)).collect();
            Ok(WAYS[ask_which("Where shall a new file go?", &choices)?])
        }
        (None, false) => Ok(WAYS[0]),
    }
}

fn choose_boot(args: &InitArgs, asks: bool) -> Result<Boot, Error> {
    match (args.boot, asks) {
        (Some(boot), _) => Ok(boot),
        (None, true) => {
            let choices = [
                ("fstab", "by a line of fstab"),
                ("unit", "by systemd's unit canopy@NAME"),
                ("nothing", "only when you mount it"),
            ];
            let boots = [Boot::Fstab, Boot::Unit, Boot::Nothing];
            Ok(boots[ask_which("How shall it be mounted at boot?", &choices)?])
        }
        (None, false) => Ok(Boot::Nothing),
    }
}

/// A change of fstab: its path, its text before, and the new line.
struct FstabChange {
    path: PathBuf,
    before: String,
    line: String,
}

fn fstab_line(
    args: &InitArgs,
    file: &Path,
    mountpoint: &Path,
    branches: &[Filesystem],
) -> Result<FstabChange, Error> {
    let path = args.fstab_file.clone();
    let before = fs::read_to_string(&path)
        .map_err(|why| Error::Refused(format!("{} cannot be read: {}", path.shown(), os_error(&why))))?;
    let lines = fstab::parse(&before);
    if let Some(line) = lines.iter().find(|line| Path::new(&fstab::unescape(&line.mountpoint)) == mountpoint)
    {
        let place = mountpoint.shown();
        return Err(Error::Refused(format!(
            "line {} of {} mounts {place} already (change that line)",
            line.number,
            path.shown()
        )));
    }
    let mut options = vec!["nofail".to_owned()];
    // A comma ends an option, however it is written.
    let disks: BTreeSet<&Path> = branches.iter().map(|branch| branch.mountpoint.as_path()).collect();
    for disk in disks.into_iter().filter_map(Path::to_str).filter(|disk| *disk != "/" && !disk.contains(','))
    {
        options.push(format!("x-systemd.requires-mounts-for={}", fstab::escape(disk)));
    }
    let place = mountpoint.to_str().ok_or_else(|| Error::Refused("the mountpoint must be text".into()))?;
    let line = Line::for_pool(&file.to_string_lossy(), place, &options.join(","));
    Ok(FstabChange { path, before, line: line.render() })
}

/// All that will be written.
struct Plan {
    file: PathBuf,
    text: String,
    mountpoint: PathBuf,
    fstab: Option<FstabChange>,
}

impl Plan {
    fn shown(&self) -> String {
        let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
        let mut shown = format!(
            "\n{}\n  {}:\n{}",
            styled(BOLD, "To be written"),
            self.file.shown(),
            indented(&self.text)
        );
        if let Some(fstab) = &self.fstab {
            let path = fstab.path.shown();
            shown.push_str(&format!(
                "  a line at the end of {path} (kept as {path}.before-canopy):\n    {}\n",
                fstab.line
            ));
        }
        if !self.mountpoint.exists() {
            shown.push_str(&format!("  the directory {}\n", self.mountpoint.shown()));
        }
        shown
    }

    fn write(&self) -> Result<(), Error> {
        let failed = |path: &Path| {
            let path = path.shown().to_string();
            move |why: io::Error| {
                Error::Refused(format!("{path} cannot be written: {} (run it as root)", os_error(&why)))
            }
        };
        let directory = self.file.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).map_err(failed(directory))?;
        // A file that somebody else made in the meantime is kept.
        let mut file = File::create_new(&self.file).map_err(failed(&self.file))?;
        file.write_all(self.text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed(&self.file))?;
        if !self.mountpoint.exists() {
            fs::create_dir_all(&self.mountpoint).map_err(failed(&self.mountpoint))?;
        }
        if let Some(fstab) = &self.fstab {
            replace_keeping(&fstab.path, &fstab.before, &fstab::append(&fstab.before, &fstab.line))
                .map_err(failed(&fstab.path))?;
        }
        Ok(())
    }
}

/// Replaces a file at once, so that no crash leaves a part of it, and keeps what it was as FILE.before-canopy.
fn replace_keeping(path: &Path, before: &str, after: &str) -> io::Result<()> {
    // Of a link, the file that it leads to.
    let path = path.canonicalize()?;
    let beside = |ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let mode = fs::metadata(&path)?.permissions().mode();
    for (place, text) in [(beside(".before-canopy"), before), (beside(".canopy-new"), after)] {
        let mut file = File::create(&place)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        file.sync_all()?;
    }
    fs::rename(beside(".canopy-new"), &path)
}

fn next_steps(name: &str, plan: &Plan, boot: Boot) -> String {
    let place = plan.mountpoint.shown();
    let first = match boot {
        Boot::Fstab => format!("  mount {place}    # from now on also at boot\n"),
        Boot::Unit => format!("  systemctl enable --now canopy@{name}\n"),
        Boot::Nothing => format!("  canopy mount {name}\n"),
    };
    format!("{first}  canopy status {place}\n  canopy doctor    # looks for what would hurt later\n")
}
