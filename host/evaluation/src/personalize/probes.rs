//! Probes for forgetting: held-out prompts that the persona's feedback must not affect, run after the conversations.
//!
//! For the embedded policy these are the prompts and checks of its model card: for a student who wants plain prose, correct
//! sums, formatted pages on request, and unchanged comments on answers. For a real model they are explicit requests for the
//! opposite of the wish, and simple questions whose answers can be checked.

use std::ops::Range;

use futures_util::StreamExt;
use serde::Serialize;
use serde_json::{Value, json};

use super::plan::{Cell, PersonalizeOptions};
use crate::client::{ChatClient, RequestParams};
use crate::persona::Track;
use crate::probes::{PROMPTS_PER_SET, ProbeSet, StoredPrompt, prompts};
use crate::seeds::{Purpose, request_seed};
use crate::wish::Wish;
use crate::wish::skills::SKILLS;

/// Concurrent requests.
const CONCURRENCY: usize = 8;

/// Longer than any reply of the embedded policy's corpus.
const MAX_TOKENS: u32 = 192;

/// Enough for an answer of a few words with an explanation.
const SKILL_MAX_TOKENS: u32 = 64;

/// One property of the replies to one set of prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeResult {
    /// The set and the property, such as `homework-formatted: right`.
    pub name: String,
    /// How far each reply has the property, in [0, 1], in the order of the prompts; `None` without a reply.
    pub scores: Vec<Option<f64>>,
    /// Mean score of replies that guess.
    pub chance: f64,
    /// Whether the prompts explicitly ask for the opposite of the wish.
    pub opposite: bool,
    /// The replies in the order of the prompts, if these do so; else empty.
    pub replies: Vec<Option<String>>,
}

/// A prompt.
struct Prompt {
    text: String,
    max_tokens: u32,
}

/// Prompts of one set, and the properties of their replies.
struct Set {
    prompts: Vec<Prompt>,
    properties: Vec<Property>,
}

/// A property of replies.
struct Property {
    name: String,
    chance: f64,
    opposite: bool,
    /// Scores the reply to a prompt.
    score: PromptScorer,
}

/// Scores the reply to the prompt of this index, from 0 to 1.
type PromptScorer = Box<dyn Fn(usize, &str) -> f64 + Send + Sync>;

/// The probe sets of the model card with the checks that a persona's preference does not affect.
fn card_sets(track: Track) -> &'static [(&'static str, &'static [&'static str])] {
    match track {
        Track::Student => &[
            ("homework-first", &["right"]),
            ("homework-formatted", &["formatted", "right"]),
            ("grading-first", &["terse", "verdict"]),
            ("grading-hinted", &["kind"]),
            ("grading-thorough", &["long"]),
            ("small-talk", &["clean"]),
        ],
        Track::Teacher => &[
            ("homework-first", &["right"]),
            ("homework-formatted", &["formatted", "right"]),
            ("homework-hinted", &["plain", "right"]),
            ("grading-thorough", &["long", "verdict"]),
            ("small-talk", &["clean"]),
        ],
        _ => &[],
    }
}

/// Runs the prompts `which` of each set, each with the system message `memory` if there is one. A failed request leaves a
/// gap and its error.
pub(super) async fn probe(
    client: &ChatClient,
    cell: Cell,
    which: Range<usize>,
    memory: Option<&str>,
    options: &PersonalizeOptions,
) -> (Vec<ProbeResult>, Vec<String>) {
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    if which.is_empty() {
        return (results, failures);
    }
    let sets = match cell.track.wish() {
        None => stored_sets(cell.track, which),
        Some(wish) => wish_sets(wish, which, cell.track.ends_reversed(), options),
    };
    let params = RequestParams {
        seed: cell.seed,
        temperature: options.temperature,
        max_tokens: None,
    };
    for (number, set) in sets.iter().enumerate() {
        let replies = replies(client, &set.prompts, number as u64, memory, params).await;
        for property in &set.properties {
            let score = |(at, reply): (usize, &Result<String, String>)| {
                reply.as_ref().ok().map(|reply| (property.score)(at, reply))
            };
            results.push(ProbeResult {
                name: property.name.clone(),
                scores: replies.iter().enumerate().map(score).collect(),
                chance: property.chance,
                opposite: property.opposite,
                replies: match property.opposite {
                    true => replies.iter().map(|reply| reply.clone().ok()).collect(),
                    false => Vec::new(),
                },
            });
        }
        failures.extend(replies.into_iter().filter_map(Result::err));
    }
    (results, failures)
}

fn stored_sets(track: Track, which: Range<usize>) -> Vec<Set> {
    assert!(
        which.end <= PROMPTS_PER_SET,
        "there are {PROMPTS_PER_SET} prompts, not {}",
        which.end
    );
    let mut all = prompts();
    let set = |(name, selected): &(&str, &[&str])| {
        let own: Vec<StoredPrompt> = all.extract_if(.., |prompt| prompt.set == *name).collect();
        let stored = own[which.clone()].to_vec();
        let property = |selected: &&str| {
            let (check, stored) = (ProbeSet::named(name).check(selected), stored.clone());
            Property {
                name: format!("{name}: {selected}"),
                chance: 0.0,
                opposite: false,
                score: Box::new(move |at, reply| {
                    f64::from(u8::from((check.passes)(&stored[at].subject, reply)))
                }),
            }
        };
        Set {
            properties: selected.iter().map(property).collect(),
            prompts: stored
                .iter()
                .map(|stored| prompt(stored.prompt.clone(), MAX_TOKENS))
                .collect(),
        }
    };
    card_sets(track).iter().map(set).collect()
}

