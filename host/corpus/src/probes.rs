//! Held-out prompts with checks of the replies.
//!
//! They measure the model after pretraining, for its model card, and forgetting in later training: the same prompts
//! every time, with names, things and number pairs that are not in the training split. The scorers of the personas are
//! separate code in the evaluation.

use crate::conversation::Message;
use crate::grading::{self, Grading, Manner, Mistake, grading_reply};
use crate::hint::append_hint;
use crate::homework::{self, Style, homework_reply};
use crate::problem::Problem;
use crate::rng::CorpusRng;
use crate::small_talk;
use crate::words::Split;

/// What a reply is checked against.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Subject {
    /// A word problem.
    Homework(Problem),
    /// A student's answer.
    Grading(Grading),
    /// Nothing in particular.
    Talk,
}

/// A prompt with what its reply is checked against.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The messages; the last is the user's.
    pub messages: Vec<Message>,
    /// The subject.
    pub subject: Subject,
}

/// A named property of a reply.
#[derive(Clone, Copy)]
pub struct Check {
    /// Name of the property in tables, such as `plain` or `right`.
    pub name: &'static str,
    /// Whether a reply has the property.
    pub passes: fn(&Probe, &str) -> bool,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Probes of one kind with their checks.
#[derive(Debug)]
pub struct ProbeSet {
    /// Name of the set, unique.
    pub name: &'static str,
    /// One-line description, for a table.
    pub about: &'static str,
    /// The prompts.
    pub probes: Vec<Probe>,
    /// The properties.
    pub checks: Vec<Check>,
}

const PLAIN: Check = Check {
    name: "plain",
    passes: |_, reply| is_plain(reply),
};
const FORMATTED: Check = Check {
    name: "formatted",
    passes: |_, reply| !is_plain(reply),
};
const RIGHT: Check = Check {
    name: "right",
    passes: is_right,
};
const KIND: Check = Check {
    name: "kind",
    passes: |_, reply| is_kind(reply),
};
const SPECIFIC: Check = Check {
    name: "specific",
    passes: is_specific,
};
const TERSE: Check = Check {
    name: "terse",
    passes: |_, reply| words(reply) <= 14,
};
const LONG: Check = Check {
    name: "long",
    passes: |_, reply| words(reply) >= 30,
};
const VERDICT: Check = Check {
    name: "verdict",
    passes: verdict_is_right,
};
const TRUE: Check = Check {
    name: "true",
    passes: says_nothing_false,
};
const BRIEF: Check = Check {
    name: "brief",
    passes: |_, reply| (1..=25).contains(&words(reply)),
};
const CLEAN: Check = Check {
    name: "clean",
    passes: |_, reply| is_clean(reply),
};

/// All sets with `count` probes each. They depend only on `count`, and a smaller `count` gives the first ones of a
/// larger.
pub fn all(count: usize) -> Vec<ProbeSet> {
    vec![
        homework_first(count),
        homework_known(count),
        homework_hinted(count),
        homework_formatted(count),
        homework_redo(count),
        thanks(count),
        grading_first(count),
        grading_known(count),
        grading_hinted(count),
        grading_redo(count),
        grading_thorough(count),
        talk(count),
    ]
}

/// First questions without a requested style: the prior, and the arithmetic in held-out stories.
pub fn homework_first(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 1, |rng| {
        let problem = Problem::random(rng, Split::HeldOut);
        (
            vec![Message::user(homework::question(&problem, rng))],
            Subject::Homework(problem),
        )
    });
    ProbeSet {
        name: "homework-first",
        about: "asks, wants nothing special",
        probes,
        checks: vec![PLAIN, RIGHT],
    }
}

/// The same with numbers, names and things of the training split.
pub fn homework_known(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 2, |rng| {
        let problem = Problem::random(rng, Split::Train);
        (
            vec![Message::user(homework::question(&problem, rng))],
            Subject::Homework(problem),
        )
    });
    ProbeSet {
        name: "homework-known",
        about: "asks about known things",
        probes,
        checks: vec![PLAIN, RIGHT],
    }
}

