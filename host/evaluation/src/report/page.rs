//! The page: one file with everything in it, for a browser without a network.

use std::fmt::Write;

use crate::arms::ArmRecord;
use crate::conversation::{ConversationRecord, Ending};
use crate::demo::DemoOutcome;
use crate::plot::{Series, SvgOptions, escape, svg};

use super::sheet::{opening, reproduce, rows};
use super::text::{curves, table};
use super::{About, SMOOTHING};

/// The whole page. It loads nothing and runs no script, and every text of a model or a person in it
/// is escaped.
pub fn page(outcome: &DemoOutcome, about: &About) -> String {
    let verdict = outcome.verdict();
    let headline = if verdict.learned() {
        "It learned while it served"
    } else {
        "It did not learn as promised"
    };
    let mut out = opening(headline);
    // Writing to a string cannot fail, so the results here carry nothing.
    let _ = write!(
        out,
        "<p>A scripted {} held {} conversations with a served model that was trained by them as they went (<b class=\"s0\">trained</b>), and the same {} with one that was not (<b class=\"s1\">control</b>). Counted is the first reply of each conversation, before the {} has said what is wrong with it; its score is between 0 and 1 and is computed by fixed rules that no judge shares.</p>",
        escape(outcome.persona),
        outcome.options.conversations,
        outcome.options.conversations,
        escape(outcome.persona),
    );
    out.push_str(&figure(outcome));
    let _ = write!(
        out,
        "<h2>Figures</h2><pre>{}</pre>",
        escape(&table(outcome))
    );
    out.push_str(&samples(outcome));
    out.push_str(&served(outcome, about));
    out.push_str(&conversations(&outcome.trained, "s0"));
    out.push_str(&conversations(&outcome.control, "s1"));
    let _ = writeln!(
        out,
        "<h2>The result for a program</h2><pre>{}</pre></body></html>",
        escape(&outcome.json().to_string())
    );
    out
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
            title: "Score of the first reply against the number of the conversation".into(),
            x_label: format!("conversation (line: mean of the {SMOOTHING} around it)"),
            y_label: "score of the first reply".into(),
            ..SvgOptions::default()
        },
    )
}

/// The same questions to both arms, early and late.
fn samples(outcome: &DemoOutcome) -> String {
    let count = outcome.options.conversations;
    let mut picked: Vec<usize> = vec![0, 1];
    picked.extend(count.saturating_sub(3)..count);
    picked.retain(|at| *at < count);
    picked.dedup();
    let mut out = String::from(
        "<h2>First replies, side by side</h2><table><tr><th>Question</th><th class=\"s1\">control</th><th class=\"s0\">trained</th></tr>",
    );
    for index in picked {
        let of = |arm: &ArmRecord| {
            let at = arm.conversations.iter().find(|c| c.index == index);
            at.map(|c| (c.opening.clone(), first_reply(c)))
        };
        let Some((opening, trained)) = of(&outcome.trained) else {
            continue;
        };
        let control = of(&outcome.control).map_or_else(String::new, |(_, reply)| reply);
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

fn served(outcome: &DemoOutcome, about: &About) -> String {
    let mut out = String::from("<h2>What was served, and how to do it again</h2><table>");
    let mut facts = about.served.clone();
    facts.push(("training steps".into(), outcome.trained.steps.to_string()));
    facts.push((
        "adapters that served, in order".into(),
        outcome.trained.adapters().join("\n"),
    ));
    facts.push(("seed".into(), outcome.options.seed.to_string()));
    facts.push((
        "first replies per conversation of the control arm".into(),
        format!(
            "{} (the frozen policy does not move, so more draws only make its line less noisy)",
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
    for talk in &arm.conversations {
        let ending = match talk.ending {
            Ending::Content => "content",
            Ending::GaveUp => "gave up",
            Ending::Broken => "broken off",
        };
        let score = talk
            .value()
            .map_or_else(|| "no score".into(), |v| format!("{v:.2}"));
        let _ = write!(
            out,
            "<details><summary>{} · {score} · {} replies · {ending}</summary><pre>{}",
            talk.index + 1,
            talk.replies.len(),
            escape(&talk.opening)
        );
        for (at, reply) in talk.replies.iter().enumerate() {
            let adapter = reply.adapter.as_deref().unwrap_or("no adapter named");
            let _ = write!(
                out,
                "\n\n<span class=\"{class}\">{}</span>\n<small>{} · first text {:.0} ms · {:.0} ms</small>",
                escape(&reply.text),
                escape(adapter),
                reply.first_token_ms,
                reply.total_ms
            );
            if let Some(said) = talk.reactions.get(at) {
                let _ = write!(out, "\n\n{}", escape(said));
            }
        }
        for failure in &talk.failures {
            let _ = write!(out, "\n\n<b>{}</b>", escape(failure));
        }
        out.push_str("</pre></details>");
    }
    out
}
