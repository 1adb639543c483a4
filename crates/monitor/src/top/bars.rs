//! Bars, and histories of numbers.

use anstyle::{AnsiColor, Style};
use canopy_terminal::{BAD, WARNING};
use std::env;

/// What bars are drawn with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Glyphs {
    Blocks,
    /// For terminals that may have no blocks.
    Ascii,
}

const GOOD: Style = AnsiColor::Green.on_default();
/// From these shares on, a bar is yellow, or red.
const HIGH: f64 = 0.85;
const TOO_HIGH: f64 = 0.95;

impl Glyphs {
    /// Returns those that this terminal has. The console of Linux has few.
    pub(super) fn of_terminal() -> Glyphs {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(env::var_os);
        let locale =
            locale.filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().to_lowercase());
        let is_utf8 = locale.take(1).any(|locale| locale.contains("utf-8") || locale.contains("utf8"));
        let is_console = env::var_os("TERM").is_some_and(|term| term == "linux");
        if is_utf8 && !is_console { Glyphs::Blocks } else { Glyphs::Ascii }
    }

    fn full_and_empty(self) -> [&'static str; 2] {
        match self {
            Glyphs::Blocks => ["\u{2588}", "\u{2591}"],
            Glyphs::Ascii => ["#", "."],
        }
    }

    /// From the least to the most.
    fn steps(self) -> &'static [char] {
        match self {
            Glyphs::Blocks => &[
                '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
                '\u{2588}',
            ],
            Glyphs::Ascii => &['_', '.', '-', '=', '*', '#'],
        }
    }

    /// Returns a bar of so many columns, and its style.
    pub(super) fn bar(self, share: f64, columns: usize) -> (Style, String) {
        let share = share.clamp(0.0, 1.0);
        let full = (share * columns as f64).round() as usize;
        let [one, none] = self.full_and_empty();
        let style = match share {
            share if share >= TOO_HIGH => BAD,
            share if share >= HIGH => WARNING,
            _ => GOOD,
        };
        (style, one.repeat(full) + &none.repeat(columns - full))
    }

    /// Returns a column for each of the last numbers, as high as its share of the greatest.
    pub(super) fn history(self, numbers: &[f64], columns: usize) -> String {
        let shown = &numbers[numbers.len().saturating_sub(columns)..];
        let most = shown.iter().copied().fold(0.0, f64::max);
        let steps = self.steps();
        let step = |number: &f64| {
            let share = if most > 0.0 { number / most } else { 0.0 };
            steps[((share * (steps.len() - 1) as f64).round() as usize).min(steps.len() - 1)]
        };
        shown.iter().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_shares_and_warn() {
        for (share, text, style) in [
            (0.0, "..........", GOOD),
            (0.34, "###.......", GOOD),
            (0.9, "#########.", WARNING),
            (1.0, "##########", BAD),
            (7.0, "##########", BAD),
        ] {
            assert_eq!(Glyphs::Ascii.bar(share, 10), (style, text.to_owned()), "{share}");
        }
        assert_eq!(canopy_terminal::width(&Glyphs::Blocks.bar(0.5, 9).1), 9);
    }

    #[test]
    fn a_history_ends_with_the_last_number() {
        assert_eq!(Glyphs::Ascii.history(&[9.0, 0.0, 5.0, 10.0], 3), "_=#");
        assert_eq!(Glyphs::Ascii.history(&[0.0, 0.0], 9), "__");
        assert_eq!(Glyphs::Ascii.history(&[], 9), "");
        assert_eq!(Glyphs::Blocks.history(&[1.0, 8.0], 9), "\u{2582}\u{2588}");
    }
}
