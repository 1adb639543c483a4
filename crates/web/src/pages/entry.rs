//! How somebody is let in.

use super::frame::bare;
use maud::{Markup, html};

/// Asks for a token. `wrong` says what was wrong with the one before.
pub fn ask(wrong: Option<&str>) -> Markup {
    bare(
        "Enter",
        html! {
            h1 { "Canopy" }
            @if let Some(wrong) = wrong { p .notice.problem role="alert" { (wrong) } }
            p { "This page shows the pools of this machine to whoever is let in. In a terminal there, " code { "canopy web token" }
                " prints an address that lets you in once, and with " code { "--read-only" } " one that changes nothing." }
            form method="post" action="/enter" {
                label for="token" { "Or enter the token itself" }
                input #token type="password" name="token" required autocomplete="off";
                button { "Enter" }
            }
        },
    )
}

/// Leads on. The browser asks for the next page by itself: after a redirect from another site it would leave out the cookie.
pub fn welcome() -> Markup {
    bare(
        "Enter",
        html! {
            meta http-equiv="refresh" content="0; url=/";
            h1 { "Canopy" }
            p { "You are in. " a href="/" { "Go on to the pools" } }
        },
    )
}

pub fn left() -> Markup {
    bare(
        "Left",
        html! {
            h1 { "Canopy" }
            p { "You have left. " code { "canopy web token" } " lets you in again." }
        },
    )
}

/// For a session that may not see a page.
pub fn not_for_you() -> Markup {
    bare(
        "Not shown",
        html! {
            h1 { "This is not shown to you" }
            p { "The token that let you in, or the program, was started with " code { "--health-only" } " or " code { "--read-only" } ". "
                a href="/" { "The pools" } }
        },
    )
}

/// A page for a browser that asked for what is not there.
pub fn missing() -> Markup {
    bare("Not found", html! { h1 { "There is no such page" } p { a href="/" { "The pools" } } })
}
