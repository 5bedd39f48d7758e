//! Reads the conversations of `clawhost sft` and holds some of them out.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clawhost_training::sft::{ChatError, ChatExample, ChatFormat};
use serde_json::Value;

/// The file of conversations, and how it is read.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    /// Whether conversations longer than the context are skipped instead of an error.
    pub(super) skip_long: bool,
    /// Share of the conversations that is held out.
    pub(super) holdout: f64,
    pub(super) seed: u64,
}

/// The tokenized conversations of a file.
#[derive(Debug, Default)]
pub(super) struct Dataset {
    pub(super) train: Vec<ChatExample>,
    pub(super) held_out: Vec<ChatExample>,
    /// Number of conversations for training and held out.
    pub(super) counts: (usize, usize),
    pub(super) skipped: usize,
    pub(super) digest: String,
}

/// Reads and tokenizes the file; errors name the line.
pub(super) fn read(source: &Source<'_>, format: &ChatFormat<'_>) -> Result<Dataset> {
    let path = source.path.display();
    let bytes = std::fs::read(source.path).with_context(|| format!("cannot read {path}"))?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            anyhow::anyhow!("{path}, line {line}: not valid UTF-8")
        })?
        .trim_start_matches('\u{feff}');
    let mut dataset = Dataset {
        digest: clawhost_plugins::digest(&bytes),
        ..Dataset::default()
    };
    for (number, line) in (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let conversation: Value = serde_json::from_str(line)
            .with_context(|| format!("{path}, line {number}: not valid JSON"))?;
        let examples = match format.examples(&conversation) {
            Ok(examples) => examples,
            Err(ChatError::TooLong { .. }) if source.skip_long => {
                dataset.skipped += 1;
                continue;
            }
            Err(error @ ChatError::TooLong { .. }) => {
                bail!(
                    "{path}, line {number}: {error}; shorten it, or skip such lines with --skip-long"
                )
            }
            Err(error) => bail!("{path}, line {number}: {error}"),
        };
        if is_held_out(number, source) {
            dataset.counts.1 += 1;
            dataset.held_out.extend(examples);
        } else {
            dataset.counts.0 += 1;
            dataset.train.extend(examples);
        }
    }
    ensure!(
        !dataset.train.is_empty(),
        "{path} has no conversation to train on"
    );
    Ok(dataset)
}

/// Whether a line is held out. Depends only on its number and the seed, so that a growing file keeps its held-out
/// dataset.
fn is_held_out(number: u64, source: &Source<'_>) -> bool {
    let mut hash = number ^ source.seed.rotate_left(32);
    // SplitMix64 (Steele, Lea, Flood 2014).
    hash = hash.wrapping_add(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^= hash >> 31;
    (hash >> 11) as f64 / (1_u64 << 53) as f64 <= source.holdout && source.holdout > 0.0
}
