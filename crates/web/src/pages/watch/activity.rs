//! What pools do now.

use crate::actions::runs::Run;
use crate::data::metrics::{Activity, Number};
use crate::data::model::{Pool, Status};
use crate::pages::frame::Page;
use crate::pages::parts::{path, pool_link, shown, size};
use canopy_control::OsText;
use maud::{Markup, html};

/// How many kinds of operations are listed.
const MOST: usize = 12;

pub fn page(status: &Status, activity: &Activity, runs: &[Run]) -> Page {
    let content = html! {
        h1 { "Activity" }
        @if status.pools.is_empty() { p { "There is no pool." } }
        @for run in runs.iter().filter(|run| run.state.acts()) { p { (crate::pages::run::line(run)) } }
        @for pool in &status.pools {
            section { h2 { (pool_link(&pool.mountpoint)) } (of_pool(pool, activity)) }
        }
        p .quiet { "Where the kernel reads and writes files directly on their disks, no operations are counted. What is read and written is that of the branch's disk, by whatever program." }
    };
    Page::new("Activity", "/activity", content).live()
}

fn of_pool(pool: &Pool, activity: &Activity) -> Markup {
    let name = pool.mountpoint.to_path().to_str().unwrap_or_default().to_owned();
    let mut operations: Vec<(f64, &Number)> =
        activity.of("canopy_operations_total", &name).map(|number| (activity.rate(number), number)).collect();
    operations
        .sort_by(|(rate, one), (other, two)| other.total_cmp(rate).then(two.value.total_cmp(&one.value)));
    let whole = |name_of: &str| format!("{:.0}", activity.sum(name_of, &name));
    html! {
        dl {
            dt { "Requests under way" } dd { (whole("canopy_requests_under_way")) }
            dt { "Requests in line" } dd { (whole("canopy_requests_in_line")) }
            dt { "Stuck workers" } dd { (whole("canopy_workers_stuck")) }
            dt { "Open files" } dd { (whole("canopy_open_files")) }
            dt { "Moves under way" } dd { (whole("canopy_moves_under_way")) }
            @if let Some(mover) = pool.tiering.mover.as_ref().filter(|mover| mover.running) {
                dt { "Mover" } dd { (mover.state.as_str().map_or_else(|| "runs".to_owned(), shown)) }
            }
        }
        (branches(pool, activity, &name))
        @if operations.is_empty() { p { "Nothing is known of its operations." } }
        @else { (table(&operations, activity, &name)) }
    }
}

fn branches(pool: &Pool, activity: &Activity, name: &str) -> Markup {
    let of_branch = |metric: &str, branch: &OsText| -> f64 {
        let path = branch.to_path();
        let own = |number: &&Number| Some(number.label("branch")) == path.to_str();
        activity.of(metric, name).filter(own).map(|number| activity.rate(number)).sum()
    };
    html! {
        div .wide tabindex="0" role="region" aria-label={ "Branches of " (shown(name)) } {
            table {
                caption { "Branches, a second" }
                thead { tr { th scope="col" { "Branch" } th scope="col" { "Opened" } th scope="col" { "Read" } th scope="col" { "Written" } th scope="col" { "Waiting" } } }
                tbody {
                    @for branch in &pool.branches {
                        tr {
                            th scope="row" { (path(&branch.path)) }
                            td { (rate(of_branch("canopy_branch_opens_total", &branch.path))) }
                            td { (bytes(of_branch("canopy_disk_read_bytes_total", &branch.path))) }
                            td { (bytes(of_branch("canopy_disk_written_bytes_total", &branch.path))) }
                            td { (format!("{:.0}", waiting(activity, name, &branch.path))) }
                        }
                    }
                }
            }
        }
    }
}

fn waiting(activity: &Activity, pool: &str, branch: &OsText) -> f64 {
    let path = branch.to_path();
    let own = |number: &&Number| Some(number.label("branch")) == path.to_str();
    activity.of("canopy_branch_waiting_requests", pool).filter(own).map(|number| number.value).sum()
}

fn table(operations: &[(f64, &Number)], activity: &Activity, pool: &str) -> Markup {
    let failed = |operation: &str| -> f64 {
        let own = |number: &&Number| number.label("operation") == operation;
        activity.of("canopy_operation_errors_total", pool).filter(own).map(|number| number.value).sum()
    };
    html! {
        div .wide tabindex="0" role="region" aria-label={ "Operations of " (shown(pool)) } {
            table {
                caption { "Operations that came to the daemon" }
                thead { tr { th scope="col" { "Operation" } th scope="col" { "A second" } th scope="col" { "In all" } th scope="col" { "Failed" } } }
                tbody {
                    @for (often, number) in operations.iter().take(MOST) {
                        tr {
                            th scope="row" { (shown(number.label("operation"))) }
                            td { (rate(*often)) }
                            td { (format!("{:.0}", number.value)) }
                            td { (format!("{:.0}", failed(number.label("operation")))) }
                        }
                    }
                }
            }
        }
    }
}

fn rate(often: f64) -> String {
    if often > 0.0 && often < 9.95 { format!("{often:.1}") } else { format!("{often:.0}") }
}

fn bytes(often: f64) -> String {
    // Never negative, and far below the largest number.
    size(often.round() as u64)
}
