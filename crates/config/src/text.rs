//! Texts for one line of a terminal or a log.

/// An error of the system, without its number.
pub fn os_error(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Control characters in their escaped form, so that a text is one line and leaves a terminal alone.
pub fn one_line(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let (plain, escaped) =
                if c.is_control() { (None, Some(c.escape_default())) } else { (Some(c), None) };
            plain.into_iter().chain(escaped.into_iter().flatten())
        })
        .collect()
}
