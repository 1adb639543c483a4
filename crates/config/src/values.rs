//! The types of option values. Each has one parser and one renderer, which the command line, config files and the
//! control interface share.

use canopy_base::inode_number::InodeCalc;
use canopy_base::size::{SizeError, format_size, parse_size};
use canopy_policy::Policy;
use canopy_pool::config::{
    CacheFiles, FlushOnClose, FollowSymlinks, LinkExdev, MemoryBound, MissingNames, MoveWhenFull,
    NfsOpenHack, PassthroughIo, ReaddirMode, RenameExdev, StatfsIgnore, StatfsMode, XattrMode,
};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Why a value is refused. The message of the option adds its name, the value, and what it accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ValueError {
    #[error("not valid")]
    Invalid,
    #[error("too large")]
    TooLarge,
    #[error("too small")]
    TooSmall,
    #[error("empty")]
    Empty,
}

/// A type of option value.
pub trait Value: Sized {
    fn parse(text: &OsStr) -> Result<Self, ValueError>;
    /// Returns the value in a form that `parse` accepts and that existing tools expect.
    fn render(&self) -> String;
    /// Returns the value for people: a size with its unit.
    fn readable(&self) -> String {
        self.render()
    }
    /// Describes the accepted values, in words that can follow "must be".
    fn accepted() -> String;
}

/// Parses and renders an enumeration by the word of each variant.
macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $type {
            const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $type {
            type Err = ValueError;
            fn from_str(text: &str) -> Result<Self, ValueError> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(ValueError::Invalid),
                }
            }
        }
    };
}

/// Returns the value as a string, for types whose values are all UTF-8.
fn utf8(text: &OsStr) -> Result<&str, ValueError> {
    text.to_str().ok_or(ValueError::Invalid)
}

impl Value for bool {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        match utf8(text)? {
            "true" | "t" | "1" | "on" | "yes" => Ok(true),
            "false" | "f" | "0" | "off" | "no" => Ok(false),
            _ => Err(ValueError::Invalid),
        }
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn accepted() -> String {
        "true or false".into()
    }
}

/// A plain integer: the decimal digits at the start. The rest is ignored (`8x` is 8), because existing setups depend on
/// that.
impl Value for i32 {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        let text = utf8(text)?;
        let digits_at = usize::from(text.starts_with('-'));
        let len = text[digits_at..].bytes().take_while(u8::is_ascii_digit).count();
        if len == 0 {
            return Err(ValueError::Invalid);
        }
        text[..digits_at + len].parse().map_err(|_| ValueError::TooLarge)
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn readable(&self) -> String {
        u64::try_from(*self).map_or_else(|_| self.render(), format_size)
    }
    fn accepted() -> String {
        "a whole number".into()
    }
}

/// How cached names and attributes stay correct when branches change behind the pool's back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Coherence {
    /// Watches the branches for changes if all of them can be watched.
    #[default]
    Auto,
    /// Like `Auto`, with a warning if a branch cannot be watched.
    Watch,
    /// Lets cached names and attributes expire.
    Timeout,
}

words! {
    Coherence { Auto = "auto", Watch = "watch", Timeout = "timeout" }
}

/// Whether to keep nodes that the kernel has forgotten. The option used to be a number of seconds: any number but zero
/// means yes, and so does no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RememberNodes(pub bool);

impl Value for RememberNodes {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Ok(RememberNodes(true));
        }
        match i32::parse(text) {
            Ok(number) => Ok(RememberNodes(number != 0)),
            Err(_) => bool::parse(text).map(RememberNodes),
        }
    }
    fn render(&self) -> String {
        self.0.to_string()
    }
    fn accepted() -> String {
        "true or false".into()
    }
}

/// Where worker threads run. The letters mean: `R` threads that read requests, `P` threads that process them; then `1L`
/// on one logical processor, `1P` on one physical core, `SL` and `SP` spread over all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinThreads {
    /// Anywhere.
    None,
    R1L,
    R1P,
    RP1L,
    RP1P,
    R1LP1L,
    R1PP1P,
    RPSL,
    RPSP,
    R1PPSP,
}

words! {
    PinThreads {
        None = "false", R1L = "R1L", R1P = "R1P", RP1L = "RP1L", RP1P = "RP1P", R1LP1L = "R1LP1L",
        R1PP1P = "R1PP1P", RPSL = "RPSL", RPSP = "RPSP", R1PPSP = "R1PPSP",
    }
}

