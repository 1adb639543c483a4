//! Which page belongs to an address.

use crate::actions::build::Known;
use crate::actions::kinds::{Input, Kind, Scope};
use crate::app::App;
use crate::data::background;
use crate::data::command::Failure;
use crate::data::model::Pool;
use crate::entry::sessions::Session;
use crate::pages::files::{self, PathView};
use crate::pages::frame::Page;
use crate::pages::watch::{activity, events, map};
use crate::pages::{act, doctor, jobs, log, options, overview, pool, run, setup, trash, warnings};
use crate::request::{Fields, within};
use canopy_sys::shown::Show as _;
use std::path::Path;

/// A name has at most so many bytes.
const LONGEST_NAME: usize = 255;

/// Returns a page; `None` if there is no such page for this role.
pub async fn page(app: &App, session: &Session, path: &str, query: &Fields) -> Option<Page> {
    if !session.role.may_see(path) {
        return None;
    }
    let (title, place) = match path {
        "/" => ("Pools", "/"),
        "/pool" => ("Pool", "/"),
        "/warnings" => ("Warnings", "/warnings"),
        "/options" => ("Options", "/options"),
        "/files" => ("Files", "/files"),
        "/log" => ("Log", "/log"),
        "/actions" => ("Actions", "/actions"),
        "/do" => ("Action", "/actions"),
        "/new" => ("Make a pool", "/actions"),
        "/run" => ("Action", "/actions"),
        "/trash" => ("Trash", "/trash"),
        "/activity" => ("Activity", "/activity"),
        "/events" => ("Events", "/events"),
        "/map" => ("Map", "/map"),
        "/jobs" => ("Schedule", "/jobs"),
        "/doctor" => ("Doctor", "/doctor"),
        _ => return None,
    };
    match found(app, session, path, query).await {
        Ok(page) => page,
        Err(failure) => {
            let failed = Page::failed(title, place, &failure);
            Some(if matches!(path, "/" | "/pool" | "/warnings" | "/actions" | "/activity" | "/events") {
                failed.live()
            } else {
                failed
            })
        }
    }
}

