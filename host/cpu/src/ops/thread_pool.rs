//! A thread pool for tasks of microseconds, such as the matrix products of one decoding step.
//!
//! Waking a thread costs more than most of these products take. Workers therefore spin for a moment after a job before
//! they sleep, and a caller never waits for a sleeping worker: the parts of a job are claimed one by one by whoever is
//! available, including the caller. Jobs are not queued: while one caller uses the pool, other callers run their parts
//! themselves. Callers that work side by side for longer have a pool each, see [`with_own_pool`].

#![allow(
    unsafe_code,
    reason = "workers borrow the caller's closure; the caller does not return before all of them have left the job"
)]

use std::cell::{RefCell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use clawhost_engine::background;

/// Minimum work of a job, in multiply-adds, for which an awake second thread helps.
const MIN_PARALLEL_WORK: usize = 48 << 10;

/// Minimum work for which waking a worker pays off.
const MIN_WAKE_WORK: usize = 1 << 20;

/// How long a worker spins before it sleeps. Longer than the gap between two steps of a busy engine.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// Blocks of rows per thread, so that a late thread still finds work.
const BLOCKS_PER_THREAD: usize = 2;

/// Spins between two readings of the clock.
const SPINS_PER_CHECK: usize = 64;

/// The number of threads that one job may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Threads(pub(crate) usize);

type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// Calls `work` once with each index below `parts`, in any order and on up to `threads` threads. `cost` is the total
/// work in multiply-adds.
///
/// # Panics
/// When `work` panics.
pub(crate) fn parallel_for(threads: Threads, parts: usize, cost: usize, work: Task<'_>) {
    let is_parallel = threads.0 > 1 && parts > 1 && cost >= MIN_PARALLEL_WORK;
    let pool = is_parallel.then(current_pool).flatten();
    match &pool {
        Some(pool) if cost >= MIN_WAKE_WORK || pool.is_awake() => {
            pool.run_shared(threads, parts, work)
        }
        _ => (0..parts).for_each(work),
    }
}

/// [`parallel_for`] over the items of a slice; each item is passed to exactly one call.
pub(crate) fn parallel_for_each<T: Send>(
    threads: Threads,
    items: &mut [T],
    cost: usize,
    work: impl Fn(&mut T) + Sync,
) {
    let (items, count) = (SlicePtr(items.as_mut_ptr()), items.len());
    parallel_for(threads, count, cost, &|part| {
        // SAFETY: `parallel_for` calls this once for every index below `count` and returns after the last call, so
        // every item is borrowed once, within the borrow of the slice.
        work(unsafe { items.at(part) });
    });
}

/// Calls `work` with all rows of `y`, whose rows have `width` values, or on several threads with blocks of them; it also gets
/// their indices. `cost` is the work of one value, in multiply-adds.
pub(crate) fn parallel_rows(
    threads: Threads,
    y: &mut [f32],
    width: usize,
    cost: usize,
    work: impl Fn(&mut [f32], Range<usize>) + Sync,
) {
    let rows = y.len() / width;
    let cost = y.len() * cost;
    if threads.0 <= 1 || cost < MIN_PARALLEL_WORK {
        work(y, 0..rows);
        return;
    }
    let block = rows.div_ceil(threads.0 * BLOCKS_PER_THREAD);
    let blocks = y.chunks_mut(block * width).enumerate();
    let mut blocks: Vec<_> = blocks.map(|(at, y)| (at * block, y)).collect();
    parallel_for_each(threads, &mut blocks, cost, |(from, y)| {
        let rows = *from..*from + y.len() / width;
        work(y, rows);
    });
}

struct SlicePtr<T>(*mut T);

// SAFETY: it hands out items that are `Send`, each to one thread; see `parallel_for_each`.
unsafe impl<T: Send> Sync for SlicePtr<T> {}

impl<T> SlicePtr<T> {
    /// # Safety
    /// The index is inside the slice, and no other reference to the item exists.
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller guarantees that each item is borrowed once"
    )]
    unsafe fn at<'a>(&self, index: usize) -> &'a mut T {
        // SAFETY: as the caller promises.
        unsafe { &mut *self.0.add(index) }
    }
}

