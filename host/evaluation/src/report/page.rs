//! The HTML page: a self-contained file.

use std::fmt::Write;

use crate::arms::ArmRecord;
use crate::conversation::{ConversationRecord, Ending};
use crate::demo::DemoOutcome;
use crate::plot::{Series, SvgOptions, escape, standalone, svg};

use super::about::{About, SMOOTHING};
use super::html::{page_header, reproduce, rows};
use super::text::{curves, table};

/// Renders the page. It loads nothing and runs no script, and all texts of models and personas are escaped.
pub fn page(outcome: &DemoOutcome, about: &About) -> String {
    let verdict = outcome.verdict();
    let headline = if verdict.has_learned() {
        "The model learned from its conversations"
    } else {
        "The model did not learn: a target was missed"
    };
    let mut out = page_header(headline);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<p>A scripted persona ({}) held {} conversations with a served model that was trained on them (<b class=\"s0\">trained</b>), and the same {} with one that was not (<b class=\"s1\">control</b>). The score is that of the first reply of each conversation, before any feedback; it is between 0 and 1 and is computed by fixed rules that no judge shares.</p>",
        escape(outcome.persona),
        outcome.options.conversations,
        outcome.options.conversations,
    );
    out.push_str(&figure(outcome));
    let _ = write!(
        out,
        "<h2>Figures</h2><pre>{}</pre>",
        escape(&table(outcome))
    );
    out.push_str(&side_by_side(outcome));
    out.push_str(&facts_section(outcome, about));
    out.push_str(&conversations(&outcome.trained, "s0"));
    out.push_str(&conversations(&outcome.control, "s1"));
    let _ = writeln!(
        out,
        "<h2>Machine-readable result</h2><pre>{}</pre></body></html>",
        escape(&outcome.json().to_string())
    );
    out
}

/// The learning curve as an SVG file of its own, readable on light and dark pages.
pub fn learning_curve(outcome: &DemoOutcome) -> String {
    standalone(&figure(outcome))
}

fn figure(outcome: &DemoOutcome) -> String {
    let points = [&outcome.trained, &outcome.control].map(|arm| Series {
        name: arm.name.clone(),
        values: arm.values(),
        dotted: false,
    });
    svg(
        &curves(outcome),
        &points,
        &SvgOptions {
            title: "Score of the first reply by conversation".into(),
            x_label: format!("conversation (line: moving average over {SMOOTHING})"),
            y_label: "score of the first reply".into(),
            ..SvgOptions::default()
        },
    )
}

/// The same prompts to both arms, early and late.
fn side_by_side(outcome: &DemoOutcome) -> String {
    let count = outcome.options.conversations;
    let mut indices: Vec<usize> = vec![0, 1];
    indices.extend(count.saturating_sub(3)..count);
    indices.retain(|at| *at < count);
    indices.dedup();
    let mut out = String::from(
        "<h2>First replies, side by side</h2><table><tr><th>Prompt</th><th class=\"s1\">control</th><th class=\"s0\">trained</th></tr>",
    );
    for index in indices {
        let first_of = |arm: &ArmRecord| {
            let at = arm.conversations.iter().find(|c| c.index == index);
            at.map(|c| (c.opening.clone(), first_reply(c)))
        };
        let Some((opening, trained)) = first_of(&outcome.trained) else {
            continue;
        };
        let control = first_of(&outcome.control).map_or_else(String::new, |(_, reply)| reply);
        let _ = write!(
            out,
            "<tr><td class=\"said\"><b>{}</b>\n{}</td><td class=\"said\">{control}</td><td class=\"said\">{trained}</td></tr>",
            index + 1,
            escape(&opening),
        );
    }
    out.push_str("</table>");
    out
}

fn first_reply(conversation: &ConversationRecord) -> String {
    match (conversation.replies.first(), conversation.first) {
        (Some(reply), Some(score)) => {
            format!(
                "{}\n<small>score {:.2}</small>",
                escape(&reply.text),
                score.value
            )
        }
        _ => "<small>no reply</small>".into(),
    }
}

fn facts_section(outcome: &DemoOutcome, about: &About) -> String {
    let mut out = String::from("<h2>Served model and reproduction</h2><table>");
    let mut facts = about.served.clone();
    facts.push(("training steps".into(), outcome.trained.steps.to_string()));
    facts.push((
        "adapters served, in order".into(),
        outcome.trained.adapters().join("\n"),
    ));
    facts.push(("seed".into(), outcome.options.seed.to_string()));
    facts.push((
        "first replies per conversation of the control arm".into(),
        format!(
            "{} (the frozen model does not change, so more samples only reduce the noise)",
            outcome.options.control_draws
        ),
    ));
    facts.push(("date".into(), about.date.clone()));
    out.push_str(&rows(&facts));
    out.push_str("</table>");
    out.push_str(&reproduce(about));
    out
}

fn conversations(arm: &ArmRecord, class: &str) -> String {
    let mut out = format!(
        "<h2>All conversations of the arm <span class=\"{class}\">{}</span></h2>",
        escape(&arm.name)
    );
    for conversation in &arm.conversations {
        let ending = match conversation.ending {
            Ending::Content => "satisfied",
            Ending::GaveUp => "gave up",
            Ending::Broken => "failed",
        };
        let score = conversation
            .value()
            .map_or_else(|| "no score".into(), |v| format!("{v:.2}"));
        let _ = write!(
            out,
            "<details><summary>{} · {score} · {} replies · {ending}</summary><pre>{}",
            conversation.index + 1,
            conversation.replies.len(),
            escape(&conversation.opening)
        );
        for (at, reply) in conversation.replies.iter().enumerate() {
            let adapter = reply.adapter.as_deref().unwrap_or("no adapter reported");
            let _ = write!(
                out,
                "\n\n<span class=\"{class}\">{}</span>\n<small>{} · first text {:.0} ms · {:.0} ms</small>",
                escape(&reply.text),
                escape(adapter),
                reply.first_token_ms,
                reply.total_ms
            );
            if let Some(reaction) = conversation.reactions.get(at) {
                let _ = write!(out, "\n\n{}", escape(reaction));
            }
        }
        for failure in &conversation.failures {
            let _ = write!(out, "\n\n<b>{}</b>", escape(failure));
        }
        out.push_str("</pre></details>");
    }
    out
}
