//! Runs both arms of a demo.

use std::time::Instant;

use super::options::{DemoEndpoints, DemoOptions};
use super::outcome::{ArmSummary, DemoOutcome, gain};
use crate::arms::{ArmEvent, ArmOptions, run_arm};
use crate::client::{ChatClient, Endpoint, RequestError};
use crate::conversation::ConversationOptions;
use crate::idle::WaitError;
use crate::persona::Persona;

/// Why there is no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DemoError {
    /// The trained arm did not become idle.
    #[error("the trained arm stopped: {0}")]
    Trained(WaitError),
    /// The control arm did not become idle.
    #[error("the control arm stopped: {0}")]
    Control(WaitError),
    /// The HTTP client could not be created.
    #[error(transparent)]
    Client(#[from] RequestError),
}

/// Observer of a running demo.
pub trait Progress: Send {
    /// Called for each event of an arm.
    fn event(&mut self, event: &ArmEvent);
}

/// No observer.
impl Progress for () {
    fn event(&mut self, _: &ArmEvent) {}
}

/// Runs both arms concurrently.
///
/// # Errors
/// [`DemoError`] if an endpoint cannot be reached or does not become idle between rounds.
pub async fn run_demo(
    endpoints: &DemoEndpoints,
    persona: &dyn Persona,
    options: DemoOptions,
    progress: &mut dyn Progress,
) -> Result<DemoOutcome, DemoError> {
    let started = Instant::now();
    let client = |url: &str| {
        let endpoint = Endpoint {
            url: url.to_owned(),
            model: endpoints.model.clone(),
            api_key: endpoints.api_key.clone(),
        };
        ChatClient::new(endpoint, options.request_timeout)
    };
    let (learns, frozen) = (client(&endpoints.trained)?, client(&endpoints.control)?);
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let arm = |draws| ArmOptions {
        conversations: options.conversations,
        concurrency: options.concurrency,
        conversation: ConversationOptions {
            seed: options.seed,
            draws,
            temperature: options.temperature,
            max_tokens: options.max_tokens,
            ..ConversationOptions::default()
        },
        wait: options.wait,
    };
    let arms = async move {
        // The sender lives as long as the arms, so the receiver below ends with them.
        let sender = sender;
        let (trained_arm, control_arm) = (arm(1), arm(options.control_draws.max(1)));
        let trained = async {
            let run = run_arm("trained", &learns, persona, trained_arm, &sender);
            run.await.map_err(DemoError::Trained)
        };
        let control = async {
            let run = run_arm("control", &frozen, persona, control_arm, &sender);
            run.await.map_err(DemoError::Control)
        };
        // The first error ends both arms.
        tokio::try_join!(trained, control)
    };
    let watching = async {
        while let Some(event) = events.recv().await {
            progress.event(&event);
        }
    };
    let (outcome, ()) = tokio::join!(arms, watching);
    let (trained, control) = outcome?;
    Ok(DemoOutcome {
        persona: persona.name(),
        options,
        trained_summary: ArmSummary::new(&trained, options.seed),
        control_summary: ArmSummary::new(&control, options.seed),
        gain: gain(&trained, &control, options.seed),
        trained,
        control,
        seconds: started.elapsed().as_secs_f64(),
    })
}
