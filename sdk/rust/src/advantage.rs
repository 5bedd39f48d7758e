//! The advantage trait and its export macro.

use crate::PluginError;
pub use crate::bindings::advantage::exports::clawhost::plugin::advantage::{Estimate, Sequence};

/// Estimates advantages from the rewards of a batch.
pub trait Advantage {
    /// Returns one finite value per sequence or per token.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] for a batch that the estimator cannot handle; the training step is aborted.
    fn compute(sequences: &[Sequence]) -> Result<Estimate, PluginError>;
}

impl Estimate {
    /// Creates an estimate with one value per sequence.
    pub fn per_sequence(values: Vec<f32>) -> Estimate {
        Estimate {
            values,
            per_token: false,
            metrics: Vec::new(),
        }
    }
}

/// Exports a type that implements [`Advantage`] as the component's estimator. In native builds it only checks the type,
/// which tests call directly.
#[macro_export]
macro_rules! export_advantage {
    ($advantage:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::bindings::advantage::exports::clawhost::plugin::advantage::Guest
                for Component
            {
                fn compute(
                    sequences: ::std::vec::Vec<$crate::advantage::Sequence>,
                ) -> ::core::result::Result<$crate::advantage::Estimate, $crate::PluginError>
                {
                    $crate::log::report_panics();
                    <$advantage as $crate::Advantage>::compute(&sequences)
                }
            }

            $crate::bindings::advantage::export_advantage_world!(
                Component with_types_in $crate::bindings::advantage
            );
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            &[$crate::advantage::Sequence],
        ) -> ::core::result::Result<$crate::advantage::Estimate, $crate::PluginError> =
            <$advantage as $crate::Advantage>::compute;
    };
}