impl Value for PinThreads {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        match utf8(text)? {
            "" => Ok(PinThreads::None),
            word => word.parse(),
        }
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn accepted() -> String {
        one_of(PinThreads::WORDS)
    }
}

/// A number with an optional unit, in the syntax that branches use for sizes.
impl Value for u64 {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        parse_size(utf8(text)?).map_err(|error| match error {
            SizeError::Invalid => ValueError::Invalid,
            SizeError::Overflow => ValueError::TooLarge,
        })
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn readable(&self) -> String {
        format_size(*self)
    }
    fn accepted() -> String {
        "a number, optionally with K, M, G or T".into()
    }
}

impl Value for MemoryBound {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        if text == "auto" {
            return Ok(MemoryBound::Auto);
        }
        u64::parse(text).map(MemoryBound::Bytes)
    }
    fn render(&self) -> String {
        match self {
            MemoryBound::Auto => "auto".into(),
            MemoryBound::Bytes(bytes) => bytes.to_string(),
        }
    }
    fn readable(&self) -> String {
        match self {
            MemoryBound::Auto => self.render(),
            MemoryBound::Bytes(bytes) => bytes.readable(),
        }
    }
    fn accepted() -> String {
        "auto, or a number, optionally with K, M, G or T".into()
    }
}

/// A signed number, for options that give negative numbers a meaning of their own.
impl Value for i64 {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        let text = utf8(text)?;
        match text.strip_prefix('-') {
            None => i64::try_from(u64::parse(OsStr::new(text))?).map_err(|_| ValueError::TooLarge),
            Some(digits) => {
                let size = u64::parse(OsStr::new(digits))?;
                0_i64.checked_sub_unsigned(size).ok_or(ValueError::TooLarge)
            }
        }
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn accepted() -> String {
        "a whole number, optionally with K, M, G or T".into()
    }
}

/// An owner or a umask that replaces those of all files; `None` for a negative number. All are decimal, even the
/// umask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Override(pub Option<u32>);

impl Value for Override {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        match i64::parse(text)? {
            ..0 => Ok(Override(None)),
            number => {
                u32::try_from(number).map(|number| Override(Some(number))).map_err(|_| ValueError::TooLarge)
            }
        }
    }
    fn render(&self) -> String {
        self.0.map_or_else(|| "-1".into(), |number| number.to_string())
    }
    fn accepted() -> String {
        "a decimal number, or -1 for none".into()
    }
}

/// Whole seconds.
impl Value for Duration {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        u64::parse(text).map(Duration::from_secs)
    }
    fn render(&self) -> String {
        self.as_secs().to_string()
    }
    fn accepted() -> String {
        "a number of seconds".into()
    }
}

/// A size in memory pages. A value that ends in a letter is in bytes, and is rounded up; any other is a number of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages(pub u64);

impl Value for Pages {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        let number = u64::parse(text)?;
        let in_bytes = text.as_encoded_bytes().last().is_some_and(u8::is_ascii_alphabetic);
        let pages = if in_bytes { number.div_ceil(rustix::param::page_size() as u64) } else { number };
        if pages == 0 {
            return Err(ValueError::TooSmall);
        }
        Ok(Pages(pages))
    }
    fn render(&self) -> String {
        self.0.to_string()
    }
    fn accepted() -> String {
        "a size such as 1M, or a number of pages such as 256".into()
    }
}

/// How many filesystems can be stacked on each other: see [`Kernel::max_stack_depth`](crate::Kernel::max_stack_depth).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackDepth(pub u32);

impl Value for StackDepth {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        match text.to_str() {
            Some("1") => Ok(StackDepth(1)),
            Some("2") => Ok(StackDepth(2)),
            _ => Err(ValueError::Invalid),
        }
    }
    fn render(&self) -> String {
        self.0.to_string()
    }
    fn accepted() -> String {
        "1 or 2".into()
    }
}

/// `max_read`, which the kernel takes as a 32-bit number of bytes. `None` if not given.
impl Value for Option<u32> {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        let number = u64::parse(text)?;
        u32::try_from(number).map(Some).map_err(|_| ValueError::TooLarge)
    }
    fn render(&self) -> String {
        self.map(|n| n.to_string()).unwrap_or_default()
    }
    fn accepted() -> String {
        "a number of bytes".into()
    }
}

/// Whole seconds; `None` for `auto`.
impl Value for Option<Duration> {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        if text == "auto" { Ok(None) } else { Duration::parse(text).map(Some) }
    }
    fn render(&self) -> String {
        self.map_or("auto".into(), |time| time.render())
    }
    fn accepted() -> String {
        format!("auto or {}", Duration::accepted())
    }
}

