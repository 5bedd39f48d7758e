//! Background work: training on a machine that serves requests at the same time.
//!
//! Background threads run at a low OS priority (nice). While the engine has requests, they also yield the CPU: a backend
//! calls [`yield_to_requests`] between layers. This is the only place that changes a thread's priority.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::engine_load::EngineLoad;
use crate::handle::Engine;

thread_local! {
    /// The background work this thread runs.
    static CURRENT: RefCell<Option<BackgroundWork>> = const { RefCell::new(None) };
    /// The last yield: wall time, and the CPU time of this thread.
    static LAST_YIELD: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Background work that shares the machine with an engine. Clones refer to the same work.
#[derive(Debug, Clone)]
pub struct BackgroundWork {
    load: Arc<EngineLoad>,
    nice: u8,
    share: f64,
    unthrottled: Arc<AtomicBool>,
}

impl BackgroundWork {
    /// Background work of this engine. `nice` is the OS priority of its threads, 0 (as serving) to 19 (lowest). While
    /// the engine has requests, each thread uses the CPU for `share` of the time: more than 0, at most 1 (never waits).
    pub fn new(engine: &Engine, nice: u8, share: f64) -> Self {
        Self {
            load: engine.engine_load(),
            nice,
            share,
            unthrottled: Arc::default(),
        }
    }

    /// Runs `work` on this thread at low priority. The thread keeps the low priority afterwards, because an
    /// unprivileged process cannot raise it again, and threads it starts inherit it: call this on a dedicated thread.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        lower_priority(self.nice);
        let _guard = enter(Some(self.clone()));
        work()
    }

    /// Stops throttling the work, so that a server that shuts down does not wait for it.
    pub fn stop_yielding(&self) {
        self.load.stop_waiting(&self.unthrottled);
    }

    /// Whether the work waits at its next yield.
    fn is_throttled(&self) -> bool {
        self.share < 1.0 && self.load.lock().is_busy()
    }

    /// Sleeps so that the time used since the last call stays within the share: CPU time, because time in which the OS ran
    /// other threads counts as yielded; on another device all of the time.
    fn throttle(&self, on_device: bool) {
        let now = (Instant::now(), thread_cpu_time());
        let Some((wall, cpu)) = LAST_YIELD.replace(Some(now)) else {
            return;
        };
        if !self.is_throttled() {
            return;
        }
        let used = match on_device {
            true => now.0 - wall,
            false => now.1.saturating_sub(cpu),
        };
        let due = used.as_secs_f64() / self.share;
        let due = Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX);
        let wait = due.saturating_sub(now.0 - wall);
        if !wait.is_zero() {
            self.load.wait_until_idle(wait, &self.unthrottled);
            LAST_YIELD.set(Some((Instant::now(), thread_cpu_time())));
        }
    }
}

/// The background work of this thread, to pass on to worker threads.
pub fn current() -> Option<BackgroundWork> {
    CURRENT.with_borrow(Clone::clone)
}

/// Whether this thread runs background work.
pub fn is_background() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// Marks this thread as running `background` until the guard is dropped.
pub fn enter(background: Option<BackgroundWork>) -> BackgroundGuard {
    LAST_YIELD.set(None);
    BackgroundGuard(CURRENT.replace(background))
}

/// Restores the thread's previous background work on drop.
pub struct BackgroundGuard(Option<BackgroundWork>);

impl Drop for BackgroundGuard {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
        LAST_YIELD.set(None);
    }
}

/// Yields the CPU to requests, if this thread runs background work and the engine has requests.
pub fn yield_to_requests() {
    if let Some(background) = current() {
        background.throttle(false);
    }
}

/// Starts the time that the next [`yield_device`] counts: what this thread did before was no work on the device.
pub fn begin_device_work() {
    if is_background() {
        LAST_YIELD.set(Some((Instant::now(), thread_cpu_time())));
    }
}

/// As [`yield_to_requests`] for work on a device, which this thread has waited for: the time since the last call counts, or
/// since [`begin_device_work`].
pub fn yield_device() {
    if let Some(background) = current() {
        background.throttle(true);
    }
}

/// Whether this thread runs background work that waits at its next yield. Work on a device is finished first.
pub fn is_throttled() -> bool {
    current().is_some_and(|background| background.is_throttled())
}

/// CPU time of this thread.
fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("the CPU time of a thread is positive")
}

/// Lowers the OS priority of this thread, on systems with per-thread priorities.
fn lower_priority(nice: u8) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, i32::from(nice)) {
        tracing::warn!(%error, "cannot lower the priority of the training thread; it competes with serving for the CPU");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Work that almost never runs while there are requests.
    fn throttled_work(load: &Arc<EngineLoad>) -> BackgroundWork {
        BackgroundWork {
            load: Arc::clone(load),
            nice: 15,
            share: 1e-9,
            unthrottled: Arc::default(),
        }
    }

    /// Uses some CPU time.
    fn compute() {
        let begun = thread_cpu_time();
        while thread_cpu_time() == begun {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn only_work_on_the_device_counts_as_its_time() {
        let load = Arc::new(EngineLoad::default());
        load.set_busy(0, true);
        let background = throttled_work(&load);
        let guard = enter(Some(background));
        begin_device_work();
        let before = LAST_YIELD.get();
        compute();
        begin_device_work();
        assert!(LAST_YIELD.get() > before);
        drop(guard);
        begin_device_work();
        assert_eq!(LAST_YIELD.get(), None, "it is no background work");
    }

    fn wait_for_waiting_thread(load: &EngineLoad) {
        while load.waiting() == 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn background_work_waits_until_requests_end_or_throttling_stops() {
        for ends in [true, false] {
            let load = Arc::new(EngineLoad::default());
            load.set_busy(0, true);
            let background = throttled_work(&load);
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
            wait_for_waiting_thread(&load);
            assert!(ended.try_recv().is_err());
            if ends {
                load.set_busy(0, false);
            } else {
                background.stop_yielding();
            }
            ended.recv().unwrap();
            worker.join().unwrap();
            assert_eq!(load.waiting(), 0);
        }
    }

    #[test]
    fn background_work_does_not_wait_while_idle_nor_do_other_threads() {
        let load = Arc::new(EngineLoad::default());
        let background = throttled_work(&load);
        let _guard = enter(Some(background));
        for _ in 0..3 {
            compute();
            yield_to_requests();
        }
        load.set_busy(0, true);
        // Another thread runs no background work.
        std::thread::spawn(|| {
            assert!(!is_background());
            compute();
            yield_to_requests();
        })
        .join()
        .unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn background_threads_and_threads_they_start_have_low_priority() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let own = priority();
        let background = throttled_work(&Arc::default());
        let (one, inherited) = std::thread::spawn(move || {
            background.run(|| (priority(), std::thread::spawn(priority).join().unwrap()))
        })
        .join()
        .unwrap();
        assert_eq!((one, inherited), (15.max(own), 15.max(own)));
        assert_eq!(priority(), own);
    }
}
