//! Shared memory with what the next process needs. Each part is changed by stores of single words in such an order that
//! it can be read after the process was killed at any point.

use super::Refusal;
use canopy_fuse::Agreed;
use canopy_pool::{DIR_NUMBER_WORDS, DIR_NUMBERS_HEAD, DirNumbers, HANDLE_RECORD_WORDS, HandleRecords};
use canopy_sys::process::{AtomicU64, Ended, SharedWords};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A process serves, or has served: what follows is valid.
const SERVING: usize = 0;
/// How many processes have been started.
const STARTS: usize = 1;
/// The number of the device's descriptor.
const DEVICE: usize = 2;
/// The kernel opens directories by itself.
const KERNEL_OPENS_DIRS: usize = 3;
/// How the last process that died did so: a signal, or [`EXITED`] and a status.
const DEATH: usize = 4;
/// Since when nobody has served the last time, on the monotonic clock, in nanoseconds.
const STOPPED_AT: usize = 5;
/// How long nobody served then, and the longest time ever, in nanoseconds.
const PAUSE: usize = 6;
const LONGEST_PAUSE: usize = 7;
/// How many texts have been recorded, above the length of the last one in bytes. There is room for two, in turns.
const SETTINGS: usize = 8;
/// The process that serves is about to exit, because it was asked to or the pool is unmounted.
const ENDING: usize = 9;
/// There is a session that another process can take over.
const SERVABLE: usize = 10;
/// The [`FORM`] of all this. It is at the same place in each version of the program.
const FORM_WORD: usize = 11;
/// How many processes have died.
const DEATHS: usize = 12;
/// How often another program has taken over, and how often that was refused, and why.
const UPGRADES: usize = 13;
const REFUSALS: usize = 14;
const REFUSAL: usize = 15;
/// The process that served has ended so that another program takes over: 1, and 2 once the keeper knows. 0 when the pool is
/// served again.
const HANDED_OVER: usize = 32;
/// How long nobody served then, in nanoseconds.
const UPGRADE_PAUSE: usize = 33;
/// The number of the process that serves, once it does.
const SERVED: usize = 34;
/// The highest id that the kernel has given to a backing file.
const BACKING_IDS: usize = 35;
/// What was found out about the kernel when the pool was mounted; 0 if nothing.
const FINDINGS: usize = 36;
/// Requests come over io_uring: only a process that hands over leaves a pool that can be served.
const OVER_URING: usize = 37;
/// The number of the process that began to fill the queues last, and from then on has requests that are lost with it; or of the
/// one that is no more to begin, with [`REFUSED`].
const QUEUES: usize = 38;
const REFUSED: u64 = 1 << 63;
/// The number of the process that left the queues before a fault ended it, so that no request is lost with it.
const LEFT: usize = 39;
const AGREED: Range<usize> = 16..32;

const EXITED: u64 = 1 << 32;

/// The form of the records, of handles and requests too, and of what one program passes to the next. Programs with
/// different forms do not take over from one another: whoever changes the meaning of anything increments this.
pub const FORM: u64 = 6;
/// That number, and a hash of what it stands for (`form.rs`).
#[cfg(test)]
pub(super) const RECORDED_FORM: (u64, u64) = (6, 0xe1f3_d08b_c878_b187);

/// The name of the memory in /proc.
const NAME: &str = "canopy-records";
/// The keys of the texts with the pool's mountpoint, and with the directory where the pool was mounted. Other texts are of
/// branches, by their absolute paths, and of settings.
const MOUNTPOINT: &[u8] = b"=mountpoint";
const DIRECTORY: &[u8] = b"=directory";

/// How many requests, words of a text, handles and directories there is room for. A model has few.
const ROOM: [usize; 4] = if cfg!(loom) { [1, 4, 2, 2] } else { [1024, 16 << 10, 1 << 20, 4 << 20] };
/// Requests in flight; their number is that of threads, and is exceeded by hung disks alone.
pub(super) const REQUESTS: Range<usize> = 64..64 + super::in_flight::REQUEST * ROOM[0];
/// Each of two texts.
const TEXT: usize = ROOM[1];
const TEXTS: usize = REQUESTS.end;
const HANDLES: Range<usize> = TEXTS + 2 * TEXT..TEXTS + 2 * TEXT + HANDLE_RECORD_WORDS * ROOM[2];
/// So many directories. Only what is used takes memory.
const DIR_NUMBERS: Range<usize> = HANDLES.end..HANDLES.end + DIR_NUMBERS_HEAD + DIR_NUMBER_WORDS * ROOM[3];

