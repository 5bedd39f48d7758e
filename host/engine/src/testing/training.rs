//! Training sessions: gradients, AdamW, checkpoints, and serving beside them.

use super::*;
use crate::backend::{AdamW, AdamWState, LossGradients, OptimizerStep, TrainLimits, TrainSession};

/// AdamW in f64, tensor by tensor as the paper writes it.
#[derive(Debug, Clone, Default)]
pub struct PlainAdamW {
    updates: i32,
    first: Vec<Vec<f64>>,
    second: Vec<Vec<f64>>,
}

impl PlainAdamW {
    /// One update of tensors, given by whether weight decay applies to them and their values.
    pub fn step(
        &mut self,
        step: OptimizerStep,
        tensors: &mut [(bool, Vec<f64>)],
        gradients: &[Vec<f64>],
    ) {
        let OptimizerStep {
            adamw,
            learning_rate,
            gradient_scale,
        } = step;
        if self.first.is_empty() {
            self.first = tensors.iter().map(|(_, v)| vec![0.0; v.len()]).collect();
            self.second.clone_from(&self.first);
        }
        self.updates += 1;
        for (tensor, (decays, values)) in tensors.iter_mut().enumerate() {
            for (i, value) in values.iter_mut().enumerate() {
                let gradient = gradients[tensor][i] * gradient_scale;
                let first = &mut self.first[tensor][i];
                *first = adamw.beta1 * *first + (1.0 - adamw.beta1) * gradient;
                let second = &mut self.second[tensor][i];
                *second = adamw.beta2 * *second + (1.0 - adamw.beta2) * gradient * gradient;
                if *decays {
                    *value -= learning_rate * adamw.weight_decay * *value;
                }
                let first = *first / (1.0 - adamw.beta1.powi(self.updates));
                let second = *second / (1.0 - adamw.beta2.powi(self.updates));
                *value -= learning_rate * first / (second.sqrt() + adamw.epsilon);
            }
        }
    }
}

fn lora() -> TrainedWeights {
    Arc::new(random_adapter(&config(), 4)).into()
}

/// Trainable weights of both kinds.
fn kinds() -> [TrainedWeights; 2] {
    [lora(), model().into()]
}

/// Three token sequences and the index of the first scored token of each.
fn texts() -> Vec<(Vec<u32>, usize)> {
    [(12, 1, 3), (20, 2, 1), (9, 3, 8)]
        .map(|(length, salt, start)| (prompt(length, salt), start))
        .into()
}

/// Sequences with all kinds of scores that a loss can depend on.
fn sequences(texts: &[(Vec<u32>, usize)]) -> Vec<backend::Sequence<'_>> {
    texts
        .iter()
        .map(|(tokens, start)| backend::Sequence {
            tokens,
            start: *start,
            temperature: 0.8,
            candidates: Candidates::Top(3),
        })
        .collect()
}

/// Weight of a scored value in the loss.
fn coefficient(kind: usize, at: usize) -> f32 {
    0.3 + 0.7 * (1.3 * at as f32 + kind as f32).sin()
}

/// A loss that is linear in all scores, so that its derivatives are constants.
fn linear_loss(scored: &[SequenceScores]) -> f64 {
    let sum = |kind: usize, values: &[f32]| -> f64 {
        let values = values.iter().enumerate();
        values
            .map(|(at, value)| f64::from(coefficient(kind, at)) * f64::from(*value))
            .sum()
    };
    scored
        .iter()
        .map(|s| sum(0, &s.logprobs) + sum(1, &s.entropies) + sum(2, &s.candidate_logprobs))
        .sum()
}

fn linear_gradients(scored: &[SequenceScores]) -> Vec<LossGradients> {
    let slope = |kind: usize, values: &[f32]| {
        let values = 0..values.len();
        values.map(|at| coefficient(kind, at)).collect::<Vec<f32>>()
    };
    scored
        .iter()
        .map(|s| LossGradients {
            d_logprob: slope(0, &s.logprobs),
            d_entropy: slope(1, &s.entropies),
            d_candidates: slope(2, &s.candidate_logprobs),
        })
        .collect()
}

