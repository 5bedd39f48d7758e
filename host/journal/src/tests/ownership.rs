//! A session is owned by one API key, and its name is unique among the sessions of that key.

use std::path::Path;

use rusqlite::Connection;

use super::arrival;
use crate::schema::{MIGRATIONS, migrate};
use crate::*;

/// A request of an API key with a session name.
fn request(id: &str, name: &str, key: Option<&str>) -> NewRequest {
    let mut arrival = arrival(id, None);
    arrival.session.name = Some(name.to_owned());
    arrival.session.key = key.map(str::to_owned);
    arrival.turns[0].key = key.map(str::to_owned);
    arrival
}

#[test]
fn the_same_session_name_under_two_keys_is_two_sessions() {
    let journal = Journal::in_memory().unwrap();
    let owners = [("a", Some("ann")), ("b", Some("bob")), ("c", None)];
    for (id, key) in owners {
        journal.record_request(&request(id, "main", key)).unwrap();
    }
    for (id, key) in owners {
        let found = journal.find_session(key, "main").unwrap().unwrap();
        assert_eq!((found.id.as_str(), found.key.as_deref()), (id, key));
        assert_eq!(found.name, "main");
        let by_id = journal.find_session(key, id).unwrap().unwrap();
        assert_eq!(by_id.id, found.id);
        for (other, _) in owners.iter().filter(|(other, _)| *other != id) {
            assert_eq!(journal.find_session(key, other).unwrap(), None);
        }
        assert_eq!(
            journal.session_name(&id.into()).unwrap().as_deref(),
            Some("main")
        );
    }
    assert_eq!(journal.find_session(Some("eve"), "main").unwrap(), None);
    let called: Vec<_> = journal.find_sessions_by_name("main").unwrap();
    assert_eq!(called.len(), 3);
    journal
        .record_request(&request("d", "main", Some("ann")))
        .unwrap_err();
    journal.forget_session(&"b".into()).unwrap();
    assert_eq!(journal.find_session(Some("bob"), "main").unwrap(), None);
    assert_eq!(journal.session_turns(&"a".into()).unwrap().len(), 1);
}

#[test]
fn requests_cannot_touch_sessions_or_turns_of_another_key() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal
        .record_request(&request("a", "main", Some("ann")))
        .unwrap()[0];
    journal.complete(turn, &super::completion()).unwrap();
    let mut foreign_session = request("a", "main", Some("bob"));
    let mut foreign_turn = request("b", "main", Some("bob"));
    foreign_turn.turns[0].key = None;
    let mut foreign_reply = arrival("b", Some(turn));
    for arrival in [&mut foreign_reply, &mut foreign_session] {
        arrival.session.key = Some("bob".to_owned());
        arrival.turns[0].key = Some("bob".to_owned());
    }
    for refused in [&foreign_session, &foreign_turn, &foreign_reply] {
        let error = journal.record_request(refused).unwrap_err();
        assert!(matches!(error, JournalError::Invalid(_)), "{error}");
        assert!(error.to_string().contains("another API key"), "{error}");
    }
    // A session without a key stays without a key.
    journal.record_request(&request("c", "open", None)).unwrap();
    journal
        .record_request(&request("c", "open", Some("ann")))
        .unwrap_err();
    assert_eq!(journal.sessions(9).unwrap().len(), 2);
    assert_eq!(journal.record(turn).next_state, None);
}

#[test]
fn migration_splits_sessions_shared_by_several_keys() {
    let mut conn = Connection::open_in_memory().unwrap();
    conn.pragma_update(None, "foreign_keys", true).unwrap();
    let here = Path::new("here.sqlite");
    migrate(&mut conn, here, &MIGRATIONS[..8]).unwrap();
    let turn = |id: i64, key: &str, group: &str, parent: &str, judging: &str| {
        format!(
            "INSERT INTO requests (id, session, digest, messages, tools, prompt_ids)
                 VALUES ({id}, 'main', 'd', '[]', '[]', x'');
             INSERT INTO turns VALUES ({id}, 'main', {id}, {id}, 'r{id}', 0, '{group}', 'main', {parent}, {id}0, {key}, 1.0,
                 0, '', 'm', 'complete', '{judging}', 0, NULL, '{{}}', '{{}}');
             INSERT INTO replies (turn, ms, finish, body, token_ids, logprobs, full_logprobs)
                 VALUES ({id}, {id}5, 'stop', '{{}}', x'', x'', x'');"
        )
    };
    conn.execute_batch(&format!(
        "INSERT INTO sessions (id, origin, key, started_ms, last_ms) VALUES ('main', 'header', 'ann', 10, 60),
            ('alone', 'new', 'bob', 1, 2);
         {}{}{}{}{}{}
         INSERT INTO next_states VALUES (1, 20, '[\"of bob\"]'), (2, 50, '[\"of ann\"]'), (4, 60, '[\"of bob\"]');",
        turn(1, "'ann'", "g1", "NULL", "ready"),
        turn(2, "'bob'", "g2", "1", "ready"),
        turn(3, "NULL", "g3", "2", "waiting"),
        turn(4, "'bob'", "g2", "1", "ready"),
        turn(5, "'ann'", "g2", "2", "waiting"),
        turn(6, "'bob'", "g6", "4", "waiting"),
    ))
    .unwrap();
    migrate(&mut conn, here, MIGRATIONS).unwrap();
    let rows = |sql: &str| -> Vec<String> {
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    assert_eq!(
        rows(
            "SELECT t.id || ' ' || COALESCE(t.key, '-') || ' ' || s.name || ' ' || COALESCE(s.key, '-') || ' '
                || COALESCE(t.parent, '-') || ' ' || (r.session = t.session) || ' ' || t.judging
             FROM turns t JOIN sessions s ON s.id = t.session JOIN requests r ON r.id = t.request ORDER BY t.id"
        ),
        [
            "1 ann main ann - 1 waiting",
            "2 bob main bob - 1 waiting",
            "3 - main - - 1 waiting",
            "4 bob main bob - 1 ready",
            "5 ann main ann - 1 waiting",
            "6 bob main bob 4 1 waiting",
        ]
    );
    assert_eq!(
        rows("SELECT turn || ' ' || messages FROM next_states"),
        ["4 [\"of bob\"]"]
    );
    assert_eq!(
        rows(
            "SELECT COUNT(DISTINCT session) || ' ' || COUNT(DISTINCT grp) || ' ' || group_concat(id) FROM turns
             WHERE grp LIKE '%g2'"
        ),
        ["2 2 2,4,5"],
        "a group is of one session"
    );
    assert_eq!(
        rows(
            "SELECT COALESCE(key, '-') || ' ' || started_ms || ' ' || last_ms FROM sessions ORDER BY key, id"
        ),
        ["- 30 35", "ann 10 60", "bob 1 2", "bob 20 65"]
    );
    assert_eq!(
        rows("SELECT name FROM sessions WHERE id = 'alone'"),
        ["alone"]
    );
}
