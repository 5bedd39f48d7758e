//! Draws the prompts of the probe sets: held-out prompts that no recipe trains on, the same every time.
//!
//! The checks are in [`clawhost_evaluation::probes`], which also stores some of these prompts for the evaluation; a test
//! here compares them (`CLAWHOST_RENEW=1` writes them again).

use clawhost_evaluation::probes::{ProbeSet, Subject, Work};
use clawhost_evaluation::problems::{Problem, SeededRng, Split, Submission};

use crate::corpus::grading::{self, Manner, grading_reply};
use crate::corpus::homework::{self, Style, homework_reply};
use crate::corpus::{Message, append_hint, small_talk};

/// A prompt with what its reply is checked against.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The messages; the last is the user's.
    pub messages: Vec<Message>,
    /// The subject.
    pub subject: Subject,
}

/// Seed of the probes; no recipe uses it.
const SEED: u64 = 0x70_726f_6265;

/// The first `count` probes of a set. They depend on nothing else.
pub fn draw(set: &ProbeSet, count: usize) -> Vec<Probe> {
    origins(set.name, count)
        .map(|(messages, origin)| Probe {
            messages,
            subject: origin.subject(),
        })
        .collect()
}

/// What a probe was drawn from.
#[derive(Debug, Clone)]
enum Origin {
    Homework(Problem),
    Grading(Submission),
    Talk,
}

impl Origin {
    fn subject(&self) -> Subject {
        match self {
            Origin::Homework(Problem { a, b, answer, .. }) => Subject::Homework {
                a: *a,
                b: *b,
                answer: *answer,
            },
            Origin::Grading(Submission {
                problem,
                given_answer,
                ..
            }) => Subject::Grading(Work {
                a: problem.a,
                b: problem.b,
                answer: problem.answer,
                written: *given_answer,
            }),
            Origin::Talk => Subject::Talk,
        }
    }
}

fn origins(set: &str, count: usize) -> impl Iterator<Item = (Vec<Message>, Origin)> {
    let (number, draw) = generator(set);
    (0..count as u64).map(move |at| draw(&mut SeededRng::new(SEED, (number << 32) | at)))
}

type Generator = fn(&mut SeededRng) -> (Vec<Message>, Origin);

/// The generator of a set, and its number, which is part of the seed of its probes.
fn generator(set: &str) -> (u64, Generator) {
    match set {
        "homework-first" => (1, |rng| homework_first(Split::HeldOut, rng)),
        "homework-known" => (2, |rng| homework_first(Split::Train, rng)),
        "homework-hinted" => (3, |rng| {
            let (problem, question) = homework_question(Split::HeldOut, rng);
            let wish = homework::wish(Style::Plain, rng);
            let prompt = append_hint(&question, &wish);
            (vec![Message::user(prompt)], Origin::Homework(problem))
        }),
        "homework-formatted" => (4, |rng| {
            let (problem, question) = homework_question(Split::HeldOut, rng);
            let wish = homework::wish(Style::Formatted, rng);
            let prompt = format!("{question} {wish}");
            (vec![Message::user(prompt)], Origin::Homework(problem))
        }),
        "homework-redo" => (5, |rng| {
            let (problem, question) = homework_question(Split::HeldOut, rng);
            let first = homework_reply(&problem, Style::Formatted, rng);
            let redo = homework::redo(Style::Plain, rng);
            (exchange(question, first, redo), Origin::Homework(problem))
        }),
        "thanks" => (6, |rng| {
            let (problem, question) = homework_question(Split::HeldOut, rng);
            let style = if rng.chance(0.5) {
                Style::Plain
            } else {
                Style::Formatted
            };
            let first = homework_reply(&problem, style, rng);
            let (_, thanks) = homework::thank(rng);
            (exchange(question, first, thanks), Origin::Talk)
        }),
        "grading-first" => (7, |rng| grading_first(Split::HeldOut, rng)),
        "grading-hinted" => (8, |rng| grading_wish(Manner::Kind, rng)),
        "grading-redo" => (9, |rng| {
            let (submission, question) = grading_question(Split::HeldOut, rng);
            let first = grading_reply(&submission, Manner::Cold, rng);
            let redo = grading::redo(Manner::Kind, rng);
            (exchange(question, first, redo), Origin::Grading(submission))
        }),
        "grading-thorough" => (10, |rng| grading_wish(Manner::Thorough, rng)),
        "small-talk" => (11, |rng| {
            let (prompt, _) = small_talk::exchange(rng, Split::HeldOut);
            (vec![Message::user(prompt)], Origin::Talk)
        }),
        "grading-known" => (12, |rng| grading_first(Split::Train, rng)),
        other => unreachable!("the probe set {other} has no generator"),
    }
}

