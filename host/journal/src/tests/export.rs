use serde_json::{Value, json};
use tempfile::tempdir;

use super::{arrival, completion, feedback, new_turn, published, sample_of, verdict, vote};
use crate::*;

fn call() -> Value {
    json!({"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}})
}

fn lines(journal: &Journal, what: Export) -> Vec<Value> {
    let mut out = Vec::new();
    let written = journal.export(&mut out, what).unwrap();
    let lines: Vec<Value> = String::from_utf8(out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len() as u64, written);
    lines
}

fn conversation() -> Journal {
    let journal = Journal::in_memory().unwrap();
    let mut first = arrival("s", None);
    first.turns[0].received_ms = 1_000_000_000_000;
    let turn = journal.record_request(&first).unwrap()[0];
    let reply = serde_json::from_value(json!({
        "role": "assistant",
        "content": "fifty-six",
        "tool_calls": [call()],
        "malformed_tool_calls": ["it is not closed"],
    }))
    .unwrap();
    let done = Completion {
        ms: 1_000_000_000_000,
        reply,
        ..completion()
    };
    journal.complete(turn, &done).unwrap();
    let mut next = arrival("s", Some(turn));
    next.next_state_of[0].messages = serde_json::from_value(
        json!([{ "role": "tool", "content": "ok" }, { "role": "user", "content": "thanks" }]),
    )
    .unwrap();
    let second = journal.record_request(&next).unwrap()[0];
    journal.complete(second, &completion()).unwrap();
    let mut side = arrival("s", None);
    side.turns = vec![NewTurn {
        kind: TurnKind::Side,
        ..new_turn(None)
    }];
    let side = journal.record_request(&side).unwrap()[0];
    journal.complete(side, &completion()).unwrap();
    journal.record_request(&arrival("s", None)).unwrap();
    journal
}

#[test]
fn conversations_have_the_fields_of_the_record_file() {
    let journal = conversation();
    let lines = lines(&journal, Export::Conversations);
    assert_eq!(lines.len(), 2);
    let line = &lines[0];
    assert_eq!(
        (&line["session_id"], &line["turn"]),
        (&json!("s"), &json!(1))
    );
    assert_eq!(line["timestamp"], "2001-09-09 01:46:40");
    assert_eq!(line["messages"], json!(new_turn(None).messages));
    assert_eq!(
        (&line["prompt_text"], &line["response_text"]),
        (&Value::Null, &json!("fifty-six"))
    );
    assert_eq!(line["tool_calls"], json!([call()]));
    assert_eq!(line["malformed_tool_calls"], json!(["it is not closed"]));
    assert_eq!(lines[1]["malformed_tool_calls"], Value::Null);
    assert_eq!(
        line["next_state"],
        json!({ "role": "user", "content": "thanks" })
    );
    assert_eq!(line["next_messages"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&line["turn_id"], &line["response_id"]),
        (&json!(1), &json!("chatcmpl-1"))
    );
    assert_eq!(
        (&lines[1]["turn"], &lines[1]["next_state"]),
        (&json!(2), &Value::Null)
    );
    assert_eq!(
        (&lines[1]["tool_calls"], &lines[1]["response_text"]),
        (&Value::Null, &json!("56"))
    );
}

#[test]
fn export_with_a_decoder_has_prompt_text() {
    let journal = conversation();
    let mut out = Vec::new();
    let decode = |ids: &[u32]| format!("{} tokens", ids.len());
    journal
        .export_with(&mut out, Export::Conversations, Some(&decode))
        .unwrap();
    let first = String::from_utf8(out).unwrap();
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!(first["prompt_text"], "3 tokens");
}

#[test]
fn verdicts_have_the_fields_of_the_judge_file_and_a_null_score_without_verdict() {
    let journal = conversation();
    let votes = vec![vote(-1.0), None];
    let judged = [
        VerdictRecord {
            votes,
            ..verdict(-1.0)
        },
        verdict(0.0),
        VerdictRecord {
            outcome: VerdictOutcome::None {
                reason: "timeout".into(),
            },
            ..verdict(0.0)
        },
    ];
    journal
        .commit_judgement(TurnId(1), &judged, None, None, &[])
        .unwrap();
    let lines = lines(&journal, Export::Verdicts);
    assert_eq!(
        (&lines[0]["session_id"], &lines[0]["turn"]),
        (&json!("s"), &json!(1))
    );
    assert_eq!(
        (&lines[0]["score"], &lines[0]["votes"]),
        (&json!(-1.0), &json!([-1.0, "fail"]))
    );
    assert_eq!(lines[0]["representative_eval"], "the user moved on");
    assert_eq!(lines[0]["vote_details"], json!([vote(-1.0), null]));
    assert_eq!(
        (&lines[1]["score"], &lines[1]["votes"]),
        (&json!(0.0), &json!([1.0, 1.0, "fail"]))
    );
    assert_eq!(lines[1].get("representative_eval"), None);
    assert_eq!(
        (&lines[2]["score"], &lines[2]["reason"]),
        (&Value::Null, &json!("timeout"))
    );
    assert_eq!(
        (&lines[2]["accepted"], &lines[0]["turn_id"]),
        (&json!(false), &json!(1))
    );
}

#[test]
fn samples_steps_and_turns_are_exported_with_all_fields() {
    let journal = conversation();
    journal.add_feedback(&feedback(TurnId(1), 1.0)).unwrap();
    let sample = journal
        .commit_judgement(
            TurnId(1),
            &[verdict(1.0)],
            Some(&sample_of(TurnId(1), 1.0)),
            None,
            &[],
        )
        .unwrap()
        .unwrap();
    journal.commit_step(&published(&[sample], 1, 0)).unwrap();
    let samples = lines(&journal, Export::Samples);
    let read: SampleRecord = serde_json::from_value(samples[0].clone()).unwrap();
    assert_eq!(vec![read], journal.samples_of_turn(TurnId(1)).unwrap());
    let steps = lines(&journal, Export::Steps);
    assert_eq!(
        (&steps[0]["adapter"], &steps[0]["trained"]),
        (&json!(1), &json!([[sample, 0.25]]))
    );
    let turns = lines(&journal, Export::Turns);
    assert_eq!(turns.len(), 4);
    let read: TurnRecord = serde_json::from_value(turns[0].clone()).unwrap();
    assert_eq!(read, journal.record(TurnId(1)));
    assert_eq!(
        (&turns[2]["kind"], &turns[3]["state"]),
        (&json!("side"), &json!("generating"))
    );
}

#[test]
fn an_export_reads_one_snapshot_and_does_not_block_writers() {
    struct Busy<'a>(&'a Journal, Vec<u8>);
    impl std::io::Write for Busy<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.turn_in("meanwhile");
            self.1.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    journal.turn_in("s");
    journal.turn_in("s");
    let mut out = Busy(&journal, Vec::new());
    assert_eq!(journal.export(&mut out, Export::Turns).unwrap(), 2);
    assert_eq!(journal.session_turns(&"meanwhile".into()).unwrap().len(), 2);
}

#[test]
fn a_failing_output_is_a_typed_error() {
    struct Closed;
    impl std::io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let journal = conversation();
    let error = journal.export(&mut Closed, Export::Turns).unwrap_err();
    assert!(matches!(error, JournalError::Output(_)), "{error}");
    journal.turn_in("s");
}