/// Adds the gradients of [`linear_loss`].
fn accumulate(session: &mut dyn TrainSession, texts: &[(Vec<u32>, usize)]) {
    let scored = session.forward(&sequences(texts)).unwrap();
    session.backward(&linear_gradients(&scored)).unwrap();
}

/// One descent on the loss.
fn update(session: &mut dyn TrainSession, learning_rate: f64) {
    session.zero_gradients().unwrap();
    accumulate(session, &texts());
    session.step(step(learning_rate)).unwrap();
}

fn step(learning_rate: f64) -> OptimizerStep {
    OptimizerStep {
        adamw: AdamW::default(),
        learning_rate,
        gradient_scale: 0.5,
    }
}

fn to_f64(tensors: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let tensor = |values: &Vec<f32>| values.iter().map(|v| f64::from(*v)).collect();
    tensors.iter().map(tensor).collect()
}

fn values(weights: &TrainedWeights) -> Vec<Vec<f32>> {
    let tensors = weights.tensors();
    tensors.iter().map(|(_, values)| values.to_vec()).collect()
}

fn norm(tensors: &[Vec<f32>]) -> f64 {
    let squares = tensors.iter().flatten().map(|v| f64::from(*v).powi(2));
    squares.sum::<f64>().sqrt()
}

pub fn forward_scores_equal_those_of_scoring(suite: Suite) {
    let backend = suite.backend();
    let texts = texts();
    let sequences = sequences(&texts);
    for weights in kinds() {
        let mut session = backend
            .train(&weights, None, TrainLimits::default())
            .unwrap();
        let expected = backend.score_weights(Some(&weights), &sequences).unwrap();
        let passes = [
            session.forward(&sequences).unwrap(),
            session.score(&sequences).unwrap(),
        ];
        for scored in passes {
            assert_eq!(scored.len(), expected.len());
            for (scored, expected) in scored.iter().zip(&expected) {
                assert_eq!(scored.logprobs.len(), expected.logprobs.len());
                assert_eq!(scored.candidates.len(), 3 * expected.logprobs.len());
                for (found, expected) in [
                    (&scored.logprobs, &expected.logprobs),
                    (&scored.entropies, &expected.entropies),
                    (&scored.candidate_logprobs, &expected.candidate_logprobs),
                ] {
                    assert_eq!(found.len(), expected.len());
                    for (found, expected) in found.iter().zip(expected) {
                        suite.tolerance.assert_logprob(*found, *expected);
                    }
                }
            }
        }
    }
}

/// Along the gradient of each tensor in turn, so that no tensor can be left out.
pub fn gradients_match_finite_differences(suite: Suite) {
    let backend = suite.backend();
    let texts = texts();
    for weights in kinds() {
        // The candidates are those of the unchanged weights, whatever the change does to their order.
        let scored = backend
            .score_weights(Some(&weights), &sequences(&texts))
            .unwrap();
        let fixed: Vec<Vec<u32>> = scored.into_iter().map(|s| s.candidates).collect();
        let sequences: Vec<backend::Sequence<'_>> = sequences(&texts)
            .into_iter()
            .zip(&fixed)
            .map(|(sequence, ids)| backend::Sequence {
                candidates: Candidates::Fixed { ids, per_token: 3 },
                ..sequence
            })
            .collect();
        let mut session = backend
            .train(&weights, None, TrainLimits::default())
            .unwrap();
        let scored = session.forward(&sequences).unwrap();
        session.backward(&linear_gradients(&scored)).unwrap();
        let gradients = session.gradients().unwrap();
        // The change of the loss is far above the rounding of its terms.
        let change = 2e-2_f32;
        for (tensor, gradient) in gradients.iter().enumerate() {
            let slope = norm(std::slice::from_ref(gradient));
            assert!(slope > 0.0, "tensor {tensor} has no gradient");
            let shifted = |sign: f64| {
                let mut weights = weights.clone();
                let length = sign * f64::from(change) / (slope * slope);
                let (_, values) = weights.tensors_mut().swap_remove(tensor);
                for (value, gradient) in values.iter_mut().zip(gradient) {
                    *value += (length * f64::from(*gradient)) as f32;
                }
                let scored = backend.score_weights(Some(&weights), &sequences).unwrap();
                linear_loss(&scored)
            };
            let Some(tolerance) = suite.tolerance.finite_difference else {
                continue;
            };
            let found = (shifted(0.5) - shifted(-0.5)) / f64::from(change);
            assert!(
                (found - 1.0).abs() <= tolerance,
                "tensor {tensor}: the loss changes {found} times as much as its gradient says"
            );
        }
    }
}