/// Wakes workers ahead of `cost` multiply-adds that follow in small jobs.
pub(crate) fn wake_workers(threads: Threads, cost: usize) {
    if threads.0 > 1
        && cost >= MIN_WAKE_WORK
        && let Some(pool) = current_pool()
    {
        pool.wake(threads.0 - 1);
    }
}

thread_local! {
    /// The pool that only this thread uses.
    static OWN: RefCell<Option<Arc<ThreadPool>>> = const { RefCell::new(None) };
}

/// Runs `work`, whose jobs on this thread use a pool of `threads` threads, this one included, that no other caller uses.
/// Its threads start here and end with `work`, so it is for work much longer than that; they inherit the priority of this one.
pub(crate) fn with_own_pool<T>(threads: Threads, work: impl FnOnce() -> T) -> T {
    let pool = (threads.0 > 1)
        .then(|| OwnedPool::start("clawhost-own", threads.0 - 1))
        .flatten();
    let _guard = pool.map(OwnPoolGuard::enter);
    work()
}

/// Restores the thread's previous pool and ends its own on drop.
struct OwnPoolGuard {
    previous: Option<Arc<ThreadPool>>,
    _pool: OwnedPool,
}

impl OwnPoolGuard {
    fn enter(pool: OwnedPool) -> Self {
        Self {
            previous: OWN.replace(Some(Arc::clone(&pool.pool))),
            _pool: pool,
        }
    }
}

impl Drop for OwnPoolGuard {
    fn drop(&mut self) {
        OWN.set(self.previous.take());
    }
}

/// The pool of this thread; else the pool for serving, or the one for background work, whose threads inherit the low
/// priority of the thread that starts them. `None` on a single processor or when no thread can be started.
fn current_pool() -> Option<Arc<ThreadPool>> {
    static SERVING: OnceLock<Option<OwnedPool>> = OnceLock::new();
    static BACKGROUND: OnceLock<Option<OwnedPool>> = OnceLock::new();
    if let Some(own) = OWN.with_borrow(Clone::clone) {
        return Some(own);
    }
    let (pool, name) = if background::is_background() {
        (&BACKGROUND, "clawhost-bg")
    } else {
        (&SERVING, "clawhost-pool")
    };
    let pool = pool.get_or_init(|| {
        let workers = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        (workers > 0).then(|| OwnedPool::start(name, workers))?
    });
    Some(Arc::clone(&pool.as_ref()?.pool))
}

/// Maximum number of workers that [`State`] can count.
const MAX_WORKERS: usize = 255;

/// The pool's state in one word: the number of workers in the job, their limit, whether more may join, and the job's
/// number.
#[derive(Clone, Copy)]
struct State(u64);

impl State {
    const OPEN: u64 = 1 << 16;

    fn job(number: u64, limit: usize) -> Self {
        Self(number << 17 | Self::OPEN | (limit as u64) << 8)
    }

    fn members(self) -> usize {
        (self.0 & 0xff) as usize
    }

    fn limit(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn number(self) -> u64 {
        self.0 >> 17
    }
}

struct ThreadPool {
    /// Held by the caller that uses the pool; the number of its last job.
    turn: Mutex<u64>,
    state: AtomicU64,
    /// Written by the caller before it opens the job; read by workers that have joined it.
    job: UnsafeCell<Option<Job>>,
    /// Index of the next part.
    next: AtomicUsize,
    panicked: AtomicBool,
    /// No job follows.
    stopped: AtomicBool,
    workers: OnceLock<Vec<Worker>>,
}

/// A pool and its threads, which end when it is dropped.
struct OwnedPool {
    pool: Arc<ThreadPool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    parts: usize,
}

struct Worker {
    thread: Thread,
    asleep: AtomicBool,
}

// SAFETY: `job` is the only field that is not `Sync` by itself. It is written by the holder of `turn` while the state
// is closed and has no members, and read only by members of an open job.
unsafe impl Sync for ThreadPool {}

// SAFETY: `Job` points to a `Sync` closure, so any thread may call it.
unsafe impl Send for ThreadPool {}

impl OwnedPool {
    /// `None` when no thread can be started.
    fn start(name: &str, workers: usize) -> Option<Self> {
        let pool = Arc::new(ThreadPool {
            turn: Mutex::new(0),
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            workers: OnceLock::new(),
        });
        let started = (0..workers.min(MAX_WORKERS)).map_while(|index| {
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            let pool = Arc::clone(&pool);
            thread.spawn(move || pool.worker_loop(index)).ok()
        });
        let threads: Vec<JoinHandle<()>> = started.collect();
        let workers = threads.iter().map(|handle| Worker {
            thread: handle.thread().clone(),
            asleep: AtomicBool::new(false),
        });
        // Only this function sets it.
        let _first = pool.workers.set(workers.collect());
        (!threads.is_empty()).then_some(Self { pool, threads })
    }
}

impl Drop for OwnedPool {
    fn drop(&mut self) {
        self.pool.stopped.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "a worker catches the panics of its parts");
        }
    }
}

