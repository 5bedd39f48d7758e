use tempfile::tempdir;

use crate::*;

const QUOTA: PluginQuota = PluginQuota {
    bytes: 100,
    keys: 3,
};

fn scope(plugin: &str, run: &str) -> PluginScope {
    PluginScope {
        plugin: plugin.to_owned(),
        run: run.to_owned(),
    }
}

fn version(put: PluginPutOutcome) -> u64 {
    match put {
        PluginPutOutcome::Written { version } => version,
        other => panic!("{other:?}"),
    }
}

#[test]
fn writes_compare_and_swap_the_version() {
    let journal = Journal::in_memory().unwrap();
    let mine = scope("p", "r");
    let put = |value: &[u8], expected| {
        journal
            .put_plugin_entry(&mine, "k", value, expected, QUOTA)
            .unwrap()
    };
    assert_eq!(
        put(b"x", Some(1)),
        PluginPutOutcome::Conflict,
        "nothing is there"
    );
    let first = version(put(b"a", None));
    assert_eq!(put(b"b", None), PluginPutOutcome::Conflict);
    let second = version(put(b"b", Some(first)));
    assert!(second > first);
    assert_eq!(put(b"c", Some(first)), PluginPutOutcome::Conflict);
    let entry = journal.plugin_entry(&mine, "k").unwrap().unwrap();
    assert_eq!((entry.value.as_slice(), entry.version), (&b"b"[..], second));
    // After removal and re-creation, an earlier version does not match.
    assert!(journal.remove_plugin_entry(&mine, "k").unwrap());
    assert!(!journal.remove_plugin_entry(&mine, "k").unwrap());
    let third = version(put(b"a", None));
    assert!(third > second);
    assert_eq!(put(b"c", Some(first)), PluginPutOutcome::Conflict);
}

#[test]
fn the_quota_counts_keys_and_bytes() {
    let journal = Journal::in_memory().unwrap();
    let mine = scope("p", "r");
    let put = |key: &str, size: usize, expected, quota| {
        journal
            .put_plugin_entry(&mine, key, &vec![7; size], expected, quota)
            .unwrap()
    };
    let a = version(put("a", 49, None, QUOTA));
    version(put("b", 49, None, QUOTA));
    assert_eq!(
        put("c", 0, None, QUOTA),
        PluginPutOutcome::Full,
        "a key counts too"
    );
    let a = version(put("a", 10, Some(a), QUOTA));
    let c = version(put("c", 0, None, QUOTA));
    assert_eq!(
        put("d", 0, None, QUOTA),
        PluginPutOutcome::Full,
        "three keys"
    );
    assert_eq!(put("c", 40, Some(c), QUOTA), PluginPutOutcome::Full);
    assert!(journal.remove_plugin_entry(&mine, "b").unwrap());
    version(put("d", 30, None, QUOTA));
    // Under a lowered quota, entries may shrink but not grow.
    let lower = PluginQuota { bytes: 5, keys: 1 };
    assert_eq!(put("a", 11, Some(a), lower), PluginPutOutcome::Full);
    version(put("a", 9, Some(a), lower));
    // Another scope has its own quota.
    journal
        .put_plugin_entry(&scope("q", "r"), "a", &[7; 99], None, QUOTA)
        .map(version)
        .unwrap();
}

#[test]
fn keys_are_listed_in_pages_by_prefix() {
    let journal = Journal::in_memory().unwrap();
    let mine = scope("p", "r");
    let quota = PluginQuota {
        bytes: 1 << 20,
        keys: 100,
    };
    for key in ["b/3", "a", "b/1", "b", "ö", "b/2", "c", "b\u{0}x"] {
        journal
            .put_plugin_entry(&mine, key, b"", None, quota)
            .unwrap();
    }
    let page = |prefix: &str, after: Option<&str>, limit| {
        let page = journal.plugin_keys(&mine, prefix, after, limit).unwrap();
        (page.keys.join(" "), page.next)
    };
    let next = |key: &str| Some(key.to_owned());
    assert_eq!(page("b/", None, 2), ("b/1 b/2".to_owned(), next("b/2")));
    assert_eq!(page("b/", Some("b/2"), 2), ("b/3".to_owned(), None));
    assert_eq!(page("b/", None, 3), ("b/1 b/2 b/3".to_owned(), None));
    assert_eq!(page("", None, 2), ("a b".to_owned(), next("b")));
    assert_eq!(page("ö", None, 0), ("ö".to_owned(), None));
    assert_eq!(page("%", None, 9), (String::new(), None));
    // Any key is a valid cursor.
    assert_eq!(page("b/", Some("zzz"), 9), (String::new(), None));
    assert_eq!(page("", Some("b\u{0}"), 1).0, "b\u{0}x");
}

#[test]
fn scopes_are_isolated_and_persist() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let scopes = [scope("p", "r"), scope("q", "r"), scope("p", "s")];
    for (number, scope) in (0u8..).zip(&scopes) {
        let put = journal.put_plugin_entry(scope, "k", &[number], None, QUOTA);
        assert_eq!(version(put.unwrap()), 1);
    }
    assert!(journal.remove_plugin_entry(&scopes[2], "k").unwrap());
    drop(journal);
    let journal = Journal::open(dir.path()).unwrap();
    let value = |scope| {
        let entry = journal.plugin_entry(scope, "k").unwrap();
        entry.map(|entry| entry.value)
    };
    assert_eq!(value(&scopes[0]), Some(vec![0]));
    assert_eq!(value(&scopes[1]), Some(vec![1]));
    assert_eq!(value(&scopes[2]), None);
    let keys = |scope| journal.plugin_keys(scope, "", None, 9).unwrap().keys.len();
    assert_eq!(scopes.each_ref().map(keys), [1, 1, 0]);
}

#[test]
fn plugin_writes_notify_no_watcher_and_need_a_writer() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let mut changes = journal.watch();
    changes.mark_unchanged();
    journal
        .put_plugin_entry(&scope("p", "r"), "k", b"v", None, QUOTA)
        .unwrap();
    assert!(!changes.has_changed().unwrap());
    let reader = Journal::open_read_only(dir.path()).unwrap();
    let error = reader
        .put_plugin_entry(&scope("p", "r"), "l", b"v", None, QUOTA)
        .unwrap_err();
    assert!(matches!(error, JournalError::ReadOnly { .. }), "{error}");
}
