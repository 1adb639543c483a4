//! The command line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::weather::{TABLE, Weathers};

pub(crate) const USAGE: &str = "\
Usage: canopy-storm [SEED] [MINUTES] [OPTION ...]

Plays storms on new pools until the minutes are over (3), each with a seed of its own, which counts up from SEED (the date). The
first failure ends it: it is shortened, and printed with what repeats it.

  --with NAMES, --without NAMES   switch weathers on and off (names separated by commas, or \"all\")
  --weathers NAMES                exactly these
  --operations N                  operations of clients in a storm (250)
  --steps LIST                    only these steps of the first seed: 3,7-9
  --shrink MINUTES                how long a failure may be shortened (10)
  --keep-going                    print failures, and go on
  --chatty                        print each step
  --hold                          leave the pool and its disks as they are after the first failure, until Ctrl-C
  --list                          print the weathers, and end
";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Args {
    pub(crate) seed: u64,
    pub(crate) time: Duration,
    pub(crate) weathers: Weathers,
    pub(crate) operations: usize,
    pub(crate) steps: Option<Vec<usize>>,
    pub(crate) shrink: Duration,
    pub(crate) keep_going: bool,
    pub(crate) chatty: bool,
    pub(crate) hold: bool,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(crate) enum Task {
    Storm(Args),
    List,
    Help,
}

/// Days since 1970, so that all storms of a day are the same.
fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / 86400) * 1000
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| format!("{text} is no number of minutes"))?;
    Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| format!("{text} minutes: {error}"))
}

pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Task, String> {
    let mut storm = Args {
        seed: today(),
        time: Duration::from_secs(180),
        weathers: Weathers::usual(),
        operations: 250,
        steps: None,
        shrink: Duration::from_secs(600),
        keep_going: false,
        chatty: false,
        hold: false,
    };
    let (mut args, mut plain) = (args.into_iter(), 0);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--with" => switch(&mut storm.weathers, &value()?, true)?,
            "--without" => switch(&mut storm.weathers, &value()?, false)?,
            "--weathers" => {
                storm.weathers = Weathers::none();
                switch(&mut storm.weathers, &value()?, true)?;
            }
            "--operations" => storm.operations = number(&value()?)?,
            "--steps" => storm.steps = Some(list(&value()?)?),
            "--shrink" => storm.shrink = minutes(&value()?)?,
            "--keep-going" => storm.keep_going = true,
            "--chatty" => storm.chatty = true,
            "--hold" => storm.hold = true,
            "--list" => return Ok(Task::List),
            "--help" | "-h" => return Ok(Task::Help),
            _ if arg.starts_with('-') => return Err(format!("unknown option: {arg}")),
            _ if plain == 0 => storm.seed = number(&arg)?,
            _ if plain == 1 => storm.time = minutes(&arg)?,
            _ => return Err(format!("what is {arg}?")),
        }
        plain += usize::from(!arg.starts_with('-'));
    }
    Ok(Task::Storm(storm))
}

fn switch(weathers: &mut Weathers, names: &str, on: bool) -> Result<(), String> {
    if names == "all" {
        *weathers = if on { Weathers::all() } else { Weathers::none() };
        return Ok(());
    }
    weathers.switch(names, on)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// `3,7-9`
fn list(text: &str) -> Result<Vec<usize>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(number::<usize>(first)?..=number::<usize>(last)?);
    }
    Ok(all)
}

/// The inverse of [`list`].
pub(crate) fn listed(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(",")
}

/// The table of weathers for people.
pub(crate) fn weathers() -> String {
    TABLE
        .iter()
        .map(|row| format!("{:12} {:4} {}\n", row.1, if row.2 { "on" } else { "off" }, row.3))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_printed() {
        let numbers = [1, 2, 3, 7, 9, 10];
        assert_eq!(listed(&numbers), "1-3,7,9-10");
        assert_eq!(list(&listed(&numbers)).unwrap(), numbers);
    }

    #[test]
    fn arguments() {
        let parsed = |line: &str| parse(line.split_whitespace().map(str::to_owned));
        let Ok(Task::Storm(args)) = parsed("7 0.5 --without kill --operations 9") else { panic!("a storm") };
        assert_eq!((args.seed, args.time.as_secs(), args.operations), (7, 30, 9));
        assert!(!args.weathers.names().contains("kill,") && args.weathers.names().contains("upgrade"));
        assert!(parsed("--with nothing").is_err() && parsed("1 2 3").is_err() && parsed("--steps").is_err());
    }
}
