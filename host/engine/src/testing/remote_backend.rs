//! A remote backend in place of the scheduler: its tokens become the same events, and its failures change nothing.

use std::sync::Mutex;
use std::time::Duration;

use super::*;

/// A backend that returns fixed tokens.
#[derive(Debug, Default)]
struct FakeBackend {
    tokens: Vec<u32>,
    /// Finishes the reply after the tokens; otherwise drops it unfinished.
    finishes: bool,
    rejects: bool,
    attached: Mutex<Option<ActivateCallback>>,
}

struct ActivateCallback(ActivateVersion);

impl std::fmt::Debug for ActivateCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ActivateCallback")
    }
}

impl RemoteBackend for FakeBackend {
    fn attach(&self, activate: ActivateVersion) {
        *self.attached.lock().unwrap() = Some(ActivateCallback(activate));
    }

    fn submit(&self, request: GenerateRequest, mut reply: TokenSink) -> Result<(), SubmitError> {
        if self.rejects {
            return Err(SubmitError::Unavailable("the server is down".to_owned()));
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
            if let Some(reason) = reply.push(token) {
                let reply_logprobs = ReplyLogprobs {
                    logprobs: vec![-2.0],
                    full_logprobs: vec![-1.0],
                };
                reply.finish(reason, 1000, Some(reply_logprobs));
                return Ok(());
            }
        }
        if self.finishes {
            reply.finish(FinishReason::Stop, 0, None);
        }
        Ok(())
    }

    fn load_version(&self, version: &LoadedVersion) -> Result<(), String> {
        match version.version {
            0 => Ok(()),
            _ if self.rejects => Err("the server has no free slot".to_owned()),
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

fn engine_with_backend(suite: Suite, backend: FakeBackend) -> (Engine, Arc<FakeBackend>) {
    let engine = suite.start(EngineOptions::default());
    let backend = Arc::new(backend);
    engine.set_remote_backend(backend.clone());
    (engine, backend)
}

fn generate(
    suite: Suite,
    tokens: &str,
    end: bool,
    stop: &str,
    max_tokens: u32,
) -> (String, Option<Event>) {
    let mut tokens: Vec<u32> = tokens.bytes().map(u32::from).collect();
    if end {
        tokens.push(EOS);
    }
    let (engine, _) = engine_with_backend(
        suite,
        FakeBackend {
            tokens,
            finishes: true,
            ..FakeBackend::default()
        },
    );
    let mut request = request(prompt(4, 1), 1, max_tokens);
    request.version = engine.active();
    request.sampling.stop = [stop.to_owned()]
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect();
    let mut generation = engine.generate(request).unwrap();
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

pub fn remote_tokens_become_text_and_stop_conditions_apply(suite: Suite) {
    let end = |event: Option<Event>| match event {
        Some(Event::Finished(finished)) => finished,
        other => panic!("{other:?}"),
    };
    let (text, event) = generate(suite, "abc é", true, "", 50);
    let finished = end(event);
    assert_eq!(
        (text.as_str(), finished.reason),
        ("abc é", FinishReason::Stop)
    );
    assert_eq!((finished.prompt_tokens, finished.completion_tokens), (4, 7));
    // Cached tokens are capped at the prompt length.
    assert_eq!(finished.cached_tokens, 4);
    assert_eq!(finished.reply_logprobs.unwrap().logprobs, [-2.0]);
    let (text, event) = generate(suite, "abc def", false, "c d", 50);
    let finished = end(event);
    assert_eq!(
        (text.as_str(), finished.stop.as_deref()),
        ("ab", Some("c d"))
    );
    let (text, event) = generate(suite, "abcdef", false, "", 3);
    assert_eq!(
        (text.as_str(), end(event).reason),
        ("abc", FinishReason::Length)
    );
    // Text held for a partial stop string is emitted at the end.
    let (text, event) = generate(suite, "ab c", false, "cd", 50);
    assert_eq!(
        (text.as_str(), end(event).reason),
        ("ab c", FinishReason::Stop)
    );
}

pub fn dropped_token_sink_fails_the_reply(suite: Suite) {
    let (engine, _) = engine_with_backend(
        suite,
        FakeBackend {
            tokens: vec![65],
            ..FakeBackend::default()
        },
    );
    let mut request = request(prompt(4, 1), 1, 9);
    request.version = engine.active();
    let mut generation = engine.generate(request).unwrap();
    assert!(matches!(generation.blocking_next(), Some(Event::Token(_))));
    assert!(matches!(generation.blocking_next(), Some(Event::Failed(_))));
    assert_eq!(generation.blocking_next(), None);
}

pub fn backend_failures_leave_the_active_version_unchanged(suite: Suite) {
    let (engine, backend) = engine_with_backend(
        suite,
        FakeBackend {
            rejects: true,
            ..FakeBackend::default()
        },
    );
    let mut request = request(prompt(4, 1), 1, 9);
    request.version = engine.active();
    let rejection = engine.generate(request).unwrap_err();
    assert_eq!(rejection.to_string(), "the server is down");
    let weights = adapter_version(1).weights;
    let error = engine.try_publish(1, weights.clone()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot publish version 1: the server has no free slot"
    );
    assert_eq!(engine.publish(1, weights).version, 0);
    assert_eq!(engine.active().version, 0);
    // The backend activates the version later.
    let attached = backend.attached.lock().unwrap().take().unwrap();
    (attached.0)(adapter_version(1));
    assert_eq!(engine.active().version, 1);
    drop(engine);
    (attached.0)(adapter_version(2));
}
