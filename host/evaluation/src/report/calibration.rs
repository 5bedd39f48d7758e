//! The table of a calibration for the terminal.

use crate::calibrate::{Calibration, Learnable};

use super::columns::align_columns;
use super::text::interval;

/// The figures of all wishes and simple questions, and which wishes can be learned.
pub fn calibration_table(calibration: &Calibration) -> String {
    let mut rows = vec![
        [
            "wish",
            "unasked",
            "instructed",
            "gain",
            "its form",
            "opposite asked for",
            "",
        ]
        .map(str::to_owned),
    ];
    rows.extend(calibration.wishes.iter().map(|one| {
        let verdict = match one.learnable() {
            Learnable::Yes => "can be learned",
            Learnable::AlreadyMet => "met already",
            Learnable::NotFollowed => "not followed when instructed, so it cannot be learned",
        };
        [
            one.wish.name().to_owned(),
            interval(one.unasked),
            interval(one.instructed),
            interval(one.headroom),
            interval(one.instructed_form),
            interval(one.opposite),
            verdict.to_owned(),
        ]
    }));
    let mut out = format!(
        "mean score over {} held-out questions (95 % interval)\n{}",
        calibration.options.questions,
        align_columns(&rows)
    );
    if !calibration.skills.is_empty() {
        let mut rows = vec![["simple questions", "right", "chance", ""].map(str::to_owned)];
        rows.extend(calibration.skills.iter().map(|one| {
            let verdict = if one.is_above_chance() {
                ""
            } else {
                "not above chance: left out of the forgetting probes"
            };
            [
                one.name.to_owned(),
                interval(one.right),
                format!("{:.2}", one.chance),
                verdict.to_owned(),
            ]
        }));
        out.push_str(&format!("\n{}", align_columns(&rows)));
    }
    if !calibration.failures.is_empty() {
        out.push_str(&format!(
            "\n{} requests failed: {}\n",
            calibration.failures.len(),
            calibration.failures[0]
        ));
    }
    let names: Vec<&str> = calibration
        .learnable()
        .into_iter()
        .map(|wish| wish.name())
        .collect();
    match names.as_slice() {
        [] => out.push_str("\nNo wish can be learned with this model.\n"),
        names => out.push_str(&format!(
            "\nNext: clawhost eval personalize --model … --wish {}\n",
            names.join(",")
        )),
    }
    out
}
