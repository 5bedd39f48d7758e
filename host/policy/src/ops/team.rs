//! Threads for work of microseconds, such as the products of one decoding step.
//!
//! Waking a thread costs more than most of those products take. So helpers that have just worked look out for
//! more for a moment before they sleep, and whoever has work never waits for one that sleeps: parts of it
//! are taken one by one by whoever is there, the caller among them. It refuses to queue: while one caller has
//! the team, others do their work by themselves.

#![allow(
    unsafe_code,
    reason = "helpers borrow the caller's closure; the caller stays until none of them can touch it"
)]

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::linear::Threads;
use crate::background;

/// Multiply-adds, or what takes as long, from which on a second thread is of use if it is awake.
const SHARE_FROM: usize = 48 << 10;

/// The same, from which on it is worth waking.
const WAKE_FROM: usize = 1 << 20;

/// How long a helper looks out for more work. Longer than what lies between two steps of a busy engine.
const LOOKOUT: Duration = Duration::from_micros(200);

/// Looks between two glances at the clock.
const LOOKS: usize = 64;

type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// Calls `work` with each number below `parts`, in any order and on up to `threads` threads. `weight` says how
/// much that is in all, in multiply-adds.
///
/// # Panics
/// When `work` does.
pub(crate) fn each(threads: Threads, parts: usize, weight: usize, work: Work<'_>) {
    let team = if threads.0 > 1 && parts > 1 && weight >= SHARE_FROM {
        team()
    } else {
        None
    };
    match team {
        Some(team) if weight >= WAKE_FROM || team.is_awake() => team.share(threads, parts, work),
        _ => (0..parts).for_each(work),
    }
}

/// [`each`] for the items of a slice, each of which one thread has to itself.
pub(crate) fn each_of<T: Send>(
    threads: Threads,
    items: &mut [T],
    weight: usize,
    work: impl Fn(&mut T) + Sync,
) {
    let (items, count) = (Items(items.as_mut_ptr()), items.len());
    each(threads, count, weight, &|part| {
        // SAFETY: `each` calls this once for every number below `count` and returns after the last call, so every
        // item is borrowed once, inside the borrow of the slice.
        work(unsafe { items.at(part) });
    });
}

struct Items<T>(*mut T);

// SAFETY: it hands out items that may be sent, each to one thread; see `each_of`.
unsafe impl<T: Send> Sync for Items<T> {}

impl<T> Items<T> {
    /// # Safety
    /// The item is inside the slice, and nobody else has it.
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller answers for there being one borrow of each item"
    )]
    unsafe fn at<'a>(&self, index: usize) -> &'a mut T {
        // SAFETY: as the caller promises.
        unsafe { &mut *self.0.add(index) }
    }
}

/// Wakes helpers for work of `weight` multiply-adds that is about to come in small portions.
pub(crate) fn rouse(threads: Threads, weight: usize) {
    if threads.0 > 1
        && weight >= WAKE_FROM
        && let Some(team) = team()
    {
        team.wake(threads.0 - 1);
    }
}

/// The team of serving, or that of work behind it, whose threads inherit the low priority of the thread that starts
/// them; none where there is one processor or a thread cannot be had.
fn team() -> Option<&'static Team> {
    static SERVING: OnceLock<Option<&'static Team>> = OnceLock::new();
    static BEHIND: OnceLock<Option<&'static Team>> = OnceLock::new();
    let (team, name) = if background::is_behind() {
        (&BEHIND, "clawhost-behind-team")
    } else {
        (&SERVING, "clawhost-team")
    };
    *team.get_or_init(|| {
        let helpers = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        (helpers > 0).then(|| Team::start(name, helpers.min(MOST)))?
    })
}

/// Helpers that can be counted in [`State`].
const MOST: usize = 255;

/// One word that says all: how many helpers are at work, how many may be, whether more may join, and
/// the number of the job.
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

struct Team {
    /// Held by the caller who has the team; the number of its last job.
    turn: Mutex<u64>,
    state: AtomicU64,
    /// Written by the caller before it opens the job, read by helpers that have joined it.
    job: UnsafeCell<Option<Job>>,
    /// Number of the next part.
    next: AtomicUsize,
    panicked: AtomicBool,
    helpers: OnceLock<Vec<Helper>>,
}

#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    parts: usize,
}

struct Helper {
    thread: Thread,
    asleep: AtomicBool,
}

// SAFETY: `job` is the only field that is not `Sync` by itself. It is written by the holder of `turn` while
// the state is closed and has no members, and read by members of an open job only.
unsafe impl Sync for Team {}

// SAFETY: what `Job` points to is `Sync`, so it may be called from any thread.
unsafe impl Send for Team {}

