//! The hint extractor trait and its export macro.

pub use crate::bindings::hint::exports::clawhost::plugin::hint_extractor::{
    Extraction, Hint, Placement,
};
use crate::{PluginError, Trajectory, Turn};

/// Extracts a hint from the messages that followed a response. The teacher of distillation is conditioned on it.
pub trait HintExtractor {
    /// Reads one turn of the trajectory and the messages that followed it.
    ///
    /// # Errors
    /// [`PluginError::Unsupported`] when the extractor cannot handle the turn, for example because nothing followed it.
    /// For a turn without useful advice, return an [`Extraction`] without a hint.
    fn extract(trajectory: &Trajectory, turn: &Turn) -> Result<Extraction, PluginError>;
}

impl Hint {
    /// Creates a hint that is appended to the last user message, with confidence 1.
    pub fn new(text: impl Into<String>) -> Hint {
        Hint {
            text: text.into(),
            placement: Placement::LastUser,
            confidence: 1.0,
        }
    }
}

impl Extraction {
    /// Creates an extraction without a hint.
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

/// The body of the exported function, for [`export_hint_extractor!`](crate::export_hint_extractor).
#[doc(hidden)]
pub fn answer<H: HintExtractor>(
    trajectory: &Trajectory,
    turn_index: u32,
) -> Result<Extraction, PluginError> {
    #[cfg(target_arch = "wasm32")]
    crate::log::report_panics();
    H::extract(trajectory, trajectory.turn(turn_index)?)
}

/// Exports a type that implements [`HintExtractor`] as the component's hint extractor. In native builds it only checks
/// the type, which tests call directly.
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
