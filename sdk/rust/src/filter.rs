//! The filter trait and its export macro.

pub use crate::bindings::filter::exports::clawhost::plugin::filter::Decision;
use crate::{PluginError, Trajectory, Turn};

/// Decides whether a turn that would train does.
pub trait Filter {
    /// Reads one turn of the trajectory. `reward` is none where hints alone would train it.
    ///
    /// # Errors
    /// [`PluginError::Unsupported`] when the filter has no objection because it cannot handle the turn. Any other error
    /// drops the turn.
    fn decide(
        trajectory: &Trajectory,
        turn: &Turn,
        reward: Option<f32>,
    ) -> Result<Decision, PluginError>;
}

impl Decision {
    /// The turn trains.
    pub fn keep() -> Decision {
        Decision {
            keep: true,
            reason: String::new(),
            metrics: Vec::new(),
        }
    }

    /// The turn does not train, for this reason.
    pub fn drop(reason: impl Into<String>) -> Decision {
        Decision {
            keep: false,
            reason: reason.into(),
            metrics: Vec::new(),
        }
    }
}

/// The body of the exported function, for [`export_filter!`](crate::export_filter).
#[doc(hidden)]
pub fn answer<F: Filter>(
    trajectory: &Trajectory,
    turn_index: u32,
    reward: Option<f32>,
) -> Result<Decision, PluginError> {
    #[cfg(target_arch = "wasm32")]
    crate::log::report_panics();
    F::decide(trajectory, trajectory.turn(turn_index)?, reward)
}

/// Exports a type that implements [`Filter`] as the component's filter. In native builds it only checks the type, which
/// tests call directly.
#[macro_export]
macro_rules! export_filter {
    ($filter:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::bindings::filter::exports::clawhost::plugin::filter::Guest for Component {
                fn decide(
                    trajectory: $crate::Trajectory,
                    turn_index: u32,
                    reward: ::core::option::Option<f32>,
                ) -> ::core::result::Result<$crate::filter::Decision, $crate::PluginError> {
                    $crate::filter::answer::<$filter>(&trajectory, turn_index, reward)
                }
            }

            $crate::bindings::filter::export_filter_world!(
                Component with_types_in $crate::bindings::filter
            );
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            &$crate::Trajectory,
            u32,
            ::core::option::Option<f32>,
        ) -> ::core::result::Result<$crate::filter::Decision, $crate::PluginError> =
            $crate::filter::answer::<$filter>;
    };
}
