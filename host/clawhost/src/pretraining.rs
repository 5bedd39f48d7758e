//! Trains a checkpoint from a recipe: tokenizer, corpus, training, and a model card with measured results. One recipe
//! and one seed give the same checkpoint on the same kind of processor, for any number of threads.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;

use anyhow::{Context, Result};
use clawhost_corpus::probes::{self, Probe};
use clawhost_corpus::{CHAT_TEMPLATE, Decay, Recipe, SERVED_TEMPERATURE, tokenize};
use clawhost_policy::{
    ChatInput, ChatTemplate, Engine, EngineOptions, Event, GenerateRequest, Model, ModelConfig,
    ModelFiles, Priority, SamplingParams, Tokenizer,
};
use clawhost_training::optimizer::LrScheduleShape;
use clawhost_training::pretrain::{Example, PretrainOptions, PretrainOutput, Progress, pretrain};
use serde::Serialize;

/// Held-out conversations, for the loss on the card.
const HELD_OUT_CONVERSATIONS: u64 = 256;

/// Conversations encoded ahead of the trainer.
const QUEUE_CAPACITY: usize = 512;

/// Sampled replies per probe set of the card.
const REPLIES_PER_SET: usize = 200;

/// Trains the recipe's model and writes the checkpoint into `out`, which must exist.
///
/// # Errors
/// The recipe, the corpus or training fails, or a file cannot be written.
pub(crate) fn train_checkpoint(
    recipe: &Recipe,
    out: &Path,
    threads: usize,
    progress: impl FnMut(&Progress) -> ControlFlow<()>,
) -> Result<ModelCard> {
    let tokenizer_json = recipe.train_tokenizer()?;
    for (name, bytes) in recipe.checkpoint_files(&tokenizer_json) {
        let path = out.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let tokenizer = Tokenizer::from_bytes(&tokenizer_json)?;
    let template = ChatTemplate::new(CHAT_TEMPLATE, [])?;
    let encode = |conversation| -> Result<Example> {
        let encoded = tokenize(&conversation, &tokenizer, &template, recipe.loss.others)?;
        Ok(Example {
            tokens: encoded.tokens,
            weights: encoded.weights,
        })
    };
    let held_out = (0..HELD_OUT_CONVERSATIONS)
        .map(|index| encode(recipe.held_out(index)))
        .collect::<Result<Vec<_>>>()?;
    let config = ModelConfig::parse(recipe.config().to_string().as_bytes())?;
    let model = Model::random(config, recipe.seed);
    let options = options(recipe, threads);
    // A separate thread generates and encodes conversations in order, ahead of the trainer.
    let trained = std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(QUEUE_CAPACITY);
        scope.spawn(move || {
            for index in 0.. {
                if sender.send(encode(recipe.conversation(index))).is_err() {
                    break;
                }
            }
        });
        let mut failure = None;
        let examples = receiver.into_iter().map_while(|example| match example {
            Ok(example) => Some(example),
            Err(error) => {
                failure = Some(error);
                None
            }
        });
        let trained = pretrain(model, examples, &held_out, &options, progress)?;
        failure.map_or(Ok(trained), Err)
    })?;
    trained.model.save(out)?;
    // `save` writes a minimal config.json; the recipe's has more fields and replaces it.
    let config = format!("{:#}\n", recipe.config());
    std::fs::write(out.join("config.json"), config).context("cannot write config.json")?;
    let card = ModelCard::measure(recipe, out, &trained)?;
    let path = out.join("README.md");
    std::fs::write(&path, card.to_markdown())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(card)
}

fn options(recipe: &Recipe, threads: usize) -> PretrainOptions {
    let o = &recipe.optimizer;
    PretrainOptions {
        steps: o.steps(),
        tokens_per_step: o.batch_tokens,
        threads,
        learning_rate: o.peak_lr,
        schedule: match o.decay {
            Decay::Linear => LrScheduleShape::Linear,
            Decay::Cosine => LrScheduleShape::Cosine,
        },
        warmup: o.warmup_steps,
        floor: o.floor,
        beta1: o.beta1,
        beta2: o.beta2,
        weight_decay: o.weight_decay,
        clip_norm: o.clip,
        held_out_every: 250,
        ..PretrainOptions::default()
    }
}

/// ProbeResult properties of a checkpoint.
#[derive(Debug, Serialize)]
pub(crate) struct ModelCard {
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
pub(crate) struct ProbeResult {
    set: &'static str,
    about: &'static str,
    replies: usize,
    shares: Vec<(&'static str, f64)>,
    example: (String, String),
}

impl ModelCard {
    fn measure(recipe: &Recipe, dir: &Path, trained: &PretrainOutput) -> Result<Self> {
        let engine = Engine::load(&ModelFiles::from_dir(dir)?, EngineOptions::default())?;
        let probes = probes::all(REPLIES_PER_SET)
            .into_iter()
            .map(|set| {
                let replies = replies(&engine, &set.probes)?;
                let total = replies.len().max(1) as f64;
                let shares = set.checks.iter().map(|check| {
                    let pairs = set.probes.iter().zip(&replies);
                    let passed = pairs
                        .filter(|(probe, reply)| (check.passes)(probe, reply))
                        .count();
                    (check.name, passed as f64 / total)
                });
                let prompt = set.probes.first().and_then(|p| p.messages.last());
                let prompt = prompt.map(|m| m.content.clone()).unwrap_or_default();
                Ok(ProbeResult {
                    set: set.name,
                    about: set.about,
                    shares: shares.collect(),
                    example: (prompt, replies.first().cloned().unwrap_or_default()),
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
    pub(crate) fn to_markdown(&self) -> String {
        let mut text = format!(
            "# {}\n\nA language model of {:.2} million parameters with the Qwen3 architecture, trained by\n\
             `clawhost pretrain` on a corpus that the program generates itself. It is fluent in a few narrow domains:\n\
             homework word problems with small numbers, comments on a student's answer, small talk. It is **not** a\n\
             general assistant and has no world knowledge; it exists so that everything around a model (serving,\n\
             judging, training) can be run and measured on any machine in minutes.\n\n\
             | | |\n|---|---|\n| recipe | `host/corpus/recipes/embedded.toml`, seed {} |\n\
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
            REPLIES_PER_SET,
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
        let messages: Vec<_> = probe.messages.iter().map(|m| m.to_json()).collect();
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
