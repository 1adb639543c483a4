//! The dashboard and the documentation name the metrics that there are.

#![forbid(unsafe_code)]

use canopy_monitor::families::{ALL, Family};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns the names of all samples, each with its metric.
fn samples() -> BTreeMap<String, &'static Family> {
    let of = |family: &'static Family| {
        family.kind.suffixes().iter().map(move |suffix| (format!("{}{suffix}", family.name), family))
    };
    ALL.iter().flat_map(of).collect()
}

/// Collects the queries of a dashboard: each `expr`, and each `query` of a variable that is one.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if name == "expr" || name == "query" && text.contains("canopy") => {
                        found.push(text.clone());
                    }
                    other => queries(other, found),
                }
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| queries(element, found)),
        _ => {}
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(&read("dist/grafana.json")).expect("JSON");
    let mut found = Vec::new();
    queries(&dashboard, &mut found);
    assert!(found.len() > 20, "{found:#?}");
    let samples = samples();
    let mut asked = BTreeSet::new();
    for query in &found {
        let named: Vec<&Family> = words(query).filter_map(|word| samples.get(word)).copied().collect();
        assert!(!named.is_empty(), "{query} asks for no metric");
        for word in words(query).filter(|word| word.starts_with("canopy_")) {
            assert!(samples.contains_key(word), "{query}: there is no {word}");
        }
        asked.extend(named.iter().map(|family| family.name));
        // What is summed by a label needs to have it.
        for (at, _) in query.match_indices("by (") {
            let labels = query[at + "by (".len()..].split(')').next().unwrap_or_default();
            for label in labels.split(", ").filter(|label| *label != "le") {
                assert!(named.iter().all(|family| family.labels.contains(&label)), "{query}: {label}");
            }
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
}

#[test]
fn every_metric_is_documented() {
    let page = read("docs/metrics-list.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `canopy_"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let expected: Vec<Vec<String>> = ALL
        .iter()
        .map(|family| {
            let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            vec![
                format!("`{}`", family.name),
                family.kind.word().to_owned(),
                labels.join(", "),
                family.help.to_owned(),
            ]
        })
        .collect();
    assert_eq!(rows, expected, "the table of docs/metrics-list.md");
    let samples = samples();
    for word in words(&(page + &read("docs/metrics.md"))).filter(|word| word.starts_with("canopy_")) {
        let known = samples.contains_key(word) || ALL.iter().any(|family| family.name == word);
        assert!(known, "docs/metrics.md: there is no {word}");
    }
}
