//! Runs one call: a fresh store, every limit armed, one receipt.
//!
//! A store serves one call and is dropped, whatever happened. Nothing a guest does can keep a
//! place, a thread or a timer for longer than its limits.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::OwnedSemaphorePermit;
use wasmtime::{Store, Trap, UpdateDeadline, WasmBacktrace};

use crate::bindings::types::PluginError as GuestError;
use crate::call::CallContext;
use crate::convert;
use crate::fault::{Fault, FaultKind, PluginErrorKind};
use crate::loaded_plugin::LoadedPlugin;
use crate::panic_message::panic_message;
use crate::printable::one_line;
use crate::receipt::{CallResult, Outcome, Receipt};
use crate::store::CallState;

/// Bytes of a plugin's own error message that are kept.
const MESSAGE_BYTES: usize = 2 << 10;
/// Fuel after which a guest yields and stores its fuel counter, about 5 ms of work.
///
/// Compiled code counts fuel in a register and writes it to the store at calls, at returns and when it runs out. A loop
/// does none of these, and when it yields at an epoch tick the store still has the count from before the loop. Fuel is
/// therefore supplied in portions: the receipt of a call that is dropped at its wall limit is at most one portion too
/// low.
const FUEL_PORTION: u64 = 10_000_000;

/// Why a call stopped, before it is classified as a fault.
pub(crate) enum Stop {
    /// The engine stopped while instantiating.
    Linking(wasmtime::Error),
    /// The engine stopped while the guest ran.
    Running(wasmtime::Error),
    /// The plugin answered with its own error.
    Plugin(PluginErrorKind, String),
    /// The result broke a rule.
    BadOutput(String),
}

impl Stop {
    pub(crate) fn while_linking(error: wasmtime::Error) -> Stop {
        Stop::Linking(error)
    }

    pub(crate) fn while_running(error: wasmtime::Error) -> Stop {
        Stop::Running(error)
    }

    pub(crate) fn plugin_error(error: GuestError) -> Stop {
        let (kind, message) = convert::error_from_guest(error);
        Stop::Plugin(kind, one_line(&message, MESSAGE_BYTES))
    }
}

/// The work of a world: instantiate, call, check.
pub(crate) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, Stop>> + Send + 'a>>;

/// Runs a call on the plugin threads and waits for it. Dropping the future ends the call.
pub(crate) async fn on_plugin_threads<T, F>(
    loaded: Arc<LoadedPlugin>,
    call: CallContext,
    work: F,
) -> CallResult<T>
where
    T: Send + 'static,
    F: for<'a> FnOnce(&'a mut Store<CallState>) -> Work<'a, T> + Send + 'static,
{
    let mut receipt = blank_receipt(&loaded, &call);
    let admitted = match admit(&loaded).await {
        Ok(admitted) => admitted,
        Err(fault) => return finish(&loaded, receipt, Err(fault)),
    };
    let threads = loaded.threads.clone();
    let running = async move {
        let outcome = contain_panic(run(&loaded, admitted, call, &mut receipt, work)).await;
        finish(&loaded, receipt, outcome)
    };
    threads.run(running).await
}

/// A call that was never run.
pub(crate) fn refused<T>(loaded: &LoadedPlugin, call: &CallContext, fault: Fault) -> CallResult<T> {
    finish(loaded, blank_receipt(loaded, call), Err(fault))
}

/// The result of a call that is over, with its receipt, which is counted.
pub(crate) fn finish<T>(
    loaded: &LoadedPlugin,
    mut receipt: Receipt,
    outcome: Result<T, Fault>,
) -> CallResult<T> {
    receipt.outcome = match &outcome {
        Ok(_) => Outcome::Ok,
        Err(fault) => Outcome::of(fault),
    };
    loaded.count(&receipt);
    CallResult { outcome, receipt }
}

pub(crate) fn host_fault(message: &str) -> Fault {
    Fault::new(FaultKind::Host {
        message: message.to_owned(),
    })
}

/// Makes a panic of the host a fault of this call, because it must not end the task of the caller.
pub(crate) async fn contain_panic<T>(
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let work = AssertUnwindSafe(work).catch_unwind().await;
    work.unwrap_or_else(|panic| {
        let message = panic_message(&*panic);
        Err(host_fault(&format!("the host panicked: {message}")))
    })
}

async fn run<T, F>(
    loaded: &Arc<LoadedPlugin>,
    admitted: Admitted,
    call: CallContext,
    receipt: &mut Receipt,
    work: F,
) -> Result<T, Fault>
where
    F: for<'a> FnOnce(&'a mut Store<CallState>) -> Work<'a, T>,
{
    // The store goes before its place: the next call finds the instance free.
    let (_place, mut store) = open(loaded, admitted, call, receipt).await?;
    supervise(&mut store, receipt, work).await
}

/// A place among the instances, and the plugin's own share of them.
pub(crate) struct Place {
    _share: OwnedSemaphorePermit,
    _instance: OwnedSemaphorePermit,
}

/// A call that may go to the plugin threads.
pub(crate) struct Admitted {
    since: Instant,
    share: OwnedSemaphorePermit,
}

