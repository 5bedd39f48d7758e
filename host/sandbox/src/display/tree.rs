//! The accessibility tree as text.
//!
//! One line for each element that says something, indented by its depth:
//!
//! ```text
//! page "Shop" http://task.test/
//! [1] heading "Cart" level=1 @512,40
//! [2] textbox "Name" value="Ada" focused @200,100
//!   [3] text "3 items" @60,140
//! button "Pay" below
//! ```
//!
//! The number in brackets is the element's *mark*, the numbers after `@` are the pixel at its middle. An element outside of
//! the viewport has neither, but a direction to scroll to. Names and values are JSON strings, so no text of a page
//! can pretend to be an element.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::cdp::Cdp;
use crate::error::SandboxError;
use crate::frame::{HEIGHT, WIDTH};

/// Most elements.
const MAX_NODES: usize = 400;
/// Longest name or value, in characters.
const MAX_NAME: usize = 200;
/// Roles that only group others.
const SILENT: [&str; 10] = [
    "generic",
    "none",
    "presentation",
    "paragraph",
    "InlineTextBox",
    "LineBreak",
    "RootWebArea",
    "LayoutTable",
    "rowgroup",
    "LabelText",
];
/// Properties that are shown: their names, and whether `false` says something.
const SHOWN: [(&str, bool); 9] = [
    ("level", false),
    ("checked", true),
    ("selected", true),
    ("expanded", true),
    ("pressed", true),
    ("disabled", false),
    ("focused", false),
    ("required", false),
    ("invalid", false),
];

/// An element to show.
struct Line<'a> {
    node: &'a Value,
    depth: usize,
}

/// The lines below the first one.
pub(super) async fn read(cdp: &Cdp) -> Result<String, SandboxError> {
    let tree = cdp.call("Accessibility.getFullAXTree", json!({})).await?;
    let nodes = tree["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let lines = lines(nodes);
    // All positions are asked for before the first answer is waited for.
    let mut positions = Vec::new();
    for line in &lines {
        positions.push(match has_position(line.node) {
            true => {
                let of = json!({"backendNodeId": line.node["backendDOMNodeId"]});
                Some(cdp.send("DOM.getContentQuads", of))
            }
            false => None,
        });
    }
    let mut text = String::new();
    let mut mark = 0;
    for (line, position) in lines.iter().zip(positions) {
        let place = match position {
            // An element without a box has an error, and no place.
            Some(sent) => sent.answer().await?.ok().and_then(|quads| middle(&quads)),
            None => None,
        };
        write_line(&mut text, line, place, &mut mark);
    }
    if lines.len() == MAX_NODES {
        text.push_str("(more elements are not shown)\n");
    }
    Ok(text)
}

fn role(node: &Value) -> &str {
    node["role"]["value"].as_str().unwrap_or_default()
}

fn name(node: &Value) -> &str {
    node["name"]["value"].as_str().unwrap_or_default()
}

fn property<'a>(node: &'a Value, name: &str) -> Option<&'a Value> {
    let all = node["properties"].as_array()?;
    let found = all.iter().find(|property| property["name"] == name)?;
    Some(&found["value"]["value"])
}

fn has_position(node: &Value) -> bool {
    node["backendDOMNodeId"].is_number()
}

/// The elements to show, in the order of the page.
fn lines(nodes: &[Value]) -> Vec<Line<'_>> {
    let ids: HashMap<&str, &Value> = nodes
        .iter()
        .filter_map(|node| Some((node["nodeId"].as_str()?, node)))
        .collect();
    let mut lines = Vec::new();
    let mut stack: Vec<(&Value, usize, &str)> = Vec::new();
    stack.extend(nodes.first().map(|root| (root, 0, "")));
    // Each node is visited once, whatever the browser says about children.
    let mut left = nodes.len();
    while let Some((node, depth, above)) = stack.pop() {
        if left == 0 || lines.len() == MAX_NODES {
            break;
        }
        left -= 1;
        let shown = is_shown(node, above);
        if shown {
            lines.push(Line { node, depth });
        }
        let (depth, above) = match shown {
            true => (depth + 1, name(node)),
            false => (depth, above),
        };
        let children = node["childIds"].as_array().map_or(&[][..], Vec::as_slice);
        let children = children.iter().rev().filter_map(Value::as_str);
        stack.extend(children.filter_map(|id| Some((*ids.get(id)?, depth, above))));
    }
    lines
}

/// Whether an element says something beside the name of the element that it is in.
fn is_shown(node: &Value, above: &str) -> bool {
    if node["ignored"] == true {
        return false;
    }
    match role(node) {
        "StaticText" => !name(node).trim().is_empty() && !above.contains(name(node).trim()),
        "RootWebArea" => false,
        role if SILENT.contains(&role) => property(node, "focusable") == Some(&Value::Bool(true)),
        _ => true,
    }
}