impl ThreadPool {
    fn workers(&self) -> &[Worker] {
        self.workers.get().map_or(&[], Vec::as_slice)
    }

    /// Whether at least one worker is spinning.
    fn is_awake(&self) -> bool {
        let mut workers = self.workers().iter();
        workers.any(|worker| !worker.asleep.load(Ordering::Relaxed))
    }

    fn wake(&self, count: usize) {
        for worker in self.workers().iter().take(count) {
            if worker.asleep.swap(false, Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
    }

    /// Runs the job on the caller and on the workers that join.
    fn run_shared(&self, threads: Threads, parts: usize, work: Task<'_>) {
        let Ok(mut number) = self.turn.try_lock() else {
            (0..parts).for_each(work);
            return;
        };
        let limit = (threads.0 - 1).min(parts - 1).min(MAX_WORKERS);
        *number += 1;
        let work = std::ptr::from_ref(work);
        // SAFETY: only the lifetime is erased. `JobGuard` below closes the job and waits for its members before this
        // function returns or unwinds, and no worker can join a closed job, so the closure is not called later.
        let work = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(
                work,
            )
        };
        // SAFETY: we hold `turn`, and the previous job was closed and left by all its members before `turn` was
        // released, so no worker reads.
        unsafe { *self.job.get() = Some(Job { work, parts }) };
        self.next.store(0, Ordering::Relaxed);
        self.panicked.store(false, Ordering::Relaxed);
        self.state
            .store(State::job(*number, limit).0, Ordering::SeqCst);
        let guard = JobGuard(self);
        self.wake(limit);
        self.run_parts(Job { work, parts });
        drop(guard);
        let panicked = self.panicked.load(Ordering::Relaxed);
        drop(number);
        assert!(
            !panicked,
            "a part of a parallel job panicked on another thread"
        );
    }

    fn run_parts(&self, job: Job) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= job.parts {
                return;
            }
            // SAFETY: the caller of `run_shared` or a member of its open job calls this; either way the closure
            // outlives the call, because `run_shared` waits for the members.
            let work = unsafe { &*job.work };
            work(part);
        }
    }

    /// The loop of a worker thread.
    fn worker_loop(&self, index: usize) {
        let mut last = 0;
        loop {
            self.wait_for_job(index, last);
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let state = State(self.state.load(Ordering::Acquire));
            if !state.is_open() || state.number() == last {
                continue;
            }
            if state.members() >= state.limit() {
                last = state.number();
                continue;
            }
            let joined = self.state.compare_exchange(
                state.0,
                state.0 + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if joined.is_err() {
                continue;
            }
            last = state.number();
            // SAFETY: this thread is a member of an open job: `job` was written before the job was opened, and is not
            // written again before this thread leaves.
            let job = unsafe { *self.job.get() };
            let worked = catch_unwind(AssertUnwindSafe(|| {
                if let Some(job) = job {
                    self.run_parts(job);
                }
            }));
            if worked.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Blocks until there may be a job other than `last`, or until the pool is stopped.
    fn wait_for_job(&self, index: usize, last: u64) {
        let has_job = || {
            let state = State(self.state.load(Ordering::SeqCst));
            state.is_open() && state.number() != last || self.stopped.load(Ordering::SeqCst)
        };
        let start = Instant::now();
        loop {
            for _ in 0..SPINS_PER_CHECK {
                if has_job() {
                    return;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= SPIN_TIME {
                break;
            }
            // On a busy machine, other threads run first.
            std::thread::yield_now();
        }
        let Some(worker) = self.workers().get(index) else {
            // Right after the start, the workers may not be known yet.
            std::thread::yield_now();
            return;
        };
        worker.asleep.store(true, Ordering::SeqCst);
        // A caller reads `asleep` after it opens a job: either it sees the flag, or this thread sees the job. Who stops the
        // pool unparks in any case.
        while worker.asleep.load(Ordering::SeqCst) && !has_job() {
            std::thread::park();
        }
        worker.asleep.store(false, Ordering::SeqCst);
    }
}

/// Closes the job and waits for its members, also when the caller's own part panics.
struct JobGuard<'a>(&'a ThreadPool);

impl Drop for JobGuard<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        state.fetch_and(!State::OPEN, Ordering::AcqRel);
        let mut spins = 0usize;
        while State(state.load(Ordering::Acquire)).members() > 0 {
            spins += 1;
            if spins.is_multiple_of(SPINS_PER_CHECK * 16) {
                // The member may have been descheduled.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAVY: usize = MIN_WAKE_WORK;

    #[test]
    fn every_part_runs_once_with_concurrent_callers() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for parts in (0..400).map(|n| n % 40) {
                        let done: Vec<AtomicUsize> =
                            (0..parts).map(|_| AtomicUsize::new(0)).collect();
                        parallel_for(Threads(3), parts, HEAVY, &|part| {
                            done[part].fetch_add(1, Ordering::Relaxed);
                        });
                        assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 1));
                    }
                });
            }
        });
    }

    #[test]
    fn a_panicking_part_ends_the_call_but_not_the_pool() {
        for bad in 0..8 {
            let call = || {
                parallel_for(Threads(2), 8, HEAVY, &|part| {
                    std::thread::yield_now();
                    assert!(part != bad, "a panicking part");
                });
            };
            assert!(catch_unwind(call).is_err());
            let sum = AtomicUsize::new(0);
            parallel_for(Threads(2), 8, HEAVY, &|part| {
                sum.fetch_add(part, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 28);
        }
    }

    #[test]
    fn every_item_is_processed_once() {
        for count in [0, 1, 7, 300] {
            let mut items: Vec<usize> = (0..count).collect();
            parallel_for_each(Threads(4), &mut items, HEAVY, |item| *item += 1);
            assert!(items.iter().enumerate().all(|(i, item)| *item == i + 1));
        }
    }

    #[test]
    fn callers_with_their_own_pools_are_parallel_at_once() {
        let together = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    with_own_pool(Threads(2), || {
                        // Ends only if both parts of both callers run at once.
                        parallel_for(Threads(2), 2, HEAVY, &|_| {
                            together.wait();
                        });
                    });
                });
            }
        });
        assert!(OWN.with_borrow(Option::is_none));
    }

    #[test]
    fn rows_are_given_to_one_block_each() {
        for (rows, threads) in [(1, 4), (7, 1), (1000, 4), (4097, 3)] {
            let x: Vec<f32> = (0..rows * 2).map(|n| n as f32).collect();
            let mut y = vec![0f32; rows * 3];
            parallel_rows(Threads(threads), &mut y, 3, 64, |y, rows| {
                let x = &x[rows.start * 2..rows.end * 2];
                for (y, x) in y.chunks_exact_mut(3).zip(x.chunks_exact(2)) {
                    y[0] += x[0];
                    y[2] += x[1];
                }
            });
            let expected = (0..rows).flat_map(|n| [(2 * n) as f32, 0.0, (2 * n + 1) as f32]);
            assert!(y.into_iter().eq(expected));
        }
    }

    #[test]
    fn the_thread_limit_is_respected() {
        for allowed in [1, 2] {
            let seen = Mutex::new(std::collections::HashSet::new());
            for _ in 0..50 {
                parallel_for(Threads(allowed), 16, HEAVY, &|_| {
                    seen.lock().unwrap().insert(std::thread::current().id());
                    std::thread::yield_now();
                });
            }
            if allowed == 1 {
                assert_eq!(seen.into_inner().unwrap().len(), 1);
            }
        }
    }
}
