//! What is around each page.

use super::parts::shown;
use crate::data::command::Failure;
use crate::entry::Role;
use crate::entry::sessions::Session;
use maud::{DOCTYPE, Markup, html};
use std::sync::LazyLock;

/// A file that pages load. Its address changes with what is in it.
#[derive(Debug)]
pub struct Asset {
    pub address: String,
    pub kind: &'static str,
    pub content: &'static str,
}

impl Asset {
    fn new(name: &str, kind: &'static str, content: &'static str) -> Asset {
        let digest = blake3::hash(content.as_bytes()).to_hex();
        Asset { address: format!("/assets/{}/{name}", &digest[..16]), kind, content }
    }
}

pub static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("style.css", "text/css; charset=utf-8", include_str!("../../assets/style.css"))
});
pub static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("live.js", "text/javascript; charset=utf-8", include_str!("../../assets/live.js"))
});
pub static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", "image/svg+xml", include_str!("../../assets/icon.svg")));

/// The pages that the menu names.
const MENU: [(&str, &str); 12] = [
    ("/", "Pools"),
    ("/warnings", "Warnings"),
    ("/events", "Events"),
    ("/actions", "Actions"),
    ("/activity", "Activity"),
    ("/files", "Files"),
    ("/map", "Map"),
    ("/trash", "Trash"),
    ("/jobs", "Schedule"),
    ("/doctor", "Doctor"),
    ("/options", "Options"),
    ("/log", "Log"),
];

/// A page before its frame.
#[derive(Debug)]
pub struct Page {
    pub title: String,
    /// The entry of the menu that it belongs to.
    pub place: &'static str,
    pub content: Markup,
    /// It is kept up to date.
    pub live: bool,
    /// It changes often now.
    pub fast: bool,
}

impl Page {
    pub fn new(title: &str, place: &'static str, content: Markup) -> Page {
        Page { title: title.to_owned(), place, content, live: false, fast: false }
    }

    #[must_use]
    pub fn live(self) -> Page {
        Page { live: true, ..self }
    }

    #[must_use]
    pub fn fast(self) -> Page {
        Page { fast: true, ..self }
    }

    /// A page that says why there is nothing to see.
    pub fn failed(title: &str, place: &'static str, failure: &Failure) -> Page {
        let content = html! {
            h1 { (title) }
            p .notice.problem { strong { "Not known: " } (shown(&failure.0)) }
        };
        Page::new(title, place, content)
    }
}

impl Page {
    /// A page that says why something was not done. `back` leads on.
    pub fn refused(why: &str, back: &str) -> Page {
        let content = html! {
            h1 { "Not done" }
            p .notice.problem role="alert" { (shown(why)) }
            p { a href=(back) { "Back" } }
        };
        Page::new("Not done", "/actions", content)
    }

    /// What a live page sends again when it changes: one line.
    pub fn line(&self) -> String {
        // Ends of lines, which texts in `pre` have, are written in another way.
        self.content.0.replace('\n', "&#10;").replace('\r', " ")
    }

    /// Tells whether a content is the same.
    pub fn seen(&self) -> String {
        blake3::hash(self.content.0.as_bytes()).to_hex()[..16].to_owned()
    }
}

/// Returns the page as it is sent to somebody with a session. `at` is its address.
pub fn framed(page: &Page, session: &Session, at: &str) -> Markup {
    let live = page
        .live
        .then(|| crate::request::link("/live", &[("at", at.as_ref()), ("seen", page.seen().as_ref())]));
    document(
        &page.title,
        // Without JavaScript, it is loaded again.
        page.fast,
        html! {
            a .skip href="#main" { "Skip to the content" }
            header {
                a .brand href="/" { img src=(ICON.address) alt="" width="28" height="28"; "Canopy" }
                nav aria-label="Pages" {
                    ul {
                        @for (address, title) in MENU.into_iter().filter(|(address, _)| session.role.may_see(address)) {
                            li { a href=(address) aria-current=[(page.place == address).then_some("page")] { (title) } }
                        }
                    }
                }
                form method="post" action="/leave" {
                    (hidden(session))
                    @match session.role {
                        Role::Full => {},
                        Role::Reader => span .role { "read only" },
                        Role::Health => span .role { "health only" },
                    }
                    button { "Leave" }
                }
            }
            main #main tabindex="-1" data-live=[live] { (page.content) }
            p #said .said role="status" {}
        },
    )
}

/// Returns a page for somebody without a session.
pub fn bare(title: &str, content: Markup) -> Markup {
    document(title, false, html! { main #main .narrow { (content) } })
}

/// What each form has that changes something.
pub fn hidden(session: &Session) -> Markup {
    html! { input type="hidden" name="secret" value=(session.form_secret); }
}

fn document(title: &str, again: bool, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if again { noscript { meta http-equiv="refresh" content="2"; } }
                title { (title) " · Canopy" }
                link rel="stylesheet" href=(STYLE.address);
                link rel="icon" type="image/svg+xml" href=(ICON.address);
                script src=(SCRIPT.address) defer {}
            }
            body { (body) }
        }
    }
}
