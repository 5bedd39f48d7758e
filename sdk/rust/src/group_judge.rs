//! The group judge trait and its export macro.

use crate::{PluginError, Trajectory, Verdict};

/// Scores all samples of a prompt together.
pub trait GroupJudge {
    /// Returns one verdict per trajectory, in order. Rewards must be finite and between -1 and 1 unless the operator
    /// widened the range.
    ///
    /// # Errors
    /// [`PluginError::Unsupported`] when the group cannot be judged: then none of its samples gets a verdict.
    fn score_group(group: &[Trajectory]) -> Result<Vec<Verdict>, PluginError>;
}

/// Exports a type that implements [`GroupJudge`] as the component's group judge. In native builds it only checks the
/// type, which tests call directly.
#[macro_export]
macro_rules! export_group_judge {
    ($judge:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::bindings::group_judge::exports::clawhost::plugin::group_judge::Guest
                for Component
            {
                fn score_group(
                    group: ::std::vec::Vec<$crate::Trajectory>,
                ) -> ::core::result::Result<::std::vec::Vec<$crate::Verdict>, $crate::PluginError>
                {
                    $crate::log::report_panics();
                    <$judge as $crate::GroupJudge>::score_group(&group)
                }
            }

            $crate::bindings::group_judge::export_group_judge_world!(
                Component with_types_in $crate::bindings::group_judge
            );
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            &[$crate::Trajectory],
        ) -> ::core::result::Result<
            ::std::vec::Vec<$crate::Verdict>,
            $crate::PluginError,
        > = <$judge as $crate::GroupJudge>::score_group;
    };
}
