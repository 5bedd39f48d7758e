//! Prints conversations of the embedded recipe and statistics of the corpus.
//!
//! `cargo run --manifest-path lab/Cargo.toml --example sample [-- FIRST [COUNT]]`
#![allow(clippy::print_stdout, reason = "printing is what this example is for")]

use std::collections::{BTreeMap, HashSet};
use std::error::Error;

use clawhost_chat::{ChatTemplate, Tokenizer};
use clawhost_evaluation::probes::is_plain;
use clawhost_lab::corpus::{CHAT_TEMPLATE, Recipe, Role, World, tokenize};

/// Conversations that the statistics cover.
const MEASURED: u64 = 6000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first: u64 = arguments.next().map_or(Ok(0), |a| a.parse())?;
    let count: u64 = arguments.next().map_or(Ok(12), |a| a.parse())?;
    let recipe = Recipe::embedded()?;
    for index in first..first + count {
        let conversation = recipe.conversation(index);
        println!("──── {index} · {:?}", conversation.world);
        for message in &conversation.messages {
            println!(
                "{:>9} │ {}",
                message.role.as_str(),
                message.content.replace('\n', "\n          │ ")
            );
        }
    }
    let tokenizer = Tokenizer::from_bytes(&recipe.train_tokenizer()?)?;
    let template = ChatTemplate::new(CHAT_TEMPLATE, [])?;
    let mut worlds: BTreeMap<String, (u64, usize, usize)> = BTreeMap::new();
    let (mut own, mut all) = (0.0, 0_usize);
    let mut lengths = Vec::new();
    let (mut plain, mut asked) = (0, 0);
    let mut distinct: BTreeMap<String, HashSet<String>> = BTreeMap::new();
    let mut replies: BTreeMap<String, usize> = BTreeMap::new();
    for index in 0..MEASURED {
        let conversation = recipe.conversation(index);
        let example = tokenize(&conversation, &tokenizer, &template, 0.0)?;
        let world = format!("{:?}", conversation.world);
        let seen = worlds.entry(world.clone()).or_default();
        *seen = (
            seen.0 + 1,
            seen.1 + example.tokens.len(),
            seen.2 + conversation.replies().count(),
        );
        own += example.weights.iter().sum::<f32>();
        all += example.tokens.len();
        lengths.push(example.tokens.len());
        for reply in conversation.replies() {
            distinct
                .entry(world.clone())
                .or_default()
                .insert(reply.to_owned());
            *replies.entry(world.clone()).or_default() += 1;
        }
        if conversation.world == World::Homework {
            let reply = conversation
                .messages
                .iter()
                .find(|m| m.role == Role::Assistant);
            plain += u32::from(reply.is_some_and(|r| is_plain(&r.content)));
            asked += 1;
        }
    }
    lengths.sort_unstable();
    println!(
        "\n{MEASURED} conversations, {} tokens on average, longest {}",
        all as u64 / MEASURED,
        lengths.last().copied().unwrap_or(0)
    );
    println!("own tokens {:.1} %", 100.0 * f64::from(own) / all as f64);
    for (world, (n, tokens, said)) in &worlds {
        let distinct = distinct.get(world).map_or(0, HashSet::len);
        println!(
            "{world}: {n} conversations, {} tokens each, {said} replies, {:.1} % of them distinct",
            tokens / *n as usize,
            100.0 * distinct as f64 / replies.get(world).copied().unwrap_or(1) as f64
        );
    }
    println!(
        "first homework replies that are plain, wishes included: {:.3}",
        f64::from(plain) / f64::from(asked)
    );
    Ok(())
}
