//! Held-out prompts, each with the checks that its reply is measured by.
//!
//! They measure the policy as it came out of pretraining, for its model card, and what a later
//! training has made it forget: the same prompts every time, with names, things and number pairs
//! that no training conversation has. The scorers of the personas are other code, in the evaluation.

use crate::conversation::Message;
use crate::dice::Dice;
use crate::grading::{self, Grading, Manner, Mistake, grading_reply};
use crate::hint::hinted;
use crate::homework::{self, Style, homework_reply};
use crate::problem::Problem;
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
    /// The messages to answer; the last is the person's.
    pub messages: Vec<Message>,
    /// What it is about.
    pub subject: Subject,
}

/// One named property of a reply.
#[derive(Clone, Copy)]
pub struct Check {
    /// What the share of replies that pass is called, `plain` or `right`.
    pub name: &'static str,
    /// Whether a reply passes.
    pub passes: fn(&Probe, &str) -> bool,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Probes of one kind, and what each reply is checked for.
#[derive(Debug)]
pub struct ProbeSet {
    /// Name of the set, unique.
    pub name: &'static str,
    /// What the person in it does, for a table.
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

/// All sets with `count` probes each. The same for every recipe: they depend on nothing but `count`,
/// and a smaller `count` gives the first ones of a larger.
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

/// First questions without a wish: the prior, and the arithmetic in stories that never trained.
pub fn homework_first(count: usize) -> ProbeSet {
    let probes = make(count, 1, |dice| {
        let problem = Problem::random(dice, Split::HeldOut);
        (
            vec![Message::user(homework::question(&problem, dice))],
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
    let probes = make(count, 2, |dice| {
        let problem = Problem::random(dice, Split::Train);
        (
            vec![Message::user(homework::question(&problem, dice))],
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

/// First questions with a hint that wants plain prose, in the form of a hinted teacher.
pub fn homework_hinted(count: usize) -> ProbeSet {
    let probes = make(count, 3, |dice| {
        let problem = Problem::random(dice, Split::HeldOut);
        let asked = homework::question(&problem, dice);
        let wish = homework::wish(Style::Plain, dice);
        (
            vec![Message::user(hinted(&asked, &wish))],
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

/// First questions that ask for formatting: what must not be forgotten when plain prose is learned.
pub fn homework_formatted(count: usize) -> ProbeSet {
    let probes = make(count, 4, |dice| {
        let problem = Problem::random(dice, Split::HeldOut);
        let asked = homework::question(&problem, dice);
        let wish = homework::wish(Style::Formatted, dice);
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

/// A formatted reply was not wanted.
pub fn homework_redo(count: usize) -> ProbeSet {
    let probes = make(count, 5, |dice| {
        let problem = Problem::random(dice, Split::HeldOut);
        let asked = homework::question(&problem, dice);
        let first = homework_reply(&problem, Style::Formatted, dice);
        let redo = homework::redo(Style::Plain, dice);
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
    let probes = make(count, 6, |dice| {
        let problem = Problem::random(dice, Split::HeldOut);
        let asked = homework::question(&problem, dice);
        let style = if dice.chance(0.5) {
            Style::Plain
        } else {
            Style::Formatted
        };
        let first = homework_reply(&problem, style, dice);
        let (_, thanks) = homework::thank(dice);
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

/// First requests for a comment without a wish: the prior of the grading world.
pub fn grading_first(count: usize) -> ProbeSet {
    let probes = make(count, 7, |dice| {
        let grading = Grading::random(dice, Split::HeldOut);
        (
            vec![Message::user(grading::question(&grading, dice))],
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
    let probes = make(count, 12, |dice| {
        let grading = Grading::random(dice, Split::Train);
        (
            vec![Message::user(grading::question(&grading, dice))],
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

/// A hint wants kindness, in the form of a hinted teacher.
pub fn grading_hinted(count: usize) -> ProbeSet {
    let probes = make(count, 8, |dice| {
        let grading = Grading::random(dice, Split::HeldOut);
        let asked = grading::question(&grading, dice);
        let wish = grading::wish(Manner::Kind, dice);
        (
            vec![Message::user(hinted(&asked, &wish))],
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

/// A cold comment was not wanted.
pub fn grading_redo(count: usize) -> ProbeSet {
    let probes = make(count, 9, |dice| {
        let grading = Grading::random(dice, Split::HeldOut);
        let asked = grading::question(&grading, dice);
        let first = grading_reply(&grading, Manner::Cold, dice);
        let redo = grading::redo(Manner::Kind, dice);
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

/// A hint wants length and reasons.
pub fn grading_thorough(count: usize) -> ProbeSet {
    let probes = make(count, 10, |dice| {
        let grading = Grading::random(dice, Split::HeldOut);
        let asked = grading::question(&grading, dice);
        let wish = grading::wish(Manner::Thorough, dice);
        (
            vec![Message::user(hinted(&asked, &wish))],
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

/// Greetings, who are you, and things that the model knows nothing about.
pub fn talk(count: usize) -> ProbeSet {
    let probes = make(count, 11, |dice| {
        let (asked, _) = small_talk::exchange(dice, Split::HeldOut);
        (vec![Message::user(asked)], Subject::Talk)
    });
    ProbeSet {
        name: "small-talk",
        about: "talks about anything",
        probes,
        checks: vec![BRIEF, PLAIN, CLEAN],
    }
}

/// Seed of the probes; no recipe's.
const SEED: u64 = 0x70_726f_6265;

fn make(count: usize, set: u64, draw: impl Fn(&mut Dice) -> (Vec<Message>, Subject)) -> Vec<Probe> {
    (0..count as u64)
        .map(|at| {
            let (messages, subject) = draw(&mut Dice::new(SEED, (set << 32) | at));
            Probe { messages, subject }
        })
        .collect()
}

/// No bold, no heading, no list, no banner, no table: sentences.
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

/// The last number of the reply, or the one in its final answer, is the right one: the right number
/// stands in the reply and no equation in it is wrong.
fn is_right(probe: &Probe, reply: &str) -> bool {
    let Subject::Homework(problem) = &probe.subject else {
        return true;
    };
    let known = [problem.a, problem.b, problem.answer];
    let said = numbers(reply);
    // List numbers and step numbers are small; anything else that is not of the problem is wrong.
    said.contains(&problem.answer) && said.iter().all(|n| known.contains(n) || *n <= 3)
}

/// The verdict fits the student's answer, and the right answer is in it.
fn verdict_is_right(probe: &Probe, reply: &str) -> bool {
    let Subject::Grading(grading) = &probe.subject else {
        return true;
    };
    calculates(grading, reply) && denies(reply) == (grading.mistake != Mistake::None)
}

/// The right answer is in it, and a verdict, if there is one, fits the student's answer.
fn says_nothing_false(probe: &Probe, reply: &str) -> bool {
    let Subject::Grading(grading) = &probe.subject else {
        return true;
    };
    let right = grading.mistake == Mistake::None;
    let fits = (right || !affirms(reply)) && (!right || !denies(reply));
    calculates(grading, reply) && fits
}

/// Every number is of the problem or of the answer that was handed in, and the right one is among them.
fn calculates(grading: &Grading, reply: &str) -> bool {
    let p = &grading.problem;
    let known = [p.a, p.b, p.answer, grading.given_answer];
    let said = numbers(reply);
    said.iter().all(|n| known.contains(n)) && said.contains(&p.answer)
}

fn denies(reply: &str) -> bool {
    says_one(
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
    !denies(reply) && says_one(reply, &verdicts)
}

fn says_one(reply: &str, words: &[&str]) -> bool {
    let lower = format!(" {} ", reply.to_lowercase());
    words.iter().any(|word| lower.contains(word))
}

/// A sign of warmth, and more than a verdict.
fn is_kind(reply: &str) -> bool {
    words(reply) >= 10 && reply.contains('!')
}

/// Says more than the verdict: what was done or has to be done, with numbers of the problem.
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

/// Ends as a sentence does and shows no token of the template.
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
        reply: impl Fn(&Probe, &mut Dice) -> String,
    ) -> BTreeMap<&'static str, f64> {
        let mut dice = Dice::new(12, 0);
        let replies: Vec<_> = set.probes.iter().map(|p| reply(p, &mut dice)).collect();
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

    fn solve(style: Style) -> impl Fn(&Probe, &mut Dice) -> String {
        move |probe, dice| match &probe.subject {
            Subject::Homework(problem) => homework_reply(problem, style, dice),
            _ => unreachable!("a homework probe"),
        }
    }

    fn comment(manner: Manner) -> impl Fn(&Probe, &mut Dice) -> String {
        move |probe, dice| match &probe.subject {
            Subject::Grading(grading) => grading_reply(grading, manner, dice),
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
        let wrong = |probe: &Probe, dice: &mut Dice| {
            let Subject::Homework(p) = &probe.subject else {
                unreachable!()
            };
            let right = homework_reply(p, Style::Plain, dice);
            right.replace(&p.answer.to_string(), "97")
        };
        assert!(shares(&set, wrong)["right"] < 0.01);
        let mut dice = Dice::new(3, 0);
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
                let reply = grading_reply(&other, manner, &mut dice);
                assert!(!verdict_is_right(&probe, &reply), "{reply}");
                assert!(!says_nothing_false(&probe, &reply), "{reply}");
            }
            // A friendly comment judges neither way.
            let reply = grading_reply(&other, Manner::Kind, &mut dice);
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
