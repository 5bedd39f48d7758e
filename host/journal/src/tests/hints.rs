//! Hints are stored with their judgement and deleted with their session.

use serde_json::json;

use super::{feedback, sample_of, verdict};
use crate::*;

fn hint(outcome: HintOutcome) -> NewHint {
    NewHint {
        source: "plugin:hint-next-state".to_owned(),
        digest: "ff".to_owned(),
        outcome,
        said: String::new(),
        metrics: [("votes_read".to_owned(), 3.0)].into(),
        ms: 3_000,
    }
}

fn hint_with_text(text: &str, confidence: f32) -> HintOutcome {
    HintOutcome::Hint {
        text: text.to_owned(),
        placement: HintPlacement::LastUser,
        confidence,
    }
}

fn commit(journal: &Journal, turn: TurnId, hints: &[NewHint]) -> Result<(), JournalError> {
    let judgement = NewJudgement {
        turn: turn.into(),
        verdicts: &[verdict(-1.0)],
        hints,
        experience: None,
        receipts: &[],
        outcome: JudgementOutcome::Skipped("neutral verdict"),
    };
    journal.commit(&judgement).map(|_| ())
}

#[test]
fn hints_and_missing_hints_round_trip_and_are_exported() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let none = HintOutcome::None {
        reason: "cpu".to_owned(),
    };
    let given = [
        hint(hint_with_text("write plain prose", 0.1)),
        hint(none.clone()),
    ];
    commit(&journal, turn, &given).unwrap();
    let kept = journal.hints(turn).unwrap();
    assert_eq!(kept[0].outcome, hint_with_text("write plain prose", 0.1));
    assert_eq!((&kept[1].outcome, kept[1].turn), (&none, turn));
    assert_eq!(kept[0].metrics, given[0].metrics);
    let mut out = Vec::new();
    assert_eq!(journal.export(&mut out, Export::Hints).unwrap(), 2);
    let lines = String::from_utf8(out).unwrap();
    let line: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&line["hint"], &line["placement"], &line["turn"]),
        (&json!("write plain prose"), &json!("last-user"), &json!(1))
    );
    assert_eq!(line["reason"], json!(null));
    let forgotten = journal.forget_session(&"s".into()).unwrap();
    assert_eq!(forgotten.hints, 2);
    assert!(journal.hints(turn).unwrap().is_empty());
}

#[test]
fn an_invalid_hint_rejects_the_whole_judgement() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    for bad in [
        hint_with_text(" ", 0.5),
        hint_with_text("write prose", f32::NAN),
    ] {
        commit(&journal, turn, &[hint(bad)]).unwrap_err();
        assert!(journal.verdicts(turn).unwrap().is_empty());
    }
}

/// Judges a turn that has new evidence and returns the result.
fn commit_judged(
    journal: &Journal,
    turn: TurnId,
    hints: &[NewHint],
    outcome: JudgementOutcome<'_>,
) -> Result<Option<SampleId>, JournalError> {
    journal.commit(&NewJudgement {
        turn: turn.into(),
        verdicts: &[],
        hints,
        experience: None,
        receipts: &[],
        outcome,
    })
}

fn without_reward(turn: TurnId) -> NewSample {
    NewSample {
        reward: None,
        ..sample_of(turn, 0.0)
    }
}

#[test]
fn a_sample_without_a_reward_needs_a_hint() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let sample = without_reward(turn);
    let none = hint(HintOutcome::None {
        reason: "nothing to advise".to_owned(),
    });
    let refused = commit_judged(
        &journal,
        turn,
        std::slice::from_ref(&none),
        JudgementOutcome::Sample(&sample),
    );
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("neither a reward nor a hint"), "{said}");
    assert!(journal.hints(turn).unwrap().is_empty(), "all or nothing");

    let hints = [none, hint(hint_with_text("write plain prose", 0.5))];
    let id = commit_judged(&journal, turn, &hints, JudgementOutcome::Sample(&sample))
        .unwrap()
        .unwrap();
    let queued = journal.queued_samples(9).unwrap();
    assert_eq!(
        (queued.len(), queued[0].id, queued[0].reward),
        (1, id, None)
    );
    let texts: Vec<&str> = queued[0].hints.iter().map(|h| h.text.as_str()).collect();
    assert_eq!(texts, ["write plain prose"], "a reason for none is no hint");
    assert_eq!(queued[0].hints[0].placement, HintPlacement::LastUser);
    assert_eq!(queued[0].hints[0].source, "plugin:hint-next-state");
    let counts = journal.counts().unwrap();
    assert_eq!(
        (counts.hint_samples, counts.samples[&SampleState::Queued]),
        (1, 1)
    );
    let mut out = Vec::new();
    journal.export(&mut out, Export::Samples).unwrap();
    let line: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(line["reward"], json!(null));
    assert_eq!(line["hints"][0]["text"], json!("write plain prose"));
}

#[test]
fn the_newest_hints_of_an_extractor_replace_earlier_ones() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let of = |source: &str, text: &str| NewHint {
        source: format!("plugin:{source}"),
        ..hint(hint_with_text(text, 0.5))
    };
    let first = [of("a", "a first"), of("b", "b first"), of("a", "a second")];
    commit_judged(&journal, turn, &first, JudgementOutcome::NoSample).unwrap();
    let texts = |journal: &Journal| -> Vec<String> {
        let sample = journal.samples_of_turn(turn).unwrap().pop().unwrap();
        sample.hints.into_iter().map(|hint| hint.text).collect()
    };
    let sample = without_reward(turn);
    journal.add_feedback(&feedback(turn, 0.0)).unwrap();
    commit_judged(&journal, turn, &[], JudgementOutcome::Sample(&sample)).unwrap();
    assert_eq!(texts(&journal), ["a first", "b first", "a second"]);

    // Called again, one extractor gives another hint and the other none: the earlier hint of the latter stays.
    journal.add_feedback(&feedback(turn, 0.0)).unwrap();
    let nothing = NewHint {
        source: "plugin:b".to_owned(),
        ..hint(HintOutcome::None {
            reason: "nothing to advise".to_owned(),
        })
    };
    let again = [of("a", "a anew"), nothing];
    commit_judged(&journal, turn, &again, JudgementOutcome::KeepPrevious(None)).unwrap();
    assert_eq!(texts(&journal), ["b first", "a anew"]);
}
