//! Hints stand beside the judgement in which they were given, and go with their session.

use serde_json::json;

use super::verdict;
use crate::*;

fn hint(outcome: HintOutcome) -> NewHint {
    NewHint {
        source: "plugin:hint-next-state".to_owned(),
        digest: "ff".to_owned(),
        outcome,
        said: String::new(),
        metrics: json!({ "votes_read": 3.0 }),
        ms: 3_000,
    }
}

fn advice(text: &str, confidence: f32) -> HintOutcome {
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
        receipts: &[],
        outcome: JudgementOutcome::Skipped("neutral verdict"),
    };
    journal.commit(&judgement).map(|_| ())
}

#[test]
fn hints_and_reasons_for_none_are_read_back_and_exported() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let none = HintOutcome::None {
        reason: "cpu".to_owned(),
    };
    let given = [hint(advice("write plain prose", 0.1)), hint(none.clone())];
    commit(&journal, turn, &given).unwrap();
    let kept = journal.hints(turn).unwrap();
    assert_eq!(kept[0].outcome, advice("write plain prose", 0.1));
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
fn a_hint_that_cannot_be_is_refused_with_the_whole_judgement() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    for bad in [advice(" ", 0.5), advice("write prose", f32::NAN)] {
        commit(&journal, turn, &[hint(bad)]).unwrap_err();
        assert!(journal.verdicts(turn).unwrap().is_empty());
    }
}