fn exchange(question: String, reply: String, last: String) -> Vec<Message> {
    vec![
        Message::user(question),
        Message::assistant(reply),
        Message::user(last),
    ]
}

fn homework_question(split: Split, rng: &mut SeededRng) -> (Problem, String) {
    let problem = Problem::random(rng, split);
    let question = homework::question(&problem, rng);
    (problem, question)
}

fn homework_first(split: Split, rng: &mut SeededRng) -> (Vec<Message>, Origin) {
    let (problem, question) = homework_question(split, rng);
    (vec![Message::user(question)], Origin::Homework(problem))
}

fn grading_question(split: Split, rng: &mut SeededRng) -> (Submission, String) {
    let submission = Submission::random(rng, split);
    let question = grading::question(&submission, rng);
    (submission, question)
}

fn grading_first(split: Split, rng: &mut SeededRng) -> (Vec<Message>, Origin) {
    let (submission, question) = grading_question(split, rng);
    (vec![Message::user(question)], Origin::Grading(submission))
}

fn grading_wish(manner: Manner, rng: &mut SeededRng) -> (Vec<Message>, Origin) {
    let (submission, question) = grading_question(Split::HeldOut, rng);
    let wish = grading::wish(manner, rng);
    let prompt = append_hint(&question, &wish);
    (vec![Message::user(prompt)], Origin::Grading(submission))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use clawhost_evaluation::probes::{PROMPTS_PER_SET, SETS, StoredPrompt, prompts};
    use clawhost_evaluation::problems::Mistake;

    use crate::corpus::Role;

    /// Share of replies of the corpus itself that pass each check.
    fn shares(
        set: &str,
        count: usize,
        reply: impl Fn(&Origin, &mut SeededRng) -> String,
    ) -> BTreeMap<&'static str, f64> {
        let mut rng = SeededRng::new(12, 0);
        let replies: Vec<_> = origins(set, count)
            .map(|(_, origin)| (origin.subject(), reply(&origin, &mut rng)))
            .collect();
        let checks = ProbeSet::named(set).checks.iter();
        checks
            .map(|check| {
                let passed = replies.iter().filter(|(s, r)| (check.passes)(s, r)).count();
                (check.name, passed as f64 / count as f64)
            })
            .collect()
    }

    fn solve(style: Style) -> impl Fn(&Origin, &mut SeededRng) -> String {
        move |origin, rng| match origin {
            Origin::Homework(problem) => homework_reply(problem, style, rng),
            _ => unreachable!("a homework probe"),
        }
    }

    fn comment(manner: Manner) -> impl Fn(&Origin, &mut SeededRng) -> String {
        move |origin, rng| match origin {
            Origin::Grading(submission) => grading_reply(submission, manner, rng),
            _ => unreachable!("a grading probe"),
        }
    }

    #[test]
    fn checks_tell_the_styles_apart() {
        for set in ["homework-first", "homework-known"] {
            assert_eq!(
                shares(set, 400, solve(Style::Plain)),
                BTreeMap::from([("plain", 1.0), ("right", 1.0)])
            );
            assert_eq!(
                shares(set, 400, solve(Style::Formatted)),
                BTreeMap::from([("plain", 0.0), ("right", 1.0)])
            );
        }
        let kind = shares("grading-hinted", 400, comment(Manner::Kind));
        assert!(
            kind["kind"] > 0.99 && kind["specific"] > 0.97 && kind["true"] == 1.0,
            "{kind:?}"
        );
        let terse = shares("grading-first", 400, comment(Manner::Kind))["terse"];
        assert_eq!(terse, 0.0);
        let cold = shares("grading-first", 400, comment(Manner::Cold));
        assert!(
            cold["kind"] == 0.0
                && cold["specific"] < 0.05
                && cold["verdict"] == 1.0
                && cold["terse"] == 1.0,
            "{cold:?}"
        );
        let thorough = shares("grading-thorough", 400, comment(Manner::Thorough));
        assert!(
            thorough["long"] > 0.95 && thorough["verdict"] == 1.0 && thorough["specific"] > 0.95,
            "{thorough:?}"
        );
    }

    #[test]
    fn checks_see_a_wrong_number_and_a_wrong_verdict() {
        let wrong = |origin: &Origin, rng: &mut SeededRng| {
            let Origin::Homework(p) = origin else {
                unreachable!("a homework probe")
            };
            let right = homework_reply(p, Style::Plain, rng);
            right.replace(&p.answer.to_string(), "97")
        };
        assert!(shares("homework-first", 200, wrong)["right"] < 0.01);
        let mut rng = SeededRng::new(3, 0);
        let passes = |set, check, subject: &Subject, reply: &str| {
            (ProbeSet::named(set).check(check).passes)(subject, reply)
        };
        for (_, origin) in origins("grading-first", 300) {
            let subject = origin.subject();
            let Origin::Grading(mut other) = origin else {
                unreachable!("a grading probe")
            };
            other.mistake = match other.mistake {
                Mistake::None => Mistake::Slip,
                _ => Mistake::None,
            };
            for manner in [Manner::Cold, Manner::Thorough] {
                let reply = grading_reply(&other, manner, &mut rng);
                assert!(!passes("grading-first", "verdict", &subject, &reply));
                assert!(
                    !passes("grading-hinted", "true", &subject, &reply),
                    "{reply}"
                );
            }
            // A friendly comment judges neither way.
            let reply = grading_reply(&other, Manner::Kind, &mut rng);
            assert!(
                passes("grading-hinted", "true", &subject, &reply),
                "{reply}"
            );
        }
    }

    #[test]
    fn probes_are_fixed_distinct_and_end_with_the_user() {
        for set in &SETS {
            let messages = |count| {
                let probes = draw(set, count).into_iter();
                probes.map(|probe| probe.messages).collect::<Vec<_>>()
            };
            let some = messages(50);
            assert_eq!(some, messages(60)[..50], "{}", set.name);
            let ends = |m: &Vec<Message>| m.last().is_some_and(|m| m.role == Role::User);
            assert!(
                some.iter().all(ends) && !set.checks.is_empty(),
                "{}",
                set.name
            );
        }
        let held_out = origins("homework-first", 500)
            .filter(|(_, origin)| matches!(origin, Origin::Homework(p) if p.is_held_out()))
            .count();
        assert!(
            held_out > 250,
            "most probes have numbers that never trained: {held_out}"
        );
    }

    #[test]
    fn the_evaluation_stores_the_prompts_that_are_drawn_here() {
        let sets = SETS.iter().filter(|set| EVALUATED.contains(&set.name));
        let drawn: Vec<StoredPrompt> = sets
            .flat_map(|set| {
                draw(set, PROMPTS_PER_SET).into_iter().map(|probe| {
                    let [message] = &probe.messages[..] else {
                        unreachable!("a stored prompt is one message")
                    };
                    StoredPrompt {
                        set: set.name.to_owned(),
                        prompt: message.content.clone(),
                        subject: probe.subject,
                    }
                })
            })
            .collect();
        if std::env::var_os("CLAWHOST_RENEW").is_some() {
            let path = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../host/evaluation/src/probes/prompts.jsonl"
            );
            let lines = drawn
                .iter()
                .map(|p| serde_json::to_string(p).unwrap() + "\n");
            std::fs::write(path, lines.collect::<String>()).unwrap();
            return;
        }
        assert!(drawn == prompts(), "run again with CLAWHOST_RENEW=1");
    }

    const EVALUATED: [&str; 7] = [
        "homework-first",
        "homework-hinted",
        "homework-formatted",
        "grading-first",
        "grading-hinted",
        "grading-thorough",
        "small-talk",
    ];
}
