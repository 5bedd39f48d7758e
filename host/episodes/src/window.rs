//! Windows of a context: a long conversation without its middle.
//!
//! The beginning has the task and the tools, the end what happened last. What is kept of a window does not depend on what an
//! earlier window left out of the middle, so the beginning stays cached.

/// Share of a window that is its beginning: 3 tenths. The rest is its end.
const HEAD: (usize, usize) = (3, 10);
/// Share of the limit that a window fills, so that the conversation can go on before the next one: 3 quarters.
const FILLED: (usize, usize) = (3, 4);

/// The smallest limit of a window, in tokens.
pub(crate) const MIN_LIMIT: usize = 64;

/// The beginning and the end of a context of more than `limit` tokens, with a marker between them. `marker` gives its tokens for
/// the number of tokens that are left out.
pub(crate) fn window(
    context: &[u32],
    limit: usize,
    marker: impl FnOnce(usize) -> Result<Vec<u32>, String>,
) -> Result<Vec<u32>, String> {
    let limit = limit.max(MIN_LIMIT);
    let kept = limit * FILLED.0 / FILLED.1;
    assert!(context.len() > kept, "a window is smaller than its context");
    let head = kept * HEAD.0 / HEAD.1;
    let (beginning, rest) = context.split_at(head);
    let (_, end) = rest.split_at(rest.len() - (kept - head));
    Ok([beginning, &marker(context.len() - kept)?, end].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: u32 = u32::MAX;

    #[test]
    fn the_middle_is_left_out() {
        let context: Vec<u32> = (0..150).collect();
        let seen = window(&context, 100, |left_out| {
            assert_eq!(left_out, 75);
            Ok(vec![MARKER])
        });
        let seen = seen.unwrap();
        let expected: Vec<u32> = (0..22).chain([MARKER]).chain(97..150).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_window_of_a_window_has_one_marker_and_the_same_beginning() {
        let marker = |_| Ok(vec![MARKER; 8]);
        let context: Vec<u32> = (0..65).collect();
        let mut seen = window(&context, 64, marker).unwrap();
        for next in 1000..1100 {
            seen.push(next);
            if seen.len() > 64 {
                seen = window(&seen, 64, marker).unwrap();
            }
            let markers = seen.iter().filter(|id| **id == MARKER).count();
            assert!(markers == 8 && seen[..14] == context[..14], "{seen:?}");
            assert_eq!(seen.last(), Some(&next));
        }
    }
}
