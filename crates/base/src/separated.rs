//! Lists on one line: separators between their parts, and a backslash before a separator that belongs to a part.

/// Splits a text at the separators that are not quoted, and trims the parts.
pub fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start, mut quoted) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == separator && !quoted {
            parts.push(text[start..at].trim());
            start = at + separator.len_utf8();
        }
        quoted = c == '\\' && !quoted;
    }
    parts.push(text[start..].trim());
    parts
}

/// Quotes the separators of a text (`;:=|`) that are not quoted yet.
pub fn quote(text: &str) -> String {
    let (mut all, mut quoted) = (String::new(), false);
    for c in text.chars() {
        if !quoted && ";:=|".contains(c) {
            all.push('\\');
        }
        quoted = c == '\\' && !quoted;
        all.push(c);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_not_split() {
        assert_eq!(split(r"a ; b\;c;", ';'), ["a", r"b\;c", ""]);
        assert_eq!(quote(r"a=b;c\;d:e|f"), r"a\=b\;c\;d\:e\|f");
        for text in ["a;b:c", r"x\\;y", "", "=|"] {
            let quoted = quote(text);
            assert_eq!((split(&quoted, ';').len(), quote(&quoted)), (1, quoted.clone()), "{text}");
        }
    }
}
