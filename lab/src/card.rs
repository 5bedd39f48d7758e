//! The model card: what a checkpoint does before any training on conversations.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use clawhost_chat::ChatInput;
use clawhost_engine::{Engine, EngineOptions, Event, GenerateRequest, Priority, SamplingParams};
use clawhost_evaluation::probes::{PROMPTS_PER_SET, SETS};
use clawhost_model::ModelFiles;
use serde::Serialize;

use crate::corpus::{Recipe, SERVED_TEMPERATURE};
use crate::pretrain::PretrainOutput;
use crate::probes::{self, Probe};

/// Measured properties of a checkpoint.
#[derive(Debug, Serialize)]
pub struct ModelCard {
    name: String,
    seed: u64,
    parameters: usize,
    digest: String,
    vocabulary: usize,
    tokens: u64,
    steps: u64,
    held_out_loss: Option<f64>,
    temperature: f32,
    probes: Vec<ProbeResult>,
}

/// Share of replies that pass each check of one probe set.
#[derive(Debug, Serialize)]
struct ProbeResult {
    set: &'static str,
    about: &'static str,
    replies: usize,
    shares: Vec<(&'static str, f64)>,
    example: (String, String),
}

impl ModelCard {
    pub(crate) fn measure(recipe: &Recipe, dir: &Path, trained: &PretrainOutput) -> Result<Self> {
        let engine =
            clawhost_cpu::load_engine(&ModelFiles::from_dir(dir)?, EngineOptions::default())?;
        let probes = SETS
            .iter()
            .map(|set| {
                let probes = probes::draw(set, PROMPTS_PER_SET);
                let replies = replies(&engine, &probes)?;
                let shares = set.checks.iter().map(|check| {
                    let pairs = probes.iter().zip(&replies);
                    let passed = pairs
                        .filter(|(probe, reply)| (check.passes)(&probe.subject, reply))
                        .count();
                    (check.name, passed as f64 / replies.len() as f64)
                });
                let prompt = probes[0].messages.last().expect("a probe has messages");
                Ok(ProbeResult {
                    set: set.name,
                    about: set.about,
                    shares: shares.collect(),
                    example: (prompt.content.clone(), replies[0].clone()),
                    replies: replies.len(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        engine.shutdown();
        Ok(Self {
            name: recipe.name.clone(),
            seed: recipe.seed,
            parameters: trained
                .model
                .parameters()
                .iter()
                .map(|(_, v)| v.len())
                .sum(),
            digest: trained.model.digest().to_owned(),
            vocabulary: recipe.tokenizer.vocab,
            tokens: trained.tokens,
            steps: trained.steps,
            held_out_loss: trained.held_out,
            temperature: SERVED_TEMPERATURE,
            probes,
        })
    }

    /// The model card in Markdown.
    pub fn to_markdown(&self) -> String {
        let mut text = format!(
            "# {}\n\nA language model of {:.2} million parameters with the Qwen3 architecture, pretrained by\n\
             the code in `lab/` on a corpus that it generates itself. It is fluent in a few narrow domains:\n\
             homework word problems with small numbers, comments on a student's answer, small talk. It is **not** a\n\
             general assistant and has no world knowledge; it exists so that everything around a model (serving,\n\
             judging, training) can be run and measured on any machine in minutes.\n\n\
             | | |\n|---|---|\n| recipe | `lab/recipes/embedded.toml`, seed {} |\n\
             | vocabulary | {} tokens, byte-level BPE; numbers below 100 are one token |\n\
             | trained on | {:.1} million tokens in {} steps |\n\
             | loss on held-out conversations | {} nats per weighted token |\n\
             | sha256 of the weights | `{}` |\n\n\
             The same recipe gives the same weights on the same kind of processor, for any number of threads;\n\
             processors with other SIMD instructions round differently.\n\n\
             ## Behaviour before any training on conversations\n\n\
             Shares of {} replies to held-out prompts, sampled at temperature {}.\n\n\
             | prompts | share of replies that are … |\n|---|---|\n",
            self.name,
            self.parameters as f64 / 1e6,
            self.seed,
            self.vocabulary,
            self.tokens as f64 / 1e6,
            self.steps,
            self.held_out_loss
                .map_or_else(|| "–".to_owned(), |l| format!("{l:.4}")),
            self.digest,
            PROMPTS_PER_SET,
            self.temperature,
        );
        for m in &self.probes {
            let shares: Vec<String> = m
                .shares
                .iter()
                .map(|(name, share)| format!("{name} {:.0} %", share * 100.0))
                .collect();
            let _ = writeln!(text, "| {} ({}) | {} |", m.set, m.about, shares.join(", "));
        }
        text.push_str("\n## Samples\n");
        for m in &self.probes {
            let quote = |s: &str| s.replace('\n', "\n> ");
            let _ = write!(
                text,
                "\n**{}**\n\n> {}\n\n⟶\n\n> {}\n",
                m.set,
                quote(&m.example.0),
                quote(&m.example.1)
            );
        }
        text
    }
}

/// Generates one reply per probe, all concurrently, each with its own seed.
fn replies(engine: &Engine, probes: &[Probe]) -> Result<Vec<String>> {
    let served = engine.active();
    let mut generations = Vec::with_capacity(probes.len());
    for (index, probe) in probes.iter().enumerate() {
        let messages: Vec<_> = probe.messages.iter().map(|m| m.to_chat()).collect();
        let input = ChatInput {
            messages: &messages,
            tools: &[],
            add_generation_prompt: true,
            extra: None,
        };
        let prompt = engine
            .tokenizer()
            .encode(&engine.template().render(&input)?)?;
        let sampling = SamplingParams {
            temperature: SERVED_TEMPERATURE,
            seed: Some(index as u64),
            max_tokens: 192,
            ..SamplingParams::default()
        };
        generations.push(engine.generate(GenerateRequest {
            prompt,
            sampling,
            version: served.clone(),
            priority: Priority::Interactive,
            user: None,
        })?);
    }
    let mut replies = Vec::with_capacity(probes.len());
    for mut generation in generations {
        let mut text = String::new();
        while let Some(event) = generation.blocking_next() {
            match event {
                Event::Token(token) => text.push_str(&token.text),
                Event::Finished(finished) => text.push_str(&finished.text),
                Event::Failed(reason) => anyhow::bail!("the engine failed: {reason}"),
            }
        }
        replies.push(text);
    }
    Ok(replies)
}
