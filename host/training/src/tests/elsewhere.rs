//! A teacher at an endpoint: its numbers are those of the same teacher here, and its silence is no number.

use std::sync::{Arc, Mutex};

use clawhost_journal::{SampleState, StepOutcome};
use clawhost_policy::{Candidates, Engine, Sequence};
use serde_json::Value;

use super::workshop::{Workshop, options};
use crate::error::TrainingError;
use crate::options::{Learning, TeacherEndpoint, TeacherFrom, TopkOf, TrainingOptions};
use crate::teaching::{Teacher, TeacherAnswer, TeacherQuestion, TeacherSilent};

const HINT: &str = "bcdefghijklmn";

/// The base model, as if it were elsewhere.
#[derive(Debug)]
struct Far {
    engine: Engine,
    /// What it says instead of each answer, the first first.
    instead: Mutex<Vec<TeacherSilent>>,
}

impl Far {
    fn over(shop: &Workshop, instead: &[TeacherSilent]) -> Option<Arc<dyn Teacher>> {
        Some(Arc::new(Self {
            engine: shop.engine.clone(),
            instead: Mutex::new(instead.iter().rev().cloned().collect()),
        }))
    }
}

impl Teacher for Far {
    fn score(&self, question: TeacherQuestion<'_>) -> Result<TeacherAnswer, TeacherSilent> {
        if let Some(silent) = self.instead.lock().unwrap().pop() {
            return Err(silent);
        }
        let tokens = [question.prompt, question.reply].concat();
        let sequence = Sequence {
            tokens: &tokens,
            start: question.prompt.len(),
            temperature: 1.0,
            candidates: match question.top {
                0 => Candidates::None,
                k => Candidates::Top(k),
            },
        };
        let scored = self.engine.model().score(None, &[sequence]).unwrap();
        Ok(TeacherAnswer {
            logprobs: scored[0].logprobs.clone(),
            top: scored[0].candidates.clone(),
            top_logprobs: scored[0].candidate_logprobs.clone(),
        })
    }
}

fn shop() -> Workshop {
    let mut shop = Workshop::new();
    shop.temperature = 1.0;
    shop
}

fn learning(method: Learning, from: TeacherFrom) -> TrainingOptions {
    let mut options = TrainingOptions {
        method,
        ..options()
    };
    options.teacher.marker = String::new();
    options.teacher.top_k_of = TopkOf::Teacher;
    options.teacher.from = from;
    options.teacher.endpoint = (from == TeacherFrom::Endpoint).then(|| TeacherEndpoint {
        url: "http://127.0.0.1:1/v1".to_owned(),
        model: "t".to_owned(),
        key_env: None,
        timeout_seconds: 1.0,
    });
    options
}

fn rows(metrics: &Value) -> &Vec<Value> {
    metrics["samples_moved"].as_array().unwrap()
}

#[test]
fn its_numbers_are_those_of_the_same_teacher_here() {
    for method in [Learning::Opd, Learning::Hybrid, Learning::OpdTopk] {
        let step = |from| {
            let mut shop = shop();
            for reward in [None, Some(1.0), None, Some(-1.0)] {
                let reward = reward.filter(|_| method == Learning::Hybrid);
                shop.taught(reward, &[HINT]);
            }
            let mut trainer = shop.trainer(&learning(method, from));
            trainer.teacher = Far::over(&shop, &[]);
            let step = trainer.step(10).unwrap().unwrap();
            assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
            step.metrics
        };
        let here = step(TeacherFrom::Reference);
        let there = step(TeacherFrom::Endpoint);
        assert!(there.get("teacher_silent").is_none());
        for (here, there) in rows(&here).iter().zip(rows(&there)) {
            for key in ["gap", "advantage", "loss"] {
                let (here, there) = (here[key].as_f64(), there[key].as_f64());
                assert!(
                    (here.unwrap() - there.unwrap()).abs() < 1e-5,
                    "{method:?} {key}"
                );
            }
        }
    }
}

