//! The loss trait and its export macro.

use crate::PluginError;
pub use crate::aggregation::Aggregation;
pub use crate::bindings::loss::exports::clawhost::plugin::loss::{
    Batch, Gradient, Inputs, References, Requirements,
};
pub use crate::tokens::{LOG_RATIO_BOUND, Token, ratio, within};

/// A training objective over tokens.
///
/// The host computes the differentiable inputs, calls the loss for its value and partial derivatives, and back-propagates
/// exactly those.
pub trait Loss {
    /// The inputs that the loss is differentiated with respect to, and the references that it reads. Must be constant.
    fn describe() -> Requirements;

    /// Returns the micro-batch's share of the step's loss and its partials. Each vector of partials is as long as its
    /// input and 0 where the mask is 0; it is empty if the loss is not differentiated with respect to that input.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] for a batch that the loss cannot handle; the training step is aborted.
    fn evaluate(batch: &Batch) -> Result<Gradient, PluginError>;
}

impl Default for Batch {
    /// An empty batch; tests set the fields that they need.
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
    /// Checks that a tensor has `width` numbers per token.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] with the name of the tensor and both lengths.
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

/// Exports a type that implements [`Loss`] as the component's loss. In native builds it only checks the type, which tests
/// call directly.
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
