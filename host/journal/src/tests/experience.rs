//! Experience: one entry for hints that say the same, bounded, forgotten with its conversations, retired by gaps.

use super::{arrival, feedback, sample_of, step, verdict};
use crate::*;

const SHORT: &str = "Please answer in one short sentence.";
const PLAIN: &str = "No lists, please write plain prose.";

/// A turn of the session whose user asked for this; the hint is kept as experience.
fn hinted(journal: &Journal, session: &str, text: &str, ms: i64) -> TurnId {
    let turn = journal.ready_turn_in(session);
    say(journal, turn, text, ms);
    turn
}

fn say(journal: &Journal, turn: TurnId, text: &str, ms: i64) {
    let judgement = NewJudgement {
        turn: turn.into(),
        verdicts: &[verdict(-1.0)],
        hints: &[NewHint {
            source: "plugin:hint-next-state".to_owned(),
            digest: "ff".to_owned(),
            outcome: HintOutcome::Hint {
                text: text.to_owned(),
                placement: HintPlacement::LastUser,
                confidence: 0.9,
            },
            said: String::new(),
            metrics: PluginMetrics::new(),
            ms,
        }],
        experience: Some(NewExperience {
            hint: 0,
            max_entries: 3,
        }),
        receipts: &[],
        outcome: JudgementOutcome::Skipped("neutral verdict"),
    };
    journal.commit(&judgement).unwrap();
}

fn texts(journal: &Journal) -> Vec<String> {
    let entries = journal.experience(Some("home")).unwrap();
    entries.into_iter().map(|entry| entry.text).collect()
}

#[test]
fn hints_that_say_the_same_are_one_entry_with_several_turns() {
    let journal = Journal::in_memory().unwrap();
    let first = hinted(&journal, "a", SHORT, 10);
    hinted(&journal, "b", PLAIN, 20);
    let again = hinted(&journal, "c", "answer in one short sentence", 30);
    let entries = journal.experience(Some("home")).unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!((entries[0].text.as_str(), entries[0].seen()), (SHORT, 2));
    assert_eq!(entries[0].turns, [first, again]);
    assert_eq!((entries[0].created_ms, entries[0].last_ms), (10, 30));
    assert_eq!(texts(&journal), [SHORT, PLAIN], "newest first");
    assert!(journal.experience(None).unwrap().is_empty());
    assert_eq!(journal.all_experience().unwrap().len(), 2);
}

#[test]
fn a_key_has_at_most_max_entries_and_retired_ones_go_first() {
    let journal = Journal::in_memory().unwrap();
    hinted(&journal, "a", SHORT, 10);
    hinted(&journal, "b", PLAIN, 20);
    hinted(&journal, "c", "Use metric units.", 30);
    let plain = journal.experience(Some("home")).unwrap()[1].id;
    let retire = ExperienceEdit {
        active: Some(false),
        ..ExperienceEdit::default()
    };
    let retired = journal.edit_experience(plain, &retire).unwrap().unwrap();
    assert_eq!(retired.state, ExperienceState::Retired);
    hinted(&journal, "d", "Address me as captain.", 40);
    assert_eq!(
        texts(&journal),
        ["Address me as captain.", "Use metric units.", SHORT]
    );
    hinted(&journal, "e", "End with a question.", 50);
    assert_eq!(texts(&journal)[2], "Use metric units.");
    assert!(journal.experience_entry(plain).unwrap().is_none());
}

#[test]
fn forgetting_conversations_forgets_what_only_they_said() {
    let journal = Journal::in_memory().unwrap();
    hinted(&journal, "a", SHORT, 10);
    hinted(&journal, "b", "answer in one short sentence", 20);
    hinted(&journal, "b", PLAIN, 30);
    let forgotten = journal.forget_session(&"a".into()).unwrap();
    assert_eq!(forgotten.experience, 0);
    assert_eq!(texts(&journal), [PLAIN, "answer in one short sentence"]);
    let edit = ExperienceEdit {
        text: Some(" At most ten words. ".to_owned()),
        ..ExperienceEdit::default()
    };
    let id = journal.experience(Some("home")).unwrap()[1].id;
    let edited = journal.edit_experience(id, &edit).unwrap().unwrap();
    assert_eq!(
        (edited.text.as_str(), edited.edited),
        ("At most ten words.", true)
    );
    let forgotten = journal.forget_session(&"b".into()).unwrap();
    assert_eq!(forgotten.experience, 2);
    assert!(texts(&journal).is_empty());
    let raw = journal.read(|conn| {
        let left =
            "SELECT COUNT(*) FROM experience WHERE edited IS NOT NULL OR state <> 'forgotten'";
        Ok(conn.query_row(left, [], |row| row.get::<_, i64>(0))?)
    });
    assert_eq!(raw.unwrap(), 0, "no text is left");
}

