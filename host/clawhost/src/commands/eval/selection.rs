//! Values of a flag that can be given several times.

/// The values, sorted and without duplicates, or the default.
pub(super) fn selected_or<T: Copy + Ord>(values: &[T], default: Vec<T>) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    if values.is_empty() { default } else { values }
}
