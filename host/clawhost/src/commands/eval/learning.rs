//! Configuration of each arm: the only difference between arms.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use clawhost_evaluation::{Arm, Cell};
use clawhost_gateway::Scope;
use clawhost_journal::AdapterOwner;

use crate::arms::ArmFlags;
use crate::config::{AdapterScope, Config, KeyConfig};

/// The configuration of each arm: that of the flags, with the keys the arm sets.
///
/// # Errors
/// The configuration file cannot be used, or not together with the keys of an arm.
pub(super) fn configurations(flags: &ArmFlags, arms: &[Arm]) -> Result<BTreeMap<Arm, Config>> {
    let configuration = |arm: &Arm| {
        let config = flags
            .configuration_with(&arm.overrides())
            .with_context(|| format!("the arm {}", arm.name()))?;
        Ok((*arm, config))
    };
    arms.iter().map(configuration).collect()
}

/// Configures one run of an arm. The seed also decides the initialisation of its adapter. Two people who share a server
/// have an API key each and, unless the arm has one for both, an adapter each.
pub(super) fn configure(config: &mut Config, cell: Cell) {
    config.training.seed = cell.seed;
    config.training.enabled = cell.arm.trains();
    if let Some(other) = cell.of_other() {
        let key = |cell: Cell| KeyConfig {
            scopes: vec![Scope::Chat],
            ..KeyConfig::with_all_scopes(cell.track.name(), &secret(cell))
        };
        config.api_keys = vec![key(cell), key(other)];
        if !cell.arm.has_one_adapter() {
            config.training.adapters = AdapterScope::Key;
        }
    }
}

/// The API key of a person who shares a server. That server listens on this machine only.
pub(super) fn secret(cell: Cell) -> String {
    format!("key-of-{}", cell.name())
}

/// Whose training steps are those of this person: the shared adapter's if there is one for all.
pub(super) fn adapter_owner(cell: Cell) -> Option<AdapterOwner> {
    let is_own = cell.of_other().is_some() && !cell.arm.has_one_adapter();
    is_own.then(|| AdapterOwner::of_key(cell.track.name()))
}

#[cfg(test)]
mod tests {
    use clawhost_evaluation::{Track, Wish};

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
            let cell = |track| Cell {
                arm,
                track,
                seed: 7,
            };
            configure(&mut config, cell(Track::Student));
            assert_eq!(
                (config.training.enabled, config.training.seed),
                (arm.trains(), 7)
            );
            assert!(config.api_keys.is_empty());
            let two = cell(Track::OfTwo(Wish::Short));
            configure(&mut config, two);
            let names: Vec<&str> = config.api_keys.iter().map(|key| &*key.name).collect();
            assert_eq!(names, ["short-of-two", "opposite-of-short"]);
            let owner = adapter_owner(two).map(|owner| owner.to_string());
            let scope = config.training.adapters;
            match arm.has_one_adapter() {
                true => assert_eq!((scope, owner), (AdapterScope::Shared, None)),
                false => assert_eq!(
                    (scope, owner.as_deref()),
                    (AdapterScope::Key, Some("key:short-of-two"))
                ),
            }
        }
    }

    #[test]
    fn training_methods_are_named_as_their_arms() {
        for arm in [Arm::BINARY, Arm::OPD, Arm::HYBRID, Arm::HYBRID_DIVERGENCE] {
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
