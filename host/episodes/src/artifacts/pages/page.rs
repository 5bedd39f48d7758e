//! The page of one episode: its dialogue with the screenshots where they came, its verdict, its report and its metrics.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clawhost_evaluation::escape;
use clawhost_plugins::{Message, Part, Role};
use serde::Deserialize;

use super::super::entry::{Entry, State};
use super::super::episode::Line;
use super::super::files::{Ends, INDEX, OUTCOME, REPORT, TRANSCRIPT, read_ends};
use super::super::images;
use super::REFRESH_SECONDS;
use super::html::{document, time};
use super::overview::{Columns, state};

/// Bytes of a transcript and of a report on a page.
const MAX_BYTES: u64 = 4 << 20;
/// Messages on a page.
const MAX_MESSAGES: usize = 2000;
/// Screenshots that no message names.
const MAX_SCREENSHOTS: usize = 1000;
/// Characters and lines above which a text is collapsed.
const LONG: (usize, usize) = (1500, 25);

/// Renders the page of the episode in `dir`. `up`: the path from there to the root. `now_ms`: unix milliseconds.
pub(super) fn render(dir: &Path, up: &str, entry: &Entry, now_ms: i64) -> String {
    let mut body = format!(
        "<nav><a href=\"{up}{INDEX}\">All episodes</a></nav>\n<h1>{}</h1>\n{}",
        escape(&entry.id),
        summary(entry, now_ms)
    );
    let mut shown = BTreeSet::new();
    body += "<h2>Dialogue</h2>\n";
    body += &dialogue(&read(dir, TRANSCRIPT), &mut shown);
    body += &further_screenshots(dir, &shown);
    body += &report(&read(dir, REPORT));
    body += &metrics(&entry.state);
    body += "<h2>Files</h2>\n<ul>\n";
    for name in [TRANSCRIPT, OUTCOME, REPORT] {
        if dir.join(name).exists() {
            // Writing to a string cannot fail.
            let _ = writeln!(body, "<li><a href=\"{name}\">{name}</a></li>");
        }
    }
    body += "</ul>\n";
    let refresh = entry.state.is_running().then_some(REFRESH_SECONDS);
    document(&entry.id, refresh, &body)
}

/// What can be read of a file; nothing if it does not exist yet.
fn read(dir: &Path, name: &str) -> Ends {
    read_ends(&dir.join(name), MAX_BYTES).unwrap_or_default()
}

fn summary(entry: &Entry, now_ms: i64) -> String {
    let Columns {
        reward,
        steps,
        duration,
    } = Columns::of(entry, now_ms);
    format!(
        "<dl><dt>Task</dt><dd>{}</dd><dt>State</dt><dd>{}</dd><dt>Reward</dt><dd>{reward}</dd>\
        <dt>Steps</dt><dd>{steps}</dd><dt>Duration</dt><dd>{duration}</dd><dt>Started</dt><dd>{}</dd></dl>\n",
        escape(&entry.task),
        state(&entry.state, usize::MAX),
        time(entry.started_ms),
    )
}

/// The messages of a transcript. A line that is not a message is counted and left out: the last one may be incomplete.
fn dialogue(transcript: &Ends, shown: &mut BTreeSet<String>) -> String {
    let mut out = String::new();
    let (mut messages, mut unread) = (0, 0);
    for (omitted, part) in [
        (0, &transcript.head),
        (transcript.omitted, &transcript.tail),
    ] {
        if omitted > 0 {
            out += &note(&format!(
                "{omitted} bytes of {TRANSCRIPT} are left out here."
            ));
        }
        for line in part.lines().filter(|line| !line.trim().is_empty()) {
            let Ok(line) = serde_json::from_str::<Line>(line) else {
                unread += 1;
                continue;
            };
            if messages == MAX_MESSAGES {
                return out
                    + &note(&format!(
                        "{MAX_MESSAGES} messages are shown; {TRANSCRIPT} has more."
                    ));
            }
            messages += 1;
            for name in &line.screenshots {
                if images::is_name(name) && shown.insert(name.clone()) {
                    out += &figure(name, "Screenshot");
                }
            }
            out += &message_html(&line.message);
        }
    }
    match (messages, unread) {
        (0, 0) => out += "<p>There is no message yet.</p>\n",
        (_, 0) => {}
        (_, unread) => out += &note(&format!("Lines that are not messages: {unread}.")),
    }
    out
}

