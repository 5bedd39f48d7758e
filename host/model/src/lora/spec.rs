//! The shape of an adapter: which linear layers it changes, rank and alpha.

use crate::error::LoadError;

use clawhost_config::{LoraSpec, Target};

/// The targets in listing order, without duplicates.
pub(super) fn sorted_targets(spec: &LoraSpec) -> impl Iterator<Item = Target> + '_ {
    Target::ALL.into_iter().filter(|t| spec.targets.contains(t))
}

pub(super) fn check(spec: &LoraSpec) -> Result<(), LoadError> {
    if spec.rank == 0 || spec.rank > 1024 {
        return Err(mismatch(format!("rank {} is outside 1..=1024", spec.rank)));
    }
    if !spec.alpha.is_finite() || spec.targets.is_empty() {
        return Err(mismatch(
            "alpha must be finite and targets must not be empty".to_owned(),
        ));
    }
    Ok(())
}

/// The alpha of plain LoRA for an update that is scaled by `alpha / rank` or, with rank-stabilized LoRA (Kalajdzievski
/// 2023), by `alpha / sqrt(rank)`.
pub(super) fn plain_alpha(rank: usize, alpha: f32, rank_stabilized: bool) -> f32 {
    if rank_stabilized {
        alpha * (rank as f32).sqrt()
    } else {
        alpha
    }
}

pub(super) fn mismatch(reason: String) -> LoadError {
    LoadError::AdapterMismatch { reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lora::LoraPair;

    #[test]
    fn scales_match_lora_and_rslora() {
        let text = include_str!("../../../training/tests/goldens/17_adamw_lora.json");
        let page: serde_json::Value = serde_json::from_str(text).unwrap();
        let cases = page["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["id"] == "scaling").unwrap();
        let (rank, alpha) = (
            case["inputs"]["r"].as_u64().unwrap() as usize,
            case["inputs"]["alpha"].as_f64().unwrap() as f32,
        );
        for (rank_stabilised, name) in [(false, "lora"), (true, "rslora")] {
            let alpha = plain_alpha(rank, alpha, rank_stabilised);
            let pair = LoraPair::zeros((2, 2), rank, alpha);
            assert_eq!(
                f64::from(pair.scale()),
                case["expected"][name].as_f64().unwrap()
            );
        }
    }
}
