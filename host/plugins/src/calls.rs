//! The export of a component, looked up and type-checked once, at load.

use wasmtime::component::InstancePre;

use crate::bindings::{advantage, environment, group_judge, hint_extractor, judge, loss};
use crate::kind::Kind;
use crate::store::CallState;

/// What a component exports, ready to be instantiated and called.
#[derive(Clone)]
pub(crate) enum Export {
    Judge(Ready<judge::GuestIndices>),
    GroupJudge(Ready<group_judge::GuestIndices>),
    Hint(Ready<hint_extractor::GuestIndices>),
    Loss(Ready<loss::GuestIndices>),
    Advantage(Ready<advantage::GuestIndices>),
    Environment(Ready<environment::GuestIndices>),
}

/// A linked component and where its export is.
#[derive(Clone)]
pub(crate) struct Ready<I> {
    pub(crate) pre: InstancePre<CallState>,
    pub(crate) indices: I,
}

impl Export {
    /// Checks that the export of this kind has the types of the contract.
    pub(crate) fn find(kind: Kind, pre: InstancePre<CallState>) -> wasmtime::Result<Export> {
        Ok(match kind {
            Kind::Judge => Export::Judge(Ready {
                indices: judge::GuestIndices::new(&pre)?,
                pre,
            }),
            Kind::GroupJudge => Export::GroupJudge(Ready {
                indices: group_judge::GuestIndices::new(&pre)?,
                pre,
            }),
            Kind::Hint => Export::Hint(Ready {
                indices: hint_extractor::GuestIndices::new(&pre)?,
                pre,
            }),
            Kind::Loss => Export::Loss(Ready {
                indices: loss::GuestIndices::new(&pre)?,
                pre,
            }),
            Kind::Advantage => Export::Advantage(Ready {
                indices: advantage::GuestIndices::new(&pre)?,
                pre,
            }),
            Kind::Environment => Export::Environment(Ready {
                indices: environment::GuestIndices::new(&pre)?,
                pre,
            }),
        })
    }
}
