//! Greedy replies of an engine.

use clawhost_engine::{Engine, Event, GenerateRequest, Priority, SamplingParams};

/// The first 40 tokens of the greedy reply to a prompt.
pub(crate) fn reply(engine: &Engine, prompt: &str) -> Vec<u32> {
    let mut generation = engine
        .generate(GenerateRequest {
            prompt: engine.tokenizer().encode(prompt).unwrap(),
            sampling: SamplingParams {
                max_tokens: 40,
                temperature: 0.0,
                ..SamplingParams::default()
            },
            version: engine.active(),
            priority: Priority::Interactive,
            user: None,
        })
        .unwrap();
    let mut ids = Vec::new();
    while let Some(event) = generation.blocking_next() {
        if let Event::Token(token) = event {
            ids.push(token.id);
        }
    }
    ids
}
