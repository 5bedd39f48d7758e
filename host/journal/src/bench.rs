//! Write benchmark for `clawhost bench journal`, and injected write failures for tests.

use std::time::Instant;

use clawhost_chat::Message;

use crate::clock::now_ms;
use crate::error::{DbError, JournalError};
use crate::ids::{SessionId, TurnId};
use crate::journal::Journal;
use crate::records::{
    Completion, Finish, MatchRecord, NewRequest, NewTurn, NextState, SamplingRecord, SessionUpsert,
    TurnKind,
};

/// Turns per session; the history grows over them.
const SESSION: u32 = 8;
/// Characters of the system message.
const SYSTEM_CHARS: usize = 2_000;
/// Characters of each further message.
const MESSAGE_CHARS: usize = 400;
/// Characters of English per token.
const CHARS_PER_TOKEN: usize = 4;

/// Appends `turns` realistic turns and returns the seconds that each took.
///
/// Each turn costs what a live one does: one request (session, next state of the turn before, new turn with the whole
/// history and its prompt tokens) and one completion of 100 tokens with their logprobs. Sessions have 8 turns, a system
/// message of 2,000 characters and messages of 400.
///
/// # Errors
/// Database errors.
pub fn append_turns(journal: &Journal, turns: u32) -> Result<Vec<f64>, JournalError> {
    let run = now_ms();
    let mut seconds = Vec::with_capacity(turns as usize);
    let mut previous: Option<TurnId> = None;
    for number in 0..turns {
        let position = number % SESSION;
        if position == 0 {
            previous = None;
        }
        let session = SessionId(format!("measure-{run}-{}", number / SESSION));
        let arrival = arrival(session, number, position, previous);
        let completion = completion(number);
        let start = Instant::now();
        let ids = journal.record_request(&arrival)?;
        for id in &ids {
            journal.complete(*id, &completion)?;
        }
        seconds.push(start.elapsed().as_secs_f64());
        previous = ids.first().copied();
    }
    Ok(seconds)
}

/// Makes every write fail, as on a full or read-only disk, until called with `false`.
///
/// # Errors
/// Database errors.
pub fn fail_writes(journal: &Journal, fail: bool) -> Result<(), JournalError> {
    let set = journal.with_writer(|conn| conn.pragma_update(None, "query_only", fail));
    set.map_err(|error| DbError::from(error).with_path(journal.path()))
}

fn text(chars: usize, number: u32) -> String {
    let mut text = format!("{number}: ");
    while text.len() < chars {
        text.push_str("a few plain words of a talk about homework, ");
    }
    text
}

fn arrival(session: SessionId, number: u32, position: u32, previous: Option<TurnId>) -> NewRequest {
    let mut messages = vec![Message::system(text(SYSTEM_CHARS, 0))];
    for turn in 0..position {
        messages.push(Message::user(text(MESSAGE_CHARS, turn)));
        messages.push(Message::assistant(text(MESSAGE_CHARS, turn)));
    }
    let question = Message::user(text(MESSAGE_CHARS, number));
    messages.push(question.clone());
    let chars = SYSTEM_CHARS + messages.len() * MESSAGE_CHARS;
    let tokens = u32::try_from(chars / CHARS_PER_TOKEN).unwrap_or(u32::MAX);
    let ms = now_ms();
    NewRequest {
        retract: Vec::new(),
        next_state_of: previous
            .map(|turn| NextState {
                turn,
                messages: vec![question],
                ms,
                source: None,
            })
            .into_iter()
            .collect(),
        turns: vec![NewTurn {
            response_id: format!("chatcmpl-{session}-{position}"),
            choice: 0,
            group: format!("{session}-{position}"),
            kind: TurnKind::Unknown,
            parent: previous,
            received_ms: ms,
            key: None,
            owner: None,
            request_digest: format!("{number:064x}"),
            messages,
            tools: Vec::new(),
            template: serde_json::Map::new(),
            experience: None,
            prompt_ids: (0..tokens).collect(),
            sampling: SamplingRecord::default(),
            adapter_version: 0,
            adapter_digest: String::new(),
            model: "measure".to_owned(),
            matched: MatchRecord {
                by: "measure".to_owned(),
                ..MatchRecord::default()
            },
            histories: vec![format!("{number:064x}")],
        }],
        session: SessionUpsert {
            id: session,
            name: None,
            origin: "new".to_owned(),
            key: None,
            user: None,
            ms,
        },
    }
}

fn completion(number: u32) -> Completion {
    let tokens: u32 = 100;
    Completion {
        ms: now_ms(),
        finish: Finish::Stop,
        reply: text(MESSAGE_CHARS, number).into(),
        anchor: Some(format!("{number:064x}")),
        token_ids: (0..tokens).collect(),
        logprobs: vec![-0.5; tokens as usize],
        full_logprobs: vec![-0.5; tokens as usize],
        forced: Vec::new(),
    }
}