#[test]
fn what_it_does_not_answer_trains_without_it_and_is_counted() {
    let mut shop = shop();
    let unread = shop.taught(None, &[HINT]);
    let rewarded = shop.taught(Some(1.0), &[HINT]);
    let read = shop.taught(None, &[HINT]);
    let no = TeacherSilent::Refused("its prompt is too long there".to_owned());
    let mut trainer = shop.trainer(&learning(Learning::Hybrid, TeacherFrom::Endpoint));
    trainer.teacher = Far::over(&shop, &[no.clone(), no]);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.metrics["teacher_silent"], 2);
    let row = |id: clawhost_journal::SampleId| {
        let found = rows(&step.metrics).iter().find(|row| row["sample"] == id.0);
        found.unwrap().clone()
    };
    let (unread, rewarded, read) = (row(unread), row(rewarded), row(read));
    assert_eq!(unread["teacher_silent"], "its prompt is too long there");
    // Nothing teaches there, which is not a gap of zero.
    assert_eq!(
        (&unread["tokens"], &unread["gap"]),
        (&0.into(), &Value::Null)
    );
    assert_eq!(
        (&rewarded["gap"], &rewarded["advantage"]),
        (&Value::Null, &1.0.into())
    );
    assert!(read["gap"].is_number() && read.get("teacher_silent").is_none());
}

#[test]
fn a_teacher_that_is_away_costs_no_sample() {
    let mut shop = shop();
    let ids = [shop.taught(None, &[HINT]), shop.taught(None, &[HINT])];
    let mut trainer = shop.trainer(&learning(Learning::Opd, TeacherFrom::Endpoint));
    let away = TeacherSilent::Away("nobody answers at http://127.0.0.1:1/v1".to_owned());
    trainer.teacher = Far::over(&shop, &[away]);
    let error = trainer.step(10).unwrap_err();
    assert!(
        matches!(&error, TrainingError::Teacher(reason) if reason.contains("nobody")),
        "{error}"
    );
    for id in ids {
        assert_eq!(shop.found(id).state, SampleState::Queued);
    }
    // Back again, the same samples train.
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published);
    // Without anything that reaches it there is no step either.
    let mut bare = shop.trainer(&learning(Learning::Opd, TeacherFrom::Endpoint));
    shop.taught(None, &[HINT]);
    assert!(matches!(bare.step(12), Err(TrainingError::Teacher(_))));
}

#[test]
fn an_answer_of_another_temperature_or_shape_is_not_taken() {
    #[derive(Debug)]
    struct Short;
    impl Teacher for Short {
        fn score(&self, question: TeacherQuestion<'_>) -> Result<TeacherAnswer, TeacherSilent> {
            let logprobs = vec![-1.0; question.reply.len() - 1];
            Ok(TeacherAnswer {
                logprobs,
                ..TeacherAnswer::default()
            })
        }
    }
    let mut cool = Workshop::new();
    cool.taught(Some(1.0), &[HINT]);
    let mut short = shop();
    short.taught(Some(1.0), &[HINT]);
    let far: Option<Arc<dyn Teacher>> = Some(Arc::new(Short));
    for (shop, teacher, part) in [
        (&cool, Far::over(&cool, &[]), "at temperature 1"),
        (&short, far, "log-probs for"),
    ] {
        let mut trainer = shop.trainer(&learning(Learning::Hybrid, TeacherFrom::Endpoint));
        trainer.teacher = teacher;
        let step = trainer.step(10).unwrap().unwrap();
        let said = rows(&step.metrics)[0]["teacher_silent"].as_str().unwrap();
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn what_an_endpoint_cannot_tell_is_refused_by_name() {
    for (change, part) in [
        (
            (|o| o.method = Learning::HybridTopk) as fn(&mut TrainingOptions),
            "own likeliest tokens only",
        ),
        (
            |o| o.teacher.top_k_of = TopkOf::Student,
            "top_k_of = \"teacher\"",
        ),
        (|o| o.teacher.top_k = 21, "at most 20"),
        (|o| o.teacher.endpoint = None, "belong together"),
        (
            |o| o.teacher.from = TeacherFrom::Reference,
            "belong together",
        ),
    ] {
        let mut options = learning(Learning::OpdTopk, TeacherFrom::Endpoint);
        options.validate().unwrap();
        change(&mut options);
        let error = options.validate().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
