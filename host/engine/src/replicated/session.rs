//! A training session on several replicas (data parallel).

use std::ops::Range;
use std::sync::Arc;

use clawhost_model::TrainedWeights;

use super::parallel::run_each;
use super::{concat, divide};
use crate::backend::{
    AdamWState, ForwardError, GradientReducer, HostReducer, LossGradients, OptimizerStep, Sequence,
    SequenceScores, TrainSession,
};

/// What the gradients of the replicas are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gradients {
    /// Each replica has those of its sequences.
    Parts,
    /// Each replica has the sum of all.
    Sum,
}

/// A session of each replica. All of them have the same weights and the same optimizer state.
pub(super) struct ReplicatedSession {
    sessions: Vec<Box<dyn TrainSession>>,
    reducer: Arc<dyn GradientReducer>,
    /// The sequences of each replica in the forward pass that is not differentiated yet.
    shards: Option<Vec<Range<usize>>>,
    gradients: Gradients,
    /// Why some replicas may have made an update that others have not.
    failed: Option<ForwardError>,
}

impl ReplicatedSession {
    pub(super) fn new(
        sessions: Vec<Box<dyn TrainSession>>,
        reducer: Arc<dyn GradientReducer>,
    ) -> Self {
        Self {
            sessions,
            reducer,
            shards: None,
            gradients: Gradients::Parts,
            failed: None,
        }
    }

    fn first(&self) -> &dyn TrainSession {
        &*self.sessions[0]
    }

    /// # Errors
    /// The replicas may differ.
    fn check(&self) -> Result<(), ForwardError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn reduce(&mut self) -> Result<(), ForwardError> {
        if self.gradients == Gradients::Parts && self.sessions.len() > 1 {
            self.reducer.reduce(&mut self.sessions)?;
        }
        self.gradients = Gradients::Sum;
        Ok(())
    }
}

/// The first error of the replicas.
fn all(results: Vec<Result<(), ForwardError>>) -> Result<(), ForwardError> {
    results.into_iter().collect()
}

impl TrainSession for ReplicatedSession {
    fn zero_gradients(&mut self) -> Result<(), ForwardError> {
        self.gradients = Gradients::Parts;
        let mut sessions = self.sessions.iter_mut();
        sessions.try_for_each(|session| session.zero_gradients())
    }

    fn forward(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>, ForwardError> {
        self.check()?;
        self.shards = None;
        let shards = divide(sequences, self.sessions.len());
        let work: Vec<_> = self.sessions.iter_mut().zip(shards.clone()).collect();
        let scores = run_each(work, |(session, shard)| session.forward(&sequences[shard]));
        let scores = concat(scores)?;
        self.shards = Some(shards);
        Ok(scores)
    }

    fn backward(&mut self, gradients: &[LossGradients]) -> Result<(), ForwardError> {
        let shards = self.shards.take();
        let shards = shards.expect("a forward pass runs before each backward pass");
        let expected = shards.last().map_or(0, |last| last.end);
        if gradients.len() != expected {
            return Err(ForwardError::Length {
                what: "sequences",
                found: gradients.len(),
                expected,
            });
        }
        if self.gradients == Gradients::Sum {
            // The first replica keeps it, and the others add nothing to it.
            let others = &mut self.sessions[1..];
            others
                .iter_mut()
                .try_for_each(|session| session.zero_gradients())?;
            self.gradients = Gradients::Parts;
        }
        let work: Vec<_> = self.sessions.iter_mut().zip(shards).collect();
        all(run_each(work, |(session, shard)| {
            session.backward(&gradients[shard])
        }))
    }

    fn gradient_norm(&mut self) -> Result<f64, ForwardError> {
        self.reduce()?;
        self.sessions[0].gradient_norm()
    }

    fn step(&mut self, step: OptimizerStep) -> Result<(), ForwardError> {
        self.check()?;
        self.reduce()?;
        let stepped = all(run_each(&mut self.sessions, |session| session.step(step)));
        self.failed = stepped.clone().err();
        stepped
    }

    fn score(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>, ForwardError> {
        self.check()?;
        let shards = divide(sequences, self.sessions.len());
        let work: Vec<_> = self.sessions.iter_mut().zip(shards).collect();
        concat(run_each(work, |(session, shard)| {
            session.score(&sequences[shard])
        }))
    }

    fn updates(&self) -> u64 {
        self.first().updates()
    }

    fn gradients(&self) -> Result<Vec<Vec<f32>>, ForwardError> {
        match self.gradients {
            Gradients::Parts => HostReducer::sum(&self.sessions),
            Gradients::Sum => self.first().gradients(),
        }
    }

    fn set_gradients(&mut self, gradients: &[Vec<f32>]) -> Result<(), ForwardError> {
        let mut sessions = self.sessions.iter_mut();
        sessions.try_for_each(|session| session.set_gradients(gradients))?;
        self.gradients = Gradients::Sum;
        Ok(())
    }

    fn weights(&self) -> Result<TrainedWeights, ForwardError> {
        self.check()?;
        self.first().weights()
    }

    fn optimizer_state(&self) -> Result<AdamWState, ForwardError> {
        self.check()?;
        self.first().optimizer_state()
    }

    fn finish(self: Box<Self>) -> Result<(TrainedWeights, AdamWState), ForwardError> {
        self.check()?;
        let mut sessions = self.sessions.into_iter();
        let first = sessions.next().expect("there is at least one replica");
        let (weights, state) = first.finish()?;
        sessions.for_each(|session| session.finish_as(&weights, &state));
        Ok((weights, state))
    }
}
