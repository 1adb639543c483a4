//! Sessions: what a token gives. They end with the program.

use super::{Role, digest, secret};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A session ends when nothing has come for this long (a live page counts), and at the latest after [`LONGEST`].
const IDLE: Duration = Duration::from_secs(12 * 3600);
pub const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Beyond, the one that was used least recently ends.
const MOST: usize = 64;

/// A session, as a request sees it.
#[derive(Clone, Debug)]
pub struct Session {
    pub role: Role,
    /// Whom a proxy has named.
    pub user: Option<String>,
    /// What each form of this session has in it, and no other site knows.
    pub form_secret: String,
    id: blake3::Hash,
}

impl Session {
    /// Returns what tells it from others in a record, and lets nobody in.
    pub fn name(&self) -> String {
        let id = &self.id.to_hex()[..12];
        self.user.as_ref().map_or_else(|| id.to_owned(), |user| format!("{user}-{id}"))
    }
}

#[derive(Debug)]
struct Entry {
    session: Session,
    began: Instant,
    used: Instant,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) > IDLE || now.saturating_duration_since(self.began) > LONGEST
    }
}

/// All sessions, by the digest of what their cookie has.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<blake3::Hash, Entry>>);

impl Sessions {
    /// Begins a session and returns what its cookie has. `user` is whom a proxy has named.
    pub fn begin(&self, role: Role, user: Option<String>) -> String {
        self.begin_at(role, user, Instant::now())
    }

    fn begin_at(&self, role: Role, user: Option<String>, now: Instant) -> String {
        let cookie = secret();
        let id = digest(&cookie);
        let session = Session { role, user, form_secret: secret(), id };
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, entry| !entry.is_over(now));
        if sessions.len() >= MOST
            && let Some(oldest) = sessions.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| *id)
        {
            sessions.remove(&oldest);
        }
        sessions.insert(id, Entry { session, began: now, used: now });
        cookie
    }

    /// Returns the session of a cookie, which counts as used.
    pub fn of(&self, cookie: &str) -> Option<Session> {
        self.of_at(&digest(cookie), Instant::now())
    }

    fn of_at(&self, id: &blake3::Hash, now: Instant) -> Option<Session> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = sessions.get_mut(id).filter(|entry| !entry.is_over(now))?;
        entry.used = now;
        Some(entry.session.clone())
    }

    /// Returns whether a session goes on: a page that is open is a use of it.
    pub fn goes_on(&self, session: &Session) -> bool {
        self.of_at(&session.id, Instant::now()).is_some()
    }

    pub fn end(&self, session: &Session) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&session.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let cookie = sessions.begin_at(Role::Health, None, start);
        let at = |hours: u64| sessions.of_at(&digest(&cookie), start + Duration::from_secs(hours * 3600));
        assert_eq!(at(1).map(|session| session.role), Some(Role::Health));
        // Each use counts, but for no longer than a week.
        assert!((1..=16).all(|times| at(times * 10).is_some()));
        assert!(at(7 * 24 + 1).is_none());
        let cookie = sessions.begin_at(Role::Full, None, start);
        assert!(sessions.of_at(&digest(&cookie), start + Duration::from_secs(13 * 3600)).is_none());
    }

    #[test]
    fn a_guess_or_an_ended_session_lets_nobody_in() {
        let sessions = Sessions::default();
        let cookie = sessions.begin(Role::Full, None);
        assert!(sessions.of("").is_none() && sessions.of("guess").is_none());
        let session = sessions.of(&cookie).unwrap();
        assert_ne!(session.form_secret, cookie);
        assert!(sessions.goes_on(&session));
        sessions.end(&session);
        assert!(!sessions.goes_on(&session) && sessions.of(&cookie).is_none());
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let cookies: Vec<String> = (0..MOST as u64 + 3)
            .map(|n| sessions.begin_at(Role::Full, None, start + Duration::from_secs(n)))
            .collect();
        let alive = cookies.iter().filter(|cookie| sessions.of(cookie).is_some()).count();
        assert!(alive == MOST && sessions.of(&cookies[2]).is_none() && sessions.of(&cookies[3]).is_some());
    }
}
