//! `GET /`: one page for the operator, made on the server, without scripts or anything from outside.
//!
//! What it shows was written by strangers (clients, models, plugins), so every text goes through
//! [`Text`], and the content security policy would stop what slipped through.

mod chart;
mod overview;

use std::fmt::{self, Write as _};
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use clawhost_journal::{StepRecord, VerdictOutcome, now_ms};
use serde_json::Value;

use self::overview::{Overview, ShownTurn};
use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::{recorded, versions};

const STYLE: &str = include_str!("style.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The operator page.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    caller.require(Scope::Operator)?;
    let overview = shared
        .ask(|shared| Overview::gather(&shared.journal).map_err(|error| recorded::refusal(&error)))
        .await?;
    let mut page = String::with_capacity(32 << 10);
    write(&mut page, &shared, &overview)
        .map_err(|_| ApiError::internal("page_failed", "the page could not be written"))?;
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Html(page)).into_response())
}

fn write(page: &mut String, shared: &Shared, seen: &Overview) -> fmt::Result {
    let served = shared.versions.active(&shared.engine);
    let name = Text(&shared.options.model_name);
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"10\">\
         <title>{name} · clawhost</title><style>{STYLE}</style></head><body>\
         <header><h1>{name}</h1><p>adapter <code>{}</code> · up {}</p>",
        Text(&versions::label(&served)),
        Since(now_ms() - shared.started_ms),
    )?;
    for fault in shared.status.faults() {
        write!(page, "<p class=\"bad\">{}</p>", Text(&fault.to_string()))?;
    }
    page.push_str("</header>");
    tiles(page, seen)?;
    let status = shared.status.status();
    if let Some(note) = status
        .pointer("/training/stale_note")
        .and_then(Value::as_str)
    {
        write!(page, "<p>{}</p>", Text(note))?;
    }
    section(page, "Reward of judged replies")?;
    chart::rewards(page, &seen.rewards)?;
    section(page, "Last replies")?;
    turns(page, &seen.turns)?;
    section(page, "Training steps")?;
    steps(page, &seen.steps)?;
    page.push_str("</body></html>");
    Ok(())
}

fn section(page: &mut String, title: &str) -> fmt::Result {
    write!(page, "<h2>{}</h2>", Text(title))
}

fn tiles(page: &mut String, seen: &Overview) -> fmt::Result {
    let counts = &seen.counts;
    page.push_str("<div class=\"tiles\">");
    let mut tile = |label: &str, value: u64, detail: String| {
        write!(
            page,
            "<div><b>{value}</b><span>{}</span><small>{}</small></div>",
            Text(label),
            Text(&detail)
        )
    };
    tile("sessions", counts.sessions, String::new())?;
    tile("turns", counts.turns.values().sum(), tally(&counts.turns))?;
    tile(
        "verdicts",
        counts.verdicts,
        match counts.no_verdict.values().sum::<u64>() {
            0 => String::new(),
            none => format!("no verdict {none}"),
        },
    )?;
    tile("feedback", counts.feedback, String::new())?;
    tile(
        "samples",
        counts.samples.values().sum(),
        tally(&counts.samples),
    )?;
    tile("steps", counts.steps.values().sum(), tally(&counts.steps))?;
    tile("adapters", counts.adapters, String::new())?;
    page.push_str("</div>");
    Ok(())
}

fn tally<K: fmt::Display>(counts: &std::collections::BTreeMap<K, u64>) -> String {
    let parts: Vec<String> = counts
        .iter()
        .map(|(word, count)| format!("{word} {count}"))
        .collect();
    parts.join(", ")
}

