//! `GET /`: the operator page, rendered on the server, without scripts or external resources.
//!
//! The page shows untrusted text (of clients, models and plugins). All text is escaped with [`HtmlText`]; the content
//! security policy is a second line of defence.

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

use self::overview::{Overview, TurnRow};
use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::{journal_error, versions};

const STYLE: &str = include_str!("style.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Renders the operator page.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    caller.require(Scope::Operator)?;
    let overview = shared
        .run_blocking(|shared| {
            Overview::load(&shared.journal).map_err(|error| journal_error::from_journal(&error))
        })
        .await?;
    let mut page = String::with_capacity(32 << 10);
    write(&mut page, &shared, &overview)
        .map_err(|_| ApiError::internal("page_failed", "the page could not be rendered"))?;
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Html(page)).into_response())
}

fn write(page: &mut String, shared: &Shared, overview: &Overview) -> fmt::Result {
    let served = shared.versions.active(&shared.engine);
    let name = HtmlText(&shared.options.model_name);
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"10\">\
         <title>{name} · clawhost</title><style>{STYLE}</style></head><body>\
         <header><h1>{name}</h1><p>adapter <code>{}</code> · up {}</p>",
        HtmlText(&versions::label(&served)),
        Elapsed(now_ms() - shared.started_ms),
    )?;
    for error in shared.control.health_errors() {
        write!(
            page,
            "<p class=\"bad\">{}</p>",
            HtmlText(&error.to_string())
        )?;
    }
    page.push_str("</header>");
    tiles(page, overview)?;
    let status = shared.control.status();
    if let Some(note) = status
        .pointer("/training/stale_note")
        .and_then(Value::as_str)
    {
        write!(page, "<p>{}</p>", HtmlText(note))?;
    }
    section(page, "Rewards of judged replies")?;
    chart::rewards(page, &overview.rewards)?;
    section(page, "Last replies")?;
    turns(page, &overview.turns)?;
    section(page, "Training steps")?;
    steps(page, &overview.steps)?;
    page.push_str("</body></html>");
    Ok(())
}

fn section(page: &mut String, title: &str) -> fmt::Result {
    write!(page, "<h2>{}</h2>", HtmlText(title))
}

fn tiles(page: &mut String, overview: &Overview) -> fmt::Result {
    let counts = &overview.counts;
    page.push_str("<div class=\"tiles\">");
    let mut tile = |label: &str, value: u64, detail: String| {
        write!(
            page,
            "<div><b>{value}</b><span>{}</span><small>{}</small></div>",
            HtmlText(label),
            HtmlText(&detail)
        )
    };
    tile("sessions", counts.sessions, String::new())?;
    tile(
        "turns",
        counts.turns.values().sum(),
        format_counts(&counts.turns),
    )?;
    tile(
        "verdicts",
        counts.verdicts,
        match counts.no_verdict.values().sum::<u64>() {
            0 => String::new(),
            none => format!("no verdict: {none}"),
        },
    )?;
    tile("feedback", counts.feedback, String::new())?;
    tile(
        "samples",
        counts.samples.values().sum(),
        format_counts(&counts.samples),
    )?;
    tile(
        "steps",
        counts.steps.values().sum(),
        format_counts(&counts.steps),
    )?;
    tile("adapters", counts.adapters, String::new())?;
    page.push_str("</div>");
    Ok(())
}

fn format_counts<K: fmt::Display>(counts: &std::collections::BTreeMap<K, u64>) -> String {
    let parts: Vec<String> = counts
        .iter()
        .map(|(word, count)| format!("{word} {count}"))
        .collect();
    parts.join(", ")
}

