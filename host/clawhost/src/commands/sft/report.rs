//! What `clawhost sft` prints: its progress and its result.

use std::io::{IsTerminal, Write};
use std::path::Path;

use clawhost_training::sft::SftProgress;
use serde::Serialize;

/// The result of a run, as `--json` prints it and the provenance of the weights records it.
#[derive(Debug, Serialize)]
pub(super) struct SftReport<'a> {
    pub(super) base: &'a str,
    pub(super) base_digest: &'a str,
    pub(super) began_with: String,
    pub(super) digest: String,
    pub(super) change_norm: Option<f64>,
    pub(super) data: DataReport<'a>,
    pub(super) updates: u64,
    pub(super) tokens: u64,
    pub(super) trained_tokens: u64,
    pub(super) loss_first: Option<f64>,
    pub(super) loss_last: Option<f64>,
    pub(super) held_out_before: Option<f64>,
    pub(super) held_out_after: Option<f64>,
    pub(super) seconds: f64,
}

/// The data of a run.
#[derive(Debug, Serialize)]
pub(super) struct DataReport<'a> {
    pub(super) file: std::borrow::Cow<'a, str>,
    pub(super) sha256: &'a str,
    pub(super) conversations: usize,
    pub(super) held_out: usize,
    pub(super) skipped: usize,
    pub(super) sequences: usize,
}

impl SftReport<'_> {
    /// The result in words. `model` is the base model if it is not the embedded one, `full` whether all of its weights
    /// were trained.
    pub(super) fn summary(&self, model: Option<&Path>, full: bool, out: &Path) -> String {
        let mut text = format!(
            "{} updates on {} conversations, loss {:.4}",
            self.updates,
            self.data.conversations,
            self.loss_last.unwrap_or(f64::NAN),
        );
        if let (Some(before), Some(after)) = (self.held_out_before, self.held_out_after) {
            text.push_str(&format!(
                ", held-out {before:.4} before and {after:.4} after"
            ));
        }
        let out = out.display();
        let serve = match model {
            _ if full => format!("clawhost run --model {out}"),
            Some(model) => format!("clawhost run --model {} --adapter {out}", model.display()),
            None => format!("clawhost run --adapter {out}"),
        };
        text.push_str(&format!("\nWritten to {out}; serve it with `{serve}`"));
        text
    }
}

/// A number for JSON, which has no infinities.
pub(super) fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// One updated line on a terminal; otherwise a line at the end of each epoch and every fifty updates.
pub(super) fn show_progress(progress: &SftProgress) {
    let live = std::io::stderr().is_terminal();
    let milestone = progress.held_out.is_some() || progress.step == progress.steps;
    if !live && !milestone && !progress.step.is_multiple_of(50) {
        return;
    }
    let left = progress.left.as_secs();
    let held_out = progress
        .held_out
        .map(|loss| format!(" · held-out {loss:.4}"))
        .unwrap_or_default();
    let line = format!(
        "epoch {} · update {}/{} · loss {:.4}{held_out} · {:.0} tokens/s · {}:{:02} left",
        progress.epoch,
        progress.step,
        progress.steps,
        progress.loss,
        progress.tokens_per_second,
        left / 60,
        left % 60
    );
    let mut err = std::io::stderr().lock();
    // Progress output is best effort: a closed terminal must not end the work.
    let _ = match (live, milestone) {
        (true, false) => write!(err, "\r\x1b[2K{line}").and_then(|()| err.flush()),
        (true, true) => writeln!(err, "\r\x1b[2K{line}"),
        (false, _) => writeln!(err, "{line}"),
    };
}
