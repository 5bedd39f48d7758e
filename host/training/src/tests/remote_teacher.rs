//! Remote teacher: same scores as the local teacher, and missing scores are not treated as zero.

use clawhost_cpu::CpuModel;
use std::sync::{Arc, Mutex};

use clawhost_engine::{Candidates, Engine, Sequence};
use clawhost_journal::{SampleState, StepOutcome};
use serde_json::Value;

use super::fixture::{Fixture, options};
use crate::distillation::{RemoteTeacher, TeacherError, TeacherRequest, TeacherScores};
use crate::error::TrainingError;
use clawhost_config::{
    TeacherEndpoint, TeacherSource, TopKSource, TrainingMethod, TrainingOptions,
};

const HINT: &str = "bcdefghijklmn";

/// A remote teacher that scores with the base model.
#[derive(Debug)]
struct FakeTeacher {
    engine: Engine,
    /// Errors that it returns first, in reverse order.
    errors: Mutex<Vec<TeacherError>>,
}

impl FakeTeacher {
    fn with_errors(fixture: &Fixture, errors: &[TeacherError]) -> Option<Arc<dyn RemoteTeacher>> {
        Some(Arc::new(Self {
            engine: fixture.engine.clone(),
            errors: Mutex::new(errors.iter().rev().cloned().collect()),
        }))
    }
}

impl RemoteTeacher for FakeTeacher {
    fn score(&self, request: TeacherRequest<'_>) -> Result<TeacherScores, TeacherError> {
        if let Some(error) = self.errors.lock().unwrap().pop() {
            return Err(error);
        }
        let tokens = [request.prompt, request.reply].concat();
        let sequence = Sequence {
            tokens: &tokens,
            start: request.prompt.len(),
            temperature: 1.0,
            candidates: match request.top {
                0 => Candidates::None,
                k => Candidates::Top(k),
            },
        };
        let scored = self.engine.model().score(None, &[sequence]).unwrap();
        Ok(TeacherScores {
            logprobs: scored[0].logprobs.clone(),
            top: scored[0].candidates.clone(),
            top_logprobs: scored[0].candidate_logprobs.clone(),
        })
    }
}

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.temperature = 1.0;
    fixture
}

fn method_options(method: TrainingMethod, from: TeacherSource) -> TrainingOptions {
    let mut options = TrainingOptions {
        method,
        ..options()
    };
    options.teacher.hint_marker = String::new();
    options.teacher.top_k_from = TopKSource::Teacher;
    options.teacher.source = from;
    options.teacher.endpoint = (from == TeacherSource::Endpoint).then(|| TeacherEndpoint {
        url: "http://127.0.0.1:1/v1".to_owned(),
        model: "t".to_owned(),
        api_key: None,
        timeout: std::time::Duration::from_secs(1),
    });
    options
}

fn rows(metrics: &Value) -> &Vec<Value> {
    metrics["samples_moved"].as_array().unwrap()
}

#[test]
fn a_remote_teacher_gives_the_same_scores_as_a_local_one() {
    for method in [
        TrainingMethod::Opd,
        TrainingMethod::Hybrid,
        TrainingMethod::OpdTopk,
    ] {
        let step = |from| {
            let mut fixture = fixture();
            for reward in [None, Some(1.0), None, Some(-1.0)] {
                let reward = reward.filter(|_| method == TrainingMethod::Hybrid);
                fixture.hinted_sample(reward, &[HINT]);
            }
            let mut trainer = fixture.trainer(&method_options(method, from));
            trainer.teacher = FakeTeacher::with_errors(&fixture, &[]);
            let step = trainer.step(10).unwrap().unwrap();
            assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
            step.metrics
        };
        let local = step(TeacherSource::Reference);
        let remote = step(TeacherSource::Endpoint);
        assert!(remote.get("teacher_silent").is_none());
        for (local, remote) in rows(&local).iter().zip(rows(&remote)) {
            for key in ["gap", "advantage", "loss"] {
                let (local, remote) = (local[key].as_f64(), remote[key].as_f64());
                assert!(
                    (local.unwrap() - remote.unwrap()).abs() < 1e-5,
                    "{method:?} {key}"
                );
            }
        }
    }
}