pub fn gradients_of_two_halves_are_those_of_the_whole(suite: Suite) {
    let backend = suite.backend();
    let texts = texts();
    for weights in kinds() {
        let mut whole = backend
            .train(&weights, None, TrainLimits::default())
            .unwrap();
        let mut halves = backend
            .train(&weights, None, TrainLimits::default())
            .unwrap();
        assert_eq!(whole.gradient_norm().unwrap(), 0.0);
        accumulate(&mut *whole, &texts);
        accumulate(&mut *halves, &texts[..1]);
        accumulate(&mut *halves, &texts[1..]);
        let expected = whole.gradients().unwrap();
        suite.tolerance.assert_tensors(
            "gradients",
            &halves.gradients().unwrap(),
            &to_f64(&expected),
        );
        let found = whole.gradient_norm().unwrap();
        let expected = norm(&expected);
        assert!((found / expected - 1.0).abs() <= suite.tolerance.relative);
        // The clip factor of the trainer relies on that norm, and the next update on zeros.
        whole.zero_gradients().unwrap();
        assert_eq!(whole.gradient_norm().unwrap(), 0.0);
        accumulate(&mut *whole, &texts);
        let again = whole.gradient_norm().unwrap();
        assert!((again / found - 1.0).abs() <= suite.tolerance.relative);
    }
}

pub fn loss_falls_over_steps(suite: Suite) {
    for (weights, learning_rate) in kinds().into_iter().zip([2e-2, 5e-3]) {
        let mut session = suite
            .backend()
            .train(&weights, None, TrainLimits::default())
            .unwrap();
        let texts = texts();
        let sequences = sequences(&texts);
        let mut losses = Vec::new();
        for _ in 0..25 {
            session.zero_gradients().unwrap();
            let scored = session.forward(&sequences).unwrap();
            let tokens: usize = scored.iter().map(|s| s.logprobs.len()).sum();
            let sum: f64 = scored
                .iter()
                .flat_map(|s| &s.logprobs)
                .map(|logprob| -f64::from(*logprob))
                .sum();
            losses.push(sum / tokens as f64);
            let gradients: Vec<LossGradients> = scored
                .iter()
                .map(|s| LossGradients {
                    d_logprob: vec![-1.0 / tokens as f32; s.logprobs.len()],
                    d_entropy: Vec::new(),
                    d_candidates: Vec::new(),
                })
                .collect();
            session.backward(&gradients).unwrap();
            session.step(step(learning_rate)).unwrap();
        }
        // An adapter of a random model learns slowly: the head is frozen.
        assert!(losses[24] < losses[0] - 0.15, "{losses:?}");
        assert_eq!(session.updates(), 25);
    }
}

