//! What is wrong on this machine, and how it is mended.

use super::act::form_link;
use super::frame::Page;
use super::parts::{badge, shown};
use crate::data::model::{Doctor, Health};
use crate::entry::sessions::Session;
use maud::html;
use std::ffi::OsStr;

pub fn page(doctor: &Doctor, session: &Session) -> Page {
    let content = html! {
        h1 { "Doctor" }
        @if doctor.findings.is_empty() { p .notice.good { "Nothing is wrong on this machine." } }
        @for finding in &doctor.findings {
            @let (health, word) = match finding.level.as_str() {
                "problem" => (Health::Problem, "problem"),
                "warning" => (Health::Attention, "warning"),
                _ => (Health::Good, "note"),
            };
            div .notice.(health.class()) {
                p { (badge(health, word)) " " (shown(&finding.text)) }
                p .fix { strong { "What to do: " } (shown(&finding.fix)) }
                @if finding.fixable && session.role.may_act() {
                    p { a href=(form_link("fix", None, &[("code", OsStr::new(&finding.code))])) { "Mend it" span .unseen { ": " (shown(&finding.code)) } } }
                }
            }
        }
        @if session.role.may_act() {
            p { a href=(form_link("bench", None, &[])) { "Measure the speed of this machine" } }
        }
    };
    Page::new("Doctor", "/doctor", content)
}