fn turns(page: &mut String, turns: &[TurnRow]) -> fmt::Result {
    if turns.is_empty() {
        page.push_str("<p>No replies yet.</p>");
        return Ok(());
    }
    page.push_str(
        "<table><tr><th>turn<th>when<th>session<th>prompt<th>reply<th>state<th>verdicts<th>adapter</tr>",
    );
    let now = now_ms();
    for row in turns {
        let turn = &row.turn;
        write!(
            page,
            "<tr><td><a href=\"/v1/turns/{id}/explain\">{id}</a><td>{} ago<td><code>{}</code><td>{}<td>{}<td>{}",
            Elapsed(now - turn.received_ms),
            HtmlText(&shorten(&turn.session.0, 24)),
            HtmlText(&shorten(&row.prompt, 120)),
            HtmlText(&shorten(&row.reply, 160)),
            turn.state,
            id = turn.id,
        )?;
        if let Some(reason) = &turn.reason {
            write!(
                page,
                "<br><small>{}</small>",
                HtmlText(&shorten(reason, 80))
            )?;
        }
        page.push_str("<td>");
        for verdict in &row.verdicts {
            let source = HtmlText(&verdict.source);
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
                        HtmlText(&reason)
                    )?;
                }
            }
        }
        if row.verdicts.is_empty() {
            write!(page, "<span class=\"none\">{}</span>", turn.judging)?;
        }
        write!(page, "<td>{}</tr>", turn.adapter_version)?;
    }
    page.push_str("</table>");
    Ok(())
}

fn steps(page: &mut String, steps: &[StepRecord]) -> fmt::Result {
    if steps.is_empty() {
        page.push_str("<p>No training steps yet.</p>");
        return Ok(());
    }
    page.push_str(
        "<table><tr><th>step<th>when<th>duration<th>outcome<th>trained<th>dropped<th>adapter<th>metrics</tr>",
    );
    let now = now_ms();
    for step in steps {
        write!(
            page,
            "<tr><td>{}<td>{} ago<td>{:.1} s<td>{}",
            step.id,
            Elapsed(now - step.ended_ms),
            (step.ended_ms - step.started_ms) as f64 / 1000.0,
            step.outcome,
        )?;
        if let Some(reason) = &step.reason {
            write!(
                page,
                "<br><small>{}</small>",
                HtmlText(&shorten(reason, 120))
            )?;
        }
        let adapter = step
            .adapter
            .map_or_else(|| "–".to_owned(), |version| version.to_string());
        write!(
            page,
            "<td>{}<td>{}<td>{adapter}<td><small>{}</small></tr>",
            step.trained_count,
            step.dropped_count,
            HtmlText(&format_metrics(&step.metrics)),
        )?;
    }
    page.push_str("</table>");
    Ok(())
}

/// The numeric metrics of a step in one line.
fn format_metrics(metrics: &serde_json::Value) -> String {
    let Some(metrics) = metrics.as_object() else {
        return String::new();
    };
    let parts: Vec<String> = metrics
        .iter()
        .filter_map(|(name, value)| Some(format!("{name} {}", format_number(value.as_f64()?))))
        .take(12)
        .collect();
    parts.join(" · ")
}

fn format_number(number: f64) -> String {
    if number == number.trunc() && number.abs() < 1e6 {
        format!("{number}")
    } else if (0.001..1e6).contains(&number.abs()) {
        format!("{number:.4}")
    } else {
        format!("{number:.2e}")
    }
}

/// The first `limit` characters, in one line.
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

/// Escapes text for HTML elements and quoted attributes.
struct HtmlText<'a>(&'a str);

impl fmt::Display for HtmlText<'_> {
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

/// A duration in milliseconds, formatted with its largest unit.
struct Elapsed(i64);

impl fmt::Display for Elapsed {
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
    fn html_text_is_escaped() {
        let text = HtmlText("<script>'\"&</script>").to_string();
        assert_eq!(text, "&lt;script&gt;&#39;&quot;&amp;&lt;/script&gt;");
    }

    #[test]
    fn long_text_is_truncated_between_characters() {
        assert_eq!(shorten("añb\nc", 4), "añb …");
        assert_eq!(shorten("añb", 3), "añb");
    }

    #[test]
    fn durations_are_formatted_with_the_largest_unit() {
        for (ms, text) in [
            (-5, "0 s"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 d"),
        ] {
            assert_eq!(Elapsed(ms).to_string(), text);
        }
    }

    #[test]
    fn only_numeric_metrics_are_shown() {
        let metrics =
            serde_json::json!({"kl": 0.00012, "tokens": 512, "note": "<b>", "loss": -1.25});
        assert_eq!(
            format_metrics(&metrics),
            "kl 1.20e-4 · tokens 512 · loss -1.2500"
        );
    }
}
