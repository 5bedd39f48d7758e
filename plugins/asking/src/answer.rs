//! Strict parsing of model responses.
//!
//! When a response was steered by an attack, quotes its material or was cut off, it is safer to discard the vote than to
//! count it wrongly: a missing vote costs little, but a vote cast by an attacker trains the policy to cast it again.

/// The score on the last line of the form `score: N`, where N is -1, 0 or 1.
///
/// None when there is no such line, when the last such line has another value, and when the response contains a different
/// score anywhere, even in a quotation.
pub fn last_score(answer: &str) -> Option<i8> {
    let answer = without_thinking(answer);
    let line = labelled_lines(answer, "score").pop()?;
    let score = number(line)?;
    let agrees = |named: &str| number(named) == Some(score);
    named_scores(answer)
        .into_iter()
        .all(agrees)
        .then_some(score)
}

/// The text after `label:` on each line that begins with it, trimmed, ignoring case.
pub fn labelled_lines<'a>(answer: &'a str, label: &str) -> Vec<&'a str> {
    answer
        .lines()
        .filter_map(|line| {
            let line = line.trim();
            let name = line.get(..label.len())?;
            let rest = line.get(label.len()..)?.trim_start();
            let value = rest.strip_prefix(':')?;
            name.eq_ignore_ascii_case(label).then(|| value.trim())
        })
        .collect()
}

/// The response without the thinking section at its very start. Only the first such section is removed: a section quoted
/// later stays visible.
pub fn without_thinking(answer: &str) -> &str {
    let answer = answer.trim();
    let Some(thoughts) = answer.strip_prefix("<think>") else {
        return answer;
    };
    // An unterminated thinking section has no answer.
    thoughts.split_once("</think>").map_or("", |(_, rest)| rest)
}

fn number(text: &str) -> Option<i8> {
    match text {
        "1" | "+1" => Some(1),
        "0" => Some(0),
        "-1" | "\u{2212}1" => Some(-1),
        _ => None,
    }
}

/// Every number after `score`, also in the middle of a line and out of range.
fn named_scores(answer: &str) -> Vec<&str> {
    const WORD: &str = "score";
    let lower = answer.to_ascii_lowercase();
    let mut named = Vec::new();
    let mut from = 0;
    while let Some(at) = lower[from..].find(WORD) {
        from += at + WORD.len();
        let rest = &answer[from..];
        let value = rest.trim_start_matches(|c: char| {
            c.is_whitespace() || matches!(c, ':' | '=' | '"' | '\'' | '*' | '`')
        });
        let separated = value.len() < rest.len();
        let end = value
            .char_indices()
            .find(|(at, c)| !(c.is_ascii_digit() || *at == 0 && is_sign(*c)))
            .map_or(value.len(), |(at, _)| at);
        let digits = &value[..end];
        if separated && digits.ends_with(|c: char| c.is_ascii_digit()) {
            named.push(digits);
        }
    }
    named
}

fn is_sign(c: char) -> bool {
    matches!(c, '-' | '+' | '\u{2212}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_strict_score_form_is_parsed() {
        for (answer, score) in [
            ("score: 1", Some(1)),
            ("The user is served.\nScore: +1\n", Some(1)),
            ("Nothing can be told.\n  SCORE : 0  ", Some(0)),
            ("score: -1\nThat is all.", Some(-1)),
            ("score:\u{2212}1", Some(-1)),
            ("score: 1\nscore: 1", Some(1)),
            ("", None),
            ("1", None),
            ("good", None),
            ("score: 7", None),
            ("score: 1.0", None),
            ("score: 1/1", None),
            ("score: 1 because it is good", None),
            ("score: one", None),
            ("score: 10", None),
            ("the score: 1", None),
            ("> score: 1", None),
            ("score = 1", None),
        ] {
            assert_eq!(last_score(answer), score, "{answer:?}");
        }
    }

    #[test]
    fn a_response_with_different_scores_is_no_vote() {
        for answer in [
            "score: 1\nscore: -1",
            "The text says \"score: 1\", which I ignore.\nscore: -1",
            "The text wants score=1.\nscore: -1",
            "They ask for a score 5\nscore: 1",
            "score: -1\nscore: 1.0",
            "**Score:** 1\nscore: 0",
        ] {
            assert_eq!(last_score(answer), None, "{answer:?}");
        }
        // Text about a score without a number is not a score.
        let talk =
            "It tries to set the score; the scores 2 and 3 are not mine. Scoreboard 4.\nscore: -1";
        assert_eq!(last_score(talk), Some(-1));
    }

    #[test]
    fn leading_thinking_section_is_removed() {
        let thought = "<think>score: 1? or score: 0?</think>\nscore: -1";
        assert_eq!(last_score(thought), Some(-1));
        let quoted = "score: 1 <think></think>\n</think>\nscore: -1";
        assert_eq!(last_score(quoted), None);
        assert_eq!(last_score("<think>score: 1"), None);
        let twice = "<think>a</think>score: 1\n<think>b</think>\nscore: -1";
        assert_eq!(last_score(twice), None);
    }

    #[test]
    fn labelled_lines_are_found_by_label() {
        let answer = "ranking: A\n Ranking : B > A\nmy ranking: C\nrankings: D\nränking: E";
        assert_eq!(labelled_lines(answer, "ranking"), ["A", "B > A"]);
    }
}
