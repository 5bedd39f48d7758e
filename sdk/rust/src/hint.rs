//! The hint extractor trait and its way into a component.

pub use crate::bindings::hint::exports::clawhost::plugin::hint_extractor::{
    Extraction, Hint, Placement,
};
use crate::{PluginError, Trajectory, Turn};

/// Turns what happened next into advice that a teacher can condition on.
pub trait HintExtractor {
    /// Reads one turn of the trajectory and what followed it.
    ///
    /// # Errors
    /// [`PluginError::Unsupported`] when there is nothing to read. A turn that was read but
    /// teaches nothing is an [`Extraction`] without a hint.
    fn extract(trajectory: &Trajectory, turn: &Turn) -> Result<Extraction, PluginError>;
}

impl Hint {
    /// Advice that is appended to the last user message, as sure as can be.
    pub fn new(text: impl Into<String>) -> Hint {
        Hint {
            text: text.into(),
            placement: Placement::LastUser,
            confidence: 1.0,
        }
    }
}

impl Extraction {
    /// Nothing to advise.
    pub fn none() -> Extraction {
        Extraction {
            hint: None,
            metrics: Vec::new(),
        }
    }
}

impl From<Hint> for Extraction {
    fn from(hint: Hint) -> Extraction {
        Extraction {
            hint: Some(hint),
            metrics: Vec::new(),
        }
    }
}

/// What the exported function does; called by [`export_hint_extractor!`](crate::export_hint_extractor).
#[doc(hidden)]
pub fn answer<H: HintExtractor>(
    trajectory: &Trajectory,
    turn_index: u32,
) -> Result<Extraction, PluginError> {
    #[cfg(target_arch = "wasm32")]
    crate::log::report_panics();
    H::extract(trajectory, trajectory.turn(turn_index)?)
}

/// Makes a type that implements [`HintExtractor`] the component's hint extractor. Does nothing in
/// native builds, where the type is tested directly.
#[macro_export]
macro_rules! export_hint_extractor {
    ($extractor:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::bindings::hint::exports::clawhost::plugin::hint_extractor::Guest
                for Component
            {
                fn extract(
                    trajectory: $crate::Trajectory,
                    turn_index: u32,
                ) -> ::core::result::Result<$crate::hint::Extraction, $crate::PluginError> {
                    $crate::hint::answer::<$extractor>(&trajectory, turn_index)
                }
            }

            $crate::bindings::hint::export_hint_world!(
                Component with_types_in $crate::bindings::hint
            );
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            &$crate::Trajectory,
            u32,
        ) -> ::core::result::Result<$crate::hint::Extraction, $crate::PluginError> =
            $crate::hint::answer::<$extractor>;
    };
}