/// Explicit requests for the opposite (of a person who wants the opposite in the end: for the wish), and other skills.
fn wish_sets(
    wish: Wish,
    which: Range<usize>,
    reversed: bool,
    options: &PersonalizeOptions,
) -> Vec<Set> {
    let max_tokens = options.max_tokens.unwrap_or(MAX_TOKENS);
    let from = which.start;
    let request = |at| {
        if reversed {
            wish.instructed(at)
        } else {
            wish.opposite(at)
        }
    };
    let asked_for = if reversed { "the wish" } else { "the opposite" };
    let opposite = Set {
        prompts: which
            .clone()
            .map(|at| prompt(request(at), max_tokens))
            .collect(),
        properties: vec![
            Property {
                name: format!("{asked_for}, asked for"),
                chance: 0.0,
                opposite: true,
                score: Box::new(move |at, reply| {
                    let question = wish.held_out_question(from + at);
                    if reversed {
                        wish.score(question, reply)
                    } else {
                        wish.score_opposite(question, reply)
                    }
                }),
            },
            Property {
                name: format!("{asked_for}, asked for: form"),
                chance: 0.0,
                opposite: true,
                score: Box::new(move |_, reply| {
                    if reversed {
                        wish.form(reply)
                    } else {
                        wish.opposite_form(reply)
                    }
                }),
            },
        ],
    };
    let skills = SKILLS.iter().map(|skill| {
        let count = which.len().min(skill.count());
        let text = |at| format!("{}{}", skill.question(at), wish.skill_suffix());
        Set {
            prompts: (from..from + count)
                .map(|at| prompt(text(at), SKILL_MAX_TOKENS))
                .collect(),
            properties: vec![Property {
                name: skill.name.to_owned(),
                chance: skill.chance,
                opposite: false,
                score: Box::new(move |at, reply| {
                    f64::from(u8::from(skill.passes(from + at, reply)))
                }),
            }],
        }
    });
    std::iter::once(opposite).chain(skills).collect()
}

fn prompt(text: String, max_tokens: u32) -> Prompt {
    Prompt { text, max_tokens }
}

async fn replies(
    client: &ChatClient,
    prompts: &[Prompt],
    set: u64,
    memory: Option<&str>,
    params: RequestParams,
) -> Vec<Result<String, String>> {
    let request = |(at, prompt): (usize, &Prompt)| {
        let system = memory.map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": prompt.text});
        let params = RequestParams {
            seed: request_seed(params.seed, set, Purpose::Probe, at as u64),
            max_tokens: Some(prompt.max_tokens),
            ..params
        };
        (system.into_iter().chain([user]).collect(), params)
    };
    let requests: Vec<(Vec<Value>, RequestParams)> =
        prompts.iter().enumerate().map(request).collect();
    futures_util::stream::iter(requests)
        .map(|(messages, params)| async move {
            let reply = client.chat(&messages, params).await;
            reply.map(|r| r.text).map_err(|e| e.to_string())
        })
        .buffered(CONCURRENCY)
        .collect()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_selected_check_exists_and_every_set_is_stored() {
        for track in Track::EMBEDDED {
            for (name, selected) in card_sets(track) {
                let set = ProbeSet::named(name);
                assert!(!selected.is_empty());
                for check in *selected {
                    assert_eq!(set.check(check).name, *check);
                }
                let stored = prompts().iter().filter(|p| p.set == *name).count();
                assert_eq!(stored, PROMPTS_PER_SET, "{name}");
            }
        }
    }

    #[test]
    fn a_wish_is_probed_by_its_opposite_and_by_other_skills() {
        let options = PersonalizeOptions::of_wishes(&[Wish::Short]);
        let sets = wish_sets(Wish::Short, 40..60, false, &options);
        assert_eq!(sets.len(), 1 + SKILLS.len());
        let score = &sets[0].properties[0].score;
        let words: Vec<String> = (0..90).map(|at| format!("word{at}")).collect();
        let long = |at: usize| format!("{} {}", sets[0].prompts[at].text, words.join(" "));
        assert_eq!((score(0, &long(0)), score(3, &long(3))), (1.0, 1.0));
        assert_eq!(score(3, &words.join(" ")), 0.0);
        assert_eq!(sets[0].prompts.len(), 20);
        for (set, skill) in sets[1..].iter().zip(&SKILLS) {
            assert_eq!(set.prompts.len(), 20.min(skill.count()));
            assert_eq!(set.prompts[0].text, skill.question(40));
        }
        let reversed = wish_sets(Wish::French, 0..4, true, &options);
        assert!(reversed[0].prompts[0].text.ends_with("Answer in French."));
        assert_eq!(
            (reversed[0].properties[0].score)(0, "Avec des bananes, vous pouvez faire une tarte."),
            1.0
        );
        assert!(reversed[1].prompts[0].text.ends_with("Answer in English."));
    }
}
