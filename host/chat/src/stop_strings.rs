//! Stop strings across token boundaries: text that may be the start of a stop string is held back until later tokens
//! decide, so no character of a stop string is emitted unless requested.

/// Matches the stop strings of one reply.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    /// The stop string is emitted as well.
    included: bool,
    /// The stop string that ended the reply.
    matched: Option<String>,
}

/// Result of adding a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that is final.
    pub text: String,
    /// Whether a stop string matched; text after it is dropped.
    pub stopped: bool,
}

impl StopStrings {
    /// Creates a matcher of `stops`; empty strings are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops
            .iter()
            .filter(|stop| !stop.is_empty())
            .cloned()
            .collect();
        Self {
            stops,
            held: String::new(),
            included: false,
            matched: None,
        }
    }

    /// Whether the stop string itself is emitted. Default false.
    #[must_use]
    pub fn with_stop_included(mut self, included: bool) -> Self {
        self.included = included;
        self
    }

    /// Adds text and returns the text that is final: before any stop string, or including it if requested.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stops.is_empty() {
            return StopOutput {
                text: text.to_owned(),
                stopped: false,
            };
        }
        self.held.push_str(text);
        if let Some((at, stop)) = self
            .stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop)?, stop)))
            .min_by_key(|(at, _)| *at)
        {
            let included_len = if self.included { stop.len() } else { 0 };
            self.matched = Some(stop.clone());
            self.held.truncate(at + included_len);
            return StopOutput {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| partial_match_len(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        StopOutput {
            text,
            stopped: false,
        }
    }

    /// The stop string that matched, if any; of two at the same position, the first in the list.
    pub fn matched_stop(&self) -> Option<&str> {
        self.matched.as_deref()
    }

    /// Returns the held text at the end of the reply: it was not a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest proper prefix of `stop` that ends `text`.
pub(crate) fn partial_match_len(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(at, _)| at)
        .filter(|at| *at > 0)
        .filter(|at| text.ends_with(&stop[..*at]))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let owned: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut matcher = StopStrings::new(&owned);
        let mut out = Vec::new();
        for piece in pieces {
            let output = matcher.push(piece);
            out.push(output.text);
            if output.stopped {
                return (out, true);
            }
        }
        out.push(matcher.finish());
        (out, false)
    }

    #[test]
    fn earliest_stop_string_is_reported() {
        let stops = ["two", "one", "on"].map(str::to_owned);
        let mut matcher = StopStrings::new(&stops);
        assert!(!matcher.push("zero o").stopped);
        assert_eq!(matcher.matched_stop(), None);
        assert!(matcher.push("ne two").stopped);
        assert_eq!(matcher.matched_stop(), Some("one"));
    }

    #[test]
    fn stop_string_across_pieces_is_not_emitted() {
        let (out, stopped) = run(&["\nUser:"], &["Hi", "\nUs", "er", ": x"]);
        assert!(stopped);
        assert_eq!(out, ["Hi", "", "", ""]);
    }

    #[test]
    fn held_text_is_emitted_if_no_stop_string_follows() {
        let (out, stopped) = run(&["</s>"], &["a <", "/b>", "<"]);
        assert!(!stopped);
        assert_eq!(out, ["a ", "</b>", "", "<"]);
    }

    #[test]
    fn earliest_of_several_stop_strings_wins() {
        assert_eq!(
            run(&["END", "x"], &["ab x END"]),
            (vec!["ab ".to_owned()], true)
        );
    }

    #[test]
    fn self_overlapping_stop_string_matches() {
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]).0.concat(), "a");
    }

    #[test]
    fn stop_string_with_multibyte_characters_is_handled() {
        assert_eq!(run(&["é!"], &["caf", "é", "?"]).0, ["caf", "", "é?", ""]);
    }

    proptest! {
        #[test]
        fn any_split_yields_the_text_before_the_first_stop_string(
            text in "[ab]{0,30}", cuts in prop::collection::vec(0usize..30, 0..6), stop in "[ab]{1,4}",
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let (out, stopped) = run(&[&stop], &pieces);
            prop_assert_eq!(stopped, text.contains(&stop));
            prop_assert_eq!(out.concat(), text.split(&stop).next().unwrap());
        }
    }

    #[test]
    fn stop_string_is_emitted_if_requested() {
        let mut stops = StopStrings::new(&["STOP".to_owned()]).with_stop_included(true);
        assert_eq!(stops.push("one ST").text, "one ");
        let output = stops.push("OP two");
        assert_eq!((output.text.as_str(), output.stopped), ("STOP", true));
        assert_eq!(stops.matched_stop(), Some("STOP"));
    }
}
