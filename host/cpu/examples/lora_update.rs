//! Runs LoRA updates on request and reports their time and memory, for comparison with other programs
//! (`benches/train.py`).
//!
//! One update is a forward pass, cross-entropy over all tokens but the first, a backward pass and AdamW. Each line of
//! JSON on standard input, `{"tokens": [[1, 2, …], …]}`, runs one and is answered with a line on standard output.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark program: it talks to its caller, and ends on the first malformed request"
)]

use std::io::BufRead;
use std::time::Instant;

use clawhost_cpu::{CpuModel, GradientTarget, Gradients};
use clawhost_engine::{Candidates, LossGradients, Sequence, TrainLimits};
use clawhost_model::{Adapter, LoraSpec, Model, ModelFiles};

const LEARNING_RATE: f32 = 1e-4;
const BETAS: (f32, f32) = (0.9, 0.999);

fn main() {
    let (mut model, mut threads, mut rank) = (None, 1, 16);
    let mut args = std::env::args().skip(1);
    while let Some(key) = args.next() {
        let value = args.next().unwrap_or_default();
        match key.as_str() {
            "--model" => model = Some(value),
            "--threads" => threads = value.parse().unwrap(),
            "--rank" => rank = value.parse().unwrap(),
            _ => panic!("unknown argument {key}; use --model DIR, --threads N, --rank R"),
        }
    }
    let dir = model.expect("--model DIR is required");
    let files = ModelFiles::from_dir(dir.as_ref()).unwrap();
    let model = Model::load(&files).unwrap().with_threads(threads);
    let spec = LoraSpec {
        rank,
        alpha: 2.0 * rank as f32,
        ..LoraSpec::default()
    };
    let mut run = Run {
        gradients: Gradients::for_adapter(&Adapter::init(model.config(), spec.clone(), 1)),
        adapter: Adapter::init(model.config(), spec, 1),
        moments: Vec::new(),
        updates: 0,
        model,
    };
    let parameters: usize = run.gradients.tensors.iter().map(Vec::len).sum();
    run.moments = vec![(0.0, 0.0); parameters];
    let ready = serde_json::json!({
        "name": "clawhost", "threads": threads, "parameters": parameters, "resident_bytes": memory("VmRSS:"),
    });
    println!("{ready}");
    for line in std::io::stdin().lock().lines() {
        let request: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let tokens: Vec<Vec<u32>> = serde_json::from_value(request["tokens"].clone()).unwrap();
        let started = Instant::now();
        let loss = run.update(&tokens);
        let seconds = started.elapsed().as_secs_f64();
        let count: usize = tokens.iter().map(Vec::len).sum();
        let answer = serde_json::json!({
            "tokens_per_second": count as f64 / seconds, "loss": loss, "peak_bytes": memory("VmHWM:"),
        });
        println!("{answer}");
    }
}

struct Run {
    model: Model,
    adapter: Adapter,
    gradients: Gradients,
    /// First and second moment of each parameter.
    moments: Vec<(f32, f32)>,
    updates: i32,
}

impl Run {
    /// Runs one update and returns the mean loss before it.
    fn update(&mut self, tokens: &[Vec<u32>]) -> f64 {
        let sequences: Vec<Sequence<'_>> = tokens
            .iter()
            .map(|tokens| Sequence {
                tokens,
                start: 1,
                temperature: 1.0,
                candidates: Candidates::None,
            })
            .collect();
        self.gradients.clear();
        let target = GradientTarget::Lora(&self.adapter);
        let pass = self
            .model
            .forward_train(target, &sequences, TrainLimits::default())
            .unwrap();
        let count: usize = pass.scores().iter().map(|s| s.logprobs.len()).sum();
        let scores = pass.scores().iter().flat_map(|s| &s.logprobs);
        let loss = -scores.map(|lp| f64::from(*lp)).sum::<f64>() / count as f64;
        let partials: Vec<LossGradients> = pass
            .scores()
            .iter()
            .map(|scored| LossGradients {
                d_logprob: vec![-1.0 / count as f32; scored.logprobs.len()],
                d_entropy: Vec::new(),
                d_candidates: Vec::new(),
            })
            .collect();
        pass.backward(&partials, &mut self.gradients).unwrap();
        self.adamw();
        loss
    }

    fn adamw(&mut self) {
        self.updates += 1;
        let bias = (
            1.0 - BETAS.0.powi(self.updates),
            1.0 - BETAS.1.powi(self.updates),
        );
        let mut moments = self.moments.iter_mut();
        let gradients = &self.gradients.tensors;
        for ((_, values), gradients) in self.adapter.tensors_mut().into_iter().zip(gradients) {
            for ((value, g), (m, v)) in values.iter_mut().zip(gradients).zip(moments.by_ref()) {
                *m = BETAS.0 * *m + (1.0 - BETAS.0) * g;
                *v = BETAS.1 * *v + (1.0 - BETAS.1) * g * g;
                *value -= LEARNING_RATE * (*m / bias.0) / ((*v / bias.1).sqrt() + 1e-8);
            }
        }
    }
}

/// A field of `/proc/self/status` in bytes; 0 where there is none.
fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kilobytes.unwrap_or(0) << 10
}
