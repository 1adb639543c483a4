//! What is wrong with all pools, and what to do.

use super::act;
use super::frame::Page;
use super::parts::{pool_link, shown, warning};
use crate::data::model::Status;
use crate::entry::sessions::Session;
use maud::html;

pub fn page(status: &Status, session: &Session) -> Page {
    let quiet = status.unmounted.is_empty() && status.pools.iter().all(|pool| pool.warnings.is_empty());
    let content = html! {
        h1 { "Warnings" }
        @if quiet { p .notice.good { "Nothing is wrong." } }
        @for pool in status.pools.iter().filter(|pool| !pool.warnings.is_empty()) {
            section {
                h2 { (pool_link(&pool.mountpoint)) }
                @for one in pool.warnings() {
                    (warning(one))
                    @if let Some(branch) = one.branch.as_ref().filter(|_| session.role.may_act()) {
                        (act::branch_links(pool, &branch.to_os_string()))
                    }
                }
            }
        }
        @for pool in &status.unmounted {
            div .notice.problem {
                p { "A pool is not mounted: " span .path { (pool.described_in.one_line()) } " describes it." }
                p .fix { strong { "What to do: " } code { (shown(&pool.fix)) } }
            }
        }
    };
    Page::new("Warnings", "/warnings", content).live()
}
