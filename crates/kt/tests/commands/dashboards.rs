//! The rules and the dashboard in `dashboards` use only metrics that there are, each in the way of its kind.

use super::common::{Dir, kt};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards").join(name)).unwrap()
}

/// The kind of each metric that a database exposes: "counter", "gauge" or "histogram".
fn metrics() -> BTreeMap<String, String> {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    let text = kt(&["stats", &db, "--prometheus"]).ok();
    let types = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// The metrics that a text names, each with what stands before it.
fn uses(text: &str) -> Vec<(&str, String)> {
    let starts = text.match_indices("kingtide_").map(|(at, _)| at);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    starts.map(|at| (&text[..at], text[at..].chars().take_while(|c| is_part(*c)).collect())).collect()
}

/// Fails if a metric of the text does not exist, or if a counter is used without a rate or a gauge with one.
fn check(text: &str, what: &str, metrics: &BTreeMap<String, String>) -> usize {
    let all = uses(text);
    for (before, name) in &all {
        let is_rate = before.ends_with("rate(") || before.ends_with("increase(");
        let histogram = name.strip_suffix("_bucket").filter(|h| metrics.get(*h).is_some_and(|k| k == "histogram"));
        let kind = match histogram {
            Some(_) => "counter",
            None => metrics.get(name).unwrap_or_else(|| panic!("{what} uses {name}, which does not exist")),
        };
        match kind {
            "counter" => assert!(is_rate, "{what} uses the counter {name} without a rate"),
            _ => assert!(!is_rate, "{what} uses a rate of the gauge {name}"),
        }
    }
    all.len()
}

#[test]
fn rules_use_metrics_that_exist() {
    let metrics = metrics();
    let rules = read("alerts.yml");
    let of_rules = rules.lines().filter(|l| !l.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    assert!(check(&of_rules, "alerts.yml", &metrics) >= 15);
}

/// The page's configuration of Prometheus: its rules are there, and its targets are what `kt serve` listens on.
#[test]
fn the_configuration_of_the_page_fits() {
    let page = read("README.md");
    let blocks: Vec<&str> = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [block] = blocks[..] else { panic!("another block of YAML: what is it for? {blocks:?}") };
    let listens = kt(&["serve", "--help"]).ok();
    // Each line has one form only: this is no parser of YAML.
    for line in block.lines().filter(|l| !l.starts_with('#')) {
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
        let items =
            || value.trim().strip_prefix('[').and_then(|v| v.strip_suffix(']')).unwrap_or_else(|| panic!("{line}"));
        match key {
            "rule_files" => assert!(items().split(", ").all(|file| !read(file).is_empty()), "{line}"),
            "      - targets" => {
                let target = items().trim_matches('"');
                assert!(listens.contains(&format!("[default: {target}]")), "{line}: {listens}");
            }
            "scrape_configs" | "    static_configs" => assert_eq!(value, "", "{line}"),
            "  - job_name" => assert_eq!(value, " kingtide", "{line}"),
            _ => panic!("what is this? {line}"),
        }
    }
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let metrics = metrics();
    let dashboard: serde_json::Value = serde_json::from_str(&read("kingtide.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut shown, mut ids, mut cells) = (0, BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: the id is taken");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "{title} is too far to the right");
            for y in place("y")..place("y") + place("h") {
                assert!(cells.insert((x, y)), "{title} covers another panel");
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            shown += check(target["expr"].as_str().unwrap(), title, &metrics);
        }
    }
    assert!(shown >= 40, "{shown} metrics");
    // A variable asks for the labels of a counter, which is no rate.
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        for (_, name) in uses(variable["definition"].as_str().unwrap_or("")) {
            assert!(metrics.contains_key(&name), "{name}");
        }
    }
}
