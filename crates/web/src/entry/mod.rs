//! Who is let in: a one-time token gives a session.

pub mod attempts;
pub mod sessions;
pub mod tokens;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns 256 random bits as 64 hexadecimal digits.
///
/// # Panics
/// If the kernel has no random numbers: nobody is let in by a guessable one.
pub(crate) fn secret() -> String {
    let mut bytes = [0; 32];
    let got = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(got, Ok(bytes.len()), "the kernel gives no random numbers");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is kept of a secret: it lets nobody in, and to look it up takes as long for any guess.
pub(crate) fn digest(secret: &str) -> blake3::Hash {
    blake3::hash(secret.as_bytes())
}

/// What somebody may do who is let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// See everything, and change pools.
    Full,
    /// See everything.
    Reader,
    /// See how pools are, but neither the pages of files nor the log: for a screen on the wall.
    Health,
}

impl Role {
    /// Whether the page at this path is for it.
    pub fn may_see(self, path: &str) -> bool {
        match self {
            Role::Full => true,
            Role::Reader => !matches!(path, "/do" | "/new"),
            Role::Health => matches!(path, "/" | "/pool" | "/warnings" | "/options" | "/live"),
        }
    }

    /// Whether it may change anything.
    pub fn may_act(self) -> bool {
        self == Role::Full
    }

    /// What it is where nobody may change anything.
    #[must_use]
    pub fn reading(self) -> Role {
        if self == Role::Full { Role::Reader } else { self }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Role::Full => "full",
            Role::Reader => "reader",
            Role::Health => "health",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Role> {
        [Role::Full, Role::Reader, Role::Health].into_iter().find(|role| role.word() == word)
    }
}
