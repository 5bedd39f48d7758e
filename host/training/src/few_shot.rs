//! Few-shot context distillation: the base model replies to everyday questions with complaints and the replies that were
//! accepted instead as examples in its prompt, and an auxiliary loss teaches the policy to reply so without them
//! ([`crate::auxiliary`]).
//!
//! The questions are those of the rehearsal prompts. The examples come from the journal at each step, so a retracted verdict
//! or a forgotten session leaves them; replies are kept in memory only. This module computes no loss.

use std::sync::atomic::AtomicBool;

use clawhost_chat::{Message, Role};
use clawhost_config::TrainingOptions;
use clawhost_engine::{Engine, LoadedVersion};
use clawhost_journal::{Journal, JournalError, PreferencePair};

use crate::error::TrainingError;
use crate::generated_replies::{GeneratedReply, RenderedPrompt, generate_replies};
use crate::rehearsal::questions;
use crate::shuffle::{numbered_permutation, permutation};

/// Newest pairs that examples are drawn from: what a user wanted last counts.
const NEWEST_PAIRS: usize = 8;
/// Separates the draws of examples from others of the same seed.
const EXAMPLE_DRAWS: u64 = 0x6665_7773;

/// A reply to distil.
#[derive(Debug, Clone)]
pub(crate) struct FewShotReply {
    /// The base model's reply after examples and question.
    pub(crate) reply: GeneratedReply,
    /// The policy's prompt: the question alone.
    pub(crate) plain_prompt: Vec<u32>,
}

/// The questions in the order in which they get replies, and the replies of the last step.
pub(crate) struct FewShot {
    questions: Vec<String>,
    replies: Vec<GeneratedReply>,
}

/// A question, a complaint about its first reply, and the reply that was accepted instead.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Example {
    question: String,
    complaint: String,
    reply: String,
}

impl FewShot {
    /// Reads the questions; none if `training.few_shot` is off.
    ///
    /// # Errors
    /// The prompts file of the rehearsal cannot be read.
    pub(crate) fn open(options: &TrainingOptions) -> Result<Option<Self>, TrainingError> {
        if !(options.enabled && options.few_shot.coef > 0.0) {
            return Ok(None);
        }
        let questions = questions(&options.rehearsal)?;
        let order = permutation(questions.len(), options.seed);
        Ok(Some(Self {
            questions: order.into_iter().map(|at| questions[at].clone()).collect(),
            replies: Vec::new(),
        }))
    }

    /// The replies for a step with these pairs, newest first; none without a complaint among them.
    ///
    /// # Errors
    /// The journal cannot be read, or the engine gives no reply now; the step's samples stay queued.
    pub(crate) fn prepare(
        &mut self,
        journal: &Journal,
        engine: &Engine,
        options: &TrainingOptions,
        pairs: &[PreferencePair],
        stop: &AtomicBool,
    ) -> Result<Vec<FewShotReply>, TrainingError> {
        let examples = examples(journal, pairs)?;
        if examples.is_empty() {
            self.replies.clear();
            return Ok(Vec::new());
        }
        let questions = self.questions.iter().take(options.few_shot.replies);
        let prompts = questions.enumerate().filter_map(|(at, question)| {
            let plain = [Message::user(question)];
            let plain = RenderedPrompt::new(engine, options, &plain).ok()?;
            let drawn = draw(&examples, options, at);
            // Fewer examples if the model cannot read as many.
            let prompt = (1..=drawn.len()).rev().find_map(|count| {
                let messages = messages(&drawn[..count], question);
                let prompt = RenderedPrompt::new(engine, options, &messages).ok()?;
                prompt
                    .leaves_room_for_reply(engine, options)
                    .then_some(prompt)
            })?;
            Some((prompt, plain.prompt_ids))
        });
        let prompts: Vec<(RenderedPrompt, Vec<u32>)> = prompts.collect();
        let keys = prompts.iter().map(|(prompt, _)| &prompt.key);
        if !keys.eq(self.replies.iter().map(|reply| &reply.key)) {
            tracing::info!(
                replies = prompts.len(),
                examples = examples.len(),
                "the base model replies to questions after accepted replies"
            );
            let prompts: Vec<&RenderedPrompt> = prompts.iter().map(|(prompt, _)| prompt).collect();
            let base = LoadedVersion::base(engine.model());
            self.replies = generate_replies(engine, options, &base, &prompts, stop)?;
        }
        let replies = prompts.into_iter().zip(&self.replies);
        let replies = replies.map(|((_, plain_prompt), reply)| FewShotReply {
            reply: reply.clone(),
            plain_prompt,
        });
        Ok(replies.collect())
    }
}

