use clawhost_chat::Message;

use super::{arrival, completion, new_turn, sample_of, verdict};
use crate::*;

/// A conversation on one session whose replies are recorded as tokens `[turn id]`.
struct Conversation {
    journal: Journal,
    session: &'static str,
}

impl Conversation {
    fn new() -> Self {
        Self {
            journal: Journal::in_memory().unwrap(),
            session: "s",
        }
    }

    /// A reply to the first message, or to a message after `previous`, which becomes its next state.
    fn turn(&self, previous: Option<TurnId>) -> TurnId {
        self.turn_with(previous, 1)[0]
    }

    fn turn_with(&self, previous: Option<TurnId>, choices: u32) -> Vec<TurnId> {
        let mut request = arrival(self.session, previous);
        // The prompt ends with the turn that it continues, so that prompts differ.
        let prompt = vec![9, previous.map_or(0, |turn| turn.0 as u32)];
        request.turns = (0..choices)
            .map(|choice| NewTurn {
                choice,
                prompt_ids: prompt.clone(),
                ..new_turn(previous)
            })
            .collect();
        let turns = self.journal.record_request(&request).unwrap();
        for turn in &turns {
            self.complete(*turn, Finish::Stop);
        }
        turns
    }

    fn complete(&self, turn: TurnId, finish: Finish) {
        let done = Completion {
            token_ids: vec![turn.0 as u32, 1],
            finish,
            ..completion()
        };
        self.journal.complete(turn, &done).unwrap();
    }

    /// Judges a turn that has a next state.
    fn judge(&self, turn: TurnId, reward: f32) {
        let sample = sample_of(turn, reward);
        self.journal
            .commit_judgement(turn, &[verdict(reward)], Some(&sample), None, &[])
            .unwrap();
    }

    /// Rejected, rejected, accepted; the reply after these follows the accepted one.
    fn redo(&self) -> [TurnId; 3] {
        let first = self.turn(None);
        let second = self.turn(Some(first));
        let third = self.turn(Some(second));
        self.turn(Some(third));
        self.judge(first, -1.0);
        self.judge(second, -1.0);
        self.judge(third, 1.0);
        [first, second, third]
    }

    fn pairs(&self) -> Vec<PreferencePair> {
        self.query(false, 64, 100)
    }

    fn query(&self, with_kept: bool, limit: usize, max_tokens: usize) -> Vec<PreferencePair> {
        self.pairs_of(&PairQuery {
            with_kept,
            limit,
            max_tokens,
            ..every_pair()
        })
    }

    fn pairs_of(&self, query: &PairQuery) -> Vec<PreferencePair> {
        self.journal.preference_pairs(query).unwrap()
    }

    fn accepted(&self, query: &PairQuery) -> Vec<TurnId> {
        let pairs = self.pairs_of(query);
        pairs.iter().map(|pair| pair.turns.accepted).collect()
    }

    fn turns(&self) -> Vec<PairTurns> {
        self.pairs().into_iter().map(|pair| pair.turns).collect()
    }
}

/// All pairs and kept replies.
fn every_pair() -> PairQuery {
    PairQuery {
        with_kept: true,
        owner: None,
        since_ms: 0,
        max_tokens: 100,
        limit: 99,
        newest_complaints: 0,
        change_complaints: 0,
    }
}

fn pair(rejected: TurnId, also_rejected: &[TurnId], accepted: TurnId) -> PairTurns {
    PairTurns {
        rejected: Some(rejected),
        also_rejected: also_rejected.to_vec(),
        accepted,
    }
}

#[test]
fn an_accepted_redo_answers_the_prompt_of_the_first_rejected_reply() {
    let talk = Conversation::new();
    let [first, second, third] = talk.redo();
    let expected = pair(first, &[second], third);
    assert_eq!(
        talk.pairs(),
        [PreferencePair {
            turns: expected.clone(),
            prompt_ids: vec![9, 0],
            chosen: PairReply {
                token_ids: vec![third.0 as u32, 1],
                forced: Vec::new()
            },
            rejected: Some(PairReply {
                token_ids: vec![first.0 as u32, 1],
                forced: Vec::new()
            }),
        }]
    );
    for turn in [first, second, third] {
        assert_eq!(
            talk.journal.pairs_of_turn(turn).unwrap(),
            std::slice::from_ref(&expected)
        );
    }
    let after = TurnId(third.0 + 1);
    assert!(talk.journal.pairs_of_turn(after).unwrap().is_empty());
}

