//! `canopy collect-info`, also as `mergerfs.collect-info`: gathers information for a bug report.

use crate::deadline_command;
use crate::error::{Error, Result};
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use canopy_terminal::print;
use clap::Args;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Gather information for a bug report
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct CollectInfoArgs {
    /// Write to a new file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Called as mergerfs.collect-info, which writes to a fixed file.
    #[arg(skip)]
    pub as_mergerfs: bool,
}

const NOTES: &str = "\
Passwords and keys in mount options are left out. Paths, host names and the log
of the last hour are included. Read the report before you publish it.

Example:
  canopy collect-info -o /tmp/report.txt";

/// The time limit of each program. df(1), for one, waits for a hung disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// The file that `mergerfs.collect-info` writes.
const MERGERFS_FILE: &str = "/tmp/mergerfs.info.txt";

/// Programs to run, if they are installed.
const PROGRAMS: [&[&str]; 10] = [
    &["uname", "-a"],
    &["df", "-hT"],
    &["lsblk", "--json", "-o", "NAME,FSTYPE,FSSIZE,SIZE,MOUNTPOINTS,RM,RO,ROTA"],
    &["fusermount3", "--version"],
    &["systemctl", "--version"],
    &["docker", "--version"],
    &["podman", "--version"],
    &["smbd", "--version"],
    &["dmesg", "--level=emerg,alert,crit,err", "--since=60 minutes ago"],
    &["journalctl", "--no-pager", "-t", "canopy", "-t", "mergerfs", "--since", "60 minutes ago"],
];

const FILES: [&str; 7] = [
    "/etc/os-release",
    "/proc/mounts",
    "/etc/fstab",
    "/proc/sys/fs/fuse/max_pages_limit",
    "/sys/module/fuse/parameters/max_user_bgreq",
    "/sys/module/fuse/parameters/enable_uring",
    "/etc/fuse.conf",
];

/// Runs the command.
///
/// # Errors
/// If the file exists, or cannot be written.
pub fn collect_info(args: &CollectInfoArgs) -> Result<()> {
    let fixed = args.as_mergerfs.then(|| PathBuf::from(MERGERFS_FILE));
    let Some(path) = args.output.clone().or(fixed) else {
        for (title, text) in sections() {
            print(&section(&title, &text));
        }
        return Ok(());
    };
    let failed = |why| Error::Output { path: path.clone(), why };
    if args.as_mergerfs {
        // Removes the last report. The file is created anew, because another user may have put a symlink into /tmp.
        match fs::remove_file(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(failed(why)),
            _ => {}
        }
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => Error::OutputExists(path.clone()),
        _ => failed(why),
    })?;
    print(&format!("writing to {}:\n", path.shown()));
    for (title, text) in sections() {
        file.write_all(section(&title, &text).as_bytes()).map_err(failed)?;
        print(&format!("  {title}\n"));
    }
    print("Passwords were left out; paths and names were not. Read the report before you publish it.\n");
    Ok(())
}

fn section(title: &str, text: &str) -> String {
    format!("=== {title}\n{}\n\n", text.trim_end())
}

/// Returns titles and texts, each gathered when it is needed.
fn sections() -> impl Iterator<Item = (String, String)> {
    let own = |words: Vec<OsString>| {
        let title: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let mut command = Command::new("/proc/self/exe");
        command.args(&words);
        (format!("canopy {}", title.join(" ")), output(&mut command))
    };
    let pools: Vec<PathBuf> = mountinfo::list()
        .unwrap_or_default()
        .into_iter()
        .filter(mountinfo::MountEntry::is_pool)
        .map(|mounted| mounted.mountpoint)
        .collect();
    let gets = pools.into_iter().map(move |pool| own(vec!["get".into(), pool.into()]));
    let status = ["--version", "status", "status --json"];
    let own_status = status.into_iter().map(move |words| own(words.split(' ').map(OsString::from).collect()));
    let programs = PROGRAMS.into_iter().map(|words| {
        let mut command = Command::new(words[0]);
        // In English, for the reader of the report.
        (words.join(" "), output(command.args(&words[1..]).env("LC_ALL", "C")))
    });
    let configs = fs::read_dir("/etc/canopy").into_iter().flatten().flatten().map(|entry| entry.path());
    let files = FILES.into_iter().map(PathBuf::from).chain(configs).filter(|path| path.is_file());
    let files = files.map(|path| (path.shown().to_string(), contents(&path)));
    own_status.chain(gets).chain(programs).chain(files).map(|(title, text)| (title, without_secrets(&text)))
}

