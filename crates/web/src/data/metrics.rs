//! What pools do, as `canopy metrics` tells it: counters, and what they grew by between two looks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A number with its labels, as in a line of the OpenMetrics format.
#[derive(Clone, PartialEq, Debug)]
pub struct Number {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Two looks.
#[derive(Debug)]
pub struct Activity {
    pub now: Vec<Number>,
    before: BTreeMap<String, f64>,
    between: Duration,
}

/// One look.
#[derive(Debug)]
pub struct Look {
    pub at: Instant,
    pub numbers: Vec<Number>,
}

impl Number {
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    fn key(&self) -> String {
        format!("{}{:?}", self.name, self.labels)
    }
}

impl Activity {
    pub fn between(before: &Look, now: &Look) -> Activity {
        Activity {
            now: now.numbers.clone(),
            before: before.numbers.iter().map(|number| (number.key(), number.value)).collect(),
            between: now.at.saturating_duration_since(before.at),
        }
    }

    /// Returns the numbers of this name that a pool has.
    pub fn of<'a>(&'a self, name: &'a str, pool: &'a str) -> impl Iterator<Item = &'a Number> {
        self.now.iter().filter(move |number| number.name == name && number.label("pool") == pool)
    }

    /// Returns the sum of the numbers of this name that a pool has.
    pub fn sum(&self, name: &str, pool: &str) -> f64 {
        self.of(name, pool).map(|number| number.value).sum()
    }

    /// By how much a counter grows in a second. One that began anew, with its daemon, has grown from nothing.
    pub fn rate(&self, number: &Number) -> f64 {
        let before = self.before.get(&number.key()).copied().filter(|&before| before <= number.value);
        let seconds = self.between.as_secs_f64();
        if seconds > 0.0 { (number.value - before.unwrap_or_default()) / seconds } else { 0.0 }
    }
}

/// Reads the format. What is no number is left out.
pub fn parse(text: &str) -> Vec<Number> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(number).collect()
}

fn number(line: &str) -> Option<Number> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) =
        if let Some(inside) = rest.strip_prefix('{') { labels(inside)? } else { (BTreeMap::new(), rest) };
    let value = rest.split_whitespace().next()?.parse().ok().filter(|value: &f64| value.is_finite())?;
    Some(Number { name: name.to_owned(), labels, value })
}

/// Reads `a="b",c="d"}` and returns what is behind.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.trim_start_matches(',').split_once("=\"")?;
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value);
        text = &rest[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_numbers() {
        let text = "# TYPE a counter\na_total{pool=\"/m \\\"x\\\\\\n}\",operation=\"read\"} 12\nb 1.5\nc{} NaN\nd{x=\"y\nbroken\n# EOF\n";
        let found = parse(text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(
            (found[0].label("pool"), found[0].label("operation"), found[0].value),
            ("/m \"x\\\n}", "read", 12.0)
        );
        assert_eq!((found[1].name.as_str(), found[1].value), ("b", 1.5));
    }

    #[test]
    fn rates_are_between_two_looks() {
        let start = Instant::now();
        let look = |seconds, text| Look { at: start + Duration::from_secs(seconds), numbers: parse(text) };
        let (before, now) =
            (look(0, "a{pool=\"p\"} 10\nb{pool=\"p\"} 9"), look(2, "a{pool=\"p\"} 14\nb{pool=\"p\"} 4"));
        let activity = Activity::between(&before, &now);
        let rates: Vec<f64> = activity.now.iter().map(|number| activity.rate(number)).collect();
        assert_eq!((rates, activity.sum("a", "p"), activity.sum("a", "q")), (vec![2.0, 2.0], 14.0, 0.0));
        assert_eq!(Activity::between(&now, &now).rate(&now.numbers[0]), 0.0);
    }
}