async fn found(app: &App, session: &Session, path: &str, query: &Fields) -> Result<Option<Page>, Failure> {
    match path {
        // They show what is known here, whatever the pools do.
        "/run" => {
            let found = query.text("id").parse().ok().and_then(|id| app.runs.get(id));
            return Ok(Some(found.map_or_else(run::unknown, |found| run::page(&found, session))));
        }
        "/events" => {
            let events = app.data.events().await;
            let told = if session.role.may_act() { Some(app.data.receivers().await) } else { None };
            return Ok(Some(events::page(
                events.as_ref(),
                query.text("q"),
                told.as_ref().map(Result::as_ref),
            )));
        }
        "/doctor" => return Ok(Some(doctor::page(&app.data.doctor().await?, session))),
        _ => {}
    }
    let status = if path == "/do" { app.data.status_now().await? } else { app.data.status().await? };
    let at = query.path("at");
    let chosen = status.pool(&at);
    if chosen.is_none() && !at.as_os_str().is_empty() && path != "/" {
        return Err(Failure(format!("no pool is mounted at {}", at.shown())));
    }
    Ok(match path {
        "/" => Some(overview::page(&status, session)),
        "/warnings" => Some(warnings::page(&status, session)),
        "/pool" => chosen.map(|chosen| pool::page(chosen, session)),
        "/options" => {
            let chosen = chosen.or(status.pools.first());
            Some(options::page(app.data.options().await?, &status, chosen, query.text("q"), session))
        }
        "/actions" => Some(act::list(&status, &app.runs.list(), &app.runs.record(), session)),
        "/do" => {
            let Some(kind) = Kind::named(query.text("what")) else { return Ok(None) };
            if kind.scope == Scope::Pool && chosen.is_none() {
                return Ok(Some(act::which_pool(kind, &status)));
            }
            let known = known(app, kind, chosen).await?;
            let as_it_is = act::as_it_is(kind, &known, query);
            Some(act::form(kind, &known, session, query, &as_it_is, None))
        }
        "/activity" => Some(activity::page(&status, &*app.data.activity().await?, &app.runs.list())),
        "/map" => {
            let mountpoint = chosen.or(status.pools.first()).map(|pool| pool.mountpoint.to_path());
            let named = query.path("path");
            let place = mountpoint.as_deref().map(|pool| within(pool, query.bytes("path")));
            let counted = match place {
                None => background::Progress::Nothing,
                Some(None) => background::Progress::Failed(Failure("this path leads out of the pool".into())),
                Some(Some(place)) => app.data.counted(&place),
            };
            Some(map::page(&status, mountpoint.as_deref(), &named, &counted))
        }
        "/new" => {
            let (proposal, disks) = app.data.proposal().await;
            Some(setup::page(&status, &disks, proposal.as_ref(), session))
        }
        "/trash" => {
            let chosen = chosen.or(status.pools.first());
            let trash = match chosen {
                Some(pool) => Some(app.data.trash(&pool.mountpoint.to_path()).await),
                None => None,
            };
            Some(trash::page(&status, chosen, trash.as_ref().map(Result::as_ref), query.text("q"), session))
        }
        "/jobs" => {
            let mut all = Vec::new();
            for pool in &status.pools {
                let jobs = app.data.jobs(&pool.mountpoint.to_path()).await;
                all.push((&pool.mountpoint, jobs));
            }
            Some(jobs::page(&all, session))
        }
        "/files" => {
            let mountpoint = chosen.or(status.pools.first()).map(|pool| pool.mountpoint.to_path());
            let (named, sought) = (query.path("path"), query.text("name").trim());
            let found = match &mountpoint {
                Some(mountpoint) if !sought.is_empty() => match within(mountpoint, query.bytes("path")) {
                    None => PathView::OutOfPool,
                    Some(_) if sought.len() > LONGEST_NAME || sought.chars().any(char::is_control) => {
                        PathView::Failed(Failure("no name is so long, or has control characters".into()))
                    }
                    Some(place) => PathView::Search(app.data.searched(&place, sought)),
                },
                Some(mountpoint) if query.has("path") => place(app, mountpoint, query.bytes("path")).await,
                _ => PathView::Nothing,
            };
            Some(files::page(&status, mountpoint.as_deref(), &named, sought, &found))
        }
        "/log" => {
            let mountpoint = chosen.map(|pool| pool.mountpoint.to_path());
            let log = app.data.log(mountpoint.as_deref()).await;
            Some(log::page(&status, chosen.map(|pool| &pool.mountpoint), log.as_ref()))
        }
        _ => None,
    })
}

/// Finds out what the values of an action are checked against.
///
/// # Errors
/// If a command fails that knows it.
pub async fn known<'k>(app: &'k App, kind: &Kind, pool: Option<&'k Pool>) -> Result<Known<'k>, Failure> {
    let needs = |input: Input| kind.fields.iter().any(|field| field.input == input);
    let mut known = Known { pool, ..Known::default() };
    if needs(Input::Option) {
        known.options = app.data.options().await?;
    }
    if let Some(pool) = pool.filter(|_| needs(Input::Job) || needs(Input::JobName)) {
        let jobs = app.data.jobs(&pool.mountpoint.to_path()).await?;
        known.jobs = jobs.pools.into_iter().flat_map(|pool| pool.jobs).collect();
    }
    if needs(Input::Receiver) || needs(Input::ReceiverName) {
        known.told = app.data.receivers().await?;
        // What the file of a pool has is changed there.
        known.told.receivers.retain(|receiver| receiver.pool.is_none());
    }
    if needs(Input::Finding) {
        let found = app.data.doctor().await?.findings.into_iter().filter(|finding| finding.fixable);
        known.findings = found.map(|finding| finding.code).collect();
        known.findings.dedup();
    }
    Ok(known)
}

async fn place(app: &App, mountpoint: &Path, named: &[u8]) -> PathView {
    let Some(path) = within(mountpoint, named) else { return PathView::OutOfPool };
    let which = match app.data.which(&path).await {
        Ok(which) => which,
        Err(failure) => return PathView::Failed(failure),
    };
    let is_directory = which.paths.iter().any(|one| one.kind == "directory");
    let listing = if is_directory { Some(app.data.listing(&path).await) } else { None };
    PathView::Is { which, listing }
}