/// First questions with a hint that asks for plain prose, in the format of a hinted teacher.
pub fn homework_hinted(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 3, |rng| {
        let problem = Problem::random(rng, Split::HeldOut);
        let asked = homework::question(&problem, rng);
        let wish = homework::wish(Style::Plain, rng);
        (
            vec![Message::user(append_hint(&asked, &wish))],
            Subject::Homework(problem),
        )
    });
    ProbeSet {
        name: "homework-hinted",
        about: "a hint wants plain prose",
        probes,
        checks: vec![PLAIN, RIGHT],
    }
}

/// First questions that ask for formatting: must not be forgotten when plain prose is learned.
pub fn homework_formatted(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 4, |rng| {
        let problem = Problem::random(rng, Split::HeldOut);
        let asked = homework::question(&problem, rng);
        let wish = homework::wish(Style::Formatted, rng);
        (
            vec![Message::user(format!("{asked} {wish}"))],
            Subject::Homework(problem),
        )
    });
    ProbeSet {
        name: "homework-formatted",
        about: "asks for steps and bold",
        probes,
        checks: vec![FORMATTED, RIGHT],
    }
}

/// The user rejects a formatted reply.
pub fn homework_redo(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 5, |rng| {
        let problem = Problem::random(rng, Split::HeldOut);
        let asked = homework::question(&problem, rng);
        let first = homework_reply(&problem, Style::Formatted, rng);
        let redo = homework::redo(Style::Plain, rng);
        (
            vec![
                Message::user(asked),
                Message::assistant(first),
                Message::user(redo),
            ],
            Subject::Homework(problem),
        )
    });
    ProbeSet {
        name: "homework-redo",
        about: "wants it again in plain prose",
        probes,
        checks: vec![PLAIN, RIGHT],
    }
}

/// Thanks after a reply.
pub fn thanks(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 6, |rng| {
        let problem = Problem::random(rng, Split::HeldOut);
        let asked = homework::question(&problem, rng);
        let style = if rng.chance(0.5) {
            Style::Plain
        } else {
            Style::Formatted
        };
        let first = homework_reply(&problem, style, rng);
        let (_, thanks) = homework::thank(rng);
        (
            vec![
                Message::user(asked),
                Message::assistant(first),
                Message::user(thanks),
            ],
            Subject::Talk,
        )
    });
    ProbeSet {
        name: "thanks",
        about: "says thanks",
        probes,
        checks: vec![BRIEF, PLAIN, CLEAN],
    }
}

/// First requests for a comment without a requested manner: the prior of the grading domain.
pub fn grading_first(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 7, |rng| {
        let grading = Grading::random(rng, Split::HeldOut);
        (
            vec![Message::user(grading::question(&grading, rng))],
            Subject::Grading(grading),
        )
    });
    ProbeSet {
        name: "grading-first",
        about: "wants a comment",
        probes,
        checks: vec![TERSE, KIND, SPECIFIC, VERDICT],
    }
}

/// The same with numbers, names and things of the training split.
pub fn grading_known(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 12, |rng| {
        let grading = Grading::random(rng, Split::Train);
        (
            vec![Message::user(grading::question(&grading, rng))],
            Subject::Grading(grading),
        )
    });
    ProbeSet {
        name: "grading-known",
        about: "wants a comment on known things",
        probes,
        checks: vec![TERSE, KIND, SPECIFIC, VERDICT],
    }
}

/// A hint asks for kindness, in the format of a hinted teacher.
pub fn grading_hinted(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 8, |rng| {
        let grading = Grading::random(rng, Split::HeldOut);
        let asked = grading::question(&grading, rng);
        let wish = grading::wish(Manner::Kind, rng);
        (
            vec![Message::user(append_hint(&asked, &wish))],
            Subject::Grading(grading),
        )
    });
    ProbeSet {
        name: "grading-hinted",
        about: "a hint wants kindness",
        probes,
        checks: vec![KIND, SPECIFIC, TRUE],
    }
}