impl Team {
    fn start(name: &str, helpers: usize) -> Option<&'static Self> {
        let team: &'static Self = Box::leak(Box::new(Self {
            turn: Mutex::new(0),
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            helpers: OnceLock::new(),
        }));
        let started = (0..helpers).map_while(|index| {
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            let handle = thread.spawn(move || team.help(index)).ok()?;
            Some(Helper {
                thread: handle.thread().clone(),
                asleep: AtomicBool::new(false),
            })
        });
        let started: Vec<Helper> = started.collect();
        (!started.is_empty()).then(|| {
            // Nobody else knows the team yet, so this is the first value.
            let _first = team.helpers.set(started);
            team
        })
    }

    fn helpers(&self) -> &[Helper] {
        self.helpers.get().map_or(&[], Vec::as_slice)
    }

    /// Whether some helper looks out for work.
    fn is_awake(&self) -> bool {
        let mut helpers = self.helpers().iter();
        helpers.any(|helper| !helper.asleep.load(Ordering::Relaxed))
    }

    fn wake(&self, count: usize) {
        for helper in self.helpers().iter().take(count) {
            if helper.asleep.swap(false, Ordering::SeqCst) {
                helper.thread.unpark();
            }
        }
    }

    /// Does the work with whoever joins.
    fn share(&self, threads: Threads, parts: usize, work: Work<'_>) {
        let Ok(mut number) = self.turn.try_lock() else {
            (0..parts).for_each(work);
            return;
        };
        let limit = (threads.0 - 1).min(parts - 1).min(MOST);
        *number += 1;
        let work = std::ptr::from_ref(work);
        // SAFETY: only the lifetime is erased. `Closing` below closes the job and waits for its members before
        // this function returns or unwinds, and none can join a closed job, so nobody calls it later.
        let work = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(
                work,
            )
        };
        // SAFETY: we hold `turn`, the job before was closed and left by all its members before it was given
        // back, so nobody reads.
        unsafe { *self.job.get() = Some(Job { work, parts }) };
        self.next.store(0, Ordering::Relaxed);
        self.panicked.store(false, Ordering::Relaxed);
        self.state
            .store(State::job(*number, limit).0, Ordering::SeqCst);
        let closing = Closing(self);
        self.wake(limit);
        self.take_parts(Job { work, parts });
        drop(closing);
        let panicked = self.panicked.load(Ordering::Relaxed);
        drop(number);
        assert!(!panicked, "a part of the work panicked on another thread");
    }

    fn take_parts(&self, job: Job) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= job.parts {
                return;
            }
            // SAFETY: the caller of `share` or a member of its open job calls this; either way the closure
            // outlives the call, as `share` waits for the members.
            let work = unsafe { &*job.work };
            work(part);
        }
    }

    /// What a helper does all its life.
    fn help(&self, index: usize) {
        let mut last = 0;
        loop {
            self.look_out(index, last);
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
            // SAFETY: this thread is a member of an open job: it was written before the job was opened, and is
            // not written again before this thread has left.
            let job = unsafe { *self.job.get() };
            let worked = catch_unwind(AssertUnwindSafe(|| {
                if let Some(job) = job {
                    self.take_parts(job);
                }
            }));
            if worked.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns when there is a job that this helper does not know, at some time at least.
    fn look_out(&self, index: usize, last: u64) {
        let news = || {
            let state = State(self.state.load(Ordering::SeqCst));
            state.is_open() && state.number() != last
        };
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if news() {
                    return;
                }
                std::hint::spin_loop();
            }
            if begun.elapsed() >= LOOKOUT {
                break;
            }
            // On a machine with more to do, others come first.
            std::thread::yield_now();
        }
        let Some(helper) = self.helpers().get(index) else {
            // Its own entry is not there yet, right after the start.
            std::thread::yield_now();
            return;
        };
        helper.asleep.store(true, Ordering::SeqCst);
        // Whoever opens a job looks at `asleep` afterwards: either they see it, or this sees the job.
        while helper.asleep.load(Ordering::SeqCst) && !news() {
            std::thread::park();
        }
        helper.asleep.store(false, Ordering::SeqCst);
    }
}

/// Closes the job and waits for its members, also when the caller's own part panics.
struct Closing<'a>(&'a Team);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        state.fetch_and(!State::OPEN, Ordering::AcqRel);
        let mut looks = 0usize;
        while State(state.load(Ordering::Acquire)).members() > 0 {
            looks += 1;
            if looks.is_multiple_of(LOOKS * 16) {
                // The member may have lost its processor to somebody else.
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

    const HEAVY: usize = WAKE_FROM;

    #[test]
    fn every_part_is_done_once_by_many_callers_at_a_time() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for parts in (0..400).map(|n| n % 40) {
                        let done: Vec<AtomicUsize> =
                            (0..parts).map(|_| AtomicUsize::new(0)).collect();
                        each(Threads(3), parts, HEAVY, &|part| {
                            done[part].fetch_add(1, Ordering::Relaxed);
                        });
                        assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 1));
                    }
                });
            }
        });
    }

    #[test]
    fn a_part_that_panics_ends_the_call_and_not_the_team() {
        for bad in 0..8 {
            let call = || {
                each(Threads(2), 8, HEAVY, &|part| {
                    std::thread::yield_now();
                    assert!(part != bad, "this one");
                });
            };
            assert!(catch_unwind(call).is_err());
            let sum = AtomicUsize::new(0);
            each(Threads(2), 8, HEAVY, &|part| {
                sum.fetch_add(part, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 28);
        }
    }

    #[test]
    fn every_item_is_worked_on_once() {
        for count in [0, 1, 7, 300] {
            let mut items: Vec<usize> = (0..count).collect();
            each_of(Threads(4), &mut items, HEAVY, |item| *item += 1);
            assert!(items.iter().enumerate().all(|(i, item)| *item == i + 1));
        }
    }

    #[test]
    fn no_more_threads_work_than_are_allowed() {
        for allowed in [1, 2] {
            let seen = Mutex::new(std::collections::HashSet::new());
            for _ in 0..50 {
                each(Threads(allowed), 16, HEAVY, &|_| {
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
