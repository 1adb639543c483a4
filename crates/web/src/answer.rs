//! Answers: a body and the headers that every answer has.

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use maud::Markup;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::Receiver;

/// What the browser may load and do: only what comes from here, and no script or style within a page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const ALWAYS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

pub type Answer = Response<Content>;

/// The body of an answer: all at once, or what a channel gives until it is closed.
#[derive(Debug)]
pub enum Content {
    Whole(Option<Bytes>),
    Stream(Receiver<Bytes>),
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Stream(receiver) => {
                receiver.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

fn answer(status: StatusCode, kind: &'static str, content: Content) -> Answer {
    let mut answer = Response::new(content);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

pub fn page(status: StatusCode, markup: Markup) -> Answer {
    let bytes = Bytes::from(markup.into_string());
    answer(status, "text/html; charset=utf-8", Content::Whole(Some(bytes)))
}

/// One line, for what is no page: a refusal that a browser of a user does not meet.
pub fn refusal(status: StatusCode, line: &str) -> Answer {
    let bytes = Bytes::from(format!("{line}\n"));
    answer(status, "text/plain; charset=utf-8", Content::Whole(Some(bytes)))
}

pub fn see_other(place: &str) -> Answer {
    let mut answer = refusal(StatusCode::SEE_OTHER, "see another page");
    if let Ok(value) = HeaderValue::from_str(place) {
        answer.headers_mut().insert(header::LOCATION, value);
    }
    answer
}

pub fn events(receiver: Receiver<Bytes>) -> Answer {
    answer(StatusCode::OK, "text/event-stream", Content::Stream(receiver))
}

/// A file that never changes under its name.
pub fn asset(kind: &'static str, content: &'static str) -> Answer {
    let mut answer =
        answer(StatusCode::OK, kind, Content::Whole(Some(Bytes::from_static(content.as_bytes()))));
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    answer.headers_mut().insert(header::CACHE_CONTROL, forever);
    answer
}

pub fn with_header(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}
