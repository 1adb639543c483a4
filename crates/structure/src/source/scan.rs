//! Sizes and `unsafe`, from the tokens of a file: comments and strings do not count, the insides of macros do.

use super::tokens::requires_test;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// What the tokens of a file show.
#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) functions: Vec<Function>,
    /// Lines on which the word `unsafe` stands.
    pub(crate) unsafe_lines: Vec<usize>,
    /// Lines of inline modules under `#[cfg(test)]`.
    pub(crate) test_lines: usize,
}

/// A function with a body.
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of `fn`.
    pub(crate) line: usize,
    /// Lines from `fn` to the closing brace.
    pub(crate) lines: usize,
}

impl Scan {
    pub(crate) fn of(text: &str) -> Result<Self, String> {
        let stream: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| error.to_string())?;
        let mut scan = Self::default();
        scan.walk(stream, false);
        Ok(scan)
    }

    fn walk(&mut self, stream: TokenStream, in_test: bool) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut test_module = None;
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "unsafe" => {
                    self.unsafe_lines.push(word.span().start().line)
                }
                TokenTree::Ident(word) if word == "fn" => {
                    self.functions.extend(function(word.span().start().line, &tokens[at + 1..]));
                }
                TokenTree::Punct(mark) if mark.as_char() == '#' && !in_test && test_module.is_none() => {
                    if let Some((body, group)) = test_module_body(&tokens[at + 1..]) {
                        self.test_lines += last_line(group) - mark.span().start().line + 1;
                        test_module = Some(at + 1 + body);
                    }
                }
                TokenTree::Group(group) => {
                    let ends = test_module == Some(at);
                    self.walk(group.stream(), in_test || ends);
                    if ends {
                        test_module = None;
                    }
                }
                _ => {}
            }
        }
    }
}

/// Returns the function whose `fn` stands before these tokens, unless it is a type or has no body.
fn function(line: usize, after: &[TokenTree]) -> Option<Function> {
    let name = match after {
        [TokenTree::Ident(name), ..] => name.to_string(),
        // A parameter of a macro.
        [TokenTree::Punct(mark), TokenTree::Ident(name), ..] if mark.as_char() == '$' => format!("${name}"),
        _ => return None,
    };
    let end = after.iter().find(|token| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => mark.as_char() == ';',
        _ => false,
    })?;
    let TokenTree::Group(body) = end else { return None };
    Some(Function { name, line, lines: last_line(body) - line + 1 })
}

/// Returns the body of an inline module under `#[cfg(test)]` whose `#` stands before these tokens, and its place.
fn test_module_body(after: &[TokenTree]) -> Option<(usize, &Group)> {
    let (TokenTree::Group(attribute), rest) = after.split_first()? else { return None };
    let attribute: Vec<TokenTree> = attribute.stream().into_iter().collect();
    let [TokenTree::Ident(name), TokenTree::Group(condition)] = &attribute[..] else { return None };
    if name != "cfg" || !requires_test(&condition.stream()) {
        return None;
    }
    // Attributes, the visibility, `mod` and the name come before the body; anything else is no module.
    let mut is_module = false;
    for (at, token) in rest.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "mod" => is_module = true,
            TokenTree::Ident(word) if is_module || word == "pub" => {}
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                return is_module.then_some((at + 1, body));
            }
            TokenTree::Group(_) => {}
            TokenTree::Punct(mark) if mark.as_char() == '#' => {}
            _ => return None,
        }
    }
    None
}

fn last_line(group: &Group) -> usize {
    group.span_close().start().line
}
