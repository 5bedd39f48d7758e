//! The same work on several devices at the same time.

use std::panic::resume_unwind;

use crate::background;

/// Runs `work` on each item at the same time, the first one on this thread, as the background work of this thread. Returns the
/// results in the order of the items. A panic of one is a panic of the call.
pub(super) fn run_each<I: IntoIterator, T: Send>(
    items: I,
    work: impl Fn(I::Item) -> T + Sync,
) -> Vec<T>
where
    I::Item: Send,
{
    let mut items = items.into_iter();
    let Some(first) = items.next() else {
        return Vec::new();
    };
    let (work, background) = (&work, background::current());
    std::thread::scope(|scope| {
        let others: Vec<_> = items
            .map(|item| {
                let background = background.clone();
                scope.spawn(move || {
                    let _entered = background::enter(background);
                    work(item)
                })
            })
            .collect();
        let mut results = vec![work(first)];
        results.extend(others.into_iter().map(|other| match other.join() {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }));
        results
    })
}
