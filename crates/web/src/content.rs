//! Which page belongs to an address.

use crate::app::App;
use crate::data::command::Failure;
use crate::entry::Role;
use crate::pages::files::{self, Found};
use crate::pages::frame::Page;
use crate::pages::{log, options, overview, pool, warnings};
use crate::request::{Fields, within};
use canopy_sys::shown::Show as _;
use std::path::Path;

/// Returns a page; `None` if there is no such page for this role.
pub async fn page(app: &App, role: Role, path: &str, query: &Fields) -> Option<Page> {
    if !role.may_see(path) {
        return None;
    }
    let (title, place) = match path {
        "/" => ("Pools", "/"),
        "/pool" => ("Pool", "/"),
        "/warnings" => ("Warnings", "/warnings"),
        "/options" => ("Options", "/options"),
        "/files" => ("Files", "/files"),
        "/log" => ("Log", "/log"),
        _ => return None,
    };
    match found(app, role, path, query).await {
        Ok(page) => page,
        Err(failure) => {
            let failed = Page::failed(title, place, &failure);
            Some(if matches!(path, "/" | "/pool" | "/warnings") { failed.live() } else { failed })
        }
    }
}

async fn found(app: &App, role: Role, path: &str, query: &Fields) -> Result<Option<Page>, Failure> {
    let status = app.data.status().await?;
    let at = query.path("at");
    let chosen = status.pool(&at);
    if chosen.is_none() && !at.as_os_str().is_empty() && path != "/" {
        return Err(Failure(format!("no pool is mounted at {}", at.shown())));
    }
    Ok(match path {
        "/" => Some(overview::page(&status)),
        "/warnings" => Some(warnings::page(&status)),
        "/pool" => chosen.map(|chosen| pool::page(chosen, role)),
        "/options" => {
            let chosen = chosen.or(status.pools.first());
            Some(options::page(app.data.options().await?, &status, chosen, query.text("q")))
        }
        "/files" => {
            let mountpoint = chosen.or(status.pools.first()).map(|pool| pool.mountpoint.to_path());
            let named = query.path("path");
            let found = match &mountpoint {
                Some(mountpoint) if query.has("path") => place(app, mountpoint, query.bytes("path")).await,
                _ => Found::Nothing,
            };
            Some(files::page(&status, mountpoint.as_deref(), &named, &found))
        }
        "/log" => {
            let mountpoint = chosen.map(|pool| pool.mountpoint.to_path());
            let log = app.data.log(mountpoint.as_deref()).await;
            Some(log::page(&status, chosen.map(|pool| &pool.mountpoint), log.as_ref()))
        }
        _ => None,
    })
}

async fn place(app: &App, mountpoint: &Path, named: &[u8]) -> Found {
    let Some(path) = within(mountpoint, named) else { return Found::OutOfPool };
    let which = match app.data.which(&path).await {
        Ok(which) => which,
        Err(failure) => return Found::Failed(failure),
    };
    let is_directory = which.paths.iter().any(|one| one.kind == "directory");
    let listing = if is_directory { Some(app.data.listing(&path).await) } else { None };
    Found::Is { which, listing }
}