fn turns(page: &mut String, turns: &[ShownTurn]) -> fmt::Result {
    if turns.is_empty() {
        page.push_str("<p>Nothing yet.</p>");
        return Ok(());
    }
    page.push_str(
        "<table><tr><th>turn<th>when<th>session<th>asked<th>replied<th>state<th>verdicts<th>adapter</tr>",
    );
    let now = now_ms();
    for shown in turns {
        let turn = &shown.turn;
        write!(
            page,
            "<tr><td><a href=\"/v1/turns/{id}/explain\">{id}</a><td>{} ago<td><code>{}</code><td>{}<td>{}<td>{}",
            Since(now - turn.received_ms),
            Text(&shorten(&turn.session.0, 24)),
            Text(&shorten(&shown.asked, 120)),
            Text(&shorten(&shown.replied, 160)),
            turn.state,
            id = turn.id,
        )?;
        if let Some(reason) = &turn.reason {
            write!(page, "<br><small>{}</small>", Text(&shorten(reason, 80)))?;
        }
        page.push_str("<td>");
        for verdict in &shown.verdicts {
            let source = Text(&verdict.source);
            match &verdict.outcome {
                VerdictOutcome::Verdict { reward, .. } => {
                    let class = if *reward > 0.0 {
                        "good"
                    } else if *reward < 0.0 {
                        "bad"
                    } else {
                        "none"
                    };
                    write!(
                        page,
                        "<span class=\"{class}\">{reward:+.2}</span> {source}<br>"
                    )?;
                }
                VerdictOutcome::None { reason } => {
                    let reason = shorten(reason, 60);
                    write!(
                        page,
                        "<span class=\"none\">none: {}</span> {source}<br>",
                        Text(&reason)
                    )?;
                }
            }
        }
        if shown.verdicts.is_empty() {
            write!(page, "<span class=\"none\">{}</span>", turn.judging)?;
        }
        write!(page, "<td>{}</tr>", turn.adapter_version)?;
    }
    page.push_str("</table>");
    Ok(())
}

fn steps(page: &mut String, steps: &[StepRecord]) -> fmt::Result {
    if steps.is_empty() {
        page.push_str("<p>None yet.</p>");
        return Ok(());
    }
    page.push_str(
        "<table><tr><th>step<th>when<th>took<th>outcome<th>trained<th>dropped<th>adapter<th>metrics</tr>",
    );
    let now = now_ms();
    for step in steps {
        write!(
            page,
            "<tr><td>{}<td>{} ago<td>{:.1} s<td>{}",
            step.id,
            Since(now - step.ended_ms),
            (step.ended_ms - step.started_ms) as f64 / 1000.0,
            step.outcome,
        )?;
        if let Some(reason) = &step.reason {
            write!(page, "<br><small>{}</small>", Text(&shorten(reason, 120)))?;
        }
        let adapter = step
            .adapter
            .map_or_else(|| "–".to_owned(), |version| version.to_string());
        write!(
            page,
            "<td>{}<td>{}<td>{adapter}<td><small>{}</small></tr>",
            step.trained_count,
            step.dropped_count,
            Text(&numbers(&step.metrics)),
        )?;
    }
    page.push_str("</table>");
    Ok(())
}

/// The numbers of a step in one line.
fn numbers(metrics: &serde_json::Value) -> String {
    let Some(metrics) = metrics.as_object() else {
        return String::new();
    };
    let parts: Vec<String> = metrics
        .iter()
        .filter_map(|(name, value)| Some(format!("{name} {}", brief(value.as_f64()?))))
        .take(12)
        .collect();
    parts.join(" · ")
}

fn brief(number: f64) -> String {
    if number == number.trunc() && number.abs() < 1e6 {
        format!("{number}")
    } else if (0.001..1e6).contains(&number.abs()) {
        format!("{number:.4}")
    } else {
        format!("{number:.2e}")
    }
}

/// The first `limit` characters in one line.
fn shorten(text: &str, limit: usize) -> String {
    let mut short: String = text
        .chars()
        .take(limit)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(limit).is_some() {
        short.push('…');
    }
    short
}

/// Text inside HTML, in elements and in quoted attributes.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A span of milliseconds as a person says it.
struct Since(i64);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.max(0) / 1000;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3600 => write!(f, "{} min", seconds / 60),
            3600..86_400 => write!(f, "{} h", seconds / 3600),
            _ => write!(f, "{} d", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let text = Text("<script>'\"&</script>").to_string();
        assert_eq!(text, "&lt;script&gt;&#39;&quot;&amp;&lt;/script&gt;");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(shorten("añb\nc", 4), "añb …");
        assert_eq!(shorten("añb", 3), "añb");
    }

    #[test]
    fn spans_are_read_by_people() {
        for (ms, text) in [
            (-5, "0 s"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 d"),
        ] {
            assert_eq!(Since(ms).to_string(), text);
        }
    }

    #[test]
    fn only_numbers_of_a_step_are_shown() {
        let metrics =
            serde_json::json!({"kl": 0.00012, "tokens": 512, "note": "<b>", "loss": -1.25});
        assert_eq!(numbers(&metrics), "kl 1.20e-4 · tokens 512 · loss -1.2500");
    }
}