pub fn updates_match_plain_adamw(suite: Suite) {
    for weights in kinds() {
        let mut session = suite
            .backend()
            .train(&weights, None, TrainLimits::default())
            .unwrap();
        let mut plain = PlainAdamW::default();
        let mut expected: Vec<(bool, Vec<f64>)> = weights
            .tensors()
            .into_iter()
            .map(|(name, values)| {
                let values = values.iter().map(|v| f64::from(*v)).collect();
                (AdamW::decays(&name), values)
            })
            .collect();
        for number in 1..=3 {
            session.zero_gradients().unwrap();
            accumulate(&mut *session, &texts());
            let gradients = to_f64(&session.gradients().unwrap());
            let step = step(1e-2 / f64::from(number));
            session.step(step).unwrap();
            plain.step(step, &mut expected, &gradients);
        }
        let state = session.optimizer_state().unwrap();
        assert_eq!((state.updates, session.updates()), (3, 3));
        let tolerance = suite.tolerance;
        tolerance.assert_tensors("first moment", &state.exp_avg, &plain.first);
        tolerance.assert_tensors("second moment", &state.exp_avg_sq, &plain.second);
        // The change, not the weights: it is small beside them.
        let start = values(&weights);
        let mut change = values(&session.weights().unwrap());
        for (change, start) in change.iter_mut().flatten().zip(start.iter().flatten()) {
            *change -= start;
        }
        let starts = start.iter();
        let expected_change: Vec<Vec<f64>> = expected
            .iter()
            .zip(starts)
            .map(|((_, values), start)| {
                let pairs = values.iter().zip(start);
                pairs
                    .map(|(value, start)| value - f64::from(*start))
                    .collect()
            })
            .collect();
        // Rounding a weight to f32 is up to 1e-7 of it, its change about a hundredth of it.
        let tolerance = Tolerance {
            relative: 10.0 * tolerance.relative,
            ..tolerance
        };
        tolerance.assert_tensors("change of the weights", &change, &expected_change);
    }
}

pub fn restored_session_takes_the_same_next_step(suite: Suite) {
    let backend = suite.backend();
    for weights in kinds() {
        let mut session = backend
            .train(&weights, None, TrainLimits::default())
            .unwrap();
        update(&mut *session, 1e-2);
        update(&mut *session, 1e-2);
        let (read_back, state) = (
            session.weights().unwrap(),
            session.optimizer_state().unwrap(),
        );
        assert!(read_back.delta_norm(&weights) > 0.0);
        let mut restored = backend
            .train(&read_back, Some(state.clone()), TrainLimits::default())
            .unwrap();
        assert_eq!(restored.updates(), 2);
        // As if nothing had happened.
        assert_eq!(restored.weights().unwrap().digest(), read_back.digest());
        assert_eq!(restored.optimizer_state().unwrap(), state);
        update(&mut *session, 1e-2);
        update(&mut *restored, 1e-2);
        let (one, one_state) = session.finish().unwrap();
        let (two, two_state) = restored.finish().unwrap();
        assert_eq!(one.digest(), two.digest());
        assert_eq!(one_state, two_state);
        assert_ne!(one.digest(), read_back.digest());
    }
}

pub fn continued_session_takes_the_same_next_step(suite: Suite) {
    let backend = suite.backend();
    let texts = texts();
    for weights in kinds() {
        let train = |(weights, state): &(TrainedWeights, AdamWState)| {
            let limits = TrainLimits::default();
            backend.train(weights, Some(state.clone()), limits).unwrap()
        };
        let state = AdamWState::for_weights(&weights);
        let mut session = train(&(weights, state));
        update(&mut *session, 1e-2);
        let own = session.finish().unwrap();
        // Equal ones, which the backend has not returned.
        let tensors = own.0.tensors();
        let tensors = tensors.iter().map(|(_, values)| values.to_vec());
        let moments = |moments: &[Vec<f32>]| Arc::new(moments.to_vec());
        let state = AdamWState {
            updates: own.1.updates,
            exp_avg: moments(&own.1.exp_avg),
            exp_avg_sq: moments(&own.1.exp_avg_sq),
        };
        let read = (own.0.with_tensors(tensors.collect()), state);
        let [one, two] = [own, read].map(|from| {
            let slot = backend.load_adapter(&from.0).unwrap();
            let mut session = train(&from);
            update(&mut *session, 1e-2);
            // The update does not change what is loaded.
            let scores = backend.score(slot, &sequences(&texts)).unwrap();
            backend.drop_adapter(slot);
            (session.finish().unwrap(), scores)
        });
        assert_eq!(one.1, two.1);
        assert_eq!(one.0.0.digest(), two.0.0.digest());
        assert!(one.0.1 == two.0.1, "the moments differ");
    }
}