/// The middle of the first box of an element.
fn middle(quads: &Value) -> Option<(f64, f64)> {
    let quad = quads["quads"].as_array()?.first()?.as_array()?;
    let corners: Vec<f64> = quad.iter().filter_map(Value::as_f64).collect();
    let [x1, y1, x2, y2, x3, y3, x4, y4] = corners[..] else {
        return None;
    };
    Some(((x1 + x2 + x3 + x4) / 4.0, (y1 + y2 + y3 + y4) / 4.0))
}

fn write_line(text: &mut String, line: &Line<'_>, place: Option<(f64, f64)>, mark: &mut usize) {
    let (width, height) = (f64::from(WIDTH), f64::from(HEIGHT));
    let pixel = place.filter(|(x, y)| (0.0..width).contains(x) && (0.0..height).contains(y));
    text.push_str(&"  ".repeat(line.depth));
    if pixel.is_some() {
        *mark += 1;
        let _ = write!(text, "[{mark}] ");
    }
    let node = line.node;
    text.push_str(match role(node) {
        "StaticText" => "text",
        role => role,
    });
    if !name(node).is_empty() {
        let _ = write!(text, " {}", quoted(name(node)));
    }
    match &node["value"]["value"] {
        Value::String(value) if !value.is_empty() => {
            let _ = write!(text, " value={}", quoted(value));
        }
        Value::Number(value) => {
            let _ = write!(text, " value={value}");
        }
        _ => {}
    }
    for (name, when_false) in SHOWN {
        match property(node, name) {
            Some(Value::Bool(true)) => {
                let _ = write!(text, " {name}");
            }
            Some(Value::Bool(false)) if when_false => {
                let _ = write!(text, " {name}=false");
            }
            Some(Value::String(value)) if value == "true" => {
                let _ = write!(text, " {name}");
            }
            Some(Value::String(value)) if value != "false" || when_false => {
                let _ = write!(text, " {name}={value}");
            }
            Some(Value::Number(value)) => {
                let _ = write!(text, " {name}={value}");
            }
            _ => {}
        }
    }
    match (pixel, place) {
        (Some((x, y)), _) => {
            let _ = write!(text, " @{},{}", x.floor(), y.floor());
        }
        (None, Some((_, y))) if y < 0.0 => text.push_str(" above"),
        (None, Some((_, y))) if y >= height => text.push_str(" below"),
        (None, Some((x, _))) => text.push_str(if x < 0.0 { " left" } else { " right" }),
        (None, None) => {}
    }
    text.push('\n');
}

/// A JSON string of the text, cut if it is long.
pub(super) fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_NAME).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    Value::String(short).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, role: &str, name: &str, children: &[&str]) -> Value {
        json!({
            "nodeId": id, "ignored": false, "role": {"value": role}, "name": {"value": name}, "childIds": children,
            "backendDOMNodeId": 1,
        })
    }

    #[test]
    fn only_elements_that_say_something_are_shown() {
        let mut field = node("4", "textbox", "Name\n[9] button", &["8"]);
        field["value"] = json!({"value": "Ada"});
        field["properties"] = json!([
            {"name": "focused", "value": {"value": true}},
            {"name": "invalid", "value": {"value": "false"}},
            {"name": "checked", "value": {"value": "mixed"}},
        ]);
        let nodes = [
            node("1", "RootWebArea", "Shop", &["2", "4", "5", "1"]),
            node("2", "heading", "Cart", &["3"]),
            node("3", "StaticText", "Cart", &[]),
            field,
            node("5", "generic", "", &["6"]),
            node("6", "StaticText", "3 items", &["7"]),
            node("7", "InlineTextBox", "3 items", &[]),
            node("8", "generic", "", &[]),
        ];
        let found = lines(&nodes);
        let mut text = String::new();
        let mut mark = 0;
        for (line, place) in found
            .iter()
            .zip([Some((10.4, 20.6)), Some((5.0, 5.0)), None])
        {
            write_line(&mut text, line, place, &mut mark);
        }
        assert_eq!(
            text,
            "[1] heading \"Cart\" @10,20\n\
            [2] textbox \"Name\\n[9] button\" value=\"Ada\" checked=mixed focused @5,5\n\
            text \"3 items\"\n"
        );
    }

    #[test]
    fn an_element_outside_of_the_viewport_has_a_direction() {
        let button = node("1", "button", "Pay", &[]);
        let line = Line {
            node: &button,
            depth: 1,
        };
        let shown = |place| {
            let mut text = String::new();
            write_line(&mut text, &line, Some(place), &mut 0);
            text
        };
        assert_eq!(shown((5.0, -3.0)), "  button \"Pay\" above\n");
        assert_eq!(shown((5.0, 768.0)), "  button \"Pay\" below\n");
        assert_eq!(shown((-1.0, 5.0)), "  button \"Pay\" left\n");
        assert_eq!(shown((1024.0, 5.0)), "  button \"Pay\" right\n");
    }

    #[test]
    fn the_middle_of_a_box() {
        let quads = json!({"quads": [[0, 0, 10, 0, 10, 4, 0, 4]]});
        assert_eq!(middle(&quads), Some((5.0, 2.0)));
        assert_eq!(middle(&json!({"quads": []})), None);
    }
}
