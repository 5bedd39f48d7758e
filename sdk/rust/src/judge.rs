//! The judge trait and its export macro.

use crate::{PluginError, Trajectory, Turn, Verdict};

/// Scores turns of the policy.
pub trait Judge {
    /// Scores one turn of the trajectory. The reward must be finite and between -1 and 1 unless the operator widened the
    /// range.
    ///
    /// # Errors
    /// [`PluginError::Unsupported`] when the turn cannot be judged: it then gets no verdict, which is not the same as a
    /// reward of 0.
    fn score_turn(trajectory: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError>;
}

/// The body of the exported function, for [`export_judge!`](crate::export_judge).
#[doc(hidden)]
pub fn answer<J: Judge>(trajectory: &Trajectory, turn_index: u32) -> Result<Verdict, PluginError> {
    #[cfg(target_arch = "wasm32")]
    crate::log::report_panics();
    J::score_turn(trajectory, trajectory.turn(turn_index)?)
}

/// Exports a type that implements [`Judge`] as the component's judge. In native builds it only checks the type, which
/// tests call directly.
#[macro_export]
macro_rules! export_judge {
    ($judge:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::bindings::exports::clawhost::plugin::judge::Guest for Component {
                fn score_turn(
                    trajectory: $crate::Trajectory,
                    turn_index: u32,
                ) -> ::core::result::Result<$crate::Verdict, $crate::PluginError> {
                    $crate::answer::<$judge>(&trajectory, turn_index)
                }
            }

    $crate::bindings::export_judge_world!(Component with_types_in $crate::bindings);
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            &$crate::Trajectory,
            u32,
        ) -> ::core::result::Result<$crate::Verdict, $crate::PluginError> =
            $crate::answer::<$judge>;
    };
}
