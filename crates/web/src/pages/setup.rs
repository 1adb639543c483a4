//! The guided start: disks, a name, where new files go. The plan and the yes are those of any action.

use super::frame::{Page, hidden};
use super::parts::{path, shown};
use crate::actions::kinds::{Input, Kind};
use crate::data::command::Failure;
use crate::data::model::{Proposal, Status};
use crate::entry::sessions::Session;
use canopy_control::OsText;
use maud::{Markup, html};

/// `disks` is what `canopy init` says of the disks of this machine, line by line; `proposal` which it would take.
pub fn page(status: &Status, disks: &str, proposal: Result<&Proposal, &Failure>, session: &Session) -> Page {
    let content = html! {
        h1 { "Make a pool" }
        p { "A pool shows the directories of several disks as one. Disks are mounted first, each in a directory of its own; what is on them stays." }
        @if !status.pools.is_empty() {
            p { "There are pools already: " @for pool in &status.pools { (path(&pool.mountpoint)) " " } }
        }
        @if !disks.is_empty() {
            h2 { "Disks of this machine" }
            pre tabindex="0" aria-label="Disks of this machine" { (shown_lines(disks)) }
        }
        form .act method="post" action="/do?what=init" {
            (hidden(session))
            fieldset {
                legend { "Which disks" }
                @match proposal {
                    Ok(proposal) => {
                        @for (index, branch) in proposal.branches.iter().enumerate() {
                            label .check { input type="checkbox" name="branch" value=(branch) checked id={ "disk-" (index) }; " " (path(&OsText::Text(branch.clone()))) }
                        }
                        @for warning in &proposal.warnings { p .notice.attention { (shown(warning)) } }
                    },
                    Err(failure) => p .notice { (shown(&failure.0)) },
                }
                div .field {
                    label for="f-branch" { "Other directories, a line each" }
                    textarea #f-branch name="branch" rows="3" aria-describedby="h-branch" {}
                    p #h-branch .quiet { "Where disks are mounted, such as /mnt/disk1." }
                }
            }
            div .field {
                label for="f-name" { "Name" }
                input #f-name type="text" name="name" value="pool" required autocomplete="off" autocapitalize="off" spellcheck="false";
            }
            div .field {
                label for="f-mountpoint" { "Where the pool appears" }
                input #f-mountpoint type="text" name="mountpoint" aria-describedby="h-mountpoint" autocomplete="off" autocapitalize="off" spellcheck="false";
                p #h-mountpoint .quiet { "Empty for /mnt and its name." }
            }
            (choice("way", "New files go"))
            (choice("boot", "At boot it is mounted by"))
            p .buttons { button .main { "Show what it would do" } " " a href="/actions" { "Back" } }
        }
        p .quiet { "Nothing is done yet: the next page shows what would be written, and asks. Then the pool is mounted." }
    };
    Page::new("Make a pool", "/actions", content)
}

fn choice(name: &str, label: &str) -> Markup {
    let fields = Kind::named("init").map_or(&[][..], |kind| kind.fields);
    let found = fields.iter().find(|field| field.name == name).map(|field| field.input);
    let choices = if let Some(Input::Choice(choices)) = found { choices } else { &[] };
    html! {
        div .field {
            label for={ "f-" (name) } { (label) }
            select id={ "f-" (name) } name=(name) {
                option value="" { "as canopy init proposes" }
                @for (word, words) in choices { option value=(word) { (words) } }
            }
        }
    }
}

fn shown_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", shown(line))).collect()
}