/// Any text; `None` if not given.
impl Value for Option<OsString> {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        Ok(Some(text.to_owned()))
    }
    fn render(&self) -> String {
        self.as_deref().unwrap_or_default().to_string_lossy().into_owned()
    }
    fn accepted() -> String {
        "any text".into()
    }
}

/// A path; `None` if not given.
impl Value for Option<PathBuf> {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Err(ValueError::Empty);
        }
        Ok(Some(PathBuf::from(text)))
    }
    fn render(&self) -> String {
        self.as_deref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
    }
    fn accepted() -> String {
        "a path".into()
    }
}

/// A path or nothing. A relative path is made absolute now, while the directory it is relative to is still current.
impl Value for PathBuf {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        if text.is_empty() {
            Ok(PathBuf::new())
        } else {
            std::path::absolute(text).map_err(|_| ValueError::Invalid)
        }
    }
    fn render(&self) -> String {
        self.to_string_lossy().into_owned()
    }
    fn accepted() -> String {
        "a path or nothing".into()
    }
}

/// A set of names joined by `|`, sorted and without duplicates.
impl Value for Vec<String> {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        let mut names: Vec<String> =
            utf8(text)?.split('|').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
    fn render(&self) -> String {
        self.join("|")
    }
    fn accepted() -> String {
        "names joined by |".into()
    }
}

/// Implements `Value` by the `FromStr` and `Display` of a type.
macro_rules! named {
    ($($type:ty => $accepted:expr;)+) => {$(
        impl Value for $type {
            fn parse(text: &OsStr) -> Result<Self, ValueError> {
                utf8(text)?.parse().map_err(|_| ValueError::Invalid)
            }
            fn render(&self) -> String {
                self.to_string()
            }
            fn accepted() -> String {
                $accepted
            }
        }
    )+};
}

named! {
    Coherence => one_of(Coherence::WORDS);
    IoUring => one_of(IoUring::WORDS);
    WorkerPriority => one_of(WorkerPriority::WORDS);
    CacheFiles => one_of(CacheFiles::WORDS);
    PassthroughIo => one_of(PassthroughIo::WORDS);
    FlushOnClose => one_of(FlushOnClose::WORDS);
    StatfsMode => one_of(StatfsMode::WORDS);
    StatfsIgnore => one_of(StatfsIgnore::WORDS);
    XattrMode => one_of(XattrMode::WORDS);
    MissingNames => one_of(MissingNames::WORDS);
    FollowSymlinks => one_of(FollowSymlinks::WORDS);
    NfsOpenHack => one_of(NfsOpenHack::WORDS);
    LinkExdev => one_of(LinkExdev::WORDS);
    RenameExdev => one_of(RenameExdev::WORDS);
    ReaddirMode => "seq, cosr[:THREADS[:DEPTH]] or cor[:THREADS[:DEPTH]]".into();
    InodeCalc => one_of(&InodeCalc::ALL.map(|calc| calc.to_string()));
    Policy => one_of(&Policy::ALL.map(|policy| policy.to_string()));
}

/// A policy or a boolean.
impl Value for MoveWhenFull {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        match bool::parse(text) {
            Ok(true) => Ok(MoveWhenFull::USUAL),
            Ok(false) => Ok(MoveWhenFull(None)),
            Err(_) => Policy::parse(text).map(|policy| MoveWhenFull(Some(policy))),
        }
    }
    fn render(&self) -> String {
        self.0.map_or("false".into(), |policy| policy.to_string())
    }
    fn accepted() -> String {
        "true, false or a policy".into()
    }
}

/// Joins words as `a, b or c`.
fn one_of<S: AsRef<str>>(words: &[S]) -> String {
    match words {
        [] => String::new(),
        [only] => only.as_ref().to_owned(),
        [first @ .., last] => {
            let first: Vec<&str> = first.iter().map(AsRef::as_ref).collect();
            format!("{} or {}", first.join(", "), last.as_ref())
        }
    }
}

/// Whether requests come over io_uring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoUring {
    /// If the kernel offers it. In all measurements it was at least as fast as /dev/fuse.
    Auto,
    /// Like `Auto`, with a warning if the kernel does not offer it.
    On,
    Off,
}

words! {
    IoUring { Auto = "auto", On = "on", Off = "off" }
}

/// Where what is known of the branches is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum CataloguePlace {
    /// Nowhere.
    #[default]
    Off,
    /// In `/var/lib/canopy`.
    Auto,
    /// In this directory.
    In(PathBuf),
}

