//! Real text under weights in fewer bits.
//!
//! A text file is cut into sequences. Half of them are scored only; on the others, an adapter is trained, each time from the
//! same start. What is learned is the change of each log-prob, compared with the change under f32.

use std::path::Path;

use clawhost_chat::Tokenizer;
use clawhost_cpu::CpuBackend;
use clawhost_cuda::{CudaBackend, Precision};
use clawhost_engine::backend::{AdapterSlot, Backend, Candidates, Sequence};
use clawhost_engine::{AdamW, LossGradients, OptimizerStep, SequenceScores, TrainLimits};
use clawhost_model::{
    Adapter, LoraSpec, ModelFiles, Quantization, QuantizedFormat, TrainedWeights,
};

use crate::{Result, differences};

/// Tokens of a sequence, and sequences that are scored and that are trained on.
const LENGTH: usize = 256;
const EACH: usize = 4;
const UPDATES: usize = 8;
const LEARNING_RATE: f64 = 5e-4;

/// The log-probs of one format.
struct Measured {
    /// Of the sequences that are not trained on, and of those that are.
    held_out: Vec<f32>,
    trained: Vec<f32>,
    /// The same after training.
    held_out_after: Vec<f32>,
    trained_after: Vec<f32>,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let [device, dir, text, more @ ..] = arguments else {
        return Err("weights takes cpu or cuda:N, a model directory and a text file".into());
    };
    let files = ModelFiles::open(Path::new(dir))?;
    let tokenizer = Tokenizer::from_bytes(files.tokenizer()?)?;
    let tokens = tokenizer.encode(&std::fs::read_to_string(text)?)?;
    let sequences: Vec<&[u32]> = tokens.chunks_exact(LENGTH).take(2 * EACH).collect();
    if sequences.len() < 2 * EACH {
        return Err(format!(
            "{text} has {} tokens; {} are needed",
            tokens.len(),
            2 * EACH * LENGTH
        )
        .into());
    }
    let ordinal = match (device.as_str(), device.strip_prefix("cuda:")) {
        ("cpu", _) => None,
        (_, Some(ordinal)) => Some(ordinal.parse::<usize>()?),
        _ => return Err(format!("`{device}` is not cpu or cuda:N").into()),
    };
    println!(
        "{device}, {} tokens scored, {UPDATES} LoRA updates on as many",
        EACH * (LENGTH - 1)
    );
    println!(
        "| weights | mean difference | largest | loss | of trained text | after {UPDATES} updates | held out | learned, against f32 |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut reference = None;
    let mut report = |name: &str, backend: &dyn Backend| -> Result<()> {
        let own = measure(backend, &sequences)?;
        let right = reference.get_or_insert_with(|| Measured {
            held_out: own.held_out.clone(),
            trained: own.trained.clone(),
            held_out_after: own.held_out_after.clone(),
            trained_after: own.trained_after.clone(),
        });
        let (mean, largest) = differences(own.held_out.iter().zip(&right.held_out));
        let (learned, _) = differences(own.changes().iter().zip(&right.changes()));
        let zeros = vec![0.0; own.trained.len()];
        let (change, _) = differences(right.changes().iter().zip(&zeros));
        println!(
            "| {name} | {mean:.5} | {largest:.4} | {:.4} | {:.4} | {:.4} | {:.4} | {:.1} % |",
            loss(&own.held_out),
            loss(&own.trained),
            loss(&own.trained_after),
            loss(&own.held_out_after),
            100.0 * learned / change
        );
        Ok(())
    };
    match ordinal {
        None => {
            for (name, format) in [
                ("f32", None),
                ("bf16", Some(QuantizedFormat::Bf16)),
                ("int8", Some(QuantizedFormat::Int8)),
                ("int4", Some(QuantizedFormat::Int4)),
            ] {
                report(name, &CpuBackend::load(&files, format, 0)?)?;
            }
        }
        Some(ordinal) => {
            for (name, quantization, precision) in [
                ("f32", Quantization::None, Precision::F32),
                ("bf16", Quantization::None, Precision::Bf16),
                (
                    "int8, activations in bf16",
                    Quantization::Int8,
                    Precision::Bf16,
                ),
                (
                    "int4, activations in bf16",
                    Quantization::Int4,
                    Precision::Bf16,
                ),
            ] {
                report(
                    name,
                    &CudaBackend::load(ordinal, &files, quantization, precision)?,
                )?;
            }
        }
    }
    for path in more {
        let files = ModelFiles::open(Path::new(path))?;
        let name = Path::new(path).file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        match ordinal {
            None => report(&name, &CpuBackend::load(&files, None, 0)?)?,
            Some(ordinal) => {
                let backend =
                    CudaBackend::load(ordinal, &files, Quantization::None, Precision::Bf16)?;
                report(&name, &backend)?;
            }
        }
    }
    Ok(())
}

impl Measured {
    /// What training changed.
    fn changes(&self) -> Vec<f32> {
        let pairs = self.trained_after.iter().zip(&self.trained);
        pairs.map(|(after, before)| after - before).collect()
    }
}

fn loss(logprobs: &[f32]) -> f64 {
    let sum: f64 = logprobs.iter().map(|logprob| f64::from(*logprob)).sum();
    -sum / logprobs.len() as f64
}

fn measure(backend: &dyn Backend, all: &[&[u32]]) -> Result<Measured> {
    let sequences: Vec<Sequence<'_>> = all
        .iter()
        .map(|tokens| Sequence {
            tokens,
            start: 1,
            temperature: 1.0,
            candidates: Candidates::None,
        })
        .collect();
    let (held_out, trained) = sequences.split_at(EACH);
    let flat = |scores: Vec<SequenceScores>| -> Vec<f32> {
        scores
            .into_iter()
            .flat_map(|scores| scores.logprobs)
            .collect()
    };
    let adapter = Adapter::init(backend.model().config(), LoraSpec::default(), 1);
    let weights = TrainedWeights::from(std::sync::Arc::new(adapter));
    let before = |sequences| backend.score(AdapterSlot::BASE, sequences).map(flat);
    let (held_out_before, trained_before) = (before(held_out)?, before(trained)?);
    let mut session = backend.train(&weights, None, TrainLimits::default())?;
    let gradient = -1.0 / trained_before.len() as f32;
    for _ in 0..UPDATES {
        session.zero_gradients()?;
        let scores = session.forward(trained)?;
        let partials = scores.iter().map(|scores| LossGradients {
            d_logprob: vec![gradient; scores.logprobs.len()],
            d_entropy: vec![0.0; scores.logprobs.len()],
            d_candidates: Vec::new(),
        });
        session.backward(&partials.collect::<Vec<_>>())?;
        session.step(OptimizerStep {
            adamw: AdamW::default(),
            learning_rate: LEARNING_RATE,
            gradient_scale: 1.0,
        })?;
    }
    Ok(Measured {
        held_out: held_out_before,
        trained: trained_before,
        held_out_after: flat(session.score(held_out)?),
        trained_after: flat(session.score(trained)?),
    })
}
