//! Configuration of each arm: the only difference between arms.

use clawhost_evaluation::Arm;
use clawhost_training::TrainingMethod;

use crate::config::Config;

/// Configures an arm. The seed also decides the initialisation of its adapter.
pub(super) fn configure(config: &mut Config, arm: Arm, seed: u64) {
    config.training.seed = seed;
    config.training.enabled = arm.trains();
    if let Some(method) = method(arm) {
        config.training.method = method;
    }
}

/// Training method of an arm; None if it does not train.
fn method(arm: Arm) -> Option<TrainingMethod> {
    match arm {
        Arm::Control | Arm::Memory => None,
        Arm::Binary => Some(TrainingMethod::Binary),
        Arm::Opd => Some(TrainingMethod::Opd),
        Arm::Hybrid => Some(TrainingMethod::Hybrid),
        Arm::HybridTopk => Some(TrainingMethod::HybridTopk),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_differ_only_in_method_and_seed() {
        let base = Config::parse("[training]\nbatch = 5").unwrap();
        for arm in Arm::ALL {
            let mut config = base.clone();
            configure(&mut config, arm, 7);
            assert_eq!(config.training.enabled, arm.trains(), "{arm:?}");
            assert_eq!(config.training.seed, 7);
            if arm.trains() {
                let method_name = serde_json::to_value(config.training.method).unwrap();
                assert_eq!(method_name, arm.name());
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
