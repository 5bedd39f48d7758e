//! Distillation of hints: each loss is recomputed here from scores of the base model.

use clawhost_cpu::CpuModel;
use clawhost_engine::{Candidates, Sequence, SequenceScores};
use clawhost_journal::{SampleId, SampleState, StepOutcome};
use serde_json::Value;

use super::fixture::{Fixture, letters, options};
use crate::loss::{DistillationDivergence, TopKDistillation, TopKSelect, count_shared_tokens};
use clawhost_config::{HintSelection, TeacherSource, TopKSource, TrainingMethod, TrainingOptions};

/// More than ten letters, each of which is a token.
const HINT: &str = "bcdefghijklmn";
const LONGER: &str = "nmlkjihgfedcbabc";

fn method_options(method: TrainingMethod) -> TrainingOptions {
    let mut options = TrainingOptions {
        method,
        ..options()
    };
    options.teacher.hint_marker = String::new();
    options
}

/// The base model's scores of the recorded reply, after the prompt with or without a hint.
fn scored(
    fixture: &Fixture,
    id: SampleId,
    hint: Option<&str>,
    wanted: Candidates<'_>,
) -> SequenceScores {
    let sample = fixture.sample_record(id);
    let prompt = match hint {
        // The hint is its own paragraph; white space has no tokens here.
        Some(hint) => fixture
            .engine
            .tokenizer()
            .encode(&format!("{} {hint}", letters(&sample.prompt_ids)))
            .unwrap(),
        None => sample.prompt_ids.clone(),
    };
    let mut tokens = prompt.clone();
    tokens.extend(&sample.token_ids);
    let sequence = Sequence {
        tokens: &tokens,
        start: prompt.len(),
        temperature: sample.temperature,
        candidates: wanted,
    };
    fixture
        .engine
        .model()
        .score(None, &[sequence])
        .unwrap()
        .remove(0)
}