/// The memory that the processes of one pool share.
#[derive(Clone, Debug)]
pub struct Ledger {
    words: Arc<SharedWords>,
}

/// How a process that served has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    pub ended: Ended,
    /// How long nobody served after it.
    pub pause: Duration,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ended {
            Ended::Exited(status) => write!(f, "exit status {status}"),
            Ended::Killed(signal) => match signal_name(signal) {
                Some(name) => write!(f, "{name}"),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}

/// The signals by which a server dies as a rule.
fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::BUS, "SIGBUS"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::ILL, "SIGILL"),
        (Signal::FPE, "SIGFPE"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::SYS, "SIGSYS"),
    ];
    names.into_iter().find(|(known, _)| known.as_raw() == signal).map(|(_, name)| name)
}

impl Ledger {
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> io::Result<Ledger> {
        let ledger = Ledger { words: Arc::new(SharedWords::named(NAME, DIR_NUMBERS.end)?) };
        ledger.set(FORM_WORD, FORM);
        Ok(ledger)
    }

    /// Takes over the records of the program before.
    ///
    /// # Errors
    /// `EINVAL` if they have another form; `ENOMEM`.
    pub(super) fn map(file: OwnedFd) -> io::Result<Ledger> {
        let words = SharedWords::map(file)?;
        if words.len() != DIR_NUMBERS.end || words[FORM_WORD].load(Ordering::Acquire) != FORM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Ledger { words: Arc::new(words) })
    }

    /// Returns the descriptor of the memory.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.words.file()
    }

    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Acquire)
    }

    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Release);
    }

    /// Returns whether a process has served the pool. Then the next one takes over.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.get(SERVING) != 0
    }

    /// Records that this process ends by itself, and no other shall take over.
    pub fn record_end(&self) {
        self.set(ENDING, 1);
    }

    /// Returns whether the process that serves ends by itself.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.get(ENDING) != 0
    }

    /// Returns the number of processes that have been started before.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.get(STARTS)
    }

    /// Records that another process has been started.
    pub fn count_start(&self) {
        self.set(STARTS, self.starts() + 1);
    }

    /// Records the session that the next process takes over.
    pub(crate) fn record_session(&self, device: BorrowedFd<'_>, agreed: &Agreed, kernel_opens_dirs: bool) {
        let words = agreed.to_words();
        AGREED.zip(words).for_each(|(word, value)| self.set(word, value));
        self.set(DEVICE, u64::from(device.as_raw_fd().cast_unsigned()));
        self.set(KERNEL_OPENS_DIRS, kernel_opens_dirs.into());
        self.set(SERVABLE, 1);
    }

    /// Records how requests come to this process, which is about to take them. Returns false if it must not any more.
    pub(crate) fn record_transport(&self, over_uring: bool) -> bool {
        self.set(OVER_URING, over_uring.into());
        !over_uring || self.decide_queues(self.starts())
    }

    /// Has the process that was started last not begin to fill the queues. Returns false if it has begun.
    #[must_use]
    pub fn refuse_queues(&self) -> bool {
        !self.is_over_uring() || self.decide_queues(self.starts() | REFUSED)
    }

    /// Decides once for each process.
    fn decide_queues(&self, decision: u64) -> bool {
        let undecided = |now: u64| (now & !REFUSED != self.starts()).then_some(decision);
        self.words[QUEUES].fetch_update(Ordering::AcqRel, Ordering::Acquire, undecided).is_ok()
    }

    /// Records that no other process can take over after all.
    pub(crate) fn record_unservable(&self) {
        self.set(SERVABLE, 0);
    }

    /// Returns whether there is a session that another process can take over, and a keeper to start that.
    pub(crate) fn is_servable(&self) -> bool {
        self.get(SERVABLE) != 0 && super::has_keeper()
    }

    /// Returns whether requests come over io_uring. Then another process can take over only from one that hands over.
    #[must_use]
    pub fn is_over_uring(&self) -> bool {
        self.get(OVER_URING) != 0
    }

    /// Returns whether the process that was started last may have requests that are lost with it.
    #[must_use]
    pub fn has_begun_queues(&self) -> bool {
        self.is_over_uring() && self.get(QUEUES) == self.starts()
    }

    /// Records that this process, which a fault ends, has left the queues.
    pub(crate) fn record_left(&self) {
        self.set(LEFT, self.starts());
    }

    /// Returns whether the process that was started last has ended with requests of clients.
    #[must_use]
    pub fn has_lost_requests(&self) -> bool {
        self.has_begun_queues() && self.get(LEFT) != self.starts()
    }

    /// Records that the pool is usable. From now on another process takes over when this one dies.
    pub fn record_serving(&self) {
        self.set(SERVING, self.get(SERVABLE));
        self.set(SERVED, self.starts());
    }

    /// Returns whether the process that was started last serves the pool, or has done so.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.get(SERVED) == self.starts()
    }

    /// Returns the number of the device's descriptor, and what was negotiated on it.
    pub(crate) fn session(&self) -> (RawFd, Agreed) {
        let words = std::array::from_fn(|at| self.get(AGREED.start + at));
        (self.get(DEVICE) as RawFd, Agreed::from_words(&words))
    }

    /// Records that the kernel has registered a backing file.
    pub(crate) fn record_backing(&self, id: u32) {
        self.words[BACKING_IDS].fetch_max(id.into(), Ordering::Relaxed);
    }

    /// Returns the highest id that the kernel has given to a backing file.
    pub(crate) fn backing_ids(&self) -> u32 {
        self.get(BACKING_IDS) as u32
    }

    pub(crate) fn kernel_opens_dirs(&self) -> bool {
        self.get(KERNEL_OPENS_DIRS) != 0
    }

    /// Records what was found out about the kernel.
    pub(crate) fn record_findings(&self, word: u64) {
        self.set(FINDINGS, word);
    }

    /// Returns what was found out about the kernel; 0 if nothing.
    pub(crate) fn findings(&self) -> u64 {
        self.get(FINDINGS)
    }

    /// Records that the process that served has ended.
    pub fn record_death(&self, ended: Ended) {
        let death = match ended {
            Ended::Exited(status) => EXITED | u64::from(status.cast_unsigned()),
            Ended::Killed(signal) => u64::from(signal.cast_unsigned()),
        };
        self.set(DEATH, death);
        self.set(DEATHS, self.deaths() + 1);
        self.set(STOPPED_AT, now());
    }

    /// Returns how many processes have died.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.get(DEATHS)
    }

    /// Records that this process serves no more and ends, so that another program takes over.
    pub(crate) fn record_handover(&self) {
        self.set(STOPPED_AT, now());
        self.set(HANDED_OVER, 1);
    }

    /// Returns whether the process that served has ended for that, and nobody serves yet.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.get(HANDED_OVER) != 0
    }

    /// Returns the same, once for each time.
    #[must_use]
    pub fn take_handover(&self) -> bool {
        let ended = self.get(HANDED_OVER) == 1;
        if ended {
            self.set(HANDED_OVER, 2);
        }
        ended
    }

    /// Records that another program has taken over, and serves.
    pub fn record_upgrade(&self) {
        self.set(UPGRADES, self.get(UPGRADES) + 1);
    }

    /// Records that another program has not taken over.
    pub fn record_refusal(&self, why: Refusal) {
        self.set(REFUSAL, why.to_word());
        self.set(REFUSALS, self.get(REFUSALS) + 1);
    }

    /// Returns how often another program has taken over, and how long nobody served at the last time.
    pub(crate) fn upgrades(&self) -> (u64, Duration) {
        (self.get(UPGRADES), Duration::from_nanos(self.get(UPGRADE_PAUSE)))
    }

    /// Returns how often another program has not taken over, and why at the last time.
    pub(crate) fn refusals(&self) -> (u64, Option<Refusal>) {
        (self.get(REFUSALS), Refusal::from_word(self.get(REFUSAL)))
    }

    /// Records that the pool is served again.
    pub(crate) fn record_recovery(&self) {
        let pause = now().saturating_sub(self.get(STOPPED_AT));
        self.set(if self.is_handed_over() { UPGRADE_PAUSE } else { PAUSE }, pause);
        self.set(HANDED_OVER, 0);
        self.set(LONGEST_PAUSE, pause.max(self.get(LONGEST_PAUSE)));
    }

    /// Returns the longest time for which nobody has served.
    pub(crate) fn longest_pause(&self) -> Duration {
        Duration::from_nanos(self.get(LONGEST_PAUSE))
    }

    /// Returns how the last process that died did so; `None` if none has died.
    #[must_use]
    pub fn last_death(&self) -> Option<Death> {
        let word = self.get(DEATH);
        let status = word as u32 as i32;
        let ended = if word & EXITED != 0 { Ended::Exited(status) } else { Ended::Killed(status) };
        let death = Death { ended, pause: Duration::from_nanos(self.get(PAUSE)) };
        (word != 0).then_some(death)
    }

    pub(crate) fn handles(&self) -> Arc<HandleRecords> {
        HandleRecords::new(Arc::clone(&self.words), HANDLES)
    }

    pub(crate) fn dir_numbers(&self) -> DirNumbers {
        DirNumbers::new(Arc::clone(&self.words), DIR_NUMBERS)
    }

    /// Returns the descriptors of directories that were removed and are in use.
    pub(super) fn removed_dirs(&self) -> Vec<RawFd> {
        DirNumbers::descriptors(&self.words, DIR_NUMBERS)
    }

    pub(super) fn requests(&self) -> &[AtomicU64] {
        &self.words[REQUESTS]
    }

    /// Returns the settings that were changed since the pool was mounted, in the order of their last changes: one may cover
    /// others.
    pub(crate) fn settings(&self) -> Vec<(String, Vec<u8>)> {
        let named = |(key, value): (Vec<u8>, _)| Some((String::from_utf8(key).ok()?, value));
        let is_setting = |key: &[u8]| !key.starts_with(b"/") && !key.starts_with(b"=");
        self.texts().into_iter().filter(|(key, _)| is_setting(key)).filter_map(named).collect()
    }

    /// Records where the pool is mounted, and the directory at which relative paths of the command line start. Nobody
    /// serves yet. Returns false if these are too long.
    pub fn record_place(&self, mountpoint: &Path, directory: &Path) -> bool {
        self.record_text(MOUNTPOINT, mountpoint.as_os_str().as_bytes())
            && self.record_text(DIRECTORY, directory.as_os_str().as_bytes())
    }

    /// Returns where the pool is mounted.
    #[must_use]
    pub fn place(&self) -> Option<PathBuf> {
        self.path(MOUNTPOINT)
    }

    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.path(DIRECTORY)
    }

    fn path(&self, key: &[u8]) -> Option<PathBuf> {
        let (_, path) = self.texts().into_iter().find(|(known, _)| known == key)?;
        Some(OsString::from_vec(path).into())
    }

    /// Returns the branches that the pool has had, with the mountpoints that they were below.
    pub(crate) fn mountpoints(&self) -> Vec<(PathBuf, PathBuf)> {
        let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
        let branches = self.texts().into_iter().filter(|(key, _)| key.starts_with(b"/"));
        branches.map(|(branch, mountpoint)| (path(branch), path(mountpoint))).collect()
    }

    fn texts(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let bytes = loop {
            let selected = self.get(SETTINGS);
            let bytes = self.text((selected >> 32) as usize, selected as u32 as usize);
            // Another thread may have recorded two texts meanwhile, the second over this one.
            if self.get(SETTINGS) == selected {
                break bytes;
            }
        };
        let mut parts = bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec);
        let pair = || Some((parts.next()?, parts.next()?));
        std::iter::from_fn(pair).filter(|(key, _)| !key.is_empty()).collect()
    }

    /// Records a setting. The caller holds the lock for changes of settings. Returns false if there is no room.
    pub(crate) fn record_setting(&self, key: &str, value: &[u8]) -> bool {
        self.record_text(key.as_bytes(), value)
    }

    /// Records where a branch is mounted. The caller holds the lock for changes of settings, or nobody serves yet.
    pub(crate) fn record_mountpoint(&self, branch: &Path, mountpoint: &Path) -> bool {
        self.record_text(branch.as_os_str().as_bytes(), mountpoint.as_os_str().as_bytes())
    }

    fn record_text(&self, key: &[u8], value: &[u8]) -> bool {
        let mut texts = self.texts();
        texts.retain(|(known, _)| known != key);
        texts.push((key.to_vec(), value.to_vec()));
        let text: Vec<u8> =
            texts.iter().flat_map(|(key, value)| [key, &b"\0"[..], value, b"\0"].concat()).collect();
        if text.len() > TEXT * size_of::<u64>() || value.contains(&0) {
            return false;
        }
        let next = (self.get(SETTINGS) >> 32).wrapping_add(1);
        for (at, bytes) in text.chunks(size_of::<u64>()).enumerate() {
            let mut word = [0; size_of::<u64>()];
            word[..bytes.len()].copy_from_slice(bytes);
            self.set(TEXTS + (next & 1) as usize * TEXT + at, u64::from_le_bytes(word));
        }
        self.set(SETTINGS, next << 32 | text.len() as u64);
        true
    }

    fn text(&self, which: usize, len: usize) -> Vec<u8> {
        // What another program has recorded is not believed to be one of the two, nor to fit.
        let (start, len) = (TEXTS + (which & 1) * TEXT, len.min(TEXT * size_of::<u64>()));
        let words = &self.words[start..start + len.div_ceil(size_of::<u64>())];
        let mut bytes: Vec<u8> =
            words.iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Records that begin with these words: all that another process reads of them. See [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    static LEDGER: std::sync::OnceLock<std::sync::Mutex<Ledger>> = std::sync::OnceLock::new();
    let ledger = LEDGER.get_or_init(|| std::sync::Mutex::new(Ledger::new().expect("memory")));
    let ledger = ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (words, text) = bytes.split_at(bytes.len().min(8 * 40));
    let word_at = |bytes: &[u8], at: usize| {
        let mut word = [0; 8];
        let bytes = bytes.get(8 * at..).unwrap_or_default();
        word[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
        u64::from_le_bytes(word)
    };
    (0..40).for_each(|at| ledger.set(at, word_at(words, at)));
    (0..64).for_each(|at| ledger.set(TEXTS + at, word_at(text, at)));
    std::hint::black_box((
        ledger.session().1,
        ledger.kernel_opens_dirs(),
        ledger.deaths(),
        ledger.last_death(),
    ));
    std::hint::black_box((ledger.upgrades(), ledger.refusals(), ledger.longest_pause(), ledger.starts()));
    for (key, value) in ledger.settings() {
        assert!(!key.is_empty() && !value.contains(&0));
    }
    std::hint::black_box((ledger.place(), ledger.directory(), ledger.mountpoints()));
    // Recorded anew, it is read as it was recorded.
    if ledger.record_setting("key", b"value") {
        assert_eq!(ledger.settings().last(), Some(&("key".to_owned(), b"value".to_vec())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn settings_are_kept_in_the_order_of_their_last_changes() {
        let ledger = Ledger::new().unwrap();
        assert!(ledger.settings().is_empty());
        for (key, value) in [("branches", "/a:/b"), ("minfreespace", "4G"), ("branches", "/a"), ("empty", "")]
        {
            assert!(ledger.record_setting(key, value.as_bytes()));
        }
        assert!(ledger.record_mountpoint(Path::new("/disk/a"), Path::new("/disk")));
        let expected = [("minfreespace", "4G"), ("branches", "/a"), ("empty", "")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(ledger.settings(), expected);
        assert_eq!(ledger.mountpoints(), [("/disk/a".into(), "/disk".into())]);
        assert!(!ledger.record_setting("long", &vec![b'x'; TEXT * 8]));
        assert_eq!(ledger.settings(), expected);
    }

    #[test]
    fn deaths_are_told_with_their_pause() {
        let ledger = Ledger::new().unwrap();
        assert_eq!(ledger.last_death(), None);
        ledger.record_death(Ended::Killed(9));
        ledger.record_recovery();
        let death = ledger.last_death().unwrap();
        assert_eq!((death.ended, death.pause), (Ended::Killed(9), ledger.longest_pause()));
        ledger.record_death(Ended::Exited(101));
        assert_eq!(ledger.last_death().unwrap().ended, Ended::Exited(101));
        assert_eq!(ledger.deaths(), 2);
    }

    #[test]
    fn another_program_maps_the_same_records() {
        let ledger = Ledger::new().unwrap();
        assert!(
            ledger.record_place(Path::new("/pool"), Path::new("/here"))
                && ledger.record_mountpoint(Path::new("/a"), Path::new("/"))
        );
        ledger.count_start();
        ledger.record_handover();
        ledger.record_refusal(Refusal::Program(Errno::NOENT));
        ledger.record_findings(7);
        let file = || ledger.file().unwrap().try_clone_to_owned().unwrap();
        let next = Ledger::map(file()).unwrap();
        assert_eq!((next.place().unwrap(), next.mountpoints().len()), (PathBuf::from("/pool"), 1));
        assert!(
            next.take_handover()
                && !next.take_handover()
                && next.is_handed_over()
                && !next.is_served()
                && next.settings().is_empty()
        );
        assert_eq!((next.refusals(), next.findings()), ((1, Some(Refusal::Program(Errno::NOENT))), 7));
        next.record_recovery();
        next.record_upgrade();
        assert!(!ledger.is_handed_over());
        assert_eq!((ledger.upgrades().0, ledger.last_death()), (1, None));
        ledger.set(FORM_WORD, FORM + 1);
        assert!(Ledger::map(file()).is_err(), "a form that is not known");
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use canopy_sys::process::left_by_the_dead;
    use rustix::fd::AsFd as _;

    #[test]
    fn a_text_is_one_that_was_recorded() {
        let record = |ledger: &Ledger| {
            for value in ["one", "two", "three"] {
                assert!(ledger.record_setting("abcdef", value.as_bytes()));
            }
        };
        let found = left_by_the_dead(|| Ledger::new().unwrap(), record, Ledger::settings);
        let mut found: Vec<_> =
            found.concat().into_iter().map(|(key, value)| (key, String::from_utf8(value).unwrap())).collect();
        found.sort_unstable();
        assert_eq!(found, ["one", "three", "two"].map(|value| ("abcdef".to_owned(), value.to_owned())));
    }

    #[test]
    fn who_finds_a_session_finds_all_of_it() {
        let agreed = Agreed::from_words(&std::array::from_fn(|at| 100 + at as u64));
        let record = move |ledger: &Ledger| {
            ledger.count_start();
            ledger.record_session(std::io::stdin().as_fd(), &agreed, true);
            ledger.record_serving();
        };
        let read = |ledger: &Ledger| {
            let serving = ledger.is_serving();
            serving.then(|| (ledger.session(), ledger.kernel_opens_dirs(), ledger.starts()))
        };
        let found = left_by_the_dead(|| Ledger::new().unwrap(), record, read);
        let session = Some(((0, agreed), true, 1));
        assert!(found.len() == 2 && found.contains(&None) && found.contains(&session), "{found:?}");
    }

    #[test]
    fn who_finds_an_end_finds_how_and_when() {
        let end = |ledger: &Ledger| {
            ledger.record_refusal(Refusal::Late);
            ledger.record_handover();
        };
        let read = |ledger: &Ledger| {
            (ledger.refusals().0 == 0 || ledger.refusals().1 == Some(Refusal::Late))
                && (!ledger.is_handed_over() || ledger.get(STOPPED_AT) != 0)
        };
        let both = move |ledger: &Ledger| (read(ledger), ledger.refusals().0, ledger.is_handed_over());
        let found = left_by_the_dead(|| Ledger::new().unwrap(), end, both);
        assert!(
            found.len() == 3
                && [(true, 0, false), (true, 1, false), (true, 1, true)]
                    .iter()
                    .all(|one| found.contains(one)),
            "{found:?}"
        );
    }
}
