//! What a step learns from hints: each loss is computed once more by hand, from scores of the base model.

use clawhost_journal::{SampleId, SampleState, StepOutcome};
use clawhost_policy::{Candidates, Scored, Sequence};
use serde_json::Value;

use super::workshop::{Workshop, letters, options};
use crate::loss::{Direction, Distillation, Select, overlap};
use crate::options::{HintChoice, Learning, TeacherFrom, TopkOf, TrainingOptions};

/// Letters alone, so that every character is a token; more than ten of them.
const HINT: &str = "bcdefghijklmn";
const LONGER: &str = "nmlkjihgfedcbabc";

fn learning(method: Learning) -> TrainingOptions {
    let mut options = TrainingOptions {
        method,
        ..options()
    };
    options.teacher.marker = String::new();
    options
}

/// The recorded reply after a prompt, as the base model scores it.
fn scored(shop: &Workshop, id: SampleId, hint: Option<&str>, wanted: Candidates<'_>) -> Scored {
    let sample = shop.found(id);
    let prompt = match hint {
        // A paragraph of its own; white space has no token here.
        Some(hint) => shop
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
    shop.engine
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

fn gaps(shop: &Workshop, id: SampleId, hint: &str) -> Vec<f64> {
    let teacher = scored(shop, id, Some(hint), Candidates::None).logprobs;
    let own = scored(shop, id, None, Candidates::None).logprobs;
    let pairs = teacher.iter().zip(&own);
    pairs.map(|(t, o)| f64::from(*t) - f64::from(*o)).collect()
}

#[test]
fn a_hint_alone_teaches_and_moves_the_reply_towards_its_teacher() {
    let mut shop = Workshop::new();
    let ids: Vec<SampleId> = (0..4).map(|_| shop.taught(None, &[HINT])).collect();
    let expected: Vec<f64> = ids.iter().map(|id| mean(&gaps(&shop, *id, HINT))).collect();
    let mut trainer = shop.trainer(&learning(Learning::Opd));
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
        let found = shop.found(*id);
        assert_eq!(found.state, SampleState::Trained);
        assert!((f64::from(found.advantage.unwrap()) - expected).abs() < 1e-4);
    }
    // Token by token: what the teacher finds likelier has become likelier, weighed by how much.
    let moved: f64 = ids
        .iter()
        .map(|id| {
            let before = scored(&shop, *id, None, Candidates::None).logprobs;
            let sample = shop.found(*id);
            let mut tokens = sample.prompt_ids.clone();
            tokens.extend(&sample.token_ids);
            let sequence = Sequence {
                tokens: &tokens,
                start: sample.prompt_ids.len(),
                temperature: sample.temperature,
                candidates: Candidates::None,
            };
            let served = shop.engine.active();
            let adapter = served.adapter().map(std::convert::AsRef::as_ref);
            let after = shop.engine.model().score(adapter, &[sequence]).unwrap();
            let changes = after[0].logprobs.iter().zip(&before);
            changes
                .zip(gaps(&shop, *id, HINT))
                .map(|((after, before), gap)| f64::from(after - before) * gap)
                .sum::<f64>()
        })
        .sum();
    assert!(moved > 0.0, "{moved}");
}

#[test]
fn rewards_and_hints_add_up_and_each_sample_has_what_it_has() {
    let mut shop = Workshop::new();
    let both = shop.taught(Some(-1.0), &[HINT]);
    let rewarded = shop.taught(Some(1.0), &[]);
    let hinted = shop.taught(None, &[HINT]);
    let short = shop.taught(None, &["too short"]);
    let mut options = learning(Learning::Hybrid);
    options.teacher.weight_rl = 0.5;
    options.teacher.weight_opd = 2.0;
    let of = |id| 2.0 * mean(&gaps(&shop, id, HINT));
    let expected = [of(both) - 0.5, 0.5, of(hinted)];
    let mut trainer = shop.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    for (id, expected) in [both, rewarded, hinted].into_iter().zip(expected) {
        let advantage = number(&row(&step.metrics, id)["advantage"]);
        assert!(
            (advantage - expected).abs() < 1e-4,
            "{advantage} {expected}"
        );
    }
    let found = shop.found(short);
    assert_eq!(found.state, SampleState::Dropped);
    assert_eq!(found.reason.unwrap(), "no signal: it has no reward");
}

#[test]
fn rewards_alone_leave_hints_alone() {
    let mut shop = Workshop::new();
    let rewarded = shop.taught(Some(-1.0), &[HINT]);
    let hinted = shop.taught(None, &[HINT]);
    let mut options = learning(Learning::Binary);
    // Of no effect without a teacher.
    options.teacher.weight_rl = 0.5;
    let mut trainer = shop.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    let row = row(&step.metrics, rewarded);
    assert!(row["gap"].is_null() && row["advantage"] == -1.0, "{row}");
    assert!(step.metrics.get("teacher_gap").is_none());
    assert_eq!(shop.found(hinted).state, SampleState::Dropped);
}

#[test]
fn distances_are_those_of_the_formula_on_either_sides_tokens() {
    for of in [TopkOf::Student, TopkOf::Teacher] {
        let mut shop = Workshop::new();
        let ids: Vec<SampleId> = (0..4).map(|_| shop.taught(None, &[HINT])).collect();
        let mut options = learning(Learning::OpdTopk);
        options.teacher.top_k = 3;
        options.teacher.top_k_of = of;
        options.teacher.direction = Direction::Forward;
        let distillation = Distillation {
            direction: Direction::Forward,
            tail: true,
        };
        let mut replies = Vec::new();
        for id in &ids {
            let (own, teacher) = match of {
                TopkOf::Student => {
                    let own = scored(&shop, *id, None, Candidates::Top(3));
                    let given = Candidates::Given {
                        ids: &own.candidates,
                        per_token: 3,
                    };
                    let teacher = scored(&shop, *id, Some(HINT), given);
                    (own, teacher)
                }
                TopkOf::Teacher => {
                    let teacher = scored(&shop, *id, Some(HINT), Candidates::Top(3));
                    let given = Candidates::Given {
                        ids: &teacher.candidates,
                        per_token: 3,
                    };
                    (scored(&shop, *id, None, given), teacher)
                }
            };
            let rows = own.candidate_logprobs.chunks(3);
            let distances: Vec<f64> = rows
                .zip(teacher.candidate_logprobs.chunks(3))
                .map(|(own, teacher)| f64::from(distillation.token(own, teacher, &mut [0.0; 3])))
                .collect();
            replies.push(mean(&distances));
        }
        let mut trainer = shop.trainer(&options);
        let step = trainer.step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        let loss = number(&step.metrics["loss_first"]);
        assert!(
            (loss - mean(&replies)).abs() < 1e-4,
            "{loss} {}",
            mean(&replies)
        );
        // A second step over the same replies begins nearer to the teacher.
        let after: f64 = ids
            .iter()
            .map(|id| number(&row(&step.metrics, *id)["logprob_after"]))
            .sum();
        assert!(after.is_finite());
    }
}

#[test]
fn select_takes_the_hint_that_agrees_best_and_sums_surrogates_over_the_policys_tokens() {
    let mut shop = Workshop::new();
    let ids: Vec<SampleId> = [Some(1.0), None, Some(-1.0), None]
        .map(|reward| shop.taught(reward, &[HINT, LONGER]))
        .into();
    let mut options = learning(Learning::HybridTopk);
    options.teacher.top_k = 2;
    let select = Select::default();
    let mut losses = Vec::new();
    let mut taken = Vec::new();
    for id in &ids {
        let own = scored(&shop, *id, None, Candidates::Top(2));
        let shared = |hint| {
            let teacher = scored(&shop, *id, Some(hint), Candidates::Top(2));
            overlap(&own.candidates, &teacher.candidates, 2)
        };
        // The longer one goes first and wins where they are even.
        let hint = if shared(HINT) > shared(LONGER) {
            HINT
        } else {
            LONGER
        };
        let given = Candidates::Given {
            ids: &own.candidates,
            per_token: 2,
        };
        let teacher = scored(&shop, *id, Some(hint), given);
        let rows = own.candidate_logprobs.chunks(2);
        let positions: Vec<f64> = rows
            .zip(teacher.candidate_logprobs.chunks(2))
            .map(|(own, teacher)| -f64::from(select.advantages(own, teacher).iter().sum::<f32>()))
            .collect();
        let reward = f64::from(shop.found(*id).reward.unwrap_or(0.0));
        losses.push(mean(&positions) - reward);
        taken.push(hint);
    }
    let mut trainer = shop.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let loss = number(&step.metrics["loss_first"]);
    assert!(
        (loss - mean(&losses)).abs() < 1e-4,
        "{loss} {}",
        mean(&losses)
    );
    for (id, hint) in ids.iter().zip(taken) {
        let wanted = shop.found(*id);
        let wanted = wanted.hints.iter().find(|h| h.text == hint).unwrap().id;
        assert_eq!(row(&step.metrics, *id)["hint"], wanted);
    }
}

#[test]
fn the_longest_hint_is_taken_unless_overlap_is_asked_for() {
    let mut shop = Workshop::new();
    let id = shop.taught(None, &[HINT, LONGER]);
    let mut options = learning(Learning::Opd);
    assert_eq!(
        options.teacher.hint_choice(Learning::Opd),
        HintChoice::Longest
    );
    options.min_batch = 1;
    let expected = mean(&gaps(&shop, id, LONGER));
    let step = shop.trainer(&options).step(10).unwrap().unwrap();
    assert!((number(&row(&step.metrics, id)["gap"]) - expected).abs() < 1e-4);
}

#[test]
fn a_prompt_that_renders_otherwise_has_no_teacher() {
    let mut shop = Workshop::new();
    let id = shop.taught(None, &[HINT]);
    let other = clawhost_policy::ChatTemplate::new("{{ messages[0].content }}abc", []).unwrap();
    shop.engine = clawhost_policy::Engine::start(
        shop.engine.model().clone(),
        shop.engine.tokenizer().clone(),
        other.into(),
        clawhost_policy::EngineOptions::default(),
    );
    let step = shop
        .trainer(&learning(Learning::Opd))
        .step(10)
        .unwrap()
        .unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    let reason = shop.found(id).reason.unwrap();
    assert!(
        reason.contains("does not render as it was recorded"),
        "{reason}"
    );
}

#[test]
fn a_teacher_that_is_a_running_mean_survives_a_restart_bit_for_bit() {
    let run = |restart: bool| {
        let mut shop = Workshop::new();
        let mut options = learning(Learning::Hybrid);
        options.teacher.from = TeacherFrom::Ema;
        options.teacher.ema_rate = 0.5;
        let mut trainer = shop.trainer(&options);
        let mut gaps = Vec::new();
        for round in 0..3 {
            for reward in [Some(1.0), None, Some(-1.0), None] {
                shop.taught(reward, &[HINT]);
            }
            if restart && round > 0 {
                shop.restart();
                trainer = shop.trainer(&options);
            }
            let step = trainer.step(10).unwrap().unwrap();
            assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
            gaps.push(number(&step.metrics["teacher_gap"]));
        }
        (shop.engine.active().digest, gaps)
    };
    let (digest, gaps) = run(false);
    assert_eq!((digest.clone(), gaps), run(true));
    // And it is another teacher than the base model: the third step differs.
    let mut shop = Workshop::new();
    let options = learning(Learning::Hybrid);
    let mut trainer = shop.trainer(&options);
    for _ in 0..3 {
        for reward in [Some(1.0), None, Some(-1.0), None] {
            shop.taught(reward, &[HINT]);
        }
        trainer.step(10).unwrap().unwrap();
    }
    assert_ne!(shop.engine.active().digest, digest);
}