fn row(metrics: &Value, id: SampleId) -> Value {
    let rows = metrics["samples_moved"].as_array().unwrap();
    rows.iter()
        .find(|row| row["sample"] == id.0)
        .unwrap()
        .clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn gaps(fixture: &Fixture, id: SampleId, hint: &str) -> Vec<f64> {
    let teacher = scored(fixture, id, Some(hint), Candidates::None).logprobs;
    let own = scored(fixture, id, None, Candidates::None).logprobs;
    let pairs = teacher.iter().zip(&own);
    pairs.map(|(t, o)| f64::from(*t) - f64::from(*o)).collect()
}

#[test]
fn opd_moves_the_reply_towards_the_teacher() {
    let mut fixture = Fixture::new();
    let ids: Vec<SampleId> = (0..4)
        .map(|_| fixture.hinted_sample(None, &[HINT]))
        .collect();
    let expected: Vec<f64> = ids
        .iter()
        .map(|id| mean(&gaps(&fixture, *id, HINT)))
        .collect();
    let mut trainer = fixture.trainer(&method_options(TrainingMethod::Opd));
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let metrics = &step.metrics;
    assert_eq!(
        (&metrics["hinted"], &metrics["rewarded"]),
        (&4.into(), &0.into())
    );
    assert!((number(&metrics["teacher_gap"]) - mean(&expected)).abs() < 1e-4);
    // At the first update every ratio is one: the loss is minus the mean advantage.
    assert!((number(&metrics["loss_first"]) + mean(&expected)).abs() < 1e-4);
    for (id, expected) in ids.iter().zip(&expected) {
        let row = row(metrics, *id);
        assert!((number(&row["gap"]) - expected).abs() < 1e-4, "{row}");
        assert!((number(&row["advantage"]) - expected).abs() < 1e-4, "{row}");
        assert!(row["reward"].is_null() && row["hint"].is_number(), "{row}");
        let found = fixture.sample_record(*id);
        assert_eq!(found.state, SampleState::Trained);
        assert!((f64::from(found.advantage.unwrap()) - expected).abs() < 1e-4);
    }
    // Per token: log-prob changes correlate with the gaps.
    let moved: f64 = ids
        .iter()
        .map(|id| {
            let before = scored(&fixture, *id, None, Candidates::None).logprobs;
            let sample = fixture.sample_record(*id);
            let mut tokens = sample.prompt_ids.clone();
            tokens.extend(&sample.token_ids);
            let sequence = Sequence {
                tokens: &tokens,
                start: sample.prompt_ids.len(),
                temperature: sample.temperature,
                candidates: Candidates::None,
            };
            let served = fixture.engine.active();
            let adapter = served.adapter().map(std::convert::AsRef::as_ref);
            let after = fixture.engine.model().score(adapter, &[sequence]).unwrap();
            let changes = after[0].logprobs.iter().zip(&before);
            changes
                .zip(gaps(&fixture, *id, HINT))
                .map(|((after, before), gap)| f64::from(after - before) * gap)
                .sum::<f64>()
        })
        .sum();
    assert!(moved > 0.0, "{moved}");
}

#[test]
fn hybrid_adds_reward_and_distillation_advantages() {
    let mut fixture = Fixture::new();
    let both = fixture.hinted_sample(Some(-1.0), &[HINT]);
    let rewarded = fixture.hinted_sample(Some(1.0), &[]);
    let hinted = fixture.hinted_sample(None, &[HINT]);
    let short = fixture.hinted_sample(None, &["too short"]);
    let mut options = method_options(TrainingMethod::Hybrid);
    options.teacher.reward_weight = 0.5;
    options.teacher.distillation_weight = 2.0;
    let of = |id| 2.0 * mean(&gaps(&fixture, id, HINT));
    let expected = [of(both) - 0.5, 0.5, of(hinted)];
    let mut trainer = fixture.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    for (id, expected) in [both, rewarded, hinted].into_iter().zip(expected) {
        let advantage = number(&row(&step.metrics, id)["advantage"]);
        assert!(
            (advantage - expected).abs() < 1e-4,
            "{advantage} {expected}"
        );
    }
    let found = fixture.sample_record(short);
    assert_eq!(found.state, SampleState::Dropped);
    assert_eq!(found.reason.unwrap(), "no signal: it has no reward");
}

#[test]
fn hybrid_divergence_trains_rewards_and_adds_a_divergence_where_there_is_a_hint() {
    let mut fixture = Fixture::new();
    let both = fixture.hinted_sample(Some(-1.0), &[HINT]);
    let rewarded = fixture.hinted_sample(Some(1.0), &[]);
    let mut options = method_options(TrainingMethod::HybridDivergence);
    options.teacher.reward_weight = 0.5;
    options.teacher.top_k_from = TopKSource::Teacher;
    options.teacher.divergence = DistillationDivergence::Jensen;
    options.teacher.top_k = 3;
    let teacher = scored(&fixture, both, Some(HINT), Candidates::Top(3));
    let given = Candidates::Fixed {
        ids: &teacher.candidates,
        per_token: 3,
    };
    let own = scored(&fixture, both, None, given);
    let divergence = TopKDistillation {
        direction: DistillationDivergence::Jensen,
        tail: true,
    };
    let rows = own.candidate_logprobs.chunks(3);
    let divergences: Vec<f64> = rows
        .zip(teacher.candidate_logprobs.chunks(3))
        .map(|(own, teacher)| f64::from(divergence.token(own, teacher, &mut [0.0; 3])))
        .collect();
    let mut trainer = fixture.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    for (id, advantage, is_distilled) in [(both, -0.5, true), (rewarded, 0.5, false)] {
        let row = row(&step.metrics, id);
        assert!(
            (number(&row["advantage"]) - advantage).abs() < 1e-6,
            "{row}"
        );
        assert_eq!(row["gap"].is_number(), is_distilled, "{row}");
        assert_eq!(fixture.sample_record(id).state, SampleState::Trained);
    }
    // The rewards of two replies of one length cancel out at the first update. The mean is over the tokens of both.
    let loss = number(&step.metrics["loss_first"]);
    let expected = mean(&divergences) / 2.0;
    assert!((loss - expected).abs() < 1e-4, "{loss} {expected}");
}

#[test]
fn binary_ignores_hints() {
    let mut fixture = Fixture::new();
    let rewarded = fixture.hinted_sample(Some(-1.0), &[HINT]);
    let hinted = fixture.hinted_sample(None, &[HINT]);
    let mut options = method_options(TrainingMethod::Binary);
    // Of no effect without a teacher.
    options.teacher.reward_weight = 0.5;
    let mut trainer = fixture.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    let row = row(&step.metrics, rewarded);
    assert!(row["gap"].is_null() && row["advantage"] == -1.0, "{row}");
    assert!(step.metrics.get("teacher_gap").is_none());
    assert_eq!(fixture.sample_record(hinted).state, SampleState::Dropped);
}

#[test]
fn the_divergence_matches_the_formula_for_both_top_k_sources() {
    for (method, of) in [
        (TrainingMethod::OpdTopk, TopKSource::Student),
        (TrainingMethod::OpdTopk, TopKSource::Teacher),
        (TrainingMethod::HybridDivergence, TopKSource::Teacher),
    ] {
        let mut fixture = Fixture::new();
        let ids: Vec<SampleId> = (0..4)
            .map(|_| fixture.hinted_sample(None, &[HINT]))
            .collect();
        let mut options = method_options(method);
        options.teacher.top_k = 3;
        options.teacher.top_k_from = of;
        options.teacher.divergence = DistillationDivergence::Forward;
        let distillation = TopKDistillation {
            direction: DistillationDivergence::Forward,
            tail: true,
        };
        let mut replies = Vec::new();
        for id in &ids {
            let (own, teacher) = match of {
                TopKSource::Student => {
                    let own = scored(&fixture, *id, None, Candidates::Top(3));
                    let given = Candidates::Fixed {
                        ids: &own.candidates,
                        per_token: 3,
                    };
                    let teacher = scored(&fixture, *id, Some(HINT), given);
                    (own, teacher)
                }
                TopKSource::Teacher => {
                    let teacher = scored(&fixture, *id, Some(HINT), Candidates::Top(3));
                    let given = Candidates::Fixed {
                        ids: &teacher.candidates,
                        per_token: 3,
                    };
                    (scored(&fixture, *id, None, given), teacher)
                }
            };
            let rows = own.candidate_logprobs.chunks(3);
            let distances: Vec<f64> = rows
                .zip(teacher.candidate_logprobs.chunks(3))
                .map(|(own, teacher)| f64::from(distillation.token(own, teacher, &mut [0.0; 3])))
                .collect();
            replies.push(mean(&distances));
        }
        let mut trainer = fixture.trainer(&options);
        let step = trainer.step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        let loss = number(&step.metrics["loss_first"]);
        assert!(
            (loss - mean(&replies)).abs() < 1e-4,
            "{loss} {}",
            mean(&replies)
        );
        // The log-probs after the step are finite.
        let after: f64 = ids
            .iter()
            .map(|id| number(&row(&step.metrics, *id)["logprob_after"]))
            .sum();
        assert!(after.is_finite());
    }
}

#[test]
fn hybrid_topk_loss_matches_the_formula_with_the_best_overlapping_hint() {
    let mut fixture = Fixture::new();
    let ids: Vec<SampleId> = [Some(1.0), None, Some(-1.0), None]
        .map(|reward| fixture.hinted_sample(reward, &[HINT, LONGER]))
        .into();
    let mut options = method_options(TrainingMethod::HybridTopk);
    options.teacher.top_k = 2;
    let select = TopKSelect::default();
    let mut losses = Vec::new();
    let mut taken = Vec::new();
    for id in &ids {
        let own = scored(&fixture, *id, None, Candidates::Top(2));
        let shared = |hint| {
            let teacher = scored(&fixture, *id, Some(hint), Candidates::Top(2));
            count_shared_tokens(&own.candidates, &teacher.candidates, 2)
        };
        // The longer hint comes first and wins ties.
        let hint = if shared(HINT) > shared(LONGER) {
            HINT
        } else {
            LONGER
        };
        let given = Candidates::Fixed {
            ids: &own.candidates,
            per_token: 2,
        };
        let teacher = scored(&fixture, *id, Some(hint), given);
        let rows = own.candidate_logprobs.chunks(2);
        let positions: Vec<f64> = rows
            .zip(teacher.candidate_logprobs.chunks(2))
            .map(|(own, teacher)| -f64::from(select.advantages(own, teacher).iter().sum::<f32>()))
            .collect();
        let reward = f64::from(fixture.sample_record(*id).reward.unwrap_or(0.0));
        losses.push(mean(&positions) - reward);
        taken.push(hint);
    }
    let mut trainer = fixture.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let loss = number(&step.metrics["loss_first"]);
    assert!(
        (loss - mean(&losses)).abs() < 1e-4,
        "{loss} {}",
        mean(&losses)
    );
    for (id, hint) in ids.iter().zip(taken) {
        let wanted = fixture.sample_record(*id);
        let wanted = wanted.hints.iter().find(|h| h.text == hint).unwrap().id;
        assert_eq!(row(&step.metrics, *id)["hint"], wanted);
    }
}

#[test]
fn opd_uses_the_longest_hint_by_default() {
    let mut fixture = Fixture::new();
    let id = fixture.hinted_sample(None, &[HINT, LONGER]);
    let mut options = method_options(TrainingMethod::Opd);
    assert_eq!(
        options.teacher.hint_selection(TrainingMethod::Opd),
        HintSelection::Longest
    );
    options.min_batch_size = 1;
    let expected = mean(&gaps(&fixture, id, LONGER));
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert!((number(&row(&step.metrics, id)["gap"]) - expected).abs() < 1e-4);
}

#[test]
fn a_sample_whose_prompt_renders_differently_is_dropped() {
    let mut fixture = Fixture::new();
    let id = fixture.hinted_sample(None, &[HINT]);
    let other = clawhost_chat::ChatTemplate::new("{{ messages[0].content }}abc", []).unwrap();
    fixture.engine = clawhost_cpu::start_engine(
        fixture.engine.model().clone(),
        fixture.engine.tokenizer().clone(),
        other.into(),
        clawhost_engine::EngineOptions::default(),
    )
    .unwrap();
    let step = fixture
        .trainer(&method_options(TrainingMethod::Opd))
        .step(10)
        .unwrap()
        .unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    let reason = fixture.sample_record(id).reason.unwrap();
    assert!(
        reason.contains("does not render to the recorded tokens"),
        "{reason}"
    );
}

#[test]
fn an_ema_teacher_survives_a_restart_bit_for_bit() {
    let run = |restart: bool| {
        let mut fixture = Fixture::new();
        let mut options = method_options(TrainingMethod::Hybrid);
        options.teacher.source = TeacherSource::Ema;
        options.teacher.ema_rate = 0.5;
        let mut trainer = fixture.trainer(&options);
        let mut gaps = Vec::new();
        for round in 0..3 {
            for reward in [Some(1.0), None, Some(-1.0), None] {
                fixture.hinted_sample(reward, &[HINT]);
            }
            if restart && round > 0 {
                fixture.restart();
                trainer = fixture.trainer(&options);
            }
            let step = trainer.step(10).unwrap().unwrap();
            assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
            gaps.push(number(&step.metrics["teacher_gap"]));
        }
        (fixture.engine.active().digest().to_owned(), gaps)
    };
    let (digest, gaps) = run(false);
    assert_eq!((digest.clone(), gaps), run(true));
    // It differs from the base model as a teacher: the third step is different.
    let mut fixture = Fixture::new();
    let options = method_options(TrainingMethod::Hybrid);
    let mut trainer = fixture.trainer(&options);
    for _ in 0..3 {
        for reward in [Some(1.0), None, Some(-1.0), None] {
            fixture.hinted_sample(reward, &[HINT]);
        }
        trainer.step(10).unwrap().unwrap();
    }
    assert_ne!(fixture.engine.active().digest(), digest);
}