#[test]
fn an_entry_is_edited_deleted_and_learned_again() {
    let journal = Journal::in_memory().unwrap();
    hinted(&journal, "a", SHORT, 10);
    let id = journal.experience(Some("home")).unwrap()[0].id;
    let text = |text: &str| ExperienceEdit {
        text: Some(text.to_owned()),
        ..ExperienceEdit::default()
    };
    journal.edit_experience(id, &text("Be brief.")).unwrap();
    journal.edit_experience(id, &text("  ")).unwrap_err();
    // The edit does not hide what the entry came from.
    hinted(&journal, "b", SHORT, 20);
    assert_eq!(texts(&journal), ["Be brief."]);
    assert!(journal.forget_experience(id).unwrap());
    assert!(!journal.forget_experience(id).unwrap());
    assert!(
        journal
            .edit_experience(id, &text("Be brief."))
            .unwrap()
            .is_none()
    );
    assert!(texts(&journal).is_empty());
    hinted(&journal, "c", SHORT, 30);
    assert_eq!(texts(&journal), [SHORT]);
}

#[test]
fn a_retracted_next_state_takes_its_experience_with_it() {
    let journal = Journal::in_memory().unwrap();
    let turn = hinted(&journal, "a", SHORT, 10);
    let mut request = arrival("a", None);
    request.retract = vec![NewRetraction {
        turn,
        reason: "it was a side request".to_owned(),
        ms: 50,
    }];
    journal.record_request(&request).unwrap();
    assert!(texts(&journal).is_empty());
}

#[test]
fn an_entry_retires_when_the_policy_is_close_without_it_and_returns_with_its_hint() {
    let journal = Journal::in_memory().unwrap();
    hinted(&journal, "a", SHORT, 500);
    let entry = journal.experience(Some("home")).unwrap()[0].id;
    let distil = |turn: TurnId, gap: f64| {
        let distilled = DistilledExperience {
            turns: vec![DistilledTurn {
                turn,
                entries: vec![entry],
                gap,
            }],
            retire_turns: 2,
            retire_gap: 0.1,
        };
        let step = NewStep {
            experience: Some(distilled),
            ..step(&[])
        };
        journal.commit_step(&step).unwrap();
        journal.experience_entry(entry).unwrap().unwrap()
    };
    let turn = journal.turn_in("later");
    assert_eq!(distil(turn, 0.5).state, ExperienceState::Active);
    assert_eq!(distil(turn, 0.15).state, ExperienceState::Active);
    let retired = distil(turn, 0.05);
    assert_eq!(
        (retired.state, retired.distilled),
        (ExperienceState::Retired, 3)
    );
    assert!(
        retired
            .reason
            .unwrap()
            .contains("0.1000 nats per token over the last 2")
    );
    assert!(journal.active_experience(Some("home")).unwrap().is_empty());
    // The same turn, judged again, is not a new complaint.
    let same = journal.experience_entry(entry).unwrap().unwrap().turns[0];
    journal.add_feedback(&feedback(same, -1.0)).unwrap();
    say(&journal, same, SHORT, 600);
    assert!(journal.active_experience(Some("home")).unwrap().is_empty());
    hinted(&journal, "b", SHORT, 700);
    let back = journal.experience_entry(entry).unwrap().unwrap();
    assert_eq!((back.state, back.distilled), (ExperienceState::Active, 0));
    // A reply from before the last hint says nothing about whether it is followed now.
    hinted(&journal, "c", SHORT, 5_000);
    assert_eq!(distil(turn, 0.01).distilled, 0);
}

#[test]
fn a_turn_without_reward_or_hint_is_a_sample_if_its_key_has_experience() {
    let journal = Journal::in_memory().unwrap();
    let commit = |turn: TurnId| {
        let sample = NewSample {
            reward: None,
            ..sample_of(turn, 0.0)
        };
        journal.commit_judgement(turn, &[verdict(0.0)], Some(&sample), None, &[])
    };
    let turn = journal.ready_turn_in("a");
    commit(turn).unwrap_err();
    hinted(&journal, "b", SHORT, 10);
    commit(turn).unwrap().unwrap();
}

#[test]
fn the_experience_in_a_prompt_is_recorded_with_its_turn() {
    let journal = Journal::in_memory().unwrap();
    let injected = PromptExperience {
        text: "Be brief.".to_owned(),
        entries: vec![3, 1],
    };
    let mut request = arrival("a", None);
    request.turns[0].experience = Some(injected.clone());
    let turn = journal.record_request(&request).unwrap()[0];
    assert_eq!(journal.record(turn).experience, Some(injected.clone()));
    assert_eq!(journal.prompt_experience(turn).unwrap(), Some(injected));
    let other = journal.turn_in("b");
    assert_eq!(journal.prompt_experience(other).unwrap(), None);
}