/// Waits among the plugin's own calls, where the caller waits: those that are beyond its share neither
/// stand in the queue for instances nor in that of the plugin threads, before the calls of others.
pub(crate) async fn admit(loaded: &LoadedPlugin) -> Result<Admitted, Fault> {
    let since = Instant::now();
    let share = Arc::clone(&loaded.share)
        .acquire_many_owned(loaded.slots)
        .await;
    let share = share.map_err(|_| host_fault("the host is shutting down"))?;
    Ok(Admitted { since, share })
}

/// Waits for an instance and opens a store with every limit armed. Drop the store before its place.
pub(crate) async fn open(
    loaded: &Arc<LoadedPlugin>,
    admitted: Admitted,
    call: CallContext,
    receipt: &mut Receipt,
) -> Result<(Place, Store<CallState>), Fault> {
    let instance = Arc::clone(&loaded.runtime.slots)
        .acquire_many_owned(loaded.slots)
        .await
        .map_err(|_| host_fault("the host is shutting down"))?;
    receipt.queued_us = micros(admitted.since.elapsed());
    let place = Place {
        _share: admitted.share,
        _instance: instance,
    };
    let store = arm(loaded, call).map_err(|error| host_fault(&format!("{error:#}")))?;
    Ok((place, store))
}

/// Runs work in an armed store to its end or its wall limit, and writes what it used into the receipt.
pub(crate) async fn supervise<T, F>(
    store: &mut Store<CallState>,
    receipt: &mut Receipt,
    work: F,
) -> Result<T, Fault>
where
    F: for<'a> FnOnce(&'a mut Store<CallState>) -> Work<'a, T>,
{
    let limit = store.data().meter.limits().wall_time;
    let result = tokio::time::timeout(limit, work(store)).await;
    let wall = store.data().started.elapsed();
    // A guest that learns in its last moment that a model or an exchange has run out of time may still answer
    // something. Its answer depends on the clock, so a deterministic call has no result any more.
    let late = store.data().is_deterministic() && wall >= limit;
    let result = match result {
        Ok(Ok(value)) if !late => Ok(value),
        Ok(Err(stop)) if !late => Err(classify(stop, store)),
        _ => Err(Fault {
            kind: store.data().out_of_time(),
            frames: Vec::new(),
            stderr: store.data().stderr.tail(),
        }),
    };
    receipt.wall_us = micros(wall);
    record_usage(receipt, store);
    log_problems(store.data(), receipt, result.as_ref().err());
    result
}

/// A store with every limit of the call set.
fn arm(loaded: &Arc<LoadedPlugin>, mut call: CallContext) -> wasmtime::Result<Store<CallState>> {
    call.limits = loaded.budgets.narrow(call.limits);
    let handles = call.limits.handles;
    let state = CallState::new(Arc::clone(loaded), call);
    let mut store = Store::try_new(&loaded.runtime.engine, state)?;
    store.limiter(|state| &mut state.meter);
    store.set_max_component_handles(handles);
    if store.data().is_deterministic() {
        store.fuel_async_yield_interval(Some(FUEL_PORTION))?;
    }
    refuel(&mut store)?;
    store.epoch_deadline_callback(|mut cx| {
        Ok(if cx.data_mut().meter.tick() {
            UpdateDeadline::Yield(1)
        } else {
            UpdateDeadline::Interrupt
        })
    });
    Ok(store)
}

/// Gives a store the budgets of one more call.
pub(crate) fn refuel(store: &mut Store<CallState>) -> wasmtime::Result<()> {
    store.data_mut().reset();
    let limits = store.data().meter.limits();
    let (fuel, host_call_size) = (limits.fuel, limits.host_call_size);
    store.set_hostcall_fuel(host_call_size);
    if store.data().is_deterministic() {
        store.set_fuel(fuel)?;
    }
    store.set_epoch_deadline(1);
    Ok(())
}

/// Converts what stopped the call to a fault.
fn classify(stop: Stop, store: &mut Store<CallState>) -> Fault {
    let (error, linking) = match stop {
        Stop::Plugin(kind, message) => {
            return Fault {
                kind: FaultKind::PluginError { kind, message },
                frames: Vec::new(),
                stderr: store.data().stderr.tail(),
            };
        }
        Stop::BadOutput(message) => {
            return Fault {
                kind: FaultKind::BadOutput { message },
                frames: Vec::new(),
                stderr: store.data().stderr.tail(),
            };
        }
        Stop::Linking(error) => (error, true),
        Stop::Running(error) => (error, false),
    };
    let frames = frames(&error);
    let limits = store.data().meter.limits();
    let (fuel_limit, host_call_size) = (limits.fuel, limits.host_call_size as u64);
    let kind = store.data_mut().meter.cause().unwrap_or_else(|| {
        let message = || one_line(&error.root_cause().to_string(), MESSAGE_BYTES);
        match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => FaultKind::Cpu {
                used: fuel_limit,
                limit: fuel_limit,
                unit: "units of fuel",
                setting: "fuel",
            },
            Some(Trap::StackOverflow) => FaultKind::Stack,
            None if carries_too_much(&error) => FaultKind::Budget {
                what: "host_call_size",
                used: host_call_size,
                limit: host_call_size,
            },
            Some(_) => FaultKind::Trap { message: message() },
            None if linking => FaultKind::Link { message: message() },
            // Not a trap of the guest's code: what it returned could not be read.
            None if frames.is_empty() => FaultKind::BadOutput { message: message() },
            None => FaultKind::Trap { message: message() },
        }
    });
    Fault {
        kind,
        frames,
        stderr: store.data().stderr.tail(),
    }
}

