//! What all requests share.

use crate::actions::runs::Runs;
use crate::data::Data;
use crate::entry::attempts::Attempts;
use crate::entry::sessions::Sessions;
use crate::entry::tokens::Tokens;
use crate::hosts::Hosts;
use hyper::header::HeaderName;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// How many live pages may be open.
const STREAMS: usize = 48;

#[derive(Debug)]
pub struct App {
    pub data: Data,
    /// What was asked for, and runs.
    pub runs: Arc<Runs>,
    /// The header by which a proxy says who somebody is: on a socket only.
    pub user_header: Option<HeaderName>,
    /// Nobody may change anything.
    pub read_only: bool,
    /// It is listened on with TLS.
    pub is_secret: bool,
    pub tokens: Tokens,
    pub sessions: Sessions,
    pub attempts: Attempts,
    pub hosts: Hosts,
    /// The name of the cookie: programs on other ports of this machine get it as well, so it differs from theirs.
    pub cookie: String,
    /// A turn for each live page that is open.
    pub streams: Arc<Semaphore>,
}

impl App {
    #[must_use]
    pub fn new(data: Data, runs: Arc<Runs>, tokens: Tokens, hosts: Hosts, cookie: String) -> App {
        App {
            data,
            runs,
            user_header: None,
            read_only: false,
            is_secret: false,
            tokens,
            sessions: Sessions::default(),
            attempts: Attempts::default(),
            hosts,
            cookie,
            streams: Arc::new(Semaphore::new(STREAMS)),
        }
    }
}
