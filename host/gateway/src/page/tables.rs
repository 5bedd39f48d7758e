//! The tables of the operator page: last replies and training steps. Each cell has the name of its column as `data-label`,
//! which a narrow screen shows instead of the head.

use std::fmt::{self, Write as _};

use clawhost_journal::{AdapterOwner, now_ms};

use super::html::{Elapsed, HtmlText, format_number};
use clawhost_inspect::{StepRow, TurnRow};

/// Steps in the table; the plots show more.
const STEPS: usize = 20;

/// Writes the last replies, newest first.
pub(super) fn turns(page: &mut String, turns: &[TurnRow]) -> fmt::Result {
    if turns.is_empty() {
        page.push_str("<p class=\"none\">No replies yet.</p>");
        return Ok(());
    }
    head(
        page,
        "turns",
        &[
            "turn", "when", "session", "prompt", "reply", "state", "verdicts", "adapter",
        ],
    );
    let now = now_ms();
    for turn in turns {
        write!(
            page,
            "<tr><td data-label=\"turn\"><a href=\"/v1/turns/{id}/explain\">{id}</a>\
             <td data-label=\"when\">{} ago<td data-label=\"session\" class=\"id\">{}\
             <td data-label=\"prompt\" class=\"text\"><div class=\"clamp\">{}</div>\
             <td data-label=\"reply\" class=\"text\"><div class=\"clamp\">{}</div>\
             <td data-label=\"state\">{}",
            Elapsed(now - turn.received_ms),
            HtmlText(&turn.session),
            HtmlText(&turn.text.prompt),
            HtmlText(&turn.text.reply),
            turn.state,
            id = turn.id,
        )?;
        small(page, turn.text.reason.as_deref())?;
        page.push_str("<td data-label=\"verdicts\" class=\"wrap\">");
        for verdict in &turn.verdicts {
            match verdict.reward {
                Some(reward) => {
                    let class = if reward > 0.0 {
                        "good"
                    } else if reward < 0.0 {
                        "bad"
                    } else {
                        "none"
                    };
                    write!(page, "<div><span class=\"{class}\">{reward:+.2}</span> ")?;
                }
                None => write!(
                    page,
                    "<div><span class=\"none\">none: {}</span> ",
                    HtmlText(verdict.reason.as_deref().unwrap_or(""))
                )?,
            }
            write!(page, "{}</div>", HtmlText(&verdict.source))?;
        }
        if turn.verdicts.is_empty() {
            write!(page, "<span class=\"none\">{}</span>", turn.judging)?;
        }
        write!(
            page,
            "<td data-label=\"adapter\">{}</tr>",
            turn.text.adapter_version
        )?;
    }
    page.push_str("</tbody></table>");
    Ok(())
}

/// Writes the last training steps, newest first.
pub(super) fn steps(page: &mut String, steps: &[StepRow]) -> fmt::Result {
    if steps.is_empty() {
        page.push_str("<p class=\"none\">No training steps yet.</p>");
        return Ok(());
    }
    head(
        page,
        "steps",
        &[
            "step",
            "when",
            "duration",
            "outcome",
            "trained",
            "dropped",
            "adapter",
            "reward",
            "KL",
            "loss",
            "gradient norm",
        ],
    );
    let now = now_ms();
    for step in steps.iter().rev().take(STEPS) {
        write!(
            page,
            "<tr><td data-label=\"step\">{}<td data-label=\"when\">{} ago<td data-label=\"duration\">{:.1} s\
             <td data-label=\"outcome\" class=\"wrap\">{}",
            step.id,
            Elapsed(now - step.ended_ms),
            (step.ended_ms - step.started_ms) as f64 / 1000.0,
            HtmlText(&step.outcome),
        )?;
        small(page, step.reason.as_deref())?;
        write!(
            page,
            "<td data-label=\"trained\">{}<td data-label=\"dropped\">{}<td data-label=\"adapter\">{}",
            step.trained,
            step.dropped,
            step.adapter
                .map_or_else(|| "–".to_owned(), |version| version.to_string()),
        )?;
        small(page, step.owner.as_ref().map(AdapterOwner::as_str))?;
        for (name, value) in [
            ("reward", step.reward_mean),
            ("KL", step.kl_reference),
            ("loss", step.loss_last),
            ("gradient norm", step.gradient_norm),
        ] {
            let value = value.map_or_else(|| "–".to_owned(), format_number);
            write!(page, "<td data-label=\"{name}\">{value}")?;
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table>");
    Ok(())
}

fn head(page: &mut String, class: &str, columns: &[&str]) {
    page.push_str("<table class=\"");
    page.push_str(class);
    page.push_str("\"><thead><tr>");
    for column in columns {
        page.push_str("<th>");
        page.push_str(column);
    }
    page.push_str("</tr></thead><tbody>");
}

fn small(page: &mut String, text: Option<&str>) -> fmt::Result {
    match text {
        Some(text) => write!(page, "<small>{}</small>", HtmlText(text)),
        None => Ok(()),
    }
}
