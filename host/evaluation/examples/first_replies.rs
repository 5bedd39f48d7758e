//! What a served model answers first to a persona, and what its score is made of; with a hint, what it would
//! answer if it had understood.
//!
//! `cargo run --example first_replies -- URL PERSONA [COUNT [HINT]]`
#![allow(clippy::print_stdout, reason = "printing is what this example is for")]

use std::error::Error;
use std::time::Duration;

use clawhost_corpus::hinted;
use clawhost_evaluation::{Asking, ChatClient, Endpoint, Key, Reaction, Track, score};
use futures_util::StreamExt;
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("give the address of a server")?;
    let track: Track = arguments.next().ok_or("give a persona")?.parse()?;
    let count: u64 = arguments.next().map_or(Ok(200), |a| a.parse())?;
    let hint = arguments.next();
    let endpoint = Endpoint {
        url,
        model: "clawhost-mini".into(),
        api_key: None,
    };
    let client = ChatClient::new(endpoint, Duration::from_secs(60))?;
    let persona = track.persona();
    // Seeds far from those that an evaluation counts from 1.
    let tasks = (0..count).map(|at| persona.begin(0x5eed_0000 + at, 0xface_0000 + at));
    let asked: Vec<_> = tasks
        .enumerate()
        .map(|(at, task)| {
            let opening = match &hint {
                Some(hint) => hinted(&task.opening, hint),
                None => task.opening.clone(),
            };
            (at as u64, task, opening)
        })
        .collect();
    let client = &client;
    let replies: Vec<_> = futures_util::stream::iter(asked)
        .map(|(seed, task, opening)| async move {
            let asking = Asking {
                seed,
                temperature: None,
                max_tokens: Some(256),
            };
            let messages = [json!({"role": "user", "content": opening})];
            (client.chat(&messages, asking).await, task, opening)
        })
        .buffered(16)
        .collect()
        .await;
    let (mut value, mut style, mut correct, mut content) = (0.0, 0.0, 0.0, 0.0);
    let (mut comments, mut right, mut right_said) = (0.0, 0.0, 0.0);
    let mut shown = 0;
    for (reply, task, opening) in &replies {
        let reply = reply.as_ref().map_err(ToString::to_string)?;
        let scored = score(task, &reply.text);
        value += scored.value;
        style += scored.style;
        correct += scored.correctness;
        let reaction = persona.react(task, &reply.text, 1, true);
        content += f64::from(u8::from(matches!(reaction, Reaction::Content(_))));
        if let Key::Grading {
            written,
            right: is_right,
            ..
        } = &task.key
        {
            // A comment takes up the number that the pupil wrote; a solution does not.
            comments += f64::from(u8::from(reply.text.contains(&written.to_string())));
            right += f64::from(u8::from(*is_right));
            right_said += f64::from(u8::from(*is_right)) * scored.correctness;
        }
        if shown < 12 {
            shown += 1;
            println!("── {opening}\n   ⟶ {}\n   {scored:?}", reply.text);
        }
    }
    let share = |sum: f64| sum / replies.len().max(1) as f64;
    println!(
        "score {:.3} · style {:.3} · correct {:.3} · persona content {:.3} · takes up the work {:.3} · \
         correct where the pupil is right {:.3}",
        share(value),
        share(style),
        share(correct),
        share(content),
        share(comments),
        right_said / f64::max(right, 1.0),
    );
    Ok(())
}
