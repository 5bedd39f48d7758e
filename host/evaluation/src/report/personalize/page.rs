//! The page: curves of all arms, the tables, first replies side by side, and how to do it again.

use std::fmt::Write;

use crate::persona::Track;
use crate::personalize::{Arm, CellRecord, PersonalizeOutcome};
use crate::plot::{Band, Series, SvgOptions, escape, svg};
use crate::statistics::{mean, moving_average};

use super::super::sheet::{opening, reproduce, rows};
use super::super::{About, SMOOTHING};
use super::published::PUBLISHED;
use super::text::of_track;

/// The whole page. It loads nothing and runs no script, and every text of a model or a person in it is
/// escaped.
pub fn personalize_page(outcome: &PersonalizeOutcome, about: &About) -> String {
    let mut out = opening("Personalisation, measured");
    // Writing to a string cannot fail, so the results here carry nothing.
    let _ = write!(
        out,
        "<p>Scripted people hold conversations with served models that differ in nothing but how they learn. \
         Counted is the first reply of each conversation, before the person has said what is wrong with it; its \
         score is between 0 and 1 and is computed by fixed rules that no judge shares. All arms of one seed meet \
         the same problems in the same words. An arm that does not learn has {} first replies drawn for each \
         conversation, whose mean counts.</p>",
        outcome.options.control_draws
    );
    let aims = outcome.aims();
    let kept = aims.iter().filter(|aim| aim.holds).count();
    let _ = write!(
        out,
        "<p>{kept} of {} promises hold{}.</p>",
        aims.len(),
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
            escape(&of_track(outcome, *track))
        );
        out.push_str(&samples(outcome, *track));
    }
    for failure in &outcome.failed {
        let _ = write!(out, "<p><b>failed:</b> {}</p>", escape(failure));
    }
    out.push_str(&published());
    out.push_str("<h2>What was served, and how to do it again</h2><table>");
    let mut facts = about.served.clone();
    facts.push(("date".into(), about.date.clone()));
    facts.push(("seconds".into(), format!("{:.0}", outcome.seconds)));
    out.push_str(&rows(&facts));
    out.push_str("</table>");
    out.push_str(&reproduce(about));
    let _ = writeln!(
        out,
        "<h2>The result for a program</h2><pre>{}</pre></body></html>",
        escape(&outcome.json().to_string())
    );
    out
}

/// The smoothed scores of one arm: one curve per seed.
fn curves(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Vec<Vec<f64>> {
    let smooth = |cell: &CellRecord| moving_average(&cell.talk.values(), SMOOTHING);
    outcome.of(arm, track).map(smooth).collect()
}

/// Their mean, and the band from the lowest to the highest of them.
fn middle(curves: &[Vec<f64>]) -> (Vec<f64>, Band) {
    let longest = curves.iter().map(Vec::len).max().unwrap_or(0);
    let (mut line, mut band) = (Vec::new(), Band::default());
    for at in 0..longest {
        let here: Vec<f64> = curves.iter().filter_map(|c| c.get(at).copied()).collect();
        let Some(centre) = mean(&here) else {
            continue;
        };
        line.push(centre);
        band.low.push(here.iter().copied().fold(centre, f64::min));
        band.high.push(here.iter().copied().fold(centre, f64::max));
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
        let (values, band) = middle(&curves);
        lines.push(Series {
            name: arm.name().to_owned(),
            values,
            dotted: !arm.learns(),
        });
        bands.push(band);
    }
    svg(
        &lines,
        &[],
        &SvgOptions {
            title: format!(
                "{}: score of the first reply against the number of the conversation",
                track.name()
            ),
            x_label: format!(
                "conversation (line: mean of the {SMOOTHING} around it and of all seeds; band: lowest to highest seed)"
            ),
            y_label: "score of the first reply".into(),
            bands,
            ..SvgOptions::default()
        },
    )
}

/// What each arm answered first in the last conversation of each seed.
fn samples(outcome: &PersonalizeOutcome, track: Track) -> String {
    let last = outcome.options.conversations(track).saturating_sub(1);
    let mut out = format!(
        "<details><summary>First replies in conversation {}, arm by arm</summary>",
        last + 1
    );
    for arm in &outcome.options.arms {
        for cell in outcome.of(*arm, track) {
            let Some(talk) = cell.talk.conversations.iter().find(|c| c.index == last) else {
                continue;
            };
            let reply = talk.replies.first().map_or("", |reply| &reply.text);
            let score = talk.first.map_or_else(
                || "no reply".to_owned(),
                |score| format!("score {:.2}", score.value),
            );
            let _ = write!(
                out,
                "<pre><b>{} · seed {}</b>\n{}\n\n{}\n<small>{score}</small></pre>",
                arm.name(),
                cell.cell.seed,
                escape(&talk.opening),
                escape(reply),
            );
        }
    }
    out.push_str("</details>");
    out
}

fn published() -> String {
    let mut out = String::from(
        "<h2>What others have published</h2><p>Theirs, on another model (Qwen3-4B) and with a language model as \
         the user; to be read beside the figures above, not against them.</p>",
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
    fn a_band_spans_all_seeds_and_its_line_is_their_mean() {
        let (line, band) = middle(&[vec![0.0, 1.0], vec![0.5, 1.0, 0.25]]);
        assert_eq!(line, [0.25, 1.0, 0.25]);
        assert_eq!(band.low, [0.0, 1.0, 0.25]);
        assert_eq!(band.high, [0.5, 1.0, 0.25]);
    }
}