fn message_html(message: &Message) -> String {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut title = role.to_owned();
    for (word, text) in [("", &message.name), ("answers ", &message.tool_call_id)] {
        if let Some(text) = text {
            let _ = write!(title, " · {word}{}", escape(text));
        }
    }
    let mut out = format!("<section class=\"{role}\">\n<h3>{title}</h3>\n");
    for part in &message.content {
        out += &match part {
            Part::Text(text) => collapsed(text),
            Part::Reasoning(text) => details("reasoning", text),
            Part::Image(image) => note(&format!("An image of {} bytes.", image.data.len())),
            Part::Other(kind, text) => other(kind, text),
        };
    }
    for call in &message.tool_calls {
        let (name, id) = (escape(&call.name), escape(&call.id));
        let _ = writeln!(out, "<p>calls <code>{name}</code> ({id})</p>");
        out += &collapsed(&call.arguments);
    }
    out + "</section>\n"
}

/// A part of another kind, such as an image that was kept.
fn other(kind: &str, text: &str) -> String {
    #[derive(Deserialize)]
    struct Kept {
        file: String,
    }
    match serde_json::from_str::<Kept>(text) {
        Ok(kept) if images::is_name(&kept.file) => figure(&kept.file, "Image"),
        _ => details(kind, text),
    }
}

fn figure(name: &str, what: &str) -> String {
    let number = name.split_once('.').map_or(name, |(stem, _)| stem);
    let number = number.trim_start_matches(images::SCREENSHOT);
    format!(
        "<figure><a href=\"{name}\"><img src=\"{name}\" loading=\"lazy\" alt=\"{what} {number}\"></a><figcaption>{what} {number}</figcaption></figure>\n"
    )
}

/// Screenshots that no message follows, such as those of the grade, and those of earlier versions.
fn further_screenshots(dir: &Path, shown: &BTreeSet<String>) -> String {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with(images::SCREENSHOT))
        .filter(|name| images::is_name(name) && !shown.contains(name))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    // The numbers have three digits at least.
    names.sort_by_key(|name| (name.len(), name.clone()));
    names.truncate(MAX_SCREENSHOTS);
    let figures = names.iter().map(|name| figure(name, "Screenshot"));
    format!(
        "<h2>Further screenshots</h2>\n{}",
        figures.collect::<String>()
    )
}

/// The report; if it is a patch, with marked lines.
fn report(report: &Ends) -> String {
    if report.head.is_empty() {
        return String::new();
    }
    let mut text = report.head.clone();
    if report.omitted > 0 {
        let _ = write!(text, "\n[{} bytes are left out]\n", report.omitted);
        text += &report.tail;
    }
    let patch = text
        .lines()
        .any(|line| line.starts_with("@@ ") || line.starts_with("diff --git "));
    let mut out = "<h2>Report</h2>\n<pre>".to_owned();
    for line in text.lines() {
        let class = match line.as_bytes() {
            _ if !patch => None,
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => None,
            [b'+', ..] => Some("add"),
            [b'-', ..] => Some("del"),
            [b'@', b'@', ..] => Some("hunk"),
            _ => None,
        };
        let line = escape(line);
        let _ = match class {
            Some(class) => writeln!(out, "<span class=\"{class}\">{line}</span>"),
            None => writeln!(out, "{line}"),
        };
    }
    out + "</pre>\n"
}

fn metrics(state: &State) -> String {
    let State::Finished(verdict) = state else {
        return String::new();
    };
    if verdict.metrics.is_empty() {
        return String::new();
    }
    let mut out = "<h2>Metrics</h2>\n<table><thead><tr><th scope=\"col\">Metric</th><th scope=\"col\">Value</th></tr></thead>\n<tbody>\n".to_owned();
    for (name, value) in &verdict.metrics {
        let name = escape(name);
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>"
        );
    }
    out + "</tbody></table>\n"
}

/// A text; a long one is collapsed to its first line.
fn collapsed(text: &str) -> String {
    let (characters, lines) = LONG;
    if text.chars().nth(characters).is_none() && text.lines().nth(lines).is_none() {
        return format!("<pre>{}</pre>\n", escape(text));
    }
    let first = text.lines().find(|line| !line.trim().is_empty());
    let first: String = first.unwrap_or_default().chars().take(100).collect();
    details(&format!("{first} …"), text)
}

fn details(summary: &str, text: &str) -> String {
    format!(
        "<details><summary>{} ({} characters)</summary><pre>{}</pre></details>\n",
        escape(summary),
        text.chars().count(),
        escape(text)
    )
}