#[test]
fn pairs_come_newest_first_within_the_limits() {
    let talk = Conversation::new();
    let old = talk.redo();
    let new = talk.redo();
    assert_eq!(
        talk.turns(),
        [
            pair(new[0], &new[1..2], new[2]),
            pair(old[0], &old[1..2], old[2])
        ]
    );
    assert_eq!(talk.query(false, 1, 100).len(), 1);
    assert_eq!(
        talk.query(false, 9, 3).len(),
        0,
        "prompt and reply have four tokens"
    );
    let later = PairQuery {
        since_ms: 1_001,
        ..every_pair()
    };
    assert!(talk.pairs_of(&later).is_empty());
}

#[test]
fn a_reply_accepted_at_once_is_kept_without_a_rejected_one() {
    let talk = Conversation::new();
    let turn = talk.turn(None);
    talk.turn(Some(turn));
    talk.judge(turn, 1.0);
    assert!(talk.pairs().is_empty());
    let [kept] = talk.query(true, 9, 100).try_into().unwrap();
    assert_eq!((kept.turns.rejected, kept.turns.accepted), (None, turn));
    assert_eq!((kept.prompt_ids, kept.rejected), (vec![9, 0], None));
    assert!(talk.journal.pairs_of_turn(turn).unwrap().is_empty());
}

#[test]
fn later_complaints_set_older_replies_aside() {
    let talk = Conversation::new();
    let [_, _, old] = talk.redo();
    let kept = talk.turn(None);
    talk.turn(Some(kept));
    talk.judge(kept, 1.0);
    let [_, _, new] = talk.redo();
    // A complaint that no accepted reply follows.
    let open = talk.turn(None);
    talk.turn(Some(open));
    talk.judge(open, -1.0);
    let accepted = |newest_complaints| {
        talk.accepted(&PairQuery {
            newest_complaints,
            ..every_pair()
        })
    };
    assert_eq!(accepted(0), [new, kept, old]);
    assert_eq!(accepted(1), []);
    // The second complaint of a conversation is about the same wish.
    assert_eq!(accepted(2), [new]);
    assert_eq!(accepted(3), [new, kept, old]);
}

#[test]
fn replies_from_before_a_change_of_wish_are_set_aside() {
    let talk = Conversation::new();
    let first_reply = |reward| {
        let turn = talk.turn(None);
        talk.turn(Some(turn));
        talk.judge(turn, reward);
        turn
    };
    let accepted = |change_complaints| {
        talk.accepted(&PairQuery {
            change_complaints,
            ..every_pair()
        })
    };
    // The wish is not followed at first, then it is.
    let [_, _, first] = talk.redo();
    first_reply(-1.0);
    let old = [first_reply(1.0), first_reply(1.0), first_reply(1.0)];
    // One complaint among accepted replies changes nothing.
    first_reply(-1.0);
    let after = first_reply(1.0);
    let learned = [after, old[2], old[1], old[0], first];
    assert_eq!(accepted(2), learned);
    // The complaints of one conversation are one.
    let [_, _, new] = talk.redo();
    assert_eq!(accepted(2), [&[new], &learned[..]].concat());
    // A reply accepted in between takes one complaint back.
    let between = first_reply(1.0);
    first_reply(-1.0);
    assert_eq!(accepted(2), [&[between, new], &learned[..]].concat());
    first_reply(-1.0);
    assert_eq!(accepted(2), []);
    assert_eq!(accepted(3), [&[between, new], &learned[..]].concat());
    // The new wish is followed, and stays the newest one.
    let followed = [first_reply(1.0), first_reply(1.0), first_reply(1.0)];
    assert_eq!(accepted(2), [followed[2], followed[1], followed[0]]);
    assert_eq!(accepted(0).len(), 5 + 2 + 3);
}

#[test]
fn a_truncated_reply_can_be_rejected_and_accepted() {
    for cut in [0, 1] {
        let talk = Conversation::new();
        let first = talk
            .journal
            .record_request(&arrival("s", None))
            .unwrap()
            .remove(0);
        let finish = |index| {
            if index == cut {
                Finish::Length
            } else {
                Finish::Stop
            }
        };
        talk.complete(first, finish(0));
        let second = talk
            .journal
            .record_request(&arrival("s", Some(first)))
            .unwrap()
            .remove(0);
        talk.complete(second, finish(1));
        talk.turn(Some(second));
        talk.judge(first, -1.0);
        talk.judge(second, 1.0);
        let [pair] = talk.pairs().try_into().unwrap();
        assert_eq!(pair.turns.rejected, Some(first), "reply {cut} truncated");
        assert_eq!(pair.chosen.token_ids, [second.0 as u32, 1]);
    }
}

