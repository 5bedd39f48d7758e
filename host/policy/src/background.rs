//! Work behind serving: training on a machine that answers people at the same time.
//!
//! Its threads have a low priority in the operating system, and threads of their own where serving shares some. While
//! the engine has requests they also leave the processors to it between two layers. The one place that changes the
//! priority of a thread.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Engine;

thread_local! {
    /// What this thread works for.
    static CURRENT: RefCell<Option<Background>> = const { RefCell::new(None) };
    /// When it last yielded: wall time, and the processor time that it had used.
    static YIELDED: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Whether the engine has requests, shared by its thread and by work behind it.
#[derive(Debug, Default)]
pub(crate) struct Load {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    busy: bool,
    waiting: usize,
}

impl Load {
    /// The engine's thread says whether it has running requests.
    pub(crate) fn set(&self, busy: bool) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.busy, busy) && !busy {
            self.changed.notify_all();
        }
    }

    /// Threads that wait for requests to end.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Waits until there is no request, `hurry` is set, or this time has passed.
    fn wait(&self, most: Duration, hurry: &AtomicBool) {
        let mut state = self.lock();
        state.waiting += 1;
        let waited = self.changed.wait_timeout_while(state, most, |state| {
            state.busy && !hurry.load(Ordering::SeqCst)
        });
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How work behind an engine shares the machine with it. Clones are the same work.
#[derive(Debug, Clone)]
pub struct Background {
    load: Arc<Load>,
    nice: u8,
    share: f64,
    hurry: Arc<AtomicBool>,
}

impl Background {
    /// Work behind this engine. `nice` is the priority of its threads, 0 (as serving) to 19 (lowest). While the engine
    /// has requests each of them computes for this share of the time, more than 0 and at most 1 (it never waits).
    pub fn new(engine: &Engine, nice: u8, share: f64) -> Self {
        Self {
            load: engine.request_load(),
            nice,
            share,
            hurry: Arc::default(),
        }
    }

    /// Does some work on this thread. The thread keeps its low priority afterwards, since an ordinary user cannot
    /// raise it again, and threads that it starts inherit it: to be called on a thread of its own.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        lower_priority(self.nice);
        let _entered = enter(Some(self.clone()));
        work()
    }

    /// From now on the work waits for nobody, so that a server that stops need not wait for it.
    pub fn hurry(&self) {
        // Under the lock, so that nobody looks at it before this and begins to wait after it.
        let state = self.load.lock();
        self.hurry.store(true, Ordering::SeqCst);
        drop(state);
        self.load.changed.notify_all();
    }

    /// Waits for as long as the work since the last call allows.
    fn pause(&self) {
        let now = (Instant::now(), processor_time());
        let Some((wall, used)) = YIELDED.replace(Some(now)) else {
            return;
        };
        if self.share >= 1.0 || !self.load.lock().busy {
            return;
        }
        // Processor time and not wall time: where the system already gave the processor to others, that counts.
        let due = now.1.saturating_sub(used).as_secs_f64() / self.share;
        let due = Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX);
        let owed = due.saturating_sub(now.0 - wall);
        if !owed.is_zero() {
            self.load.wait(owed, &self.hurry);
            YIELDED.set(Some((Instant::now(), processor_time())));
        }
    }
}

/// What this thread works for, to be handed to threads that help it.
pub(crate) fn current() -> Option<Background> {
    CURRENT.with_borrow(Clone::clone)
}

/// Whether this thread works behind an engine.
pub(crate) fn is_behind() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// Lets this thread work for it until the guard is dropped.
pub(crate) fn enter(background: Option<Background>) -> Entered {
    YIELDED.set(None);
    Entered(CURRENT.replace(background))
}

/// Ends with what the thread did before.
pub(crate) struct Entered(Option<Background>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
        YIELDED.set(None);
    }
}

/// Leaves the processor to requests, on a thread that works behind an engine that has some.
pub(crate) fn yield_to_requests() {
    if let Some(background) = current() {
        background.pause();
    }
}

/// Threads for large products behind serving: those of the library's own pool are serving's. None where they cannot
/// be had.
pub(crate) fn pool() -> Option<&'static rayon::ThreadPool> {
    static POOL: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    let make = || {
        rayon::ThreadPoolBuilder::new()
            .thread_name(|index| format!("clawhost-behind-{index}"))
            .build()
            .inspect_err(|error| tracing::warn!(%error, "training has no threads of its own"))
            .ok()
    };
    POOL.get_or_init(make).as_ref()
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Lowers the priority of this thread, where threads have one of their own.
fn lower_priority(nice: u8) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, i32::from(nice)) {
        tracing::warn!(%error, "training competes with serving on equal terms");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Hardly ever computes while there are requests.
    fn behind(load: &Arc<Load>) -> Background {
        Background {
            load: Arc::clone(load),
            nice: 15,
            share: 1e-9,
            hurry: Arc::default(),
        }
    }

    /// Uses some processor time.
    fn compute() {
        let begun = processor_time();
        while processor_time() == begun {
            std::hint::spin_loop();
        }
    }

    fn until_it_waits(load: &Load) {
        while load.waiting() == 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn work_waits_between_layers_until_requests_have_ended_or_it_must_hurry() {
        for ends in [true, false] {
            let load = Arc::new(Load::default());
            load.set(true);
            let background = behind(&load);
            let (done, ended) = mpsc::channel();
            let worker = {
                let background = background.clone();
                std::thread::spawn(move || {
                    background.run(|| {
                        yield_to_requests();
                        compute();
                        yield_to_requests();
                        done.send(()).unwrap();
                    });
                })
            };
            until_it_waits(&load);
            assert!(ended.try_recv().is_err());
            if ends {
                load.set(false);
            } else {
                background.hurry();
            }
            ended.recv().unwrap();
            worker.join().unwrap();
            assert_eq!(load.waiting(), 0);
        }
    }

    #[test]
    fn work_waits_for_nobody_while_there_is_no_request_or_elsewhere() {
        let load = Arc::new(Load::default());
        let background = behind(&load);
        let _entered = enter(Some(background));
        for _ in 0..3 {
            compute();
            yield_to_requests();
        }
        load.set(true);
        // Another thread does not work behind anybody.
        std::thread::spawn(|| {
            assert!(!is_behind());
            compute();
            yield_to_requests();
        })
        .join()
        .unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_behind_serving_and_those_it_starts_have_a_low_priority() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let own = priority();
        let background = behind(&Arc::default());
        let (one, inherited) = std::thread::spawn(move || {
            background.run(|| (priority(), std::thread::spawn(priority).join().unwrap()))
        })
        .join()
        .unwrap();
        assert_eq!((one, inherited), (15.max(own), 15.max(own)));
        assert_eq!(priority(), own);
    }
}
