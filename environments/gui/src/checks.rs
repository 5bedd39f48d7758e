//! Checks of the page's state.
//!
//! A check is an object. What it reads comes from a named query of the host, so neither a text of the policy nor a script
//! that it put into the page answers it.
//!
//! - `{"select": CSS, …}`: an element exists; `count`: that many elements do; `texts`: these are the texts of all of them.
//!   Of the first one, `text`, `value`, `checked`, `selected` (text of the chosen option), `disabled`, `visible` and
//!   `focused` are equal, `contains` is in its text, and `attributes` has equal ones. A selector that starts with `xpath=` is an
//!   XPath.
//! - `{"url": …}`, `{"url_contains": …}`, `{"title": …}`: of the page.
//! - `{"storage": KEY, "is": TEXT}`: in the local storage of the page's site.
//! - `{"variable": PATH, "is": JSON}`: a variable of the page's script.
//! - `{"query": NAME, "argument": TEXT, "is": JSON}`: a query of the profile.

use task_json::Json;
use task_machine::text;

/// What is graded.
#[derive(Debug)]
pub(crate) enum Goal {
    /// The share of these that hold.
    Checks(Vec<Check>),
    /// Whether the policy says that the task cannot be done.
    Infeasible,
}

/// What one check reads and what it must be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Check {
    /// Of the host.
    pub(crate) query: String,
    pub(crate) argument: String,
    wants: Vec<Want>,
}

/// Something that must hold.
#[derive(Debug, Clone, PartialEq)]
enum Want {
    /// The whole result.
    Is(Json),
    /// A member of the result, or of the first element.
    Member(String, Json),
    /// A part of a member's text.
    Contains(String, String),
    /// The number of elements.
    Count(usize),
    /// The texts of all elements.
    Texts(Vec<String>),
    /// The first element's attribute.
    Attribute(String, Json),
    /// There is an element.
    Exists,
}

/// Members of an element that a check names.
const MEMBERS: [&str; 7] = [
    "text", "value", "checked", "selected", "disabled", "visible", "focused",
];

impl Check {
    /// A check that the page's address is this one.
    pub(crate) fn url(url: &str) -> Check {
        Check::page(Want::Member("url".to_owned(), Json::Text(url.to_owned())))
    }

    /// A check that the page's address contains a text.
    pub(crate) fn url_contains(part: &str) -> Check {
        Check::page(Want::Contains("url".to_owned(), part.to_owned()))
    }

    /// A check that a member of the first element is this text.
    pub(crate) fn element(selector: &str, member: &str, value: Json) -> Check {
        Check {
            query: "select".to_owned(),
            argument: selector.to_owned(),
            wants: vec![Want::Member(member.to_owned(), value)],
        }
    }

    fn page(want: Want) -> Check {
        Check {
            query: "page".to_owned(),
            argument: String::new(),
            wants: vec![want],
        }
    }

    pub(crate) fn parse(check: &Json) -> Result<Check, String> {
        if let Some(selector) = text(check, "select")? {
            return Check::parse_select(check, selector);
        }
        if let Some(url) = text(check, "url")? {
            return only(check, &["url"]).map(|()| Check::url(&url));
        }
        if let Some(part) = text(check, "url_contains")? {
            return only(check, &["url_contains"]).map(|()| Check::url_contains(&part));
        }
        if let Some(title) = text(check, "title")? {
            only(check, &["title"])?;
            return Ok(Check::page(Want::Member(
                "title".to_owned(),
                Json::Text(title),
            )));
        }
        for (kind, argument) in [
            ("storage", "storage"),
            ("variable", "variable"),
            ("query", "argument"),
        ] {
            let Some(name) = text(check, kind)? else {
                continue;
            };
            only(check, &[kind, argument, "is"])?;
            let is = check
                .get("is")
                .ok_or_else(|| format!("the check of `{kind}` has no `is`"))?;
            let is_query = kind == "query";
            return Ok(Check {
                argument: match is_query {
                    true => text(check, "argument")?.unwrap_or_default(),
                    false => name.clone(),
                },
                query: if is_query { name } else { kind.to_owned() },
                wants: vec![Want::Is(is.clone())],
            });
        }
        Err(
            "a check has none of `select`, `url`, `url_contains`, `title`, `storage`, `variable` and `query`"
                .to_owned(),
        )
    }