#[test]
fn a_rejected_reply_trains_without_the_teacher_and_is_counted() {
    let mut fixture = fixture();
    let rejected = fixture.hinted_sample(None, &[HINT]);
    let rewarded = fixture.hinted_sample(Some(1.0), &[HINT]);
    let scored = fixture.hinted_sample(None, &[HINT]);
    let error = TeacherError::Rejected("its prompt is too long there".to_owned());
    let mut trainer = fixture.trainer(&method_options(
        TrainingMethod::Hybrid,
        TeacherSource::Endpoint,
    ));
    trainer.teacher = FakeTeacher::with_errors(&fixture, &[error.clone(), error]);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.metrics["teacher_silent"], 2);
    let row = |id: clawhost_journal::SampleId| {
        let found = rows(&step.metrics).iter().find(|row| row["sample"] == id.0);
        found.unwrap().clone()
    };
    let (rejected, rewarded, scored) = (row(rejected), row(rewarded), row(scored));
    assert_eq!(rejected["teacher_silent"], "its prompt is too long there");
    // All tokens are masked, and the gap is absent rather than 0.
    assert_eq!(
        (&rejected["tokens"], &rejected["gap"]),
        (&0.into(), &Value::Null)
    );
    assert_eq!(
        (&rewarded["gap"], &rewarded["advantage"]),
        (&Value::Null, &1.0.into())
    );
    assert!(scored["gap"].is_number() && scored.get("teacher_silent").is_none());
}

#[test]
fn samples_stay_queued_while_the_teacher_is_unavailable() {
    let mut fixture = fixture();
    let ids = [
        fixture.hinted_sample(None, &[HINT]),
        fixture.hinted_sample(None, &[HINT]),
    ];
    let mut trainer = fixture.trainer(&method_options(
        TrainingMethod::Opd,
        TeacherSource::Endpoint,
    ));
    let unavailable =
        TeacherError::Unavailable("nobody answers at http://127.0.0.1:1/v1".to_owned());
    trainer.teacher = FakeTeacher::with_errors(&fixture, &[unavailable]);
    let error = trainer.step(10).unwrap_err();
    assert!(
        matches!(&error, TrainingError::Teacher(reason) if reason.contains("nobody")),
        "{error}"
    );
    for id in ids {
        assert_eq!(fixture.sample_record(id).state, SampleState::Queued);
    }
    // Once the teacher is available, the same samples train.
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published);
    // Without a teacher implementation there is no step either.
    let mut bare = fixture.trainer(&method_options(
        TrainingMethod::Opd,
        TeacherSource::Endpoint,
    ));
    fixture.hinted_sample(None, &[HINT]);
    assert!(matches!(bare.step(12), Err(TrainingError::Teacher(_))));
}

#[test]
fn scores_with_another_temperature_or_length_are_rejected() {
    #[derive(Debug)]
    struct Short;
    impl RemoteTeacher for Short {
        fn score(&self, request: TeacherRequest<'_>) -> Result<TeacherScores, TeacherError> {
            let logprobs = vec![-1.0; request.reply.len() - 1];
            Ok(TeacherScores {
                logprobs,
                ..TeacherScores::default()
            })
        }
    }
    let mut cool = Fixture::new();
    cool.hinted_sample(Some(1.0), &[HINT]);
    let mut short = fixture();
    short.hinted_sample(Some(1.0), &[HINT]);
    let too_short: Option<Arc<dyn RemoteTeacher>> = Some(Arc::new(Short));
    for (fixture, teacher, part) in [
        (
            &cool,
            FakeTeacher::with_errors(&cool, &[]),
            "at temperature 1",
        ),
        (&short, too_short, "log-probs for"),
    ] {
        let mut trainer = fixture.trainer(&method_options(
            TrainingMethod::Hybrid,
            TeacherSource::Endpoint,
        ));
        trainer.teacher = teacher;
        let step = trainer.step(10).unwrap().unwrap();
        let reason = rows(&step.metrics)[0]["teacher_silent"].as_str().unwrap();
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn options_that_an_endpoint_cannot_support_are_rejected() {
    for (change, part) in [
        (
            (|o| o.method = TrainingMethod::HybridTopk) as fn(&mut TrainingOptions),
            "only its own top-k tokens",
        ),
        (
            |o| o.teacher.top_k_from = TopKSource::Student,
            "top_k_from = \"teacher\"",
        ),
        (|o| o.teacher.top_k = 21, "at most 20"),
        (
            |o| o.teacher.endpoint = None,
            "requires [training.teacher.endpoint]",
        ),
        (
            |o| o.teacher.source = TeacherSource::Reference,
            "requires [training.teacher.endpoint]",
        ),
    ] {
        let mut options = method_options(TrainingMethod::OpdTopk, TeacherSource::Endpoint);
        options.validate().unwrap();
        change(&mut options);
        let error = options.validate().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