fn output(command: &mut Command) -> String {
    match deadline_command::start(command).map(|child| child.output_before(Instant::now() + PATIENCE)) {
        Ok(Some(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(None) => format!("error: no answer within {} s", PATIENCE.as_secs()),
        Err(why) => format!("error: {why}"),
    }
}

fn contents(path: &Path) -> String {
    fs::read(path)
        .map_or_else(|why| format!("error: {why}"), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

const HIDDEN: &str = "(left out)";
/// Characters that end a word.
const ENDS: [char; 7] = [' ', '\t', '\n', ',', ';', '"', '\''];

/// Removes the values of secret options and variables, and the user part of URLs.
fn without_secrets(text: &str) -> String {
    text.split_inclusive('\n').map(|line| without_values(&without_users(line))).collect()
}

fn without_users(line: &str) -> String {
    let hide = |word: &str| match word.split_once("://") {
        Some((scheme, rest)) if rest.contains('@') => {
            let host = rest.rsplit_once('@').map_or("", |(_, host)| host);
            format!("{scheme}://{HIDDEN}@{host}")
        }
        _ => word.to_owned(),
    };
    line.split_inclusive(ENDS).map(hide).collect()
}

/// Removes secret values in `KEY=VALUE` and `KEY = "VALUE"`.
fn without_values(line: &str) -> String {
    let (mut kept, mut rest) = (String::new(), line);
    while let Some((before, after)) = rest.split_once('=') {
        kept.push_str(before);
        kept.push('=');
        let key = before.trim_end().rsplit(ENDS).next().unwrap_or_default();
        let value = after.trim_start_matches([' ', '\t']);
        rest = after;
        if !is_secret(key) {
            continue;
        }
        let end = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].find(quote).map_or(value.len(), |at| at + 2),
            _ => value.find(ENDS).unwrap_or(value.len()),
        };
        if end > 0 {
            kept.push_str(HIDDEN);
            rest = &value[end..];
        }
    }
    kept + rest
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let parts = ["pass", "pwd", "secret", "token", "apikey", "api_key", "api-key"];
    parts.iter().any(|part| key.contains(part)) && !is_ours(&key)
}

/// Returns whether this is an option of a pool. None of them is a secret, despite names such as `passthrough.io`.
fn is_ours(key: &str) -> bool {
    canopy_config::options::find(key).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out() {
        for (text, expected) in [
            (
                "//nas/x /mnt cifs rw,username=me,password=hunter2,uid=0 0 0\n",
                "//nas/x /mnt cifs rw,username=me,password=(left out),uid=0 0 0\n",
            ),
            ("PASSWD=hunter2", "PASSWD=(left out)"),
            (
                "https://me:hunter2@dav.example/x /dav davfs rw\n",
                "https://(left out)@dav.example/x /dav davfs rw\n",
            ),
            ("api_token=\"x y\" z=1\n", "api_token=(left out) z=1\n"),
            ("password = 'x y'\n", "password =(left out)\n"),
            ("password=\n", "password=\n"),
            ("passthrough.io=auto,cache.files=off\n", "passthrough.io=auto,cache.files=off\n"),
            ("no secret here; a@b\n", "no secret here; a@b\n"),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
    }
}
