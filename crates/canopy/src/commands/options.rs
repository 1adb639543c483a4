//! `canopy options`: the table of options, for people.

use crate::config::Config;
use crate::config::options::{Changes, Spec, table};
use std::io::{self, Write};

pub fn run() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Options of canopy mount -o; _ and - are the same in names, later options win.")?;
    writeln!(out, "Those marked * can be changed while the pool runs.\n")?;
    let default = Config::default();
    for spec in table().iter().filter(|spec| !spec.hidden) {
        write_one(&mut out, spec, &default)?;
    }
    Ok(())
}

fn write_one(out: &mut impl Write, spec: &Spec, default: &Config) -> io::Result<()> {
    let mark = if spec.changes == Changes::Live { "*" } else { "" };
    let name = match spec.render(default).filter(|value| !value.is_empty()) {
        Some(value) => format!("{}={value}{mark}", spec.name),
        None if spec.accepted().is_some() => format!("{}={mark}", spec.name),
        None => format!("{}{mark}", spec.name),
    };
    write!(out, "  {name:<36} {}", spec.help)?;
    if let Some(linux) = spec.since {
        write!(out, " (Linux {linux})")?;
    }
    for alias in spec.aliases {
        write!(out, "; also {alias}")?;
    }
    writeln!(out)?;
    // The policies have the same words each; the first to name them serves all.
    if let Some(accepted) =
        spec.accepted().filter(|_| !spec.name.starts_with("func.") || spec.name == "func.readdir")
    {
        writeln!(out, "  {:<36}   {accepted}", "")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_is_not_of_old_is_listed() {
        let default = Config::default();
        for spec in table() {
            let mut out = Vec::new();
            write_one(&mut out, spec, &default).unwrap();
            assert!(String::from_utf8(out).unwrap().contains(spec.name.as_ref()));
        }
    }
}
