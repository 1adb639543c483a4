//! What is sent to change something: by whom, and what becomes of it. Nothing here runs for a session that only reads.

use crate::actions::build::action;
use crate::actions::child::Order;
use crate::actions::kinds::{Kind, Scope};
use crate::answer::{self, Answer};
use crate::app::App;
use crate::content::known;
use crate::entry::sessions::Session;
use crate::pages::frame::{self, Page};
use crate::pages::{act, entry};
use crate::request::Fields;
use hyper::StatusCode;

/// Answers a form at `path`, whose secret was right. `query` is what its address gives.
pub async fn post(app: &App, session: &Session, path: &str, query: &Fields, form: &Fields) -> Answer {
    if !session.role.may_act() {
        return answer::page(StatusCode::FORBIDDEN, entry::not_for_you());
    }
    let id = form.text("id").parse().unwrap_or_default();
    let order = match path {
        "/do" => return ask(app, session, query, form).await,
        "/run/start" => {
            return after(app.runs.confirm(id, &session.name(), form.text("sure") == "yes"), id, session);
        }
        "/run/drop" => return after(app.runs.drop_it(id), id, session),
        "/run/pause" => Order::Pause,
        "/run/continue" => Order::GoOn,
        "/run/stop" => Order::Stop,
        "/run/kill" => Order::Kill,
        _ => return answer::page(StatusCode::NOT_FOUND, entry::missing()),
    };
    after(app.runs.order(id, order), id, session)
}

fn after(done: Result<(), String>, id: u64, session: &Session) -> Answer {
    match done {
        Ok(()) => answer::see_other(&format!("/run?id={id}")),
        Err(why) => {
            let page = Page::refused(&why, &format!("/run?id={id}"));
            answer::page(StatusCode::CONFLICT, frame::framed(&page, session, "/actions"))
        }
    }
}

/// Makes an action of a form, and leads to its page.
async fn ask(app: &App, session: &Session, query: &Fields, form: &Fields) -> Answer {
    let Some(kind) = Kind::named(query.text("what")) else {
        return answer::page(StatusCode::NOT_FOUND, entry::missing());
    };
    let refused = |status, page: &Page| answer::page(status, frame::framed(page, session, "/actions"));
    let status = match app.data.status().await {
        Ok(status) => status,
        Err(failure) => return refused(StatusCode::OK, &Page::failed(kind.title, "/actions", &failure)),
    };
    let pool = status.pool(&query.path("at"));
    if kind.scope == Scope::Pool && pool.is_none() {
        let line = "this pool is not mounted any more";
        return refused(StatusCode::CONFLICT, &Page::refused(line, "/actions"));
    }
    let known = match known(app, kind, pool).await {
        Ok(known) => known,
        Err(failure) => return refused(StatusCode::OK, &Page::failed(kind.title, "/actions", &failure)),
    };
    // What the address gives counts before what the form has.
    let asked =
        action(kind, &query.and(form), &known).and_then(|action| app.runs.ask(action, &session.name()));
    match asked {
        Ok(id) => answer::see_other(&format!("/run?id={id}")),
        Err(why) => {
            let page = act::form(kind, &known, session, query, form, Some(&why));
            refused(StatusCode::UNPROCESSABLE_ENTITY, &page)
        }
    }
}
