//! `canopy options`: prints the table of options, for people and programs.

use canopy_config::options::{Changes, Spec, table};
use canopy_config::{Config, resolve};
use canopy_terminal::{self as terminal, paragraph};
use clap::Args;
use serde::Serialize;

/// List the options for -o with their defaults and values
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct OptionsArgs {
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
Examples:
  canopy options | less
  canopy options --json | jq -r '.[].name'";

/// An option, as in the output of `--json` and in the documentation.
#[derive(Debug, Serialize)]
pub struct OptionEntry {
    pub name: String,
    pub aliases: &'static [&'static str],
    /// The accepted values; null for an option without a value.
    #[serde(rename = "type")]
    pub accepts: Option<String>,
    /// Null for an option without a value, empty if the default is empty.
    pub default: Option<String>,
    /// The option can be changed while the pool runs.
    pub runtime: bool,
    /// The first version of Linux in which it has an effect.
    pub since: Option<&'static str>,
    pub help: String,
    /// Not listed, mostly options of older setups without effect.
    pub ignored: bool,
}

/// Returns the whole table. Ignored options come last.
pub fn entries() -> Vec<OptionEntry> {
    let mut default = Config::default();
    // As a mount without options resolves them.
    resolve::resolve_conflicts(&mut default);
    resolve::settle_at_mount(&mut default);
    table().iter().map(|spec| entry_of(spec, &default)).collect()
}

fn entry_of(spec: &Spec, default: &Config) -> OptionEntry {
    OptionEntry {
        name: spec.name.to_string(),
        aliases: spec.aliases,
        accepts: spec.accepted(),
        default: spec.render(default),
        runtime: spec.changes == Changes::Live,
        since: spec.since,
        help: spec.help.to_string(),
        ignored: spec.hidden,
    }
}

pub fn run(args: &OptionsArgs) {
    if args.json {
        terminal::print_json(&entries());
    } else {
        terminal::print(&text());
    }
}

/// The column of the help texts.
const COLUMN: usize = 32;

fn text() -> String {
    let mut text = "Options for canopy mount -o. In names, _ and - are the same; later options win.\n\
                    canopy set can change those marked * while the pool runs.\n\n"
        .to_owned();
    let entries = entries();
    let shown: Vec<&OptionEntry> = entries.iter().filter(|option| !option.ignored).collect();
    let mut policies_listed = false;
    for option in shown {
        text.push_str(&format_entry(option, &mut policies_listed));
    }
    text
}

/// Formats an option in two columns: the syntax, and the help.
fn format_entry(option: &OptionEntry, policies_listed: &mut bool) -> String {
    let mark = if option.runtime { '*' } else { ' ' };
    let left = match &option.default {
        Some(value) if !value.is_empty() => format!("{mark} {}={value}", option.name),
        _ if option.accepts.is_some() => format!("{mark} {}=", option.name),
        _ => format!("{mark} {}", option.name),
    };
    let mut help = option.help.clone();
    if let Some(linux) = option.since {
        help.push_str(&format!(" (Linux {linux})"));
    }
    for alias in option.aliases {
        help.push_str(&format!("; also {alias}"));
    }
    let is_policy = option.name.starts_with("category.")
        || (option.name.starts_with("func.") && option.name != "func.readdir");
    // All policy options accept the same values, so only the first lists them.
    let accepts = option.accepts.as_ref().filter(|_| !is_policy || !*policies_listed);
    *policies_listed |= is_policy;
    let right = |text: &str| paragraph(&" ".repeat(COLUMN), text);
    let mut help = right(&help);
    if left.chars().count() < COLUMN {
        help.replace_range(..left.len(), &left);
    } else {
        help.insert_str(0, &format!("{left}\n"));
    }
    if let Some(accepts) = accepts {
        help.push_str(&right(&format!("= {accepts}")));
    }
    help
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_terminal::WIDTH;

    #[test]
    fn every_option_that_is_not_ignored_is_listed() {
        let text = text();
        for option in entries() {
            let at_start = |line: &str| {
                let name = line.get(2..).unwrap_or_default();
                name.strip_prefix(option.name.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '=']))
            };
            assert_eq!(text.lines().any(at_start), !option.ignored, "{}", option.name);
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("epmfs").count(), 1, "policies are listed once");
    }
}
