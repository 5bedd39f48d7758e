//! Prints the first replies of a served model to a persona, with their scores; with a hint, the replies to hinted
//! prompts.
//!
//! `cargo run --manifest-path lab/Cargo.toml --example first_replies -- URL PERSONA [COUNT [HINT]]`
#![allow(clippy::print_stdout, reason = "printing is what this example is for")]

use std::error::Error;
use std::time::Duration;

use clawhost_evaluation::{ChatClient, Endpoint, Key, Reaction, RequestParams, Track, score};
use clawhost_lab::corpus::append_hint;
use futures_util::StreamExt;
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("pass the URL of a server")?;
    let persona = arguments.next().ok_or("pass a persona")?;
    let mut tracks = Track::EMBEDDED.into_iter();
    let track = tracks
        .find(|track| track.name() == persona)
        .ok_or("pass student or teacher")?;
    let count: u64 = arguments.next().map_or(Ok(200), |a| a.parse())?;
    let hint = arguments.next();
    let endpoint = Endpoint {
        url,
        model: "clawhost-mini".into(),
        api_key: None,
    };
    let client = ChatClient::new(endpoint, Duration::from_secs(60))?;
    let persona = track.persona();
    // Seeds far from those of an evaluation, which count from 1.
    let tasks = (0..count).map(|at| persona.begin(0x5eed_0000 + at, 0xface_0000 + at));
    let prompts: Vec<_> = tasks
        .enumerate()
        .map(|(at, task)| {
            let opening = match &hint {
                Some(hint) => append_hint(&task.opening, hint),
                None => task.opening.clone(),
            };
            (at as u64, task, opening)
        })
        .collect();
    let client = &client;
    let replies: Vec<_> = futures_util::stream::iter(prompts)
        .map(|(seed, task, opening)| async move {
            let params = RequestParams {
                seed,
                temperature: None,
                max_tokens: Some(256),
            };
            let messages = [json!({"role": "user", "content": opening})];
            (client.chat(&messages, params).await, task, opening)
        })
        .buffered(16)
        .collect()
        .await;
    let (mut value, mut style, mut correct, mut content) = (0.0, 0.0, 0.0, 0.0);
    let (mut comments, mut right, mut right_and_correct) = (0.0, 0.0, 0.0);
    let mut shown = 0;
    for (reply, task, opening) in &replies {
        let reply = reply.as_ref().map_err(ToString::to_string)?;
        let result = score(task, &reply.text);
        value += result.value;
        style += result.style;
        correct += result.correctness;
        let reaction = persona.react(task, &reply.text, 1, true);
        content += f64::from(u8::from(matches!(reaction, Reaction::Content(_))));
        if let Key::Grading {
            written,
            right: is_right,
            ..
        } = &task.key
        {
            // A comment mentions the number that the pupil wrote; a solution does not.
            comments += f64::from(u8::from(reply.text.contains(&written.to_string())));
            right += f64::from(u8::from(*is_right));
            right_and_correct += f64::from(u8::from(*is_right)) * result.correctness;
        }
        if shown < 12 {
            shown += 1;
            println!("── {opening}\n   ⟶ {}\n   {result:?}", reply.text);
        }
    }
    let share = |sum: f64| sum / replies.len().max(1) as f64;
    println!(
        "score {:.3} · style {:.3} · correct {:.3} · persona satisfied {:.3} · mentions the work {:.3} · \
         correct where the pupil is right {:.3}",
        share(value),
        share(style),
        share(correct),
        share(content),
        share(comments),
        right_and_correct / f64::max(right, 1.0),
    );
    Ok(())
}