impl CataloguePlace {
    /// Returns the directory.
    #[must_use]
    pub fn dir(&self) -> Option<&Path> {
        match self {
            CataloguePlace::Off => None,
            CataloguePlace::Auto => Some(Path::new(crate::state::DIR)),
            CataloguePlace::In(dir) => Some(dir),
        }
    }
}

impl Value for CataloguePlace {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        match text.as_encoded_bytes() {
            b"auto" => Ok(CataloguePlace::Auto),
            b"off" | b"false" => Ok(CataloguePlace::Off),
            [b'/', ..] => Ok(CataloguePlace::In(text.into())),
            _ => Err(ValueError::Invalid),
        }
    }
    fn render(&self) -> String {
        match self {
            CataloguePlace::Off => "off".into(),
            CataloguePlace::Auto => "auto".into(),
            CataloguePlace::In(dir) => dir.to_string_lossy().into_owned(),
        }
    }
    fn accepted() -> String {
        "off, auto, or the absolute path of a directory".into()
    }
}

/// The priority of worker threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerPriority {
    /// Low while their processors have room.
    Auto,
    /// That of the daemon.
    Normal,
}

words! {
    WorkerPriority { Auto = "auto", Normal = "normal" }
}

/// Whether something is done, such as that the kernel enforces POSIX ACLs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// As the circumstances are.
    Auto,
    On,
    Off,
}

impl Value for Choice {
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        if text == "auto" {
            return Ok(Choice::Auto);
        }
        bool::parse(text).map(|on| if on { Choice::On } else { Choice::Off })
    }
    fn render(&self) -> String {
        match self {
            Choice::Auto => "auto",
            Choice::On => "true",
            Choice::Off => "false",
        }
        .into()
    }
    fn accepted() -> String {
        "true, false or auto".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<T: Value>(text: &str) -> Result<T, ValueError> {
        T::parse(OsStr::new(text))
    }

    #[test]
    fn bool_accepts_ten_words_and_nothing_else() {
        for word in ["true", "t", "1", "on", "yes"] {
            assert_eq!(parse::<bool>(word), Ok(true), "{word}");
        }
        for word in ["false", "f", "0", "off", "no"] {
            assert_eq!(parse::<bool>(word), Ok(false), "{word}");
        }
        for word in ["", "True", "YES", "2", "true ", "y"] {
            assert!(parse::<bool>(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn sizes_have_units_and_limits() {
        let table = [
            ("0", 0),
            ("1024", 1024),
            ("1b", 1),
            ("1K", 1 << 10),
            ("3m", 3 << 20),
            ("2G", 2 << 30),
            ("1t", 1 << 40),
            ("1Kxyz", 1024),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in table {
            assert_eq!(parse::<u64>(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "+1", " 1", "1P", "1 K"] {
            assert!(parse::<u64>(text).is_err(), "{text:?}");
        }
        assert_eq!(parse::<u64>("16777216T"), Err(ValueError::TooLarge));
    }

    #[test]
    fn integers_end_at_the_first_other_character() {
        let table = [("1", 1), ("-4", -4), ("1K", 1), ("12x3", 12)];
        for (text, number) in table {
            assert_eq!(parse::<i32>(text), Ok(number), "{text}");
        }
        for text in ["", "-", "+1", " 1", "x", "99999999999"] {
            assert!(parse::<i32>(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn bytes_are_rounded_up_to_pages() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(parse::<Pages>("256"), Ok(Pages(256)));
        assert_eq!(parse::<Pages>("1M"), Ok(Pages((1 << 20) / page)));
        assert_eq!(parse::<Pages>("1b"), Ok(Pages(1)));
        assert_eq!(parse::<Pages>(&format!("{}b", page + 1)), Ok(Pages(2)));
        assert!(parse::<Pages>("0").is_err());
        assert!(parse::<Pages>("many").is_err());
    }

    #[test]
    fn sets_are_sorted_without_duplicates() {
        assert_eq!(parse::<Vec<String>>("b|a|b||c").unwrap().render(), "a|b|c");
        assert_eq!(parse::<Vec<String>>("").unwrap().render(), "");
    }

    #[test]
    fn accepted_words_are_joined_as_in_a_sentence() {
        assert_eq!(FlushOnClose::accepted(), "never, always or opened-for-write");
        assert_eq!(StatfsMode::accepted(), "base or full");
        assert_eq!(parse::<StatfsMode>("Base"), Err(ValueError::Invalid));
    }
}
