//! From votes to one verdict.

/// The verdict of several votes; a missing vote is `None` and does not count.
///
/// Votes that are all −1, 0 or +1 go by majority (a tie for the first place is 0); votes that grade
/// more finely are averaged. Without any vote there is no verdict.
pub fn combine(votes: &[Option<f32>]) -> Option<f32> {
    let given: Vec<f32> = votes.iter().flatten().copied().collect();
    if given.is_empty() {
        return None;
    }
    if given.iter().all(|vote| [-1.0, 0.0, 1.0].contains(vote)) {
        return Some(majority(&given));
    }
    #[allow(clippy::cast_precision_loss, reason = "there are few votes")]
    let count = given.len() as f32;
    Some(given.iter().sum::<f32>() / count)
}

/// The most frequent of −1, 0 and +1; 0 when there is none or the first place is shared.
pub fn majority(votes: &[f32]) -> f32 {
    let count = |value: f32| votes.iter().filter(|vote| **vote == value).count();
    let counts = [(-1.0, count(-1.0)), (0.0, count(0.0)), (1.0, count(1.0))];
    let most = counts.iter().map(|(_, n)| *n).max().unwrap_or(0);
    let mut first = counts.iter().filter(|(_, n)| *n == most);
    match (first.next(), first.next()) {
        (Some((value, _)), None) => *value,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn votes_agree_with_the_reference() {
        let page: serde_json::Value =
            serde_json::from_str(include_str!("../tests/goldens/15_votes_hints.json")).unwrap();
        let mut seen = 0;
        for case in page["cases"].as_array().unwrap() {
            if case["id"] != "vote" {
                continue;
            }
            seen += 1;
            let votes: Vec<Option<f32>> = case["inputs"]["votes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|vote| vote.as_f64().map(|vote| vote as f32))
                .collect();
            let expected = case["expected"]["score"].as_f64().unwrap() as f32;
            // Where every vote is missing, the reference's peer says 0; here that is no verdict.
            let expected = votes.iter().any(Option::is_some).then_some(expected);
            assert_eq!(combine(&votes), expected, "{votes:?}");
        }
        assert_eq!(seen, 8);
    }

    #[test]
    fn finer_grades_are_averaged() {
        assert_eq!(combine(&[Some(0.5), None, Some(1.0)]), Some(0.75));
    }

    proptest! {
        #[test]
        fn the_order_of_votes_does_not_matter(votes in prop::collection::vec(prop::sample::select(vec![-1.0f32, 0.0, 1.0]), 0..9), turn in 0usize..9) {
            let mut other = votes.clone();
            if !other.is_empty() {
                let by = turn % other.len();
                other.rotate_left(by);
            }
            prop_assert_eq!(majority(&votes), majority(&other));
        }
    }
}
