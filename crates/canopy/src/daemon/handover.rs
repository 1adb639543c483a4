//! What the keeper of a pool passes to the program that takes its place, in the same process: the program that was installed
//! since, or the one before, if that does not serve in time.
//!
//! It is in an environment variable: the process id, so that a copy in another process's environment has no effect, the
//! descriptor of the records, that of the program before, why that is to serve again, and the directory in which the
//! pool was mounted, to which paths on the command line may be relative.

use canopy_server::survival::{Refusal, Survival};
use canopy_sys::fd;
use canopy_sys::process::{Forker, exec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const VARIABLE: &str = "CANOPY_HANDOVER";

/// What the program before has passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handover {
    pub records: RawFd,
    /// The descriptor of the program before; `None` if this one has served before and is to serve again.
    pub before: Option<RawFd>,
    /// Why the program that was installed since does not serve.
    pub refusal: Option<Refusal>,
    pub directory: PathBuf,
}

impl Handover {
    /// Returns what was passed to this process.
    pub fn received() -> Option<Handover> {
        Handover::parse(std::env::var_os(VARIABLE)?.as_bytes(), std::process::id())
    }

    fn parse(value: &[u8], own: u32) -> Option<Handover> {
        let mut words = value.splitn(5, |&byte| byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<i64>().ok();
        let (process, records, before, refusal) = (number()?, number()?, number()?, number()?);
        let descriptor = |number: i64| RawFd::try_from(number).ok().filter(|&number| number >= 0);
        Some(Handover {
            records: descriptor(records).filter(|_| process == i64::from(own))?,
            before: descriptor(before),
            refusal: Refusal::from_word(refusal.cast_unsigned()),
            directory: OsString::from_vec(words.next()?.to_vec()).into(),
        })
    }

    fn render(&self, own: u32) -> Vec<u8> {
        let refusal = self.refusal.map_or(0, Refusal::to_word);
        let numbers = format!("{own} {} {} {refusal} ", self.records, self.before.unwrap_or(-1));
        [numbers.as_bytes(), self.directory.as_os_str().as_bytes()].concat()
    }

    /// Has the program before serve again, before this one has begun to. Returns only if that fails.
    pub fn go_back(&self, why: Refusal) -> io::Error {
        let (path, next) = match self.back(why) {
            Ok(back) => back,
            Err(error) => return error,
        };
        match strings(&next) {
            Ok((args, environment)) => exec(&path, &args, &environment).into(),
            Err(error) => error,
        }
    }

    /// The same, for a process with a `Forker`, in which nobody serves.
    pub fn go_back_from(&self, why: Refusal, survival: &Survival, forker: &Forker) -> io::Error {
        self.back(why).map_or_else(|error| error, |(path, next)| execute(&path, &next, survival, forker))
    }

    fn back(&self, why: Refusal) -> io::Result<(CString, Handover)> {
        let before = self.before.ok_or(Errno::NOENT)?;
        let path = CString::new(format!("/proc/self/fd/{before}"))?;
        // The records stay open for the program before.
        fd::set_cloexec(self.records, false)?;
        Ok((path, Handover { before: None, refusal: Some(why), ..self.clone() }))
    }
}

/// Returns the path of the program that runs, or of what was installed in its place.
pub fn installed(process: &str) -> io::Result<PathBuf> {
    let path = fs::read_link(format!("/proc/{process}/exe"))?.into_os_string();
    // The kernel marks a file that was replaced.
    let path = path.as_bytes();
    Ok(OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path)).into())
}

/// Has the program at this path take over from a process in which nobody serves. Returns only if that fails.
pub fn hand_over(program: &Path, directory: &Path, survival: &mut Survival, forker: &Forker) -> io::Error {
    let path = match CString::new(program.as_os_str().as_bytes()) {
        Ok(path) => path,
        Err(error) => return error.into(),
    };
    match rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(before) => survival.set_program_before(Some(before)),
        Err(errno) => return errno.into(),
    }
    let (records, before) = (survival.records(), survival.program_before());
    let directory = directory.to_owned();
    let error = match records {
        Some(records) => {
            execute(&path, &Handover { records, before, refusal: None, directory }, survival, forker)
        }
        None => Errno::BADF.into(),
    };
    survival.set_program_before(None);
    error
}

fn execute(path: &CString, next: &Handover, survival: &Survival, forker: &Forker) -> io::Error {
    let prepared = canopy_server::takeover::before_exec(survival).map_err(io::Error::other);
    let error = match prepared.and_then(|()| strings(next)) {
        Ok((args, environment)) => forker.exec(path, &args, &environment).into(),
        Err(error) => error,
    };
    let _ = fd::set_cloexec_from(3);
    error
}

/// Returns the arguments and the environment of the next program.
fn strings(next: &Handover) -> io::Result<(Vec<CString>, Vec<CString>)> {
    let args = std::env::args_os().map(|arg| CString::new(arg.into_vec()));
    let own = (OsString::from(VARIABLE), OsString::from_vec(next.render(std::process::id())));
    let others = std::env::vars_os().filter(|(name, _)| name != VARIABLE);
    let environment = others
        .chain([own])
        .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
    Ok((args.collect::<Result<_, _>>()?, environment.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_program_reads_what_was_passed_on() {
        let handover = Handover {
            records: 7,
            before: Some(8),
            refusal: Some(Refusal::Program(Errno::NOENT)),
            directory: "/a directory".into(),
        };
        assert_eq!(Handover::parse(&handover.render(42), 42), Some(handover.clone()));
        let back = Handover { before: None, refusal: None, ..handover.clone() };
        assert_eq!(Handover::parse(&back.render(42), 42), Some(back));
        assert_eq!(Handover::parse(&handover.render(42), 43), None, "of another process");
        assert_eq!(Handover::parse(b"42 7 8", 42), None);
    }

    #[test]
    fn a_program_that_was_replaced_has_its_path() {
        assert_eq!(installed("self").unwrap(), std::env::current_exe().unwrap());
    }
}
