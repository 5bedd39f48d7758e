//! The export of a component, looked up and type-checked once, at load.

use wasmtime::Store;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentNamedList, Instance, InstancePre, Lift, Lower, ResourceAny};

use crate::bindings::types::{Message, PluginError, Trajectory, Verdict};
use crate::bindings::{advantage, environment, group_judge, hint_extractor, judge, loss};
use crate::inspect::Interface;
use crate::invoke::Stop;
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
    pre: InstancePre<CallState>,
    indices: I,
}

/// Where the functions of one interface are in a component.
pub(crate) trait Indices {
    /// The functions of one instance.
    type Guest;

    fn guest(
        &self,
        store: &mut Store<CallState>,
        instance: &Instance,
    ) -> wasmtime::Result<Self::Guest>;
}

macro_rules! indices {
    ($($interface:ident)*) => {$(
        impl Indices for $interface::GuestIndices {
            type Guest = $interface::Guest;

            fn guest(
                &self,
                store: &mut Store<CallState>,
                instance: &Instance,
            ) -> wasmtime::Result<Self::Guest> {
                self.load(store, instance)
            }
        }
    )*};
}
indices!(judge group_judge hint_extractor loss advantage environment);

impl<I: Indices> Ready<I> {
    /// A fresh instance in this store, ready to be called.
    pub(crate) async fn start(&self, store: &mut Store<CallState>) -> Result<I::Guest, Stop> {
        let instance = self
            .pre
            .instantiate_async(&mut *store)
            .await
            .map_err(Stop::while_linking)?;
        self.indices
            .guest(store, &instance)
            .map_err(Stop::while_linking)
    }
}

impl Export {
    /// Checks that the export of this kind has the types of the contract.
    pub(crate) fn find(kind: Kind, pre: InstancePre<CallState>) -> wasmtime::Result<Export> {
        check_shapes(kind, &pre)?;
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

type Answer<T> = (Result<T, PluginError>,);

/// The generated look-up goes by name alone and meets a wrong type at the first call. Here it is met at
/// load.
fn check_shapes(kind: Kind, pre: &InstancePre<CallState>) -> wasmtime::Result<()> {
    let has = Exported { kind, pre };
    match kind {
        Kind::Judge => has.function::<(&Trajectory, u32), Answer<Verdict>>("score-turn"),
        Kind::GroupJudge => has.function::<(&[Trajectory],), Answer<Vec<Verdict>>>("score-group"),
        Kind::Hint => {
            has.function::<(&Trajectory, u32), Answer<hint_extractor::Extraction>>("extract")
        }
        Kind::Loss => {
            has.function::<(), (loss::Requirements,)>("describe")?;
            has.function::<(&loss::Batch,), Answer<loss::Gradient>>("evaluate")
        }
        Kind::Advantage => {
            has.function::<(&[advantage::Sequence],), Answer<advantage::Estimate>>("compute")
        }
        Kind::Environment => {
            use environment::{Observation, Outcome, Task, Transition};
            type Started = (ResourceAny, Observation);
            has.function::<(&Task, u64), Answer<Started>>("[static]session.reset")?;
            has.function::<(ResourceAny, &Message), Answer<Transition>>("[method]session.step")?;
            has.function::<(ResourceAny,), Answer<Outcome>>("[method]session.grade")?;
            has.function::<(ResourceAny,), Answer<()>>("[method]session.close")
        }
    }
}

/// The interface of its kind that a component exports.
struct Exported<'a> {
    kind: Kind,
    pre: &'a InstancePre<CallState>,
}

impl Exported<'_> {
    fn function<P, R>(&self, name: &str) -> wasmtime::Result<()>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift,
    {
        let component = self.pre.component();
        let component_type = component.component_type();
        let exports = component_type.exports(component.engine());
        let interface = exports
            .map(|(name, _)| name)
            .find(|name| Interface::parse(name).is_of(self.kind));
        let missing = || wasmtime::Error::msg(format!("{} has no function {name:?}", self.kind));
        let (_, at) = interface
            .and_then(|interface| component.get_export(None, interface))
            .ok_or_else(missing)?;
        match component.get_export(Some(&at), name) {
            Some((ComponentItem::ComponentFunc(function), _)) => function
                .typecheck::<P, R>(&self.pre.instance_type())
                .map_err(|error| error.context(format!("{} has another type", name))),
            _ => Err(missing()),
        }
    }
}
