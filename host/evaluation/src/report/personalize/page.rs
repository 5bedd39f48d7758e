//! The HTML page: curves of all arms, tables, first replies side by side, and how to reproduce the run.

use std::fmt::Write;

use crate::persona::Track;
use crate::personalize::{Arm, CellRecord, PersonalizeOutcome};
use crate::plot::{Band, Series, SvgOptions, escape, svg};
use crate::statistics::{mean, moving_average};

use super::super::about::{About, SMOOTHING};
use super::super::html::{page_header, reproduce, rows};
use super::published::PUBLISHED;
use super::text::track_tables;

/// Renders the page. It loads nothing and runs no script, and all texts of models and personas are escaped.
pub fn personalize_page(outcome: &PersonalizeOutcome, about: &About) -> String {
    let mut out = page_header("Personalisation");
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<p>Scripted personas hold conversations with served models that differ only in their training method. \
         The score is that of the first reply of each conversation, before any feedback; \
         it is between 0 and 1 and is computed by fixed rules that no judge shares. All arms of one seed get \
         the same problems in the same words. Intervals are 95 % t intervals over seeds; a figure of one seed has none. For an arm that does not train, {} first replies are sampled per \
         conversation and averaged.</p>",
        outcome.options.control_draws
    );
    let targets = outcome.targets();
    let met = targets.iter().filter(|target| target.met).count();
    let _ = write!(
        out,
        "<p>{met} of {} targets met{}.</p>",
        targets.len(),
        if outcome.interrupted {
            "; the run was interrupted"
        } else {
            ""
        }
    );
    for track in &outcome.options.tracks {
        let _ = write!(out, "<h2>{}</h2>", escape(track.name()));
        out.push_str(&figure(outcome, *track));
        let _ = write!(
            out,
            "<pre class=\"wide\">{}</pre>",
            escape(&track_tables(outcome, *track))
        );
        out.push_str(&samples(outcome, *track));
        out.push_str(&opposite_samples(outcome, *track));
    }
    for failure in &outcome.failed {
        let _ = write!(out, "<p><b>failed:</b> {}</p>", escape(failure));
    }
    out.push_str(&published_section());
    out.push_str("<h2>Served model and reproduction</h2><table>");
    let mut facts = about.served.clone();
    facts.push(("date".into(), about.date.clone()));
    facts.push(("seconds".into(), format!("{:.0}", outcome.seconds)));
    out.push_str(&rows(&facts));
    out.push_str("</table>");
    out.push_str(&reproduce(about));
    let _ = writeln!(
        out,
        "<h2>Machine-readable result</h2><pre>{}</pre></body></html>",
        escape(&outcome.json().to_string())
    );
    out
}

/// The smoothed scores of one arm, one curve per seed.
fn curves(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Vec<Vec<f64>> {
    let smooth = |cell: &CellRecord| moving_average(&cell.arm_record.values(), SMOOTHING);
    outcome.cells_of(arm, track).map(smooth).collect()
}

/// Their mean, and the band from lowest to highest.
fn mean_and_band(curves: &[Vec<f64>]) -> (Vec<f64>, Band) {
    let longest = curves.iter().map(Vec::len).max().unwrap_or(0);
    let (mut line, mut band) = (Vec::new(), Band::default());
    for at in 0..longest {
        let values: Vec<f64> = curves.iter().filter_map(|c| c.get(at).copied()).collect();
        let Some(centre) = mean(&values) else {
            continue;
        };
        line.push(centre);
        band.low.push(values.iter().copied().fold(centre, f64::min));
        band.high
            .push(values.iter().copied().fold(centre, f64::max));
    }
    (line, band)
}

fn figure(outcome: &PersonalizeOutcome, track: Track) -> String {
    let (mut lines, mut bands) = (Vec::new(), Vec::new());
    for arm in &outcome.options.arms {
        let curves = curves(outcome, *arm, track);
        if curves.is_empty() {
            continue;
        }
        let (values, band) = mean_and_band(&curves);
        lines.push(Series {
            name: arm.name().to_owned(),
            values,
            dotted: !arm.trains(),
        });
        bands.push(band);
    }
    svg(
        &lines,
        &[],
        &SvgOptions {
            title: format!("{}: score of the first reply by conversation", track.name()),
            x_label: format!(
                "conversation (line: moving average over {SMOOTHING}, mean of all seeds; band: lowest to highest seed)"
            ),
            y_label: "score of the first reply".into(),
            bands,
            ..SvgOptions::default()
        },
    )
}

/// First replies of each arm in the last conversation of each seed.
fn samples(outcome: &PersonalizeOutcome, track: Track) -> String {
    let last = outcome.options.conversations(track).saturating_sub(1);
    let mut out = format!(
        "<details><summary>First replies in conversation {}, arm by arm</summary>",
        last + 1
    );
    for arm in &outcome.options.arms {
        for cell in outcome.cells_of(*arm, track) {
            let Some(conversation) = cell
                .arm_record
                .conversations
                .iter()
                .find(|c| c.index == last)
            else {
                continue;
            };
            let reply = conversation.replies.first().map_or("", |reply| &reply.text);
            let score = conversation.first.map_or_else(
                || "no reply".to_owned(),
                |score| format!("score {:.2}", score.value),
            );
            let _ = write!(
                out,
                "<pre><b>{} · seed {}</b>\n{}\n\n{}\n<small>{score}</small></pre>",
                arm.name(),
                cell.cell.seed,
                escape(&conversation.opening),
                escape(reply),
            );
        }
    }
    out.push_str("</details>");
    out
}

/// Some replies of each arm and seed to explicit requests for the opposite of the wish.
fn opposite_samples(outcome: &PersonalizeOutcome, track: Track) -> String {
    const SHOWN: usize = 4;
    let mut shown = String::new();
    for arm in &outcome.options.arms {
        for cell in outcome.cells_of(*arm, track) {
            let Some(probe) = cell.probes.iter().find(|probe| probe.opposite) else {
                continue;
            };
            for (reply, score) in probe.replies.iter().zip(&probe.scores).take(SHOWN) {
                let _ = write!(
                    shown,
                    "<pre><b>{} · seed {}</b>\n{}\n<small>score {:.2}</small></pre>",
                    arm.name(),
                    cell.cell.seed,
                    escape(reply.as_deref().unwrap_or("no reply")),
                    score.unwrap_or(0.0),
                );
            }
        }
    }
    if shown.is_empty() {
        return shown;
    }
    format!(
        "<details><summary>Replies to explicit requests for the opposite</summary>{shown}</details>"
    )
}

fn published_section() -> String {
    let mut out = String::from(
        "<h2>Published results of OpenClaw-RL</h2><p>On another model (Qwen3-4B) and with a language model as \
         the user, so not directly comparable with the figures above.</p>",
    );
    for table in PUBLISHED {
        let _ = write!(out, "<table><caption>{}</caption>", escape(table.caption));
        for row in table.rows {
            out.push_str("<tr>");
            for cell in *row {
                let _ = write!(out, "<td>{}</td>", escape(cell));
            }
            out.push_str("</tr>");
        }
        out.push_str("</table>");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_band_spans_all_seeds_and_the_line_is_their_mean() {
        let (line, band) = mean_and_band(&[vec![0.0, 1.0], vec![0.5, 1.0, 0.25]]);
        assert_eq!(line, [0.25, 1.0, 0.25]);
        assert_eq!(band.low, [0.0, 1.0, 0.25]);
        assert_eq!(band.high, [0.5, 1.0, 0.25]);
    }
}
