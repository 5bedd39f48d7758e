//! Named queries of the page's state.
//!
//! Each runs in a fresh world of its own: it sees the document of the page, and no object or function that a script of the
//! page has changed. Only `variable` reads from the page's own world; it evaluates a path of names and calls nothing.
//!
//! | name | argument | result, as JSON |
//! |---|---|---|
//! | `page` | none | `url` and `title` |
//! | `select` | a CSS selector, or `xpath=` and an XPath | at most 100 elements: `tag`, `text`, `value`, `checked`, `selected` (texts of a list's selected options), `disabled`, `visible`, `focused`, `attributes` |
//! | `storage` | a key | the text in the local storage of the page's site, or null |
//! | `variable` | a path such as `cart.items.0.name` | the value, or null |
//!
//! A profile can have further ones: `queries`, whose scripts are functions of one text.

use serde_json::{Value, json};

use super::cdp::Cdp;
use crate::error::SandboxError;
use clawhost_config::SandboxProfile;

const PAGE: &str = "() => ({url: location.href, title: document.title})";
const SELECT: &str = r#"(selector) => Array.from(selector.startsWith("xpath=") ? (() => {
  const found = document.evaluate(selector.slice(6), document, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE, null);
  return Array.from({length: found.snapshotLength}, (_, n) => found.snapshotItem(n)).filter((n) => n instanceof Element);
})() : document.querySelectorAll(selector)).slice(0, 100).map((e) => ({
  tag: e.localName,
  text: (e.innerText ?? e.textContent ?? "").trim().replace(/\s+/g, " "),
  value: "value" in e ? String(e.value) : null,
  checked: "checked" in e ? Boolean(e.checked) : null,
  selected: e.localName === "select" ? Array.from(e.selectedOptions).map((o) => o.text) : null,
  disabled: Boolean(e.disabled),
  visible: e.checkVisibility({visibilityProperty: true}),
  focused: document.activeElement === e,
  attributes: Object.fromEntries(Array.from(e.attributes).map((a) => [a.name, a.value])),
}))"#;
const STORAGE: &str =
    "(key) => { try { return localStorage.getItem(key); } catch { return null; } }";
/// Longest path of a variable.
const MAX_PATH: usize = 200;

/// Runs a query and returns its result as JSON.
pub(super) async fn run(
    cdp: &Cdp,
    profile: &SandboxProfile,
    name: &str,
    argument: &str,
) -> Result<Value, SandboxError> {
    let script = match name {
        "page" => PAGE,
        "select" => SELECT,
        "storage" => STORAGE,
        "variable" => return variable(cdp, argument).await,
        name => profile.queries.get(name).map(String::as_str).ok_or_else(|| {
            SandboxError::Denied(format!(
                "there is no query {name:?}: it is not `page`, `select`, `storage` or `variable`, nor configured in \
                sandbox.profiles.NAME.queries"
            ))
        })?,
    };
    let main_frame = cdp.status().main_frame;
    let world = json!({"frameId": main_frame, "worldName": "clawhost"});
    let world = cdp.call("Page.createIsolatedWorld", world).await?;
    let call = json!({
        "functionDeclaration": script,
        "executionContextId": world["executionContextId"],
        "arguments": [{"value": argument}],
        "returnByValue": true,
        "awaitPromise": true,
    });
    let answer = cdp.try_call("Runtime.callFunctionOn", call).await?;
    value(name, answer)
}

async fn variable(cdp: &Cdp, path: &str) -> Result<Value, SandboxError> {
    let expression = variable_expression(path).ok_or_else(|| {
        SandboxError::Denied(format!(
            "{path:?} is not a path of names, such as `cart.items.0.name`"
        ))
    })?;
    let call = json!({"expression": expression, "returnByValue": true, "silent": true});
    value("variable", cdp.try_call("Runtime.evaluate", call).await?)
}

/// An expression that reads a path and calls nothing.
fn variable_expression(path: &str) -> Option<String> {
    let is_name = |part: &str| {
        part.chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
            && !part.starts_with(|c: char| c.is_ascii_digit())
            && !part.is_empty()
    };
    let is_index = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let mut parts = path.split('.');
    let first = parts.next().filter(|part| is_name(part))?;
    let mut expression = format!("typeof {first} === \"undefined\" ? null : ({first}");
    for part in parts {
        if !is_name(part) && !is_index(part) {
            return None;
        }
        expression.push_str(&format!("?.[\"{part}\"]"));
    }
    expression.push_str(" ?? null)");
    (path.len() <= MAX_PATH).then_some(expression)
}

fn value(name: &str, answer: Result<Value, String>) -> Result<Value, SandboxError> {
    let failed = |why: &str| SandboxError::Denied(format!("the query {name} failed: {why}"));
    let mut result = answer.map_err(|error| failed(&error))?;
    let exception = &result["exceptionDetails"];
    if !exception.is_null() {
        let description = exception["exception"]["description"].as_str();
        let text = description.or(exception["text"].as_str());
        let line = text.and_then(|text| text.lines().next());
        return Err(failed(line.unwrap_or("an exception")));
    }
    Ok(result["result"]["value"].take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_a_path_of_names() {
        assert_eq!(
            variable_expression("cart.items.0").unwrap(),
            "typeof cart === \"undefined\" ? null : (cart?.[\"items\"]?.[\"0\"] ?? null)"
        );
        for bad in ["", "0", "a.", "a()", "a[0]", "a;b", "a.b\"", "ä", "a b"] {
            assert_eq!(variable_expression(bad), None, "{bad}");
        }
        assert_eq!(variable_expression(&"a".repeat(MAX_PATH + 1)), None);
    }

    #[test]
    fn an_exception_is_an_error() {
        let answer = json!({"exceptionDetails": {"text": "Uncaught", "exception": {"description": "SyntaxError: x\n at"}}});
        let error = value("select", Ok(answer)).unwrap_err().to_string();
        assert_eq!(error, "the query select failed: SyntaxError: x");
        let found = value("page", Ok(json!({"result": {"type": "undefined"}})));
        assert_eq!(found.unwrap(), Value::Null);
    }
}
