//! The export of a component, looked up and type-checked once at load.

use wasmtime::Store;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentNamedList, Instance, InstancePre, Lift, Lower, ResourceAny};

use crate::bindings::types::{Message, PluginError, Trajectory, Verdict};
use crate::bindings::{
    advantage, environment, filter, gate, group_judge, hint_extractor, judge, loss, pair_loss,
};
use crate::inspect::Interface;
use crate::invoke::Stop;
use crate::kind::Kind;
use crate::store::CallState;

/// The plugin interface that a component exports, ready to be instantiated and called.
#[derive(Clone)]
pub(crate) enum Export {
    Judge(LinkedExport<judge::GuestIndices>),
    GroupJudge(LinkedExport<group_judge::GuestIndices>),
    Hint(LinkedExport<hint_extractor::GuestIndices>),
    Filter(LinkedExport<filter::GuestIndices>),
    Loss(LinkedExport<loss::GuestIndices>),
    PairLoss(LinkedExport<pair_loss::GuestIndices>),
    Advantage(LinkedExport<advantage::GuestIndices>),
    Gate(LinkedExport<gate::GuestIndices>),
    Environment(LinkedExport<environment::GuestIndices>),
}

/// A linked component and the indices of its exported functions.
#[derive(Clone)]
pub(crate) struct LinkedExport<I> {
    pre: InstancePre<CallState>,
    indices: I,
}

/// The indices of the functions of one interface in a component.
pub(crate) trait Indices: Sized {
    /// The bound functions of one instance.
    type Guest;

    fn find(pre: &InstancePre<CallState>) -> wasmtime::Result<Self>;

    fn bind(
        &self,
        store: &mut Store<CallState>,
        instance: &Instance,
    ) -> wasmtime::Result<Self::Guest>;
}

macro_rules! indices {
    ($($interface:ident)*) => {$(
        impl Indices for $interface::GuestIndices {
            type Guest = $interface::Guest;

            fn find(pre: &InstancePre<CallState>) -> wasmtime::Result<Self> {
                Self::new(pre)
            }

            fn bind(
                &self,
                store: &mut Store<CallState>,
                instance: &Instance,
            ) -> wasmtime::Result<Self::Guest> {
                self.load(store, instance)
            }
        }
    )*};
}
indices!(judge group_judge hint_extractor filter loss pair_loss advantage gate environment);

impl<I: Indices> LinkedExport<I> {
    fn new(pre: InstancePre<CallState>) -> wasmtime::Result<Self> {
        let indices = I::find(&pre)?;
        Ok(Self { pre, indices })
    }

    /// Creates a fresh instance in this store.
    pub(crate) async fn instantiate(&self, store: &mut Store<CallState>) -> Result<I::Guest, Stop> {
        let instance = self
            .pre
            .instantiate_async(&mut *store)
            .await
            .map_err(Stop::while_linking)?;
        self.indices
            .bind(store, &instance)
            .map_err(Stop::while_linking)
    }
}

impl Export {
    /// Finds the export of this kind and checks its types against the WIT package.
    pub(crate) fn find(kind: Kind, pre: InstancePre<CallState>) -> wasmtime::Result<Export> {
        check_types(kind, &pre)?;
        Ok(match kind {
            Kind::Judge => Export::Judge(LinkedExport::new(pre)?),
            Kind::GroupJudge => Export::GroupJudge(LinkedExport::new(pre)?),
            Kind::Hint => Export::Hint(LinkedExport::new(pre)?),
            Kind::Filter => Export::Filter(LinkedExport::new(pre)?),
            Kind::Loss => Export::Loss(LinkedExport::new(pre)?),
            Kind::PairLoss => Export::PairLoss(LinkedExport::new(pre)?),
            Kind::Advantage => Export::Advantage(LinkedExport::new(pre)?),
            Kind::Gate => Export::Gate(LinkedExport::new(pre)?),
            Kind::Environment => Export::Environment(LinkedExport::new(pre)?),
        })
    }
}

type Returns<T> = (Result<T, PluginError>,);

/// Checks the types of the exported functions at load. The generated bindings look functions up by name only and would
/// report a wrong type at the first call.
fn check_types(kind: Kind, pre: &InstancePre<CallState>) -> wasmtime::Result<()> {
    let interface = ExportedInterface { kind, pre };
    match kind {
        Kind::Judge => interface.check::<(&Trajectory, u32), Returns<Verdict>>("score-turn"),
        Kind::GroupJudge => {
            interface.check::<(&[Trajectory],), Returns<Vec<Verdict>>>("score-group")
        }
        Kind::Hint => {
            interface.check::<(&Trajectory, u32), Returns<hint_extractor::Extraction>>("extract")
        }
        Kind::Filter => {
            interface.check::<(&Trajectory, u32, Option<f32>), Returns<filter::Decision>>("decide")
        }
        Kind::Loss => {
            interface.check::<(), (loss::Requirements,)>("describe")?;
            interface.check::<(&loss::Batch,), Returns<loss::Gradient>>("evaluate")
        }
        Kind::PairLoss => {
            interface.check::<(&pair_loss::Batch,), Returns<pair_loss::Evaluation>>("evaluate")
        }
        Kind::Advantage => {
            interface.check::<(&[advantage::Sequence],), Returns<advantage::Estimate>>("compute")
        }
        Kind::Gate => interface.check::<(&gate::Candidate,), Returns<gate::Decision>>("review"),
        Kind::Environment => {
            use environment::{Observation, Outcome, Task, Transition};
            type Reset = (ResourceAny, Observation);
            type Session = ResourceAny;
            interface.check::<(&Task, u64), Returns<Reset>>("[static]session.reset")?;
            interface.check::<(Session, &Message), Returns<Transition>>("[method]session.step")?;
            interface.check::<(Session,), Returns<Outcome>>("[method]session.grade")?;
            interface.check::<(Session,), Returns<()>>("[method]session.close")
        }
    }
}

/// The plugin interface that a component exports.
struct ExportedInterface<'a> {
    kind: Kind,
    pre: &'a InstancePre<CallState>,
}

impl ExportedInterface<'_> {
    /// Checks that the interface has a function of this name and type.
    fn check<P, R>(&self, name: &str) -> wasmtime::Result<()>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift,
    {
        let component = self.pre.component();
        let component_type = component.component_type();
        let exports = component_type.exports(component.engine());
        let interface = exports
            .map(|(name, _)| name)
            .find(|name| Interface::parse(name).matches(self.kind));
        let missing = || wasmtime::Error::msg(format!("{} has no function {name:?}", self.kind));
        let (_, index) = interface
            .and_then(|interface| component.get_export(None, interface))
            .ok_or_else(missing)?;
        match component.get_export(Some(&index), name) {
            Some((ComponentItem::ComponentFunc(function), _)) => function
                .typecheck::<P, R>(&self.pre.instance_type())
                .map_err(|error| error.context(format!("{name} has another type"))),
            _ => Err(missing()),
        }
    }
}
