//! Rows of OSWorld: `config` and `evaluator`, where they are about one browser tab.
//!
//! The addresses of such a row are those of live sites. A row becomes a task when its `pages` has them, as saved files.
//! What cannot be read from a page (other applications, settings of the browser, several tabs, files) is an error that names
//! it, so that no such row is graded by less than it asks for.

use task_json::Json;
use task_machine::text;

use crate::checks::{Check, Goal};

/// The page that the row opens.
pub(crate) fn start(row: &Json) -> Result<Option<String>, String> {
    let mut start = text(row, "start")?;
    for step in row.get("config").map_or(&[][..], Json::items) {
        match text(step, "type")?.as_deref() {
            // The browser is there.
            Some("launch" | "sleep" | "activate_window") => {}
            Some("chrome_open_tabs") => {
                let urls = step
                    .get("parameters")
                    .and_then(|all| all.get("urls_to_open"));
                let [url] = urls.map_or(&[][..], Json::items) else {
                    return Err(
                        "`chrome_open_tabs` opens other than one tab, and a display has one"
                            .to_owned(),
                    );
                };
                start = url.text().map(str::to_owned);
            }
            other => {
                return Err(format!(
                    "`config` has a step of the type `{}`, which is not about one tab of a browser",
                    other.unwrap_or_default()
                ));
            }
        }
    }
    Ok(start)
}

/// What the row is graded by.
pub(crate) fn goal(evaluator: &Json) -> Result<Goal, String> {
    let functions = list(evaluator.get("func"));
    let functions: Vec<&str> = functions
        .iter()
        .filter_map(|function| function.text())
        .collect();
    if functions == ["infeasible"] {
        return Ok(Goal::Infeasible);
    }
    if functions.is_empty() {
        return Err("`evaluator` has no `func`".to_owned());
    }
    match text(evaluator, "conj")?.as_deref() {
        None | Some("and") => {}
        Some(_) => return Err("`conj` of `evaluator` is not `and`".to_owned()),
    }
    let (results, expected) = (
        list(evaluator.get("result")),
        list(evaluator.get("expected")),
    );
    if results.len() != functions.len() || expected.len() != functions.len() {
        return Err("`evaluator` has other numbers of `func`, `result` and `expected`".to_owned());
    }
    let mut checks = Vec::new();
    for ((function, result), expected) in functions.iter().zip(&results).zip(&expected) {
        let rules = expected
            .get("rules")
            .ok_or("`expected` of `evaluator` has no `rules`")?;
        let getter = text(result, "type")?.unwrap_or_default();
        checks.extend(read(function, &getter, result, rules)?);
    }
    Ok(Goal::Checks(checks))
}

/// The items of a list; anything else is a list of itself.
fn list(value: Option<&Json>) -> Vec<&Json> {
    match value {
        None => Vec::new(),
        Some(Json::Array(items)) => items.iter().collect(),
        Some(one) => vec![one],
    }
}

fn read(function: &str, getter: &str, result: &Json, rules: &Json) -> Result<Vec<Check>, String> {
    let expected = rules.get("expected");
    match (function, getter) {
        ("is_expected_active_tab", "active_url_from_accessTree" | "active_tab_info") => {
            let url = rules.get("url").and_then(Json::text);
            let url = url.ok_or("`rules` of `is_expected_active_tab` have no `url`")?;
            Ok(vec![Check::url(url)])
        }
        ("is_expected_url_pattern_match", "active_url_from_accessTree" | "active_tab_info") => {
            let patterns = list(expected);
            if patterns.is_empty() {
                return Err(
                    "`rules` of `is_expected_url_pattern_match` have no `expected`".to_owned(),
                );
            }
            patterns.into_iter().map(url_pattern).collect()
        }
        ("exact_match", "active_url_from_accessTree") => {
            let prefix = text(result, "goto_prefix")?.unwrap_or_default();
            let url = expected.and_then(Json::text);
            let url = url.ok_or("`rules` of `exact_match` have no text `expected`")?;
            Ok(vec![Check::url(&format!("{prefix}{url}"))])
        }
        ("check_direct_json_object", "active_tab_html_parse") => html(result, rules),
        _ => Err(format!(
            "`evaluator` compares with `{function}` what the getter `{getter}` gets, which is not read from one page"
        )),
    }
}

/// A pattern without the signs of a regular expression, apart from dots.
fn url_pattern(pattern: &Json) -> Result<Check, String> {
    let pattern = pattern.text().unwrap_or_default();
    let plain = pattern.replace("\\.", ".");
    if plain.is_empty()
        || plain.contains(['\\', '*', '+', '[', ']', '(', ')', '|', '^', '$', '{', '}'])
    {
        return Err(format!(
            "the pattern `{pattern}` of `is_expected_url_pattern_match` is a regular expression; write a part of the address"
        ));
    }
    Ok(Check::url_contains(&plain))
}

/// The parts of a page that a getter names, and what they must be.
fn html(result: &Json, rules: &Json) -> Result<Vec<Check>, String> {
    let expected = rules.get("expected").ok_or("`rules` have no `expected`")?;
    let (member, objects): (_, &[&str]) = match text(result, "category")?.as_deref() {
        Some("class") => ("text", &["class_singleObject"]),
        Some("xpath") => ("text", &["xpathObject"]),
        Some("input") => ("value", &["inputObject"]),
        other => {
            return Err(format!(
                "`active_tab_html_parse` has the category `{}`; `class`, `xpath` and `input` are read",
                other.unwrap_or_default()
            ));
        }
    };
    let mut checks = Vec::new();
    for (place, key) in objects
        .iter()
        .flat_map(|name| result.get(name).map_or(&[][..], Json::members))
    {
        let value = key.text().and_then(|key| expected.get(key));
        let value = value.ok_or_else(|| format!("`expected` has nothing for `{place}`"))?;
        let selector = match member == "text" && objects == ["class_singleObject"] {
            true => format!(
                ".{}",
                place.split_whitespace().collect::<Vec<_>>().join(".")
            ),
            false => format!("xpath={place}"),
        };
        checks.push(Check::element(&selector, member, value.clone()));
    }
    if checks.len() != expected.members().len() {
        return Err("`active_tab_html_parse` names other parts than `expected`".to_owned());
    }
    Ok(checks)
}
