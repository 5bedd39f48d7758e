//! Trains a checkpoint from a recipe: tokenizer, corpus, training, and a model card with measured results. One recipe
//! and one seed give the same checkpoint on the same kind of processor, for any number of threads.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;

use anyhow::{Context, Result};
use clawhost_chat::{ChatTemplate, Tokenizer};
use clawhost_model::{Model, ModelConfig};

use crate::card::ModelCard;
use crate::corpus::{CHAT_TEMPLATE, Recipe, tokenize};
use crate::pretrain::{Example, PretrainOptions, Progress, pretrain};

/// Held-out conversations, for the loss on the card.
const HELD_OUT_CONVERSATIONS: u64 = 256;

/// Conversations encoded ahead of the trainer.
const QUEUE_CAPACITY: usize = 512;

/// Trains the recipe's model and writes the checkpoint into `out`, which must exist.
///
/// # Errors
/// The recipe, the corpus or training fails, or a file cannot be written.
pub fn train_checkpoint(
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
        Ok(tokenize(
            &conversation,
            &tokenizer,
            &template,
            recipe.loss.others,
        )?)
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
        schedule: o.decay,
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
