//! How an arm is configured: the one place where arms differ.

use clawhost_evaluation::Arm;
use clawhost_training::Learning;

use crate::config::Config;

/// Makes `config` that of an arm. The seed decides the start of its adapters as it decides its conversations.
pub(super) fn configure(config: &mut Config, arm: Arm, seed: u64) {
    config.training.seed = seed;
    config.training.enabled = arm.learns();
    if let Some(method) = method(arm) {
        config.training.method = method;
    }
}

/// What an arm learns from; none where it does not learn.
fn method(arm: Arm) -> Option<Learning> {
    match arm {
        Arm::Control | Arm::Memory => None,
        Arm::Binary => Some(Learning::Binary),
        Arm::Opd => Some(Learning::Opd),
        Arm::Hybrid => Some(Learning::Hybrid),
        Arm::HybridTopk => Some(Learning::HybridTopk),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_differ_in_method_and_seed_alone() {
        let base = Config::parse("[training]\nbatch = 5").unwrap();
        for arm in Arm::ALL {
            let mut config = base.clone();
            configure(&mut config, arm, 7);
            assert_eq!(config.training.enabled, arm.learns(), "{arm:?}");
            assert_eq!(config.training.seed, 7);
            if arm.learns() {
                let named = serde_json::to_value(config.training.method).unwrap();
                assert_eq!(named, arm.name());
                let hints = !matches!(arm, Arm::Binary);
                assert_eq!(config.training.method.uses_hints(), hints, "{arm:?}");
            }
            config.training.enabled = base.training.enabled;
            config.training.seed = base.training.seed;
            config.training.method = base.training.method;
            assert_eq!(
                toml::to_string(&config).unwrap(),
                toml::to_string(&base).unwrap(),
                "{arm:?}"
            );
        }
    }
}
