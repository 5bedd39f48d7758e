//! The loss trait and its way into a component.

use crate::PluginError;
pub use crate::aggregation::Aggregation;
pub use crate::bindings::loss::exports::clawhost::plugin::loss::{
    Batch, Gradient, Inputs, References, Requirements,
};
pub use crate::tokens::{LOG_RATIO_BOUND, Token, ratio, within};

/// A training objective over tokens.
///
/// The host evaluates the differentiable inputs on the device, asks for the loss and its partial
/// derivatives, and back-propagates exactly those.
pub trait Loss {
    /// What the loss is differentiated by and what it reads. The same for every call.
    fn describe() -> Requirements;

    /// The microbatch's share of the step's loss, and its partials: as long as the inputs, 0 where
    /// the mask is 0, empty where the loss is not differentiated.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] for a batch that the loss cannot take; the step is given up.
    fn evaluate(batch: &Batch) -> Result<Gradient, PluginError>;
}

impl Default for Batch {
    /// No tokens; tests fill in what they need.
    fn default() -> Batch {
        Batch {
            offsets: Vec::new(),
            groups: Vec::new(),
            rewards: Vec::new(),
            tokens: Vec::new(),
            mask: Vec::new(),
            advantages: Vec::new(),
            logprob: Vec::new(),
            old_logprob: Vec::new(),
            ref_logprob: Vec::new(),
            teacher_logprob: Vec::new(),
            entropy: Vec::new(),
            topk_ids: Vec::new(),
            topk_logprob: Vec::new(),
            teacher_topk_logprob: Vec::new(),
            step_tokens: 0,
            step_sequences: 0,
            step: 0,
        }
    }
}

impl Batch {
    /// Fails unless a tensor has `width` numbers for each token.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] that names the tensor and both lengths.
    pub fn check_length(
        &self,
        name: &str,
        tensor: &[f32],
        width: usize,
    ) -> Result<(), PluginError> {
        let expected = self.mask.len() * width;
        if tensor.len() == expected {
            return Ok(());
        }
        Err(PluginError::InvalidInput(format!(
            "{name} has {} numbers, expected {expected}",
            tensor.len()
        )))
    }

    /// The positions of each sequence.
    pub fn sequences(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.offsets
            .iter()
            .zip(self.offsets.iter().skip(1))
            .map(|(start, end)| *start as usize..*end as usize)
    }
}

/// Makes a type that implements [`Loss`] the component's loss. Does nothing in native builds,
/// where the type is tested directly.
#[macro_export]
macro_rules! export_loss {
    ($loss:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::bindings::loss::exports::clawhost::plugin::loss::Guest for Component {
                fn describe() -> $crate::loss::Requirements {
                    $crate::log::report_panics();
                    <$loss as $crate::Loss>::describe()
                }

                fn evaluate(
                    batch: $crate::loss::Batch,
                ) -> ::core::result::Result<$crate::loss::Gradient, $crate::PluginError> {
                    $crate::log::report_panics();
                    <$loss as $crate::Loss>::evaluate(&batch)
                }
            }

            $crate::bindings::loss::export_loss_world!(
                Component with_types_in $crate::bindings::loss
            );
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            &$crate::loss::Batch,
        ) -> ::core::result::Result<$crate::loss::Gradient, $crate::PluginError> =
            <$loss as $crate::Loss>::evaluate;
    };
}
