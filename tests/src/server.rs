//! A server in the test process, on a free port, with a temporary data directory.

use clawhost::config::{Config, ExperienceMode};
use clawhost::serve::{Server, Settings};
use clawhost_engine::Engine;
use clawhost_journal::{
    Journal, JudgingState, SampleRecord, SampleState, TurnId, TurnRecord, TurnState,
};
use clawhost_training::TrainingMethod;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Client, Conversation};
use crate::waiting::until;

/// The embedded policy and the embedded judge; training steps of two samples, or of one after 0.2 s. Training has the
/// priority of everything else, because tests wait for it.
///
/// # Panics
/// When the configuration does not parse.
pub fn configuration() -> Config {
    Config::parse(
        "[server]\nport = 0\n[training]\nbatch_size = 2\nmin_batch_size = 1\nmax_wait = \"200ms\"\nnice = 0\n",
    )
    .unwrap()
}

/// Trains on the rewards of judges alone: no hint and no experience is extracted.
pub fn train_on_rewards(config: &mut Config) {
    config.training.method = TrainingMethod::Binary;
    config.experience.mode = ExperienceMode::Off;
}

/// A running server.
pub struct TestServer {
    /// The server.
    pub server: Server,
    /// A client of the server.
    pub client: Client,
    /// The data directory.
    pub data: TempDir,
}

impl TestServer {
    /// Starts a server with [`configuration`].
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a server with a modified [`configuration`].
    ///
    /// # Panics
    /// When it does not start.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let data = TempDir::new().unwrap();
        let mut config = configuration();
        config.server.data_dir = data.path().to_owned();
        change(&mut config);
        let server = Server::start(Settings::from(config)).await.unwrap();
        Self {
            client: Client::new(server.url()),
            server,
            data,
        }
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        self.server.journal()
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.server.engine()
    }

    /// A new conversation.
    pub fn conversation(&self) -> Conversation {
        Conversation::new(&self.client)
    }

    /// A recorded turn.
    ///
    /// # Panics
    /// When it is not recorded.
    pub fn turn(&self, turn: TurnId) -> TurnRecord {
        self.journal()
            .turn(turn)
            .unwrap()
            .unwrap_or_else(|| panic!("turn {turn} is not recorded"))
    }

    /// Waits for a condition.
    pub async fn until<T>(&self, what: &str, ready: impl FnMut() -> Option<T>) -> T {
        until(self.journal(), what, ready).await
    }

    /// Waits until a turn is no longer being generated.
    pub async fn wait_until_ended(&self, turn: TurnId) -> TurnRecord {
        self.until("the turn has ended", || {
            Some(self.turn(turn)).filter(|record| record.state != TurnState::Generating)
        })
        .await
    }

    /// Waits until a turn is judged.
    pub async fn wait_until_judged(&self, turn: TurnId) -> TurnRecord {
        self.until("the turn is judged", || {
            let record = self.turn(turn);
            matches!(record.judging, JudgingState::Done | JudgingState::Skipped).then_some(record)
        })
        .await
    }

    /// Waits until the sample of a turn was used in a training step.
    pub async fn wait_until_trained(&self, turn: TurnId) -> SampleRecord {
        self.until("the turn has trained", || {
            let samples = self.journal().samples_of_turn(turn).unwrap();
            samples
                .into_iter()
                .find(|sample| sample.state == SampleState::Trained)
        })
        .await
    }

    /// Waits until no turn is left to judge and no sample to train on.
    pub async fn wait_until_idle(&self) {
        self.until("judging and training have nothing to do", || {
            let counts = self.journal().counts().unwrap();
            let none = |left: Option<&u64>| left.is_none_or(|left| *left == 0);
            (none(counts.judging.get(&JudgingState::Ready))
                && none(counts.samples.get(&SampleState::Queued))
                && !self.server.training().snapshot().running)
                .then_some(())
        })
        .await;
    }

    /// The response of `/v1/turns/{id}/explain`.
    pub async fn explain(&self, turn: TurnId) -> Value {
        let response = self.client.get(&format!("/v1/turns/{turn}/explain")).await;
        response.ok().clone()
    }
}
