//! The gate trait and its export macro.

use crate::PluginError;
pub use crate::bindings::gate::exports::clawhost::plugin::gate::{Candidate, Decision};

/// Decides whether a new adapter is published.
pub trait Gate {
    /// Reads what is known of an adapter that is written and verified.
    ///
    /// # Errors
    /// [`PluginError::Unsupported`] when the gate has no objection because it cannot handle the adapter. After any other
    /// error nothing is published, and the step is repeated later.
    fn review(candidate: &Candidate) -> Result<Decision, PluginError>;
}

impl Candidate {
    /// The metric of this name, if the step has it.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let found = self.metrics.iter().find(|metric| metric.name == name);
        found.map(|metric| metric.value)
    }
}

impl Decision {
    /// The adapter is published.
    pub fn publish() -> Decision {
        Decision {
            publish: true,
            reason: String::new(),
            metrics: Vec::new(),
        }
    }

    /// The adapter is discarded, for this reason.
    pub fn reject(reason: impl Into<String>) -> Decision {
        Decision {
            publish: false,
            reason: reason.into(),
            metrics: Vec::new(),
        }
    }
}

/// The body of the exported function, for [`export_gate!`](crate::export_gate).
#[doc(hidden)]
pub fn answer<G: Gate>(candidate: &Candidate) -> Result<Decision, PluginError> {
    #[cfg(target_arch = "wasm32")]
    crate::log::report_panics();
    G::review(candidate)
}

/// Exports a type that implements [`Gate`] as the component's gate. In native builds it only checks the type, which tests
/// call directly.
#[macro_export]
macro_rules! export_gate {
    ($gate:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::bindings::gate::exports::clawhost::plugin::gate::Guest for Component {
                fn review(
                    candidate: $crate::gate::Candidate,
                ) -> ::core::result::Result<$crate::gate::Decision, $crate::PluginError> {
                    $crate::gate::answer::<$gate>(&candidate)
                }
            }

            $crate::bindings::gate::export_gate_world!(
                Component with_types_in $crate::bindings::gate
            );
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            &$crate::gate::Candidate,
        ) -> ::core::result::Result<$crate::gate::Decision, $crate::PluginError> =
            $crate::gate::answer::<$gate>;
    };
}
