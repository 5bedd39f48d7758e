//! Configuration of each arm: the only difference between arms.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use clawhost_evaluation::Arm;

use crate::arms::ArmFlags;
use crate::config::Config;

/// The configuration of each arm: that of the flags, with the keys the arm sets.
///
/// # Errors
/// The configuration file cannot be used, or not together with the keys of an arm.
pub(super) fn configurations(flags: &ArmFlags, arms: &[Arm]) -> Result<BTreeMap<Arm, Config>> {
    let configuration = |arm: &Arm| {
        let config = flags
            .configuration_with(arm.overrides())
            .with_context(|| format!("the arm {}", arm.name()))?;
        Ok((*arm, config))
    };
    arms.iter().map(configuration).collect()
}

/// Configures one run of an arm. The seed also decides the initialisation of its adapter.
pub(super) fn configure(config: &mut Config, arm: Arm, seed: u64) {
    config.training.seed = seed;
    config.training.enabled = arm.trains();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_sets_keys_that_exist_and_changes_nothing_else() {
        for arm in Arm::ALL {
            let load = |sets: &[String]| Config::load(None, sets, None).unwrap();
            let sets: Vec<String> = arm
                .overrides()
                .iter()
                .map(|set| (*set).to_owned())
                .collect();
            let (base, mut config) = (load(&[]), load(&sets));
            let (mut before, mut after) = (table(&base), table(&config));
            for set in &sets {
                let key = set.split_once('=').unwrap().0;
                remove(&mut before, key);
                assert!(remove(&mut after, key), "{}: {key}", arm.name());
            }
            assert_eq!(before, after, "{}", arm.name());
            configure(&mut config, arm, 7);
            assert_eq!(
                (config.training.enabled, config.training.seed),
                (arm.trains(), 7)
            );
        }
    }

    #[test]
    fn training_methods_are_named_as_their_arms() {
        for arm in [Arm::BINARY, Arm::OPD, Arm::HYBRID, Arm::HYBRID_TOPK] {
            let method = format!("training.method={}", arm.name());
            assert!(arm.overrides().contains(&method.as_str()), "{}", arm.name());
        }
    }

    fn table(config: &Config) -> toml::Table {
        toml::from_str(&toml::to_string(config).unwrap()).unwrap()
    }

    /// Removes a dotted key; false if there is none.
    fn remove(table: &mut toml::Table, key: &str) -> bool {
        match key.split_once('.') {
            None => table.remove(key).is_some(),
            Some((section, rest)) => {
                let section = table.get_mut(section).and_then(toml::Value::as_table_mut);
                section.is_some_and(|section| remove(section, rest))
            }
        }
    }
}
