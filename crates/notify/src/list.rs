//! Who is told: `canopy notify list`. It shows no secret.

use crate::error::{Error, Result};
use crate::event::Severity;
use crate::target::{Target, Way, without_secrets};
use canopy_base::text::one_line;
use canopy_sys::shown::Show as _;
use canopy_terminal::{print, print_json, table};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// One who is told, as it may be shown.
#[derive(Debug, Serialize)]
struct Receiver {
    name: String,
    /// How: `mail`, `ntfy`, `gotify`, `webhook` or `command`.
    by: &'static str,
    /// An address, a host or a program.
    to: String,
    least: &'static str,
    repeat: Option<&'static str>,
    /// The only pool that it is told of.
    pool: Option<String>,
    /// What the file says of it, as text by key, without what may be secret.
    says: BTreeMap<&'static str, String>,
}

#[derive(Debug, Serialize)]
struct Receivers {
    /// The file of those that are told of all pools.
    file: String,
    receivers: Vec<Receiver>,
}

impl Receiver {
    fn of(target: &Target) -> Receiver {
        let mut says = BTreeMap::new();
        let mut say = |key, value: Option<&String>| {
            // A URL may have a password.
            says.extend(
                value.filter(|value| !value.contains('@') || key != "smtp").map(|value| (key, value.clone())),
            );
        };
        let (to, secret) = match &target.way {
            Way::Mail { to, from, smtp, user } => {
                [
                    ("mail", Some(to)),
                    ("from", from.as_ref()),
                    ("smtp", smtp.as_ref()),
                    ("user", user.as_ref()),
                ]
                .into_iter()
                .for_each(|(key, value)| say(key, value));
                (to.clone(), "password-file")
            }
            Way::Ntfy(url) | Way::Gotify(url) | Way::Webhook(url) => (without_secrets(url), "token-file"),
            Way::Command(words) => (words.first().cloned().unwrap_or_default(), ""),
        };
        let file = target.secret.as_ref().map(|file| file.to_string_lossy().into_owned());
        say(secret, file.as_ref());
        let least = target.least.word();
        if target.least != Severity::Warning {
            says.insert("least", least.to_owned());
        }
        let repeat = target.repeats.then_some("daily");
        says.extend(repeat.map(|repeat| ("repeat", repeat.to_owned())));
        let pool = target.pool.as_ref().map(|(name, _)| name.clone());
        Receiver { name: target.label.clone(), by: target.way.word(), to, least, repeat, pool, says }
    }
}

/// Prints who is told.
///
/// # Errors
/// A mistake in a file.
pub(crate) fn list(targets: Result<Vec<Target>>, file: &Path, json: bool) -> Result<()> {
    let targets = match targets {
        Err(Error::NoTargets(_)) if json => Vec::new(),
        targets => targets?,
    };
    let receivers: Vec<Receiver> = targets.iter().map(Receiver::of).collect();
    if json {
        print_json(&Receivers { file: file.to_string_lossy().into_owned(), receivers });
        return Ok(());
    }
    let row = |receiver: &Receiver| {
        let of = receiver.pool.as_ref().map_or("all pools", String::as_str);
        let least = format!("{}{}", receiver.least, if receiver.repeat.is_some() { ", daily" } else { "" });
        [&receiver.name, receiver.by, &one_line(&receiver.to), &least, of].map(str::to_owned).to_vec()
    };
    let rows = receivers.iter().map(row).collect();
    print(&table(&["NAME", "BY", "TO", "AT LEAST", "OF"], rows, 0, &[]));
    print(&format!("'canopy notify set NAME KEY=VALUE' changes {}.\n", file.shown()));
    Ok(())
}