#[test]
fn a_reply_in_between_without_a_verdict_against_it_starts_another_run() {
    let talk = Conversation::new();
    let first = talk.turn(None);
    let second = talk.turn(Some(first));
    let third = talk.turn(Some(second));
    talk.turn(Some(third));
    talk.judge(first, -1.0);
    talk.judge(third, 1.0);
    assert!(talk.pairs().is_empty(), "the second reply is not judged");
    talk.judge(second, 1.0);
    assert_eq!(talk.turns(), [pair(first, &[], second)]);
}

#[test]
fn a_score_of_the_user_alone_is_no_complaint() {
    let talk = Conversation::new();
    let first = talk.turn(None);
    let second = talk.turn(Some(first));
    talk.turn(Some(second));
    let thumb = VerdictRecord {
        source: "user".to_owned(),
        ..verdict(-1.0)
    };
    let sample = sample_of(first, -1.0);
    talk.journal
        .commit_judgement(first, &[thumb], Some(&sample), None, &[])
        .unwrap();
    talk.judge(second, 1.0);
    assert!(talk.pairs().is_empty());
}

#[test]
fn a_tool_result_is_no_complaint() {
    let talk = Conversation::new();
    let first = talk.turn(None);
    let mut request = arrival("s", Some(first));
    request.next_state_of[0].messages =
        vec![serde_json::from_str(r#"{"role": "tool", "content": "no such file"}"#).unwrap()];
    let second = talk.journal.record_request(&request).unwrap()[0];
    talk.complete(second, Finish::Stop);
    talk.turn(Some(second));
    talk.judge(first, -1.0);
    talk.judge(second, 1.0);
    assert!(talk.pairs().is_empty());
}

#[test]
fn a_retracted_complaint_ends_the_pair_and_a_new_verdict_makes_another() {
    let talk = Conversation::new();
    let first = talk.turn(None);
    let second = talk.turn(Some(first));
    talk.turn(Some(second));
    talk.judge(first, -1.0);
    talk.judge(second, 1.0);
    assert_eq!(talk.turns(), [pair(first, &[], second)]);

    let mut request = arrival("s", Some(first));
    request.retract = vec![NewRetraction {
        turn: first,
        reason: "a later request leaves it out".to_owned(),
        ms: 5_000,
    }];
    request.next_state_of[0].messages = vec![Message::user("wrong")];
    let other = talk.journal.record_request(&request).unwrap()[0];
    talk.complete(other, Finish::Stop);
    assert!(
        talk.pairs().is_empty(),
        "the first reply waits to be judged again"
    );
    talk.judge(first, -1.0);
    assert!(
        talk.pairs().is_empty(),
        "the complaint is on another branch"
    );
    talk.turn(Some(other));
    talk.judge(other, 1.0);
    assert_eq!(talk.turns(), [pair(first, &[], other)]);
}

#[test]
fn a_later_verdict_replaces_an_earlier_one() {
    let talk = Conversation::new();
    let [first, second, third] = talk.redo();
    let add = |turn, score| {
        talk.journal
            .add_feedback(&super::feedback(turn, score))
            .unwrap();
    };
    add(third, -1.0);
    assert!(talk.pairs().is_empty(), "it waits to be judged again");
    talk.judge(third, -1.0);
    assert!(talk.pairs().is_empty());
    add(second, 1.0);
    talk.judge(second, 1.0);
    assert_eq!(talk.turns(), [pair(first, &[], second)]);
    // Judged again without a sample.
    add(second, 0.0);
    let neutral =
        talk.journal
            .commit_judgement(second, &[verdict(0.0)], None, Some("neutral verdict"), &[]);
    assert_eq!(neutral.unwrap(), None);
    assert!(talk.pairs().is_empty());
}

#[test]
fn a_forgotten_session_leaves_no_pairs() {
    let talk = Conversation::new();
    talk.redo();
    talk.journal.forget_session(&"s".into()).unwrap();
    assert!(talk.pairs().is_empty());
}

#[test]
fn each_accepted_choice_is_paired_with_the_choice_that_was_complained_about() {
    let talk = Conversation::new();
    let first = talk.turn_with(None, 2);
    let redo = talk.turn_with(Some(first[1]), 2);
    let rate = |turn, reward| {
        talk.journal
            .add_feedback(&super::feedback(turn, reward))
            .unwrap();
        talk.judge(turn, reward);
    };
    rate(first[0], -1.0);
    rate(first[1], -1.0);
    rate(redo[0], 1.0);
    rate(redo[1], 1.0);
    let expected = [pair(first[1], &[], redo[1]), pair(first[1], &[], redo[0])];
    assert_eq!(talk.turns(), expected);
    assert_eq!(talk.journal.pairs_of_turn(first[1]).unwrap().len(), 2);
    assert!(talk.journal.pairs_of_turn(first[0]).unwrap().is_empty());
}