    fn parse_select(check: &Json, selector: String) -> Result<Check, String> {
        let mut wants = Vec::new();
        for (name, value) in check.members() {
            let wrong = |what: &str| format!("`{name}` of the check of `{selector}` is no {what}");
            wants.push(match name.as_str() {
                "select" => continue,
                name if MEMBERS.contains(&name) => Want::Member(name.to_owned(), value.clone()),
                "contains" => {
                    let part = value.text().ok_or_else(|| wrong("text"))?;
                    Want::Contains("text".to_owned(), part.to_owned())
                }
                "count" => match value.number() {
                    Some(count) if count >= 0.0 && count.fract() == 0.0 => {
                        Want::Count(count as usize)
                    }
                    _ => return Err(wrong("count")),
                },
                "texts" => {
                    let texts = value
                        .items()
                        .iter()
                        .map(|text| text.text().map(str::to_owned));
                    Want::Texts(
                        texts
                            .collect::<Option<_>>()
                            .ok_or_else(|| wrong("list of texts"))?,
                    )
                }
                "attributes" => {
                    let all = value.members().iter();
                    wants.extend(
                        all.map(|(name, value)| Want::Attribute(name.clone(), value.clone())),
                    );
                    continue;
                }
                _ => {
                    return Err(format!(
                        "the check of `{selector}` has the unknown member `{name}`"
                    ));
                }
            });
        }
        if wants.is_empty() {
            wants.push(Want::Exists);
        }
        Ok(Check {
            query: "select".to_owned(),
            argument: selector,
            wants,
        })
    }

    /// Why the check does not hold for a result of its query; none if it holds.
    pub(crate) fn failure(&self, result: &str) -> Option<String> {
        let Some(result) = task_json::parse(result) else {
            return Some(format!("{} {}: no JSON", self.query, self.argument));
        };
        let is_list = self.query == "select";
        let first = if is_list {
            result.items().first()
        } else {
            Some(&result)
        };
        self.wants
            .iter()
            .find_map(|want| want.failure(&result, first))
            .map(|why| format!("{} {}: {why}", self.query, self.argument).replace("  ", " "))
    }
}

impl Want {
    fn failure(&self, all: &Json, first: Option<&Json>) -> Option<String> {
        match self {
            Want::Is(wanted) => (all != wanted).then(|| format!("it is {}", brief(all))),
            Want::Count(wanted) => {
                let found = all.items().len();
                (found != *wanted).then(|| format!("{found} elements, not {wanted}"))
            }
            Want::Texts(wanted) => {
                let found = all.items().iter();
                let found = found.filter_map(|element| element.get("text")?.text());
                let found: Vec<&str> = found.collect();
                (found != *wanted).then(|| format!("the texts are {found:?}"))
            }
            Want::Exists | Want::Member(..) | Want::Contains(..) | Want::Attribute(..) => {
                match first {
                    Some(first) => self.failure_of(first),
                    None => Some("there is no such element".to_owned()),
                }
            }
        }
    }

    fn failure_of(&self, one: &Json) -> Option<String> {
        let differs = |name: &str, found: Option<&Json>, wanted: &Json| match found {
            Some(found) if same(found, wanted) => None,
            Some(found) => Some(format!("`{name}` is {}", brief(found))),
            None => Some(format!("there is no `{name}`")),
        };
        match self {
            Want::Member(name, wanted) => differs(name, one.get(name), wanted),
            Want::Attribute(name, wanted) => {
                let attributes = one.get("attributes");
                differs(name, attributes.and_then(|all| all.get(name)), wanted)
            }
            Want::Contains(name, part) => {
                let found = one.get(name).and_then(Json::text).unwrap_or_default();
                (!found.contains(part)).then(|| format!("`{name}` is {found:?}"))
            }
            Want::Is(_) | Want::Count(_) | Want::Texts(_) | Want::Exists => None,
        }
    }
}

/// Whether a value is the wanted one; a list of one text, such as the selected options, is its text.
fn same(found: &Json, wanted: &Json) -> bool {
    match (found, wanted) {
        (Json::Array(found), Json::Text(_)) => matches!(&found[..], [one] if one == wanted),
        _ => found == wanted,
    }
}

fn brief(value: &Json) -> String {
    let text = match value {
        Json::Text(text) => format!("{text:?}"),
        Json::Bool(value) => value.to_string(),
        Json::Number(value) => value.to_string(),
        Json::Null => "null".to_owned(),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(brief).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(_) => "an object".to_owned(),
    };
    text.chars().take(200).collect()
}

fn only(check: &Json, known: &[&str]) -> Result<(), String> {
    let unknown = check
        .members()
        .iter()
        .find(|(name, _)| !known.contains(&name.as_str()));
    match unknown {
        Some((name, _)) => Err(format!(
            "a check of `{}` has the unknown member `{name}`",
            known[0]
        )),
        None => Ok(()),
    }
}
