//! The screen in the browser: a program of its own, so that nothing that happens to it happens to a pool.
//!
//! What it shows comes from `canopy COMMAND --json` ([`data`]), and goes through [`routes`] to whoever was let in ([`entry`]).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod acting;
pub mod actions;
pub mod answer;
pub mod app;
pub mod content;
pub mod data;
pub mod entry;
pub mod error;
pub mod hosts;
pub mod listen;
pub mod live;
pub mod pages;
pub mod request;
pub mod routes;
pub mod tls;

use actions::runs::Runs;
use app::App;
use canopy_base::text::one_line;
use clap::{Args, Parser, Subcommand};
use data::Data;
use data::command::Program;
use entry::Role;
use entry::tokens::{Tokens, VALID};
use error::{Error, Result};
use hosts::Hosts;
use hyper::header::HeaderName;
use listen::{ListenAddress, Listener};
use rustix::process::geteuid;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Show the pools of this machine in the browser
#[derive(Parser, Debug)]
#[command(name = "canopy-web", bin_name = "canopy web", version, after_help = NOTES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
    /// Where tokens are kept [default: /run/canopy-web]
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct ServeArgs {
    /// ADDRESS:PORT or unix:PATH
    #[arg(long, value_name = "PLACE", default_value = "127.0.0.1:7373")]
    listen: String,
    /// With TLS: its certificate, and those above, in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Listen where others on the network read along
    #[arg(long, conflicts_with = "certificate")]
    without_tls: bool,
    /// A name by which browsers reach it, as a proxy's
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// The group that may connect to the socket
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Where a proxy names its user (on a socket)
    #[arg(long, value_name = "NAME")]
    user_header: Option<String>,
    /// Print no address that lets somebody in
    #[arg(long)]
    no_token: bool,
    /// Let nobody change anything, whatever their token
    #[arg(long)]
    read_only: bool,
    /// The program that is asked [default: the one beside this, or in PATH]
    #[arg(long, value_name = "PROGRAM", hide = true)]
    canopy: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print an address that lets somebody in, once
    Token {
        /// Show neither the pages of files nor the log, and no actions
        #[arg(long)]
        health_only: bool,
        /// Show everything, and let nothing be changed
        #[arg(long, conflicts_with = "health_only")]
        read_only: bool,
    },
}

const NOTES: &str = "\
It prints an address that lets you in, once. 'canopy web token' prints another.
From another machine: ssh -L 7373:127.0.0.1:7373 HOST, then that address.

Examples:
  canopy web
  canopy web token
  systemctl enable --now canopy-web";

const USAGE: u8 = 2;

/// Runs the program. Every error is one line on stderr.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let is_token = args.iter().skip(1).any(|word| word == "token");
    let help = if is_token { "canopy web token" } else { "canopy web" };
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            let line = first.split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("canopy-web: {} ({help} --help)", one_line(line.trim_start_matches("error: ")));
            return ExitCode::from(USAGE);
        }
    };
    let state = cli.state.clone().unwrap_or_else(default_state);
    let done = match cli.command {
        Some(Command::Token { health_only: true, .. }) => token(&state, Role::Health),
        Some(Command::Token { read_only: true, .. }) => token(&state, Role::Reader),
        Some(Command::Token { .. }) => token(&state, Role::Full),
        None => serve(&cli.serve, &state),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("canopy-web: {}", one_line(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn default_state() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !geteuid().is_root());
    own.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("canopy-web")
}

fn token(state: &Path, role: Role) -> Result<()> {
    let tokens = Tokens::open(state)?;
    let address = tokens.address()?;
    let token = tokens.make(role)?;
    say(&invitation(&address, &token));
    Ok(())
}

/// Writes a line to stdout, all at once. Whoever reads it may have gone.
fn say(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// What lets somebody in, in words.
fn invitation(address: &str, token: &str) -> String {
    let minutes = VALID.as_secs() / 60;
    match address.strip_prefix("unix:") {
        None => format!("{address}/enter?token={token}\n(for one visitor, within {minutes} minutes)"),
        Some(_) => format!(
            "{address}, there: /enter?token={token}\n(for one visitor, within {minutes} minutes; \
             ssh -L 7373:{} HOST makes it http://127.0.0.1:7373)",
            &address["unix:".len()..]
        ),
    }
}

fn serve(args: &ServeArgs, state: &Path) -> Result<()> {
    let files = args.certificate.clone().zip(args.key.clone());
    let tls = files.map(|(certificate, key)| tls::Files { certificate, key }.acceptor()).transpose()?;
    let (is_secret, is_open) = (tls.is_some(), tls.is_some() || args.without_tls);
    let place = ListenAddress::parse(&args.listen, is_open)?;
    let user_header = user_header(args.user_header.as_deref(), &place)?;
    let tokens = Tokens::open(state)?;
    let own = std::env::current_exe().ok();
    let program = args.canopy.clone().unwrap_or_else(|| Program::beside(own.as_deref()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::Runtime)?.block_on(async {
        let listener = Listener::bind(&place, args.group.as_deref(), tls).await?;
        let address = listener.address();
        tokens.set_address(&address)?;
        let listens = match (&place, is_open) {
            // Its own address is a name of it.
            (ListenAddress::Tcp(address), true) => Some(address.ip().to_string()),
            _ => None,
        };
        let port = address.rsplit(':').next().filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let hosts = Hosts::new(args.name.iter().cloned().chain(listens));
        let cookie = format!("canopy-{}", port.unwrap_or("socket"));
        let runs = Arc::new(Runs::new(program.clone(), state));
        let data = Data::new(Program::new(program));
        let mut app = App::new(data, Arc::clone(&runs), tokens.clone(), hosts, cookie);
        app.read_only = args.read_only;
        app.is_secret = is_secret;
        app.user_header = user_header;
        let app = Arc::new(app);
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .map_err(Error::Runtime)?;
        if args.no_token {
            say(&format!("canopy-web listens on {address}; canopy web token lets somebody in"));
        } else {
            say(&invitation(&address, &tokens.make(Role::Full)?));
        }
        tokio::select! {
            () = listener.serve(&app) => {}
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        runs.end_all().await;
        Ok(())
    })
}

/// Others than the proxy could send the header to an address: every program of the machine can connect there.
fn user_header(name: Option<&str>, place: &ListenAddress) -> Result<Option<HeaderName>> {
    let Some(name) = name else { return Ok(None) };
    if !matches!(place, ListenAddress::Unix(_)) {
        return Err(Error::HeaderWithoutSocket);
    }
    let found = HeaderName::from_bytes(name.as_bytes()).ok();
    // Every browser sends these.
    let is_theirs =
        ["host", "cookie", "origin", "referer", "user-agent", "accept", "content-type", "content-length"];
    found
        .filter(|found| !is_theirs.contains(&found.as_str()))
        .map(Some)
        .ok_or_else(|| Error::Header(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_passes_claps_checks() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_a_screen() {
        let help = Cli::command().render_help().to_string();
        assert!(help.lines().count() <= 44, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}
