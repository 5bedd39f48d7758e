//! The payload of a task.
//!
//! - `pages`: the pages, as an object of paths (or whole addresses) and texts. The ending of the path decides the media type.
//! - `start`: the page that is shown first. Default `index.html`.
//! - `checks`: what must hold at the end, see `src/checks.rs`. `infeasible`: the task cannot be done; it has no checks.
//! - `form`: `tools` (default), `text`, where each reply is one action as a line, or `answer`, where the reply is typed into
//!   the focused field and ends the episode.
//! - `max_turns`: 1 to 100, default 30. `profile`: of the configuration, default `browser`.
//!
//! Rows of OSWorld have `config` and `evaluator` instead of `start` and `checks`, see `src/osworld.rs`.

use clawhost_sdk::display::Page;
use task_json::Json;
use task_machine::{files, text, turns};

use crate::checks::{Check, Goal};
use crate::osworld;

const DEFAULT_TURNS: u32 = 30;

/// How the policy acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// With calls of the tool `computer_use`.
    Tools,
    /// With one action as a line of text.
    Text,
    /// With a reply that is typed.
    Answer,
}

/// What a task consists of beside its instruction.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) profile: String,
    pub(crate) pages: Vec<Page>,
    pub(crate) start: String,
    pub(crate) goal: Goal,
    pub(crate) form: Form,
    pub(crate) max_turns: u32,
}

impl Work {
    pub(crate) fn parse(payload: &str) -> Result<Work, String> {
        let payload = task_json::parse(payload).ok_or("the payload is no JSON")?;
        let pages: Vec<Page> = files(&payload, "pages")?
            .into_iter()
            .map(|(url, text)| Page {
                media_type: media_type(&url).to_owned(),
                url,
                data: text.into_bytes(),
            })
            .collect();
        if pages.is_empty() {
            return Err("`pages` has no page, such as {\"index.html\": \"<h1>…\"}".to_owned());
        }
        let (start, goal) = match payload.get("evaluator") {
            Some(evaluator) => (osworld::start(&payload)?, osworld::goal(evaluator)?),
            None => (text(&payload, "start")?, own_goal(&payload)?),
        };
        let form = match text(&payload, "form")?.as_deref() {
            None | Some("tools") => Form::Tools,
            Some("text") => Form::Text,
            Some("answer") => Form::Answer,
            Some(_) => return Err("`form` is not `tools`, `text` or `answer`".to_owned()),
        };
        Ok(Work {
            profile: text(&payload, "profile")?.unwrap_or_else(|| "browser".to_owned()),
            start: start.unwrap_or_else(|| "index.html".to_owned()),
            pages,
            goal,
            form,
            max_turns: turns(&payload, DEFAULT_TURNS)?,
        })
    }
}

fn own_goal(payload: &Json) -> Result<Goal, String> {
    let checks = payload.get("checks").map_or(&[][..], Json::items);
    match payload.get("infeasible") {
        Some(Json::Bool(true)) if checks.is_empty() => return Ok(Goal::Infeasible),
        Some(Json::Bool(true)) => {
            return Err(
                "`checks` of an `infeasible` task are never checked: remove them".to_owned(),
            );
        }
        None | Some(Json::Bool(false)) => {}
        Some(_) => return Err("`infeasible` is not true or false".to_owned()),
    }
    if checks.is_empty() {
        return Err(
            "`checks` has no check, such as {\"select\": \"#total\", \"text\": \"42\"}".to_owned(),
        );
    }
    let checks = checks.iter().map(Check::parse).collect::<Result<_, _>>()?;
    Ok(Goal::Checks(checks))
}

fn media_type(path: &str) -> &'static str {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    match file.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "css" => "text/css",
        "js" | "mjs" => "text/javascript",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        _ => "text/html; charset=utf-8",
    }
}
