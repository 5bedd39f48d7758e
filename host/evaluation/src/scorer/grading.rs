//! The scorer of the teacher's preference: friendly, specific and accurate comments.

use super::numbers;
use super::score::Score;

const WARM: &str = "good great nice nicely well lovely wonderful excellent fantastic super bravo hooray proud happy glad keep \
    thank thanks almost close nearly clever effort worry like love enjoyed welcome sure";
const COLD: &str = "bad poor lazy stupid careless sloppy fail failed useless terrible awful unacceptable disappointing";
const SAYS_RIGHT: &str = "right correct correctly exactly perfect";
const SAYS_WRONG: &str = "wrong incorrect mistake error slip slipped false off";
const NEGATIONS: &str = "not isn't no never without quite almost nearly";

/// The pupil's work that a comment is about.
pub(super) struct Work<'a> {
    pub(super) pupil: &'a str,
    pub(super) right: bool,
    pub(super) written: i64,
    pub(super) answer: i64,
}

/// Scores a comment on a pupil's answer.
pub(super) fn score(reply: &str, work: &Work<'_>) -> Score {
    let words: Vec<String> = reply
        .split(|c: char| !(c.is_alphanumeric() || c == '\''))
        .filter(|w| !w.is_empty())
        .map(str::to_lowercase)
        .collect();
    let any = |list: &str| words.iter().any(|word| is_in(list, word));
    let friendly = if any(WARM) && !any(COLD) { 1.0 } else { 0.0 };
    let stated = numbers::extract_numbers(reply);
    let states = |number: i64| stated.iter().any(|n| (n - number as f64).abs() < 1e-9);
    let pupil = work.pupil.to_lowercase();
    let has_name = !pupil.is_empty() && words.contains(&pupil);
    let specific = match (
        has_name || states(work.written) || states(work.answer),
        words.len(),
    ) {
        (false, _) => 0.0,
        (true, 0..8) => 0.5,
        (true, _) => 1.0,
    };
    let (says_right, says_wrong) = verdict(&words);
    let accurate = if work.right {
        says_right || !says_wrong
    } else {
        says_wrong || states(work.answer)
    };
    Score::new(friendly * specific, if accurate { 1.0 } else { 0.0 })
}

fn is_in(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|listed| listed == word)
}

/// Whether the comment calls something right, and whether it calls something wrong.
fn verdict(words: &[String]) -> (bool, bool) {
    let (mut right, mut wrong) = (false, false);
    for (at, word) in words.iter().enumerate() {
        let before = &words[at.saturating_sub(2)..at];
        let negated = before.iter().any(|word| is_in(NEGATIONS, word));
        if is_in(SAYS_RIGHT, word) {
            right |= !negated;
            wrong |= negated;
        } else if is_in(SAYS_WRONG, word) {
            right |= negated;
            wrong |= !negated;
        }
    }
    (right, wrong)
}

#[cfg(test)]
mod tests {
    use super::{Work, score};

    #[test]
    fn scores_a_table_of_comments() {
        let right = Work {
            pupil: "Ana",
            right: true,
            written: 12,
            answer: 12,
        };
        let slip = Work {
            pupil: "Ana",
            right: false,
            written: 13,
            answer: 12,
        };
        let cases = [
            (
                &right,
                "Great work, Ana, your 12 is correct and well explained.",
                1.0,
                1.0,
            ),
            (
                &slip,
                "Good start, Ana, but 7 plus 5 is not 13 but 12.",
                1.0,
                1.0,
            ),
            (
                &slip,
                "Good start, Ana! The numbers 7 and 5 are right, only the last step slipped.",
                1.0,
                1.0,
            ),
            (
                &slip,
                "Great work, Ana, your 13 is correct and well explained.",
                1.0,
                0.0,
            ),
            (
                &right,
                "Good try, Ana, but this is wrong, look at it again.",
                1.0,
                0.0,
            ),
            (&right, "Correct.", 0.0, 1.0),
            (&right, "Wrong. It is 12.", 0.0, 0.0),
            (&right, "Nice, Ana.", 0.5, 1.0),
            (
                &right,
                "This is a great and lovely answer, keep going.",
                0.0,
                1.0,
            ),
            (
                &slip,
                "Careless and bad work on the 13, although a nice, good try.",
                0.0,
                0.0,
            ),
            (
                &slip,
                "Ana, that was a good try, the result is not right yet.",
                1.0,
                1.0,
            ),
        ];
        for (work, reply, style, correctness) in cases {
            let got = score(reply, work);
            assert_eq!(
                (got.style, got.correctness),
                (style, correctness),
                "{reply:?}"
            );
        }
    }
}
