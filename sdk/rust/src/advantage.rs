//! The advantage trait and its way into a component.

use crate::PluginError;
pub use crate::bindings::advantage::exports::clawhost::plugin::advantage::{Estimate, Sequence};

/// Turns the rewards of a batch into advantages.
pub trait Advantage {
    /// One finite value for each sequence, or for each token.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] for a batch that cannot be estimated; the step is given up.
    fn compute(sequences: &[Sequence]) -> Result<Estimate, PluginError>;
}

impl Estimate {
    /// One value for each sequence.
    pub fn per_sequence(values: Vec<f32>) -> Estimate {
        Estimate {
            values,
            per_token: false,
            metrics: Vec::new(),
        }
    }
}

/// Makes a type that implements [`Advantage`] the component's estimator. Does nothing in native
/// builds, where the type is tested directly.
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
