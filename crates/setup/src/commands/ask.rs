//! Questions at a terminal.

use crate::error::Error;
use canopy_base::text::os_error;
use canopy_terminal::{BOLD, paragraph, print, print_styled, styled};
use std::io::{self, BufRead, Write};

/// Asks a question; an empty answer is the default.
pub fn ask(question: &str, default: &str) -> Result<String, Error> {
    print(&format!("{question} "));
    let _ = io::stdout().flush();
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err(Error::Refused("nothing was written (the input ended)".into())),
        Ok(_) => Ok(Some(line.trim()).filter(|text| !text.is_empty()).unwrap_or(default).to_owned()),
        Err(why) => Err(Error::Refused(format!("the answer cannot be read: {}", os_error(&why)))),
    }
}

/// Asks until the answer is one of some words, or the number of one.
pub fn ask_which(question: &str, choices: &[(&str, &str)]) -> Result<usize, Error> {
    print_styled(&format!("\n{}\n", styled(BOLD, question)));
    for (index, (word, meaning)) in choices.iter().enumerate() {
        print(&paragraph(&format!("  {} {word:<10} ", index + 1), meaning));
    }
    loop {
        let answer = ask("Number [1]:", "1")?;
        let by_number = answer.parse::<usize>().ok().filter(|number| (1..=choices.len()).contains(number));
        let by_word = || choices.iter().position(|(word, _)| *word == answer);
        match by_number.map(|number| number - 1).or_else(by_word) {
            Some(index) => return Ok(index),
            None => print(&format!("1 to {}, please.\n", choices.len())),
        }
    }
}

/// Asks whether to do something. Only a clear yes is one.
pub fn confirm(question: &str) -> Result<bool, Error> {
    Ok(matches!(ask(&format!("{question} [y/N]"), "n")?.as_str(), "y" | "Y" | "yes"))
}
