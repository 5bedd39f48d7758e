//! Keys of earlier versions: each gives an error that names its new key.

use toml::de::{DeTable, DeValue};

use crate::error::position;

/// Old and new names, a pair a line; `*` stands for a name of the user's choice, `NAME` for one that the user chooses now.
const RENAMED: &str = "
load -> plugins.files
grants -> plugins.grants_file
server.data -> server.data_dir
server.aliases -> server.model_aliases
server.max_body -> server.max_body_size
server.max_concurrent -> server.max_concurrent_requests
server.shutdown_seconds -> server.shutdown_timeout
model.dir -> model.path
model.name -> model.served_model_name
model.tool_calls -> model.tool_call_parser
model.reasoning -> model.reasoning_parser
model.adapter -> model.initial_adapter
engine.remote.kind -> engine.remote.backend
engine.remote.api_key_env -> engine.remote.api_key
engine.remote.adapters -> engine.remote.adapter_dir
engine.remote.agreement -> engine.remote.max_logprob_difference
engine.remote.max_running -> engine.remote.max_concurrent_requests
engine.remote.connect_seconds -> engine.remote.connect_timeout
engine.remote.accept_seconds -> engine.remote.response_timeout
engine.remote.idle_seconds -> engine.remote.token_timeout
engine.remote.load_seconds -> engine.remote.adapter_load_timeout
engine.remote.look_seconds -> engine.remote.health_check_interval
engine.max_batch -> engine.max_num_seqs
engine.max_waiting -> engine.max_waiting_requests
engine.prefill_chunk -> engine.max_num_batched_tokens
engine.cache_megabytes -> engine.kv_cache_memory
engine.context -> engine.max_model_len
engine.threads -> engine.num_threads
sessions.idle_minutes -> sessions.idle_timeout
sessions.retry_minutes -> sessions.retry_window
judging.attempts -> judging.calls_per_judge
judging.combine -> judging.aggregation
judging.concurrency -> judging.max_concurrent_turns
judging.retry_wait_ms -> judging.retry_backoff
judging.deferrals -> judging.max_deferrals
judging.defer_wait_ms -> judging.deferral_backoff
judging.history_bytes -> judging.max_history_size
judging.history_turns -> judging.max_history_turns
judging.message_bytes -> judging.max_message_size
judging.neutral -> judging.neutral_policy
judging.at_least_one -> judging.keep_one_neutral_turn
judging.hinted_samples -> judging.hint_only_samples
judging.train_side -> judging.train_side_turns
judging.on_fault -> judging.fault_policy
judging.quarantine_after -> judging.quarantine_after_faults
judging.settings -> plugins.config
judging.settings.* -> plugins.config.*.settings
judging.limits -> plugins.config.NAME.limits
judging.retries -> judging.max_retries
training.limits -> plugins.config.NAME.limits
training.batch -> training.batch_size
training.min_batch -> training.min_batch_size
training.max_wait_seconds -> training.max_wait
training.group_wait_seconds -> training.group_wait
training.pass_tokens -> training.micro_batch_tokens
training.epochs -> training.num_epochs
training.minibatches -> training.num_minibatches
training.baseline_start -> training.initial_baseline
training.proof -> training.verification
training.advantage.discount -> training.advantage.gamma
training.advantage.reward_kl -> training.advantage.reward_kl_coef
training.advantage.step_coefficient -> training.advantage.step_coef
training.advantage.step_over -> training.advantage.step_comparison
training.loss.clip_low -> training.loss.clip_ratio_low
training.loss.clip_high -> training.loss.clip_ratio_high
training.loss.dual_clip -> training.loss.clip_ratio_c
training.loss.sapo_positive -> training.loss.sapo_temperature_pos
training.loss.sapo_negative -> training.loss.sapo_temperature_neg
training.loss.ratio -> training.loss.old_logprobs
training.loss.kl -> training.loss.kl_estimator
training.loss.kl_coefficient -> training.loss.kl_coef
training.loss.entropy_bonus -> training.loss.entropy_coef
training.loss.importance -> training.loss.importance_sampling
training.loss.importance_span -> training.loss.importance_sampling_level
training.loss.importance_cap -> training.loss.importance_sampling_max
training.loss.importance_low -> training.loss.importance_sampling_min
training.loss.importance_high -> training.loss.importance_sampling_max
training.teacher.from -> training.teacher.source
training.teacher.hints -> training.teacher.hint_selection
training.teacher.marker -> training.teacher.hint_marker
training.teacher.weight_rl -> training.teacher.reward_weight
training.teacher.weight_opd -> training.teacher.distillation_weight
training.teacher.bound -> training.teacher.max_logprob_gap
training.teacher.discount -> training.teacher.gamma
training.teacher.top_k_of -> training.teacher.top_k_from
training.teacher.direction -> training.teacher.divergence
training.teacher.tail -> training.teacher.top_k_tail
training.teacher.endpoint.key_env -> training.teacher.endpoint.api_key
training.teacher.endpoint.timeout_seconds -> training.teacher.endpoint.timeout
training.optimizer.schedule -> training.optimizer.lr_scheduler_type
training.optimizer.warmup -> training.optimizer.warmup_steps
training.optimizer.total -> training.optimizer.total_steps
training.optimizer.floor -> training.optimizer.min_lr_ratio
training.optimizer.clip_norm -> training.optimizer.max_grad_norm
training.proof.samples -> training.verification.num_samples
training.proof.mean -> training.verification.max_mean_logprob_difference
training.proof.max -> training.verification.max_logprob_difference
plugin_host -> plugins.host
plugin_host.threads -> plugins.host.num_threads
plugin_host.instances -> plugins.host.max_instances
plugin_host.max_component_bytes -> plugins.host.max_component_size
plugin_host.max_memory_bytes -> plugins.host.max_memory
plugin_host.cache_bytes -> plugins.host.cache_size
plugin_host.compiling -> plugins.host.compiling
plugin_host.compiling.cpu_seconds -> plugins.host.compiling.cpu_time
plugin_host.compiling.wall_ms -> plugins.host.compiling.wall_time
plugin_host.compiling.memory_bytes -> plugins.host.compiling.memory
plugin_host.compiling.code_bytes -> plugins.host.compiling.code_size
plugin_host.compiling.code_ratio -> plugins.host.compiling.code_ratio
plugins.*.sha256 -> plugins.config.*.sha256
plugins.*.profile -> plugins.config.*.profile
plugin_state -> plugins.state
plugin_state.max_bytes -> plugins.state.max_size
plugin_state.max_keys -> plugins.state.max_keys
models.*.served -> models.*.source
models.*.key_env -> models.*.api_key
models.*.timeout_seconds -> models.*.timeout
keys -> api_keys
keys.per_minute -> api_keys.requests_per_minute
keys.adapter -> api_keys.adapter_version
";