pub fn weights_that_a_session_starts_from_stay_as_they_are(suite: Suite) {
    let backend = suite.backend();
    let texts = texts();
    let sequences = sequences(&texts);
    let model = backend.model().digest();
    for weights in kinds() {
        let digest = weights.digest();
        let slot = backend.load_adapter(&weights).unwrap();
        let before = backend.score(slot, &sequences).unwrap();
        let base = backend.score(AdapterSlot::BASE, &sequences).unwrap();
        let mut session = backend
            .train(&weights, None, TrainLimits::default())
            .unwrap();
        update(&mut *session, 5e-2);
        assert_eq!(weights.digest(), digest);
        assert_eq!(backend.score(slot, &sequences).unwrap(), before);
        let after = backend.score(AdapterSlot::BASE, &sequences).unwrap();
        assert_eq!(after, base);
        assert_ne!(session.score(&sequences).unwrap(), before);
        assert_eq!(backend.model().digest(), model);
        backend.drop_adapter(slot);
    }
}

pub fn serving_beside_training_does_not_change_replies(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let weights = lora();
    let mut session = scheduler
        .backend
        .train(&weights, None, TrainLimits::default())
        .unwrap();
    let ask = |version: LoadedVersion| GenerateRequest {
        version,
        ..request(prompt(30, 1), 4, 12)
    };
    let versions = [base(), LoadedVersion::new(1, weights)];
    let generations: Vec<Generation> = versions
        .iter()
        .map(|version| scheduler.admit(ask(version.clone())))
        .collect();
    let texts = texts();
    while !scheduler.inner.is_idle() {
        session.zero_gradients().unwrap();
        let scored = session.forward(&sequences(&texts)).unwrap();
        scheduler.step();
        session.backward(&linear_gradients(&scored)).unwrap();
        scheduler.step();
        session.step(step(1e-2)).unwrap();
    }
    assert!(session.updates() > 3);
    for (version, generation) in versions.into_iter().zip(generations) {
        Reply::collect(generation).assert_agrees(&suite.run_alone(ask(version)), suite.tolerance);
    }
}

pub fn passes_yield_to_requests_between_layers(suite: Suite) {
    let engine = suite.start(EngineOptions::default());
    let load = engine.engine_load();
    // A share so small that the second yield waits until the engine is idle.
    let work = BackgroundWork::new(&engine, 0, 1e-9);
    let mut session = engine
        .backend()
        .train(&lora(), None, TrainLimits::default())
        .unwrap();
    load.set_busy(0, true);
    let pass = std::thread::spawn(move || {
        let _guard = crate::background::enter(Some(work));
        accumulate(&mut *session, &texts());
        session.gradient_norm().unwrap()
    });
    while load.waiting() == 0 {
        assert!(!pass.is_finished(), "the pass does not yield");
        std::thread::yield_now();
    }
    load.set_busy(0, false);
    assert!(pass.join().unwrap() > 0.0);
}

pub fn invalid_training_input_is_rejected(suite: Suite) {
    let backend = suite.backend();
    let other = ModelConfig {
        hidden_size: 32,
        ..config()
    };
    for weights in [
        TrainedWeights::from(Arc::new(random_adapter(&other, 1))),
        Arc::new(Model::random(other, 1)).into(),
    ] {
        let error = backend
            .train(&weights, None, TrainLimits::default())
            .err()
            .unwrap();
        assert_eq!(error, ForwardError::Adapter);
    }
    let error = backend.train(
        &lora(),
        Some(AdamWState::zeros([3])),
        TrainLimits::default(),
    );
    assert!(matches!(
        error.err().unwrap(),
        ForwardError::OptimizerState { found: 3, .. }
    ));
    let mut session = backend
        .train(&lora(), None, TrainLimits::default())
        .unwrap();
    let texts = texts();
    let mut wrong = sequences(&texts);
    wrong[1].start = 0;
    assert!(matches!(
        session.forward(&wrong).unwrap_err(),
        ForwardError::Start { start: 0, .. }
    ));
    let scored = session.forward(&sequences(&texts)).unwrap();
    let mut gradients = linear_gradients(&scored);
    gradients[0].d_entropy.pop();
    assert!(matches!(
        session.backward(&gradients).unwrap_err(),
        ForwardError::Length {
            what: "d_entropy",
            ..
        }
    ));
    // It can be used again.
    session.zero_gradients().unwrap();
    accumulate(&mut *session, &texts);
    assert!(session.gradient_norm().unwrap() > 0.0);
}
