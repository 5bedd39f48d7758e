//! Another program in the place of the batcher: what it tells becomes the events that the batcher would give, and what
//! it cannot do leaves things as they were.

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::engine::elsewhere::{Activate, Elsewhere, Reply};

/// Tells these tokens, and releases nothing but what it may.
#[derive(Debug, Default)]
struct Far {
    tokens: Vec<u32>,
    /// Ends the reply when it has told them; else it goes away in the middle.
    ends: bool,
    refuses: bool,
    attached: Mutex<Option<Held>>,
}

struct Held(Activate);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

impl Elsewhere for Far {
    fn attach(&self, activate: Activate) {
        *self.attached.lock().unwrap() = Some(Held(activate));
    }

    fn begin(&self, request: GenerateRequest, mut reply: Reply) -> Result<(), Refused> {
        if self.refuses {
            return Err(Refused::Unavailable("nobody is there".to_owned()));
        }
        assert!(request.sampling.seed.is_some());
        for id in &self.tokens {
            let token = SampledToken {
                id: *id,
                logprob: f32::NAN,
                full_logprob: -1.0,
                model_logprob: -1.0,
                top: Vec::new(),
                forced: false,
                text: "not ours".to_owned(),
            };
            if let Some(reason) = reply.take(token) {
                let recorded = Recorded {
                    logprobs: vec![-2.0],
                    full_logprobs: vec![-1.0],
                };
                reply.finish(reason, 1000, Some(recorded));
                return Ok(());
            }
        }
        if self.ends {
            reply.finish(FinishReason::Stop, 0, None);
        }
        Ok(())
    }

    fn release(&self, served: &Served) -> Result<(), String> {
        match served.version {
            0 => Ok(()),
            _ if self.refuses => Err("it has no room".to_owned()),
            _ => Ok(()),
        }
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    fn close(&self, _grace: Duration) {}
}

fn behind(far: Far) -> (Engine, Arc<Far>) {
    let engine = Engine::start(model(), tokenizer(), template(), EngineOptions::default());
    let far = Arc::new(far);
    engine.generate_elsewhere(far.clone());
    (engine, far)
}

fn told(tokens: &str, end: bool, stop: &str, max_tokens: u32) -> (String, Option<Event>) {
    let mut tokens: Vec<u32> = tokens.bytes().map(u32::from).collect();
    if end {
        tokens.push(END);
    }
    let (engine, _) = behind(Far {
        tokens,
        ends: true,
        ..Far::default()
    });
    let mut asked = request(prompt(4, 1), 1, max_tokens);
    asked.served = engine.active();
    asked.sampling.stop = [stop.to_owned()]
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect();
    let mut generation = engine.generate(asked).unwrap();
    assert_eq!(generation.seed(), 1);
    let mut text = String::new();
    loop {
        match generation.blocking_next() {
            Some(Event::Token(token)) => text += &token.text,
            Some(Event::Finished(finished)) => {
                text += &finished.text;
                return (text, Some(Event::Finished(finished)));
            }
            other => return (text, other),
        }
    }
}

#[test]
fn what_is_told_becomes_text_and_ends_where_a_reply_ends() {
    let end = |event: Option<Event>| match event {
        Some(Event::Finished(finished)) => finished,
        other => panic!("{other:?}"),
    };
    let (text, event) = told("abc é", true, "", 50);
    let finished = end(event);
    assert_eq!(
        (text.as_str(), finished.reason),
        ("abc é", FinishReason::Stop)
    );
    assert_eq!((finished.prompt_tokens, finished.completion_tokens), (4, 7));
    // No more of the prompt can have been known than there is.
    assert_eq!(finished.cached_tokens, 4);
    assert_eq!(finished.recorded.unwrap().logprobs, [-2.0]);
    let (text, event) = told("abc def", false, "c d", 50);
    let finished = end(event);
    assert_eq!(
        (text.as_str(), finished.stop.as_deref()),
        ("ab", Some("c d"))
    );
    let (text, event) = told("abcdef", false, "", 3);
    assert_eq!(
        (text.as_str(), end(event).reason),
        ("abc", FinishReason::Length)
    );
    // Held back for a stop string that did not come.
    let (text, event) = told("ab c", false, "cd", 50);
    assert_eq!(
        (text.as_str(), end(event).reason),
        ("ab c", FinishReason::Stop)
    );
}

#[test]
fn a_reply_that_is_dropped_in_the_middle_fails() {
    let (engine, _) = behind(Far {
        tokens: vec![65],
        ..Far::default()
    });
    let mut asked = request(prompt(4, 1), 1, 9);
    asked.served = engine.active();
    let mut generation = engine.generate(asked).unwrap();
    assert!(matches!(generation.blocking_next(), Some(Event::Token(_))));
    assert!(matches!(generation.blocking_next(), Some(Event::Failed(_))));
    assert_eq!(generation.blocking_next(), None);
}

#[test]
fn what_cannot_be_done_there_leaves_things_as_they_were() {
    let (engine, far) = behind(Far {
        refuses: true,
        ..Far::default()
    });
    let mut asked = request(prompt(4, 1), 1, 9);
    asked.served = engine.active();
    let refused = engine.generate(asked).unwrap_err();
    assert_eq!(refused.to_string(), "nobody is there");
    let learned = version(1).learned;
    let error = engine.release(1, learned.clone()).unwrap_err();
    assert_eq!(error.to_string(), "version 1 is not served: it has no room");
    assert_eq!(engine.publish(1, learned).version, 0);
    assert_eq!(engine.active().version, 0);
    // Later it may have.
    let attached = far.attached.lock().unwrap().take().unwrap();
    (attached.0)(version(1));
    assert_eq!(engine.active().version, 1);
    drop(engine);
    (attached.0)(version(2));
}
