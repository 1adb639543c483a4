//! Which answer a request gets, and who gets none.

use crate::acting;
use crate::answer::{self, Answer};
use crate::app::App;
use crate::content;
use crate::entry::sessions::{LONGEST, Session};
use crate::entry::{Role, digest};
use crate::live;
use crate::pages::entry;
use crate::pages::frame::{self, ICON, SCRIPT, STYLE};
use crate::request::Fields;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, StatusCode};
use std::sync::Arc;
use std::time::Duration;

const LARGEST_FORM: usize = 64 << 10;
const FORM_DEADLINE: Duration = Duration::from_secs(10);

pub async fn answer(app: Arc<App>, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let host = head.headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // A name that an attacker lets point here must not make a page of theirs ours.
    if !app.hosts.accepts(host) {
        let line = "this name is not known here (canopy web --name NAME accepts it)";
        return answer::refusal(StatusCode::MISDIRECTED_REQUEST, line);
    }
    let path = head.uri.path();
    let query = Fields::parse(head.uri.query().unwrap_or_default().as_bytes());
    let session = cookie(&head.headers, &app.cookie).and_then(|value| app.sessions.of(value));
    let session = match named(&app, &head.headers) {
        // A session that the proxy began is no other's.
        None => session.filter(|session| session.user.is_none()),
        // Who leaves at the proxy and comes as another is another.
        Some(user) if session.as_ref().is_some_and(|session| session.user.as_ref() == Some(&user)) => session,
        // A form of a session that has ended is not taken: its page is loaded again, with a new one.
        Some(user) if matches!(head.method, Method::GET | Method::HEAD) && path != "/live" => {
            return by_proxy(&app, &head.headers, user);
        }
        Some(_) => None,
    };
    match head.method {
        Method::GET | Method::HEAD => {
            if let Some(asset) = [&STYLE, &SCRIPT, &ICON].into_iter().find(|asset| asset.address == path) {
                return answer::asset(asset.kind, asset.content);
            }
            match (path, session) {
                ("/enter", _) => get_enter(&app, &head.headers, &query),
                (_, None) => answer::see_other("/enter"),
                ("/live", Some(session)) => live::stream(app, session, &query),
                (_, Some(session)) => {
                    let address = head.uri.path_and_query().map_or("/", |address| address.as_str());
                    get(&app, path, &query, &session, address).await
                }
            }
        }
        Method::POST => {
            if is_foreign(&head.headers, host) {
                return answer::refusal(StatusCode::FORBIDDEN, "another site has sent this");
            }
            let form = match form(&head.headers, body).await {
                Ok(form) => form,
                Err(refusal) => return *refusal,
            };
            match (path, session) {
                ("/enter", _) => enter(&app, &head.headers, form.text("token")),
                (_, None) => answer::see_other("/enter"),
                (_, Some(session)) if digest(form.text("secret")) != digest(&session.form_secret) => {
                    let line = "this form is not of this session: load its page again";
                    answer::refusal(StatusCode::FORBIDDEN, line)
                }
                ("/leave", Some(session)) => leave(&app, &session),
                (_, Some(session)) => acting::post(&app, &session, path, &query, &form).await,
            }
        }
        _ => answer::with_header(
            answer::refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET, HEAD and POST"),
            header::ALLOW,
            "GET, HEAD, POST",
        ),
    }
}

async fn get(app: &App, path: &str, query: &Fields, session: &Session, address: &str) -> Answer {
    if !session.role.may_see(path) {
        return answer::page(StatusCode::FORBIDDEN, entry::not_for_you());
    }
    match content::page(app, session, path, query).await {
        Some(page) => answer::page(StatusCode::OK, frame::framed(&page, session, address)),
        None => answer::page(StatusCode::NOT_FOUND, entry::missing()),
    }
}

/// The address that `canopy web` prints has the token.
fn get_enter(app: &App, headers: &HeaderMap, query: &Fields) -> Answer {
    // A browser that looks at a page before its user does must not use up the token.
    let purpose = headers.get("sec-purpose").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if purpose.contains("prefetch") {
        return answer::refusal(StatusCode::SERVICE_UNAVAILABLE, "not before it is visited");
    }
    match query.text("token") {
        "" => answer::page(StatusCode::OK, entry::ask(None)),
        token => enter(app, headers, token),
    }
}

fn enter(app: &App, headers: &HeaderMap, token: &str) -> Answer {
    if let Some(seconds) = app.attempts.must_wait() {
        let line = format!("Too many tokens were wrong. Try again in {seconds} seconds.");
        let refused = answer::page(StatusCode::TOO_MANY_REQUESTS, entry::ask(Some(&line)));
        return answer::with_header(refused, header::RETRY_AFTER, &seconds.to_string());
    }
    let Some(role) = app.tokens.take(token.trim()) else {
        app.attempts.failed();
        let line = "This token lets nobody in: each can be used once, within a quarter of an hour.";
        return answer::page(StatusCode::FORBIDDEN, entry::ask(Some(line)));
    };
    let role = if app.read_only { role.reading() } else { role };
    let value = app.sessions.begin(role, None);
    set_cookie(app, headers, &value, LONGEST.as_secs(), answer::page(StatusCode::OK, entry::welcome()))
}

/// Returns whom the proxy names. It is one line of visible characters.
fn named(app: &App, headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(app.user_header.as_ref()?).into_iter();
    let name =
        values.next().and_then(|value| value.to_str().ok()).map(str::trim).filter(|name| !name.is_empty())?;
    // Twice: one of them is not the proxy's.
    values.next().is_none().then(|| name.chars().take(64).collect())
}

/// Begins a session for whom the proxy names.
fn by_proxy(app: &App, headers: &HeaderMap, user: String) -> Answer {
    let role = if app.read_only { Role::Reader } else { Role::Full };
    let value = app.sessions.begin(role, Some(user));
    set_cookie(app, headers, &value, LONGEST.as_secs(), answer::page(StatusCode::OK, entry::welcome()))
}

fn leave(app: &App, session: &Session) -> Answer {
    app.sessions.end(session);
    set_cookie(app, &HeaderMap::new(), "", 0, answer::page(StatusCode::OK, entry::left()))
}

fn set_cookie(app: &App, headers: &HeaderMap, value: &str, seconds: u64, to: Answer) -> Answer {
    // A proxy with TLS is before us.
    let is_secret = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme.as_bytes() == b"https");
    let secure = if is_secret || app.is_secret { "; Secure" } else { "" };
    let text =
        format!("{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}", app.cookie);
    answer::with_header(to, header::SET_COOKIE, &text)
}

/// Returns the value of a cookie.
fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let texts = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// Returns whether a browser says that another site has sent this request.
fn is_foreign(headers: &HeaderMap, host: &str) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let elsewhere =
        text("origin").is_some_and(|origin| origin.split_once("://").is_none_or(|(_, at)| at != host));
    elsewhere || text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"))
}

async fn form(headers: &HeaderMap, body: Incoming) -> Result<Fields, Box<Answer>> {
    let refused = |status, line: &str| Err(Box::new(answer::refusal(status, line)));
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/x-www-form-urlencoded") {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a form is application/x-www-form-urlencoded");
    }
    match tokio::time::timeout(FORM_DEADLINE, Limited::new(body, LARGEST_FORM).collect()).await {
        Ok(Ok(body)) => Ok(Fields::parse(&body.to_bytes())),
        Ok(Err(_)) => refused(StatusCode::PAYLOAD_TOO_LARGE, "the form is too large, or was cut off"),
        Err(_) => refused(StatusCode::REQUEST_TIMEOUT, "the form did not arrive"),
    }
}