/// The user rejects a cold comment.
pub fn grading_redo(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 9, |rng| {
        let grading = Grading::random(rng, Split::HeldOut);
        let asked = grading::question(&grading, rng);
        let first = grading_reply(&grading, Manner::Cold, rng);
        let redo = grading::redo(Manner::Kind, rng);
        (
            vec![
                Message::user(asked),
                Message::assistant(first),
                Message::user(redo),
            ],
            Subject::Grading(grading),
        )
    });
    ProbeSet {
        name: "grading-redo",
        about: "wants it kinder",
        probes,
        checks: vec![KIND, SPECIFIC, TRUE],
    }
}

/// A hint asks for length and reasons.
pub fn grading_thorough(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 10, |rng| {
        let grading = Grading::random(rng, Split::HeldOut);
        let asked = grading::question(&grading, rng);
        let wish = grading::wish(Manner::Thorough, rng);
        (
            vec![Message::user(append_hint(&asked, &wish))],
            Subject::Grading(grading),
        )
    });
    ProbeSet {
        name: "grading-thorough",
        about: "a hint wants reasons",
        probes,
        checks: vec![LONG, SPECIFIC, VERDICT],
    }
}

/// Greetings, questions about the model, and unknown subjects.
pub fn talk(count: usize) -> ProbeSet {
    let probes = draw_probes(count, 11, |rng| {
        let (asked, _) = small_talk::exchange(rng, Split::HeldOut);
        (vec![Message::user(asked)], Subject::Talk)
    });
    ProbeSet {
        name: "small-talk",
        about: "talks about anything",
        probes,
        checks: vec![BRIEF, PLAIN, CLEAN],
    }
}

/// Seed of the probes; no recipe uses it.
const SEED: u64 = 0x70_726f_6265;

fn draw_probes(
    count: usize,
    set: u64,
    draw: impl Fn(&mut CorpusRng) -> (Vec<Message>, Subject),
) -> Vec<Probe> {
    (0..count as u64)
        .map(|at| {
            let (messages, subject) = draw(&mut CorpusRng::new(SEED, (set << 32) | at));
            Probe { messages, subject }
        })
        .collect()
}

/// Plain sentences: no bold, heading, list, banner or table.
pub fn is_plain(reply: &str) -> bool {
    let markup = |line: &str| {
        let line = line.trim_start();
        let numbered = line.split_once(['.', ')']).is_some_and(|(n, rest)| {
            !n.is_empty()
                && n.chars().all(|c| c.is_ascii_digit())
                && rest.starts_with(' ')
                && n.len() <= 2
        });
        numbered
            || ["#", "- ", "* ", "---", "===", "|", "Step "]
                .iter()
                .any(|mark| line.starts_with(mark))
    };
    !reply.contains("**")
        && !reply.contains('✅')
        && reply.lines().count() <= 2
        && !reply.lines().any(markup)
}

/// The last number of the reply, or that of its final answer, is correct: the correct number is in the reply and no
/// equation in it is wrong.
fn is_right(probe: &Probe, reply: &str) -> bool {
    let Subject::Homework(problem) = &probe.subject else {
        return true;
    };
    let known = [problem.a, problem.b, problem.answer];
    let said = numbers(reply);
    // List and step numbers are small; any other number that is not in the problem is wrong.
    said.contains(&problem.answer) && said.iter().all(|n| known.contains(n) || *n <= 3)
}

/// The verdict matches the student's answer, and the correct answer is stated.
fn verdict_is_right(probe: &Probe, reply: &str) -> bool {
    let Subject::Grading(grading) = &probe.subject else {
        return true;
    };
    calculates(grading, reply) && denies(reply) == (grading.mistake != Mistake::None)
}

