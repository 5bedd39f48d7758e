//! Keys of earlier versions: each gives an error that names its new key.

use toml::de::{DeTable, DeValue};

use super::error::position;

/// Old and new names; `*` stands for a name of the user's choice.
const RENAMED: &[(&str, &str)] = &[
    ("judging.votes", "judging.num_votes"),
    ("judging.attempts", "judging.calls_per_judge"),
    ("judging.combine", "judging.aggregation"),
    ("judging.concurrency", "judging.max_concurrent_turns"),
    ("judging.retry_wait_ms", "judging.retry_backoff"),
    ("judging.deferrals", "judging.max_deferrals"),
    ("judging.defer_wait_ms", "judging.deferral_backoff"),
    ("judging.history_bytes", "judging.max_history_size"),
    ("judging.history_turns", "judging.max_history_turns"),
    ("judging.message_bytes", "judging.max_message_size"),
    ("judging.neutral", "judging.neutral_policy"),
    ("judging.at_least_one", "judging.keep_one_neutral_turn"),
    ("judging.hinted_samples", "judging.hint_only_samples"),
    ("judging.train_side", "judging.train_side_turns"),
    ("judging.on_fault", "judging.fault_policy"),
    (
        "judging.quarantine_after",
        "judging.quarantine_after_faults",
    ),
    ("keys", "api_keys"),
    ("keys.per_minute", "api_keys.requests_per_minute"),
    ("keys.adapter", "api_keys.adapter_version"),
    ("models.*.served", "models.*.source"),
    ("models.*.key_env", "models.*.api_key"),
    ("models.*.timeout_seconds", "models.*.timeout"),
    ("server.data", "server.data_dir"),
    ("server.aliases", "server.model_aliases"),
    ("server.max_body", "server.max_body_size"),
    ("server.max_concurrent", "server.max_concurrent_requests"),
    ("server.shutdown_seconds", "server.shutdown_timeout"),
    ("model.dir", "model.path"),
    ("model.name", "model.served_model_name"),
    ("model.tool_calls", "model.tool_call_parser"),
    ("model.reasoning", "model.reasoning_parser"),
    ("model.adapter", "model.initial_adapter"),
    ("engine.remote.kind", "engine.remote.backend"),
    ("engine.remote.api_key_env", "engine.remote.api_key"),
    ("engine.remote.adapters", "engine.remote.adapter_dir"),
    (
        "engine.remote.agreement",
        "engine.remote.max_logprob_difference",
    ),
    (
        "engine.remote.max_running",
        "engine.remote.max_concurrent_requests",
    ),
    (
        "engine.remote.connect_seconds",
        "engine.remote.connect_timeout",
    ),
    (
        "engine.remote.accept_seconds",
        "engine.remote.response_timeout",
    ),
    ("engine.remote.idle_seconds", "engine.remote.token_timeout"),
    (
        "engine.remote.load_seconds",
        "engine.remote.adapter_load_timeout",
    ),
    (
        "engine.remote.look_seconds",
        "engine.remote.health_check_interval",
    ),
    ("sessions.idle_minutes", "sessions.idle_timeout"),
    ("sessions.retry_minutes", "sessions.retry_window"),
];

/// The error for the first old key in `text`, if there is one.
pub(super) fn renamed_key(text: &str) -> Option<String> {
    let (offset, old, new) = renamed(text)?;
    let position = position(text, offset).unwrap_or_default();
    Some(format!("{position}`{old}` is now `{new}`"))
}

/// Offset, old name and new name of the first old key in `text`.
pub(super) fn renamed(text: &str) -> Option<(usize, String, String)> {
    in_table(DeTable::parse(text).ok()?.get_ref(), &[])
}

/// Offset, old name and new name of the first old key in a table. Of a renamed table, the keys within it come first,
/// because they may have new names too.
fn in_table(table: &DeTable<'_>, path: &[&str]) -> Option<(usize, String, String)> {
    table.iter().find_map(|(name, value)| {
        let path = [path, &[name.get_ref().as_ref()]].concat();
        let inner = match value.get_ref() {
            DeValue::Table(table) => in_table(table, &path),
            DeValue::Array(entries) => entries.iter().find_map(|entry| match entry.get_ref() {
                DeValue::Table(table) => in_table(table, &path),
                _ => None,
            }),
            _ => None,
        };
        inner.or_else(|| new_name(&path).map(|new| (name.span().start, path.join("."), new)))
    })
}

/// The new name of a key, with the user's names in place of `*`.
fn new_name(path: &[&str]) -> Option<String> {
    RENAMED.iter().find_map(|(old, new)| {
        let old: Vec<&str> = old.split('.').collect();
        let same = |(part, name): (&&str, &&str)| *part == "*" || part == name;
        if old.len() != path.len() || !old.iter().zip(path).all(same) {
            return None;
        }
        let mut names = old
            .iter()
            .zip(path)
            .filter(|(part, _)| **part == "*")
            .map(|(_, name)| *name);
        let parts = new.split('.').map(|part| match part {
            "*" => names.next().unwrap_or(part),
            part => part,
        });
        Some(parts.collect::<Vec<_>>().join("."))
    })
}

#[cfg(test)]
mod tests {
    use clawhost_config::Section;

    use super::*;
    use crate::config::Config;

    #[test]
    fn every_old_key_gives_an_error_with_its_new_name() {
        for (old, new) in RENAMED {
            let (old, new) = (old.replace('*', "x"), new.replace('*', "x"));
            let text = format!("\n{old} = 0");
            let error = format!("{:#}", Config::parse(&text).unwrap_err());
            let expected = format!("`{old}` is now `{new}`");
            assert!(
                error.contains("line 2") && error.contains(&expected),
                "{error}"
            );
        }
        let error = format!(
            "{:#}",
            Config::parse("[[keys]]\nper_minute = 1").unwrap_err()
        );
        assert!(
            error.contains(
                "line 2, column 1: `keys.per_minute` is now `api_keys.requests_per_minute`"
            ),
            "{error}"
        );
    }

    #[test]
    fn every_new_name_exists_and_no_old_one_does() {
        let mut names = Vec::new();
        Section::of::<Config>().walk(&mut |name, section, _| {
            names.push(name.to_owned());
            names.push(name.replace(&format!("{}.NAME", section.name), &section.name));
        });
        for (old, new) in RENAMED {
            assert!(names.contains(&new.replace('*', "NAME")), "{new} is no key");
            let old = old.replace('*', "NAME");
            assert!(!names.contains(&old), "{old} is still a key");
        }
    }
}