/// The guest hands over more than `limits.host_call_size`. The engine's error for it has no public
/// type, only these words.
fn carries_too_much(error: &wasmtime::Error) -> bool {
    error
        .root_cause()
        .to_string()
        .starts_with("too much data is being copied")
}

fn frames(error: &wasmtime::Error) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return Vec::new();
    };
    backtrace
        .frames()
        .iter()
        .map(|frame| {
            let name = frame.func_name().map_or_else(
                || format!("function {}", frame.func_index()),
                |name| one_line(name, 200),
            );
            match frame.module_offset() {
                Some(offset) => format!("{name} at {offset:#x}"),
                None => name,
            }
        })
        .collect()
}

pub(crate) fn blank_receipt(loaded: &LoadedPlugin, call: &CallContext) -> Receipt {
    Receipt {
        plugin: loaded.name.clone(),
        digest: loaded.digest.clone(),
        world: loaded.kind.world(),
        call: format!("{}/{}/{}", call.run_id, call.sample_id, call.attempt),
        profile: loaded.profile,
        ticks: 0,
        fuel: None,
        peak_memory_bytes: 0,
        host_calls: 0,
        model_calls: 0,
        model_tokens: 0,
        http_calls: 0,
        log_lines_dropped: 0,
        queued_us: 0,
        wall_us: 0,
        outcome: Outcome::Ok,
    }
}

fn record_usage(receipt: &mut Receipt, store: &Store<CallState>) {
    let state = store.data();
    receipt.ticks = state.meter.ticks;
    receipt.fuel = store
        .get_fuel()
        .ok()
        .map(|left| state.meter.limits().fuel.saturating_sub(left));
    receipt.peak_memory_bytes = state.meter.peak_memory as u64;
    receipt.host_calls = state.meter.host_calls;
    receipt.model_calls = state.meter.model_calls;
    receipt.model_tokens = state.meter.model_tokens;
    receipt.http_calls = state.meter.http_calls;
    receipt.log_lines_dropped = state.log.dropped;
}

/// Logs faults and dropped lines, at a rate that a plugin cannot raise. The receipts are complete.
fn log_problems(state: &CallState, receipt: &Receipt, fault: Option<&Fault>) {
    let fault = fault.filter(|fault| !fault.is_unsupported());
    if state.log.dropped == 0 && fault.is_none() {
        return;
    }
    let Some(suppressed) = state.loaded.fault_rate.admits(Instant::now()) else {
        return;
    };
    let plugin = state.loaded.name.as_str();
    if suppressed > 0 {
        tracing::warn!(target: "clawhost::plugin", plugin, suppressed, "more calls of this plugin failed than are logged");
    }
    if state.log.dropped > 0 {
        tracing::warn!(target: "clawhost::plugin", plugin, call = receipt.call, dropped = state.log.dropped, "log lines dropped");
    }
    if let Some(fault) = fault {
        tracing::warn!(target: "clawhost::plugin", plugin, call = receipt.call, fault = fault.kind.name(), "{fault}");
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Message, Role, Trajectory};
    use crate::embedded::embedded_component;
    use crate::grants::Grants;
    use crate::host::PluginHost;
    use crate::options::HostOptions;
    use clawhost_config::Profile;

    #[tokio::test]
    async fn a_panic_fails_its_call_only() {
        let options = HostOptions {
            config: clawhost_config::PluginHostConfig {
                num_threads: 1,
                max_instances: 1,
                ..Default::default()
            },
            ..HostOptions::default()
        };
        let host = PluginHost::new(options).unwrap();
        let bytes = embedded_component("judge-minimal").unwrap();
        let plugin = host
            .load("judge", bytes, &Grants::default(), Profile::Deterministic)
            .unwrap();
        let call = CallContext::default();
        let failed: CallResult<()> = on_plugin_threads(plugin.loaded(), call.clone(), |_| {
            Box::pin(async { unreachable!("a broken invariant") })
        })
        .await;
        let fault = failed.outcome.unwrap_err();
        let message = "internal error: entered unreachable code: a broken invariant";
        assert_eq!(fault, host_fault(&format!("the host panicked: {message}")));
        // Its thread and its only instance serve the next call.
        let mut turns = Trajectory::new("s", "g");
        let reply = Message::text(Role::Assistant, "4");
        turns.push(Vec::new(), reply, Vec::new(), false);
        let judged = plugin.score_turn(call, &turns, 0).await;
        assert!(
            judged.receipt.fuel.is_some_and(|fuel| fuel > 0),
            "{judged:?}"
        );
    }
}
