//! Labels, and strict parsing of a ranking.

/// The letter at a position: A, B, …
pub(crate) fn label(place: usize) -> char {
    u8::try_from(place)
        .ok()
        .and_then(|place| b'A'.checked_add(place))
        .map_or('?', char::from)
}

/// The rank of each response, from 0, according to the last line of the form `ranking: B > A > C`. `order[position]` is the
/// response with the letter of that position.
///
/// None when there is no such line, when it does not contain each letter exactly once, and when such lines contradict each
/// other.
pub(crate) fn read_ranking(answer: &str, order: &[usize]) -> Option<Vec<usize>> {
    let lines = asking::labelled_lines(asking::without_thinking(answer), "ranking");
    let line = lines.last()?;
    let ranks = ranks(line, order)?;
    lines
        .iter()
        .all(|other| self::ranks(other, order).as_ref() == Some(&ranks))
        .then_some(ranks)
}

fn ranks(line: &str, order: &[usize]) -> Option<Vec<usize>> {
    let letters: Vec<&str> = line.split('>').map(str::trim).collect();
    if letters.len() != order.len() {
        return None;
    }
    let mut ranks = vec![None; order.len()];
    for (rank, letter) in letters.iter().enumerate() {
        let place = (0..order.len()).find(|place| {
            let mut chars = letter.chars();
            chars.next() == Some(label(*place)) && chars.next().is_none()
        })?;
        let slot = ranks.get_mut(*order.get(place)?)?;
        if slot.replace(rank).is_some() {
            return None;
        }
    }
    ranks.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ranking_contains_each_letter_once() {
        let order = [2, 0, 1];
        // B is reply 0, C is reply 1, A is reply 2.
        assert_eq!(
            read_ranking("Because.\nranking: B > C > A", &order),
            Some(vec![0, 1, 2])
        );
        assert_eq!(
            read_ranking("Ranking: A>B>C\n", &order),
            Some(vec![1, 2, 0])
        );
        for bad in [
            "",
            "B > C > A",
            "ranking: B > C",
            "ranking: B > C > B",
            "ranking: B > C > D",
            "ranking: B = C > A",
            "ranking: B, C, A",
            "ranking: b > c > a",
            "ranking: B > C > A because",
            "ranking: A > B > C\nranking: B > C > A",
            "<think>ranking: B > C > A",
        ] {
            assert_eq!(read_ranking(bad, &order), None, "{bad:?}");
        }
    }
}