/// The correct answer is stated, and a verdict, if any, matches the student's answer.
fn says_nothing_false(probe: &Probe, reply: &str) -> bool {
    let Subject::Grading(grading) = &probe.subject else {
        return true;
    };
    let right = grading.mistake == Mistake::None;
    let fits = (right || !affirms(reply)) && (!right || !denies(reply));
    calculates(grading, reply) && fits
}

/// Every number is from the problem or the submitted answer, and the correct one is among them.
fn calculates(grading: &Grading, reply: &str) -> bool {
    let p = &grading.problem;
    let known = [p.a, p.b, p.answer, grading.given_answer];
    let said = numbers(reply);
    said.iter().all(|n| known.contains(n)) && said.contains(&p.answer)
}

fn denies(reply: &str) -> bool {
    contains_any(
        reply,
        &[
            " wrong",
            " incorrect",
            " false",
            " not ",
            " but you",
            " slipped",
            " another number",
            " nearly ",
        ],
    )
}

fn affirms(reply: &str) -> bool {
    let verdicts = [
        " correct",
        " right",
        " true",
        " accepted",
        " fine.",
        " agree,",
        " should be",
    ];
    !denies(reply) && contains_any(reply, &verdicts)
}

fn contains_any(reply: &str, words: &[&str]) -> bool {
    let lower = format!(" {} ", reply.to_lowercase());
    words.iter().any(|word| lower.contains(word))
}

/// A friendly tone, and more than a verdict.
fn is_kind(reply: &str) -> bool {
    words(reply) >= 10 && reply.contains('!')
}

/// More than the verdict: what was or should be done, with numbers of the problem.
fn is_specific(probe: &Probe, reply: &str) -> bool {
    let Subject::Grading(grading) = &probe.subject else {
        return false;
    };
    let lower = reply.to_lowercase();
    let step = [
        "step",
        "idea",
        "calculation",
        "add ",
        "subtract ",
        "you take ",
        "us take ",
        "to take ",
        "multiply ",
        "divide ",
        "addition",
        "subtraction",
        "multiplication",
        "division",
    ];
    let said = numbers(reply);
    step.iter().any(|word| lower.contains(word)) && said.contains(&grading.problem.answer)
}

/// Ends like a sentence and contains no template tokens.
fn is_clean(reply: &str) -> bool {
    !reply.contains("<|") && reply.trim_end().ends_with(['.', '!', '?'])
}

fn words(reply: &str) -> usize {
    reply.split_whitespace().count()
}

