//! Pages that are kept up to date: server-sent events with the content of a page whenever it changes.

use crate::answer::{self, Answer};
use crate::app::App;
use crate::content::page;
use crate::entry::sessions::Session;
use crate::request::Fields;
use hyper::StatusCode;
use hyper::body::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Sender, channel};

/// How often it is looked whether a page has changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// While a command runs.
const LOOK_SOON: Duration = Duration::from_millis(500);
/// A line now and then shows proxies that the connection is in use.
const SPEAK_EVERY: Duration = Duration::from_secs(20);

/// Answers with the events of the page at `at`, whose content the browser has `seen`.
pub fn stream(app: Arc<App>, session: Session, query: &Fields) -> Answer {
    let Ok(turn) = Arc::clone(&app.streams).try_acquire_owned() else {
        let line = "too many pages are open: close some";
        return answer::refusal(StatusCode::SERVICE_UNAVAILABLE, line);
    };
    let at = query.text("at").to_owned();
    let seen = query.text("seen").to_owned();
    let (sender, receiver) = channel(2);
    tokio::spawn(send(app, session, at, seen, sender, turn));
    answer::events(receiver)
}

async fn send(
    app: Arc<App>,
    session: Session,
    at: String,
    mut seen: String,
    sender: Sender<Bytes>,
    _turn: OwnedSemaphorePermit,
) {
    let (path, query) = at.split_once('?').unwrap_or((&at, ""));
    let query = Fields::parse(query.as_bytes());
    // The browser tries again soon when the program is started again.
    let mut said = Instant::now();
    if sender.send(Bytes::from_static(b"retry: 3000\n\n")).await.is_err() {
        return;
    }
    while app.sessions.goes_on(&session) {
        let Some(page) = page(&app, &session, path, &query).await else { break };
        let pause = if page.fast { LOOK_SOON } else { LOOK_EVERY };
        let now = page.seen();
        if now != seen {
            let event = format!("event: content\nid: {now}\ndata: {}\n\n", page.line());
            if sender.send(event.into()).await.is_err() {
                return;
            }
            (seen, said) = (now, Instant::now());
        }
        if !page.live {
            // What it waited for is there, and shown. Nobody who reads it is thrown back to its top.
            let _ = sender.send(Bytes::from_static(b"event: done\ndata:\n\n")).await;
            return;
        }
        if said.elapsed() >= SPEAK_EVERY {
            if sender.send(Bytes::from_static(b": still here\n\n")).await.is_err() {
                return;
            }
            said = Instant::now();
        }
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
    // The page is gone, or the session has ended: loading it again shows which.
    let _ = sender.send(Bytes::from_static(b"event: over\ndata:\n\n")).await;
}
