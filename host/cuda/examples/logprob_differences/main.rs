//! How far log-probs are apart that should be the same.
//!
//! - `logprob_differences steps DIR [TEMPERATURE] [f32]`: those that serving gives sampled tokens, and those that scoring
//!   computes, and training with it, on a GPU.
//! - `logprob_differences weights cpu|cuda:N DIR TEXT [FILE.gguf …]`: those of real text, and what a LoRA adapter learns from
//!   it, with the weights in fewer bits and in files of other formats, against f32.
//!
//! Run as `cargo run --release -p clawhost-cuda --example logprob_differences -- …`.

#![allow(clippy::print_stdout, reason = "a benchmark program")]

mod steps;
mod weights;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("steps") => steps::run(&arguments[1..]),
        Some("weights") => weights::run(&arguments[1..]),
        _ => Err(
            "what: steps DIR [TEMPERATURE] [f32], or weights DEVICE DIR TEXT [FILE.gguf …]".into(),
        ),
    }
}

/// Mean and largest absolute difference.
pub(crate) fn differences<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f32)>) -> (f64, f64) {
    let (mut sum, mut count, mut most) = (0.0, 0u32, 0f64);
    for (a, b) in pairs {
        let difference = f64::from((a - b).abs());
        (sum, count, most) = (sum + difference, count + 1, most.max(difference));
    }
    (sum / f64::from(count.max(1)), most)
}