/// Keys without a successor, and what to do instead, a key a line.
const REMOVED: &str = "
judging.votes -> votes are a setting of the judge: set `votes` in [plugins.config.NAME.settings]; `judging.calls_per_judge` repeats whole calls
judging.num_votes -> votes are a setting of the judge: set `votes` in [plugins.config.NAME.settings]; `judging.calls_per_judge` repeats whole calls
training.measure_moved -> every step measures how far its samples moved
plugin_host.pooling -> instances are pooled where the address space can be reserved
plugin_host.max_table_elements -> it is the limit of a call
";

/// The error for the first old key in `text`, if there is one.
pub(crate) fn renamed_key(text: &str) -> Option<String> {
    let (offset, message) = old_key(text)?;
    let position = position(text, offset).expect("a key starts at a character");
    Some(format!("{position}{message}"))
}

/// Offset of the first old key in `text`, and what became of it.
pub(crate) fn old_key(text: &str) -> Option<(usize, String)> {
    in_table(DeTable::parse(text).ok()?.get_ref(), &[])
}

/// The first old key in a table. Of a renamed table, the keys within it come first, because they may have new names
/// too.
fn in_table(table: &DeTable<'_>, path: &[&str]) -> Option<(usize, String)> {
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
        inner.or_else(|| new_name(&path).map(|message| (name.span().start, message)))
    })
}

/// The lines of a table above.
fn rows(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().filter_map(|line| line.split_once(" -> "))
}

/// What became of a key, with the user's names in place of `*`.
fn new_name(path: &[&str]) -> Option<String> {
    let dotted = path.join(".");
    if let Some((_, why)) = rows(REMOVED).find(|(old, _)| *old == dotted) {
        return Some(format!("`{dotted}` was removed: {why}"));
    }
    rows(RENAMED).find_map(|(old, new)| {
        let old: Vec<&str> = old.split('.').collect();
        let same = |(part, name): (&&str, &&str)| *part == "*" || part == name;
        if old.len() != path.len() || !old.iter().zip(path).all(same) {
            return None;
        }
        let name = old.iter().zip(path).find(|(part, _)| **part == "*");
        let new = match name {
            Some((_, name)) => new.replace('*', name),
            None => new.to_owned(),
        };
        Some(format!("`{dotted}` is now `{new}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Section};

    #[test]
    fn every_old_key_gives_an_error_with_its_new_name() {
        for (old, new) in rows(RENAMED) {
            let (old, new) = (old.replace('*', "x"), new.replace('*', "x"));
            let text = format!("\n{old} = 0");
            let error = format!("{:#}", Config::parse(&text).unwrap_err());
            let expected = format!("`{old}` is now `{new}`");
            assert!(
                error.contains("line 2") && error.contains(&expected),
                "{error}"
            );
        }
        for (old, why) in rows(REMOVED) {
            let error = Config::parse(&format!("\n{old} = 0"))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(&format!("`{old}` was removed: {why}")),
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
        for (_, new) in rows(RENAMED) {
            assert!(names.contains(&new.replace('*', "NAME")), "{new} is no key");
        }
        for (old, _) in rows(RENAMED).chain(rows(REMOVED)) {
            let old = old.replace('*', "NAME");
            assert!(!names.contains(&old), "{old} is still a key");
        }
    }
}