fn note(text: &str) -> String {
    format!("<p><em>{}</em></p>\n", escape(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::entry::Verdict;
    use super::*;

    const HOSTILE: &str = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>";

    /// The page of an episode with these files.
    fn page(files: &[(&str, &str)], state: State) -> String {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let entry = Entry {
            id: HOSTILE.to_owned(),
            task: HOSTILE.to_owned(),
            started_ms: 0,
            state,
        };
        render(dir.path(), "../../", &entry, 5000)
    }

    fn verdict(metrics: Vec<(String, f64)>) -> State {
        State::Finished(Verdict {
            reward: 1.0,
            solved: true,
            steps: 1,
            seconds: None,
            metrics,
        })
    }

    fn transcript(messages: &[Message]) -> String {
        let lines = messages
            .iter()
            .map(|message| serde_json::to_string(message).unwrap());
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn everything_from_outside_is_escaped() {
        let mut message = Message::text(Role::Assistant, HOSTILE);
        message.content.push(Part::Reasoning(HOSTILE.to_owned()));
        let kept = json!({"file": "\"><script>.png"}).to_string();
        for (kind, text) in [(HOSTILE, HOSTILE), ("image/png", kept.as_str())] {
            message
                .content
                .push(Part::Other(kind.to_owned(), text.to_owned()));
        }
        message.push_call(HOSTILE, HOSTILE, HOSTILE);
        message.name = Some(HOSTILE.to_owned());
        message.tool_call_id = Some(HOSTILE.to_owned());
        let long = Message::text(Role::Tool, HOSTILE.repeat(100));
        let report = format!("@@ -1 +1 @@ {HOSTILE}\n+{HOSTILE}\n-{HOSTILE}\n{HOSTILE}");
        let files = [
            (TRANSCRIPT, &*transcript(&[message, long])),
            (REPORT, &report),
        ];
        let page = page(&files, verdict(vec![(HOSTILE.to_owned(), 1.0)]));
        assert!(
            !page.contains("<script") && !page.contains("<img"),
            "{page}"
        );
        assert!(page.matches("&lt;script&gt;alert(1)").count() > 110);
    }

    #[test]
    fn the_dialogue_has_its_calls_and_screenshots_in_order() {
        let mut call = Message::text(Role::Assistant, "I click.");
        call.push_call("c1", "computer_use", "{\"mark\": 2}");
        let seen = json!({"role": "tool", "tool_call_id": "c1", "content": [{"text": "a page"}, {"other": ["image/png", "{\"file\":\"0001.png\"}"]}],
            "screenshots": ["screenshot-001.png", "../../secret.png"]});
        let text = format!("{}\n{seen}\nno message", transcript(&[call]));
        let files = [
            (TRANSCRIPT, text.as_str()),
            ("screenshot-001.png", ""),
            ("screenshot-002.png", ""),
        ];
        let page = page(&files, State::Running { steps: Some(1) });
        let order: Vec<usize> = [
            "I click.",
            "<code>computer_use</code> (c1)",
            "{&quot;mark&quot;: 2}",
            "<img src=\"screenshot-001.png\" loading=\"lazy\" alt=\"Screenshot 001\">",
            "<h3>tool · answers c1</h3>",
            "a page",
            "<img src=\"0001.png\"",
            "Lines that are not messages: 1",
            "Further screenshots",
            "screenshot-002.png",
        ]
        .iter()
        .map(|part| page.find(part).unwrap_or_else(|| panic!("{part}: {page}")))
        .collect();
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!(page.matches("<img").count(), 3);
        assert!(!page.contains("secret"));
        assert!(
            page.contains("href=\"../../index.html\"") && page.contains("http-equiv=\"refresh\"")
        );
    }

    #[test]
    fn a_patch_is_marked_and_a_list_is_not() {
        let patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n same\n";
        let marked = page(
            &[(REPORT, patch)],
            verdict(vec![("checks".to_owned(), 2.5)]),
        );
        assert!(
            marked.contains(
                "<span class=\"del\">-old</span>\n<span class=\"add\">+new</span>\n same\n"
            )
        );
        assert!(marked.contains("\n--- a/x\n+++ b/x\n<span class=\"hunk\">"));
        assert!(marked.contains("checks</th><td>2.5</td>") && !marked.contains("refresh"));
        let list = page(&[(REPORT, "- one\n+ two\n")], State::Interrupted);
        assert!(list.contains("<pre>- one\n+ two\n</pre>"));
    }

    #[test]
    fn long_texts_are_collapsed_and_pages_are_bounded() {
        let short = Message::text(Role::User, "short");
        let long = Message::text(Role::Tool, format!("first\n{}", "x".repeat(2000)));
        let text = transcript(&[short, long]);
        let collapsed = page(&[(TRANSCRIPT, &text)], State::Interrupted);
        assert!(collapsed.contains("<pre>short</pre>"));
        assert!(collapsed.contains("<summary>first … (2006 characters)</summary>"));
        let huge = Message::text(Role::Tool, "y".repeat(1 << 20));
        let huge: Vec<Message> = std::iter::repeat_n(huge, 9).collect();
        let page = page(&[(TRANSCRIPT, &transcript(&huge))], State::Interrupted);
        assert!(page.len() < 5 << 20 && page.contains("are left out here"));
    }
}