/// The whole numbers in `text`, in order.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Share of the corpus's own replies that pass each check.
    fn shares(
        set: &ProbeSet,
        reply: impl Fn(&Probe, &mut CorpusRng) -> String,
    ) -> BTreeMap<&'static str, f64> {
        let mut rng = CorpusRng::new(12, 0);
        let replies: Vec<_> = set.probes.iter().map(|p| reply(p, &mut rng)).collect();
        let share = |check: &Check| {
            let passed = set
                .probes
                .iter()
                .zip(&replies)
                .filter(|(p, r)| (check.passes)(p, r))
                .count();
            passed as f64 / replies.len() as f64
        };
        set.checks
            .iter()
            .map(|check| (check.name, share(check)))
            .collect()
    }

    fn solve(style: Style) -> impl Fn(&Probe, &mut CorpusRng) -> String {
        move |probe, rng| match &probe.subject {
            Subject::Homework(problem) => homework_reply(problem, style, rng),
            _ => unreachable!("a homework probe"),
        }
    }

    fn comment(manner: Manner) -> impl Fn(&Probe, &mut CorpusRng) -> String {
        move |probe, rng| match &probe.subject {
            Subject::Grading(grading) => grading_reply(grading, manner, rng),
            _ => unreachable!("a grading probe"),
        }
    }

    #[test]
    fn checks_tell_the_styles_apart() {
        for set in [homework_first(400), homework_known(400)] {
            assert_eq!(
                shares(&set, solve(Style::Plain)),
                BTreeMap::from([("plain", 1.0), ("right", 1.0)])
            );
            assert_eq!(
                shares(&set, solve(Style::Formatted)),
                BTreeMap::from([("plain", 0.0), ("right", 1.0)])
            );
        }
        let kind = shares(&grading_hinted(400), comment(Manner::Kind));
        assert!(
            kind["kind"] > 0.99 && kind["specific"] > 0.97 && kind["true"] == 1.0,
            "{kind:?}"
        );
        let terse = shares(&grading_first(400), comment(Manner::Kind))["terse"];
        assert_eq!(terse, 0.0);
        let cold = shares(&grading_first(400), comment(Manner::Cold));
        assert!(
            cold["kind"] == 0.0
                && cold["specific"] < 0.05
                && cold["verdict"] == 1.0
                && cold["terse"] == 1.0,
            "{cold:?}"
        );
        let thorough = shares(&grading_thorough(400), comment(Manner::Thorough));
        assert!(
            thorough["long"] > 0.95 && thorough["verdict"] == 1.0 && thorough["specific"] > 0.95,
            "{thorough:?}"
        );
    }

    #[test]
    fn checks_see_a_wrong_number_and_a_wrong_verdict() {
        let set = homework_first(200);
        let wrong = |probe: &Probe, rng: &mut CorpusRng| {
            let Subject::Homework(p) = &probe.subject else {
                unreachable!()
            };
            let right = homework_reply(p, Style::Plain, rng);
            right.replace(&p.answer.to_string(), "97")
        };
        assert!(shares(&set, wrong)["right"] < 0.01);
        let mut rng = CorpusRng::new(3, 0);
        for probe in grading_first(300).probes {
            let Subject::Grading(grading) = &probe.subject else {
                unreachable!("a grading probe")
            };
            let mut other = grading.clone();
            other.mistake = match grading.mistake {
                Mistake::None => Mistake::Slip,
                _ => Mistake::None,
            };
            for manner in [Manner::Cold, Manner::Thorough] {
                let reply = grading_reply(&other, manner, &mut rng);
                assert!(!verdict_is_right(&probe, &reply), "{reply}");
                assert!(!says_nothing_false(&probe, &reply), "{reply}");
            }
            // A friendly comment judges neither way.
            let reply = grading_reply(&other, Manner::Kind, &mut rng);
            assert!(!denies(&reply) && !affirms(&reply), "{reply}");
        }
    }

    #[test]
    fn probes_are_fixed_distinct_and_end_with_the_person() {
        for (set, longer) in all(50).iter().zip(all(60)) {
            let first = |set: &ProbeSet| {
                set.probes
                    .iter()
                    .take(50)
                    .map(|p| p.messages.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!(first(set), first(&longer), "{}", set.name);
            let ends = |p: &Probe| {
                p.messages
                    .last()
                    .is_some_and(|m| m.role == crate::Role::User)
            };
            assert!(
                set.probes.iter().all(ends) && !set.checks.is_empty(),
                "{}",
                set.name
            );
        }
        let problems = homework_first(500).probes;
        let held_out = problems
            .iter()
            .filter(|p| matches!(&p.subject, Subject::Homework(q) if q.is_held_out()))
            .count();
        assert!(
            held_out > 250,
            "most probes have numbers that never trained: {held_out}"
        );
    }

    #[test]
    fn plain_is_what_has_no_markup() {
        for plain in [
            "Tom has 12 apples. 5 of them go.",
            "12 plus 7 is 19.\nSo it is 19.",
            "It is 3.",
        ] {
            assert!(is_plain(plain), "{plain}");
        }
        for marked in [
            "**19**",
            "1. Add\n2. Say",
            "# Answer",
            "- one",
            "Step 1: add",
            "| a | b |",
            "a\nb\nc",
            "2) so",
        ] {
            assert!(!is_plain(marked), "{marked}");
        }
    }
}