/// Most bytes of the replies in memory, and of the base model's scores of them, for prompts with a reply of at most `longest`
/// tokens.
pub(crate) fn max_bytes(options: &TrainingOptions, longest: usize) -> usize {
    let few_shot = &options.few_shot;
    if !(options.enabled && few_shot.coef > 0.0) {
        return 0;
    }
    let scores = options.rehearsal.max_tokens as usize * options.rehearsal.top_k;
    // The ids here, in the step's copy and in what is scored; scores as tokens and log-probs, and once more with the plain prompt.
    few_shot.replies * (3 * longest + 4 * scores) * size_of::<u32>()
}

/// The newest pairs with a complaint, as text.
fn examples(journal: &Journal, pairs: &[PreferencePair]) -> Result<Vec<Example>, JournalError> {
    let mut examples = Vec::new();
    for pair in pairs {
        let Some(rejected) = pair.turns.rejected else {
            continue;
        };
        let (rejected, accepted) = (journal.turn(rejected)?, journal.turn(pair.turns.accepted)?);
        // A turn that was forgotten meanwhile is no example.
        let (Some(rejected), Some(reply)) = (rejected, accepted.and_then(|turn| turn.completion))
        else {
            continue;
        };
        let example = Example {
            question: last_user_text(&rejected.messages),
            complaint: last_user_text(rejected.next_state.as_deref().unwrap_or_default()),
            reply: reply.reply.text(),
        };
        let texts = [&example.question, &example.complaint, &example.reply];
        if texts.iter().all(|text| !text.trim().is_empty()) {
            examples.push(example);
        }
        if examples.len() == NEWEST_PAIRS {
            break;
        }
    }
    Ok(examples)
}

fn last_user_text(messages: &[Message]) -> String {
    let of_user = |message: &&Message| message.role() == Role::User;
    let last = messages.iter().rev().find(of_user);
    last.map(Message::text).unwrap_or_default()
}

/// The examples for question number `at`, which take turns.
fn draw<'a>(examples: &'a [Example], options: &TrainingOptions, at: usize) -> Vec<&'a Example> {
    let order = numbered_permutation(examples.len(), options.seed ^ EXAMPLE_DRAWS, at);
    let drawn = order.into_iter().map(|index| &examples[index]);
    drawn.take(options.few_shot.examples).collect()
}

/// A conversation in which each question is asked with its complaint, so that the complaint reads as an instruction.
fn messages(examples: &[&Example], question: &str) -> Vec<Message> {
    let mut messages = Vec::new();
    for example in examples {
        messages.push(Message::user(format!(
            "{} {}",
            example.question, example.complaint
        )));
        messages.push(Message::assistant(&example.reply));
    }
    let last = examples.last().expect("there is an example");
    messages.push(Message::user(format!("{question} {}", last.complaint)));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(name: &str) -> Example {
        Example {
            question: format!("{name}?"),
            complaint: format!("Not {name}."),
            reply: format!("Not {name} at all."),
        }
    }

    #[test]
    fn a_question_follows_the_examples_with_the_complaint_of_the_last() {
        let (first, last) = (example("one"), example("two"));
        assert_eq!(
            messages(&[&first, &last], "Why?"),
            [
                Message::user("one? Not one."),
                Message::assistant("Not one at all."),
                Message::user("two? Not two."),
                Message::assistant("Not two at all."),
                Message::user("Why? Not two."),
            ]
        );
    }

    #[test]
    fn questions_get_different_examples_and_each_of_them_once() {
        let examples: Vec<Example> = ["a", "b", "c", "d"].into_iter().map(example).collect();
        let options = TrainingOptions::default();
        let drawn: Vec<Vec<&Example>> = (0..8).map(|at| draw(&examples, &options, at)).collect();
        for drawn in &drawn {
            assert_eq!(drawn.len(), options.few_shot.examples);
            let repeated = |at: usize| drawn[..at].contains(&drawn[at]);
            assert!(!(0..drawn.len()).any(repeated), "{drawn:?}");
        }
        assert!(drawn.iter().any(|other| other != &drawn[0]));
        assert_eq!(draw(&examples[..1], &options, 0), [&examples[0]]);
    }
}
