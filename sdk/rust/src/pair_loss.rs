//! The trait of losses on preference pairs and its export macro.

use crate::PluginError;
pub use crate::bindings::pair_loss::exports::clawhost::plugin::pair_loss::{
    Batch, Evaluation, Gradient, Pair, Reply,
};

/// A loss on preference pairs.
///
/// The host back-propagates exactly the partials that it returns, times the operator's weight of the pairs.
pub trait PairLoss {
    /// Returns the loss of each pair and its partials.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] for pairs that the loss cannot handle; the training step is aborted.
    fn evaluate(batch: &Batch) -> Result<Evaluation, PluginError>;
}

impl Reply {
    /// Sums over the trained tokens: their logprobs under the policy and under the base model, and their number.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the lists have different lengths.
    pub fn sums(&self) -> Result<(f64, f64, usize), PluginError> {
        let expected = self.mask.len();
        for (name, list) in [
            ("logprob", &self.logprob),
            ("ref-logprob", &self.ref_logprob),
        ] {
            if list.len() != expected {
                return Err(PluginError::InvalidInput(format!(
                    "{name} has {} numbers, expected {expected}",
                    list.len()
                )));
            }
        }
        let (mut policy, mut reference, mut tokens) = (0.0, 0.0, 0);
        let lists = self.mask.iter().zip(&self.logprob).zip(&self.ref_logprob);
        for ((mask, logprob), ref_logprob) in lists {
            if *mask != 0 {
                policy += f64::from(*logprob);
                reference += f64::from(*ref_logprob);
                tokens += 1;
            }
        }
        Ok((policy, reference, tokens))
    }

    /// Partials that are `slope` at each trained token and 0 elsewhere.
    #[allow(clippy::cast_possible_truncation, reason = "the host computes in f32")]
    pub fn partials(&self, slope: f64) -> Vec<f32> {
        let of_token = |mask: &u8| if *mask == 0 { 0.0 } else { slope as f32 };
        self.mask.iter().map(of_token).collect()
    }
}

/// The body of the exported function, for [`export_pair_loss!`](crate::export_pair_loss).
#[doc(hidden)]
pub fn answer<L: PairLoss>(batch: &Batch) -> Result<Evaluation, PluginError> {
    #[cfg(target_arch = "wasm32")]
    crate::log::report_panics();
    L::evaluate(batch)
}

/// Exports a type that implements [`PairLoss`] as the component's loss on pairs. In native builds it only checks the type,
/// which tests call directly.
#[macro_export]
macro_rules! export_pair_loss {
    ($loss:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::bindings::pair_loss::exports::clawhost::plugin::pair_loss::Guest
                for Component
            {
                fn evaluate(
                    batch: $crate::pair_loss::Batch,
                ) -> ::core::result::Result<$crate::pair_loss::Evaluation, $crate::PluginError>
                {
                    $crate::pair_loss::answer::<$loss>(&batch)
                }
            }

            $crate::bindings::pair_loss::export_pair_loss_world!(
                Component with_types_in $crate::bindings::pair_loss
            );
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            &$crate::pair_loss::Batch,
        ) -> ::core::result::Result<$crate::pair_loss::Evaluation, $crate::PluginError> =
            $crate::pair_loss::answer::<$loss>;
    };
}
