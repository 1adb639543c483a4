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
const MENU: [(&str, &str); 5] = [
    ("/", "Pools"),
    ("/warnings", "Warnings"),
    ("/files", "Files"),
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
}

impl Page {
    pub fn new(title: &str, place: &'static str, content: Markup) -> Page {
        Page { title: title.to_owned(), place, content, live: false }
    }

    #[must_use]
    pub fn live(self) -> Page {
        Page { live: true, ..self }
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
    /// What a live page sends again when it changes: one line.
    pub fn line(&self) -> String {
        self.content.0.replace(['\n', '\r'], " ")
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
                    @if session.role == Role::Health { span .role { "health only" } }
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
    document(title, html! { main #main .narrow { (content) } })
}

/// What each form has that changes something.
pub fn hidden(session: &Session) -> Markup {
    html! { input type="hidden" name="secret" value=(session.form_secret); }
}

fn document(title: &str, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Canopy" }
                link rel="stylesheet" href=(STYLE.address);
                link rel="icon" type="image/svg+xml" href=(ICON.address);
                script src=(SCRIPT.address) defer {}
            }
            body { (body) }
        }
    }
}
