//! Token streams: paths and definitions inside macros, and conditions of `cfg`.

use proc_macro2::{Spacing, TokenStream, TokenTree};

/// Keywords that are followed by the name of what they define.
const DEFINES: [&str; 9] = ["const", "enum", "fn", "macro", "static", "struct", "trait", "type", "union"];

/// What a token stream mentions.
#[derive(Default)]
pub(crate) struct Seen {
    /// Paths of two names or more, with their lines.
    pub(crate) paths: Vec<(Vec<String>, usize)>,
    /// The first names of all paths, those of one name too.
    pub(crate) first_names: Vec<String>,
    /// Names after a keyword that defines.
    pub(crate) definitions: Vec<String>,
}

impl Seen {
    pub(crate) fn in_stream(stream: &TokenStream) -> Self {
        let mut seen = Self::default();
        seen.walk(stream);
        seen
    }

    fn walk(&mut self, stream: &TokenStream) {
        let tokens: Vec<TokenTree> = stream.clone().into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.walk(&group.stream()),
                TokenTree::Ident(ident) => {
                    let previous = at.checked_sub(1).map(|before| &tokens[before]);
                    if let Some(TokenTree::Ident(keyword)) = previous
                        && DEFINES.contains(&keyword.to_string().as_str())
                    {
                        self.definitions.push(ident.to_string());
                    }
                    let mut path = vec![ident.to_string()];
                    let start = at;
                    while let Some(next) = segment_after(&tokens, at) {
                        path.push(next);
                        at += 3;
                    }
                    if starts_path(&tokens[..start], &path[0]) {
                        self.first_names.push(path[0].clone());
                        if path.len() > 1 {
                            self.paths.push((path, ident.span().start().line));
                        }
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// Returns the name in `::name` after a position.
fn segment_after(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at + 1..at + 4)? {
        [TokenTree::Punct(first), TokenTree::Punct(second), TokenTree::Ident(name)]
            if first.as_char() == ':' && first.spacing() == Spacing::Joint && second.as_char() == ':' =>
        {
            Some(name.to_string())
        }
        _ => None,
    }
}

/// Returns whether a name after these tokens begins a path, rather than being a member, a lifetime, a parameter of the
/// macro, or the rest of a path whose beginning is not known.
fn starts_path(before: &[TokenTree], name: &str) -> bool {
    let Some(TokenTree::Punct(last)) = before.last() else { return true };
    match last.as_char() {
        '$' => name == "crate",
        '\'' => false,
        // `..name` is a range or a rest.
        '.' => is_joint(before, '.'),
        ':' => !is_joint(before, ':'),
        _ => true,
    }
}

/// Returns whether the punctuation before the last token is this character, with nothing between the two.
fn is_joint(tokens: &[TokenTree], character: char) -> bool {
    let before = tokens.len().checked_sub(2).map(|at| &tokens[at]);
    matches!(before, Some(TokenTree::Punct(p)) if p.as_char() == character && p.spacing() == Spacing::Joint)
}

/// Returns whether a condition of `cfg` can hold in tests only.
pub(crate) fn requires_test(condition: &TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.clone().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "all" => {
            let parts: Vec<TokenTree> = group.stream().into_iter().collect();
            let mut parts = parts.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ','));
            parts.any(|part| requires_test(&part.iter().cloned().collect()))
        }
        _ => false,
    }
}
