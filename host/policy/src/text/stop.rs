//! Stop strings across token borders: text that could be the beginning of a stop string is held
//! back until the next tokens decide, and no character of a stop string is ever let out unless that is wanted.

/// Watches the text of one reply for its stop strings.
#[derive(Debug, Clone)]
pub(crate) struct StopStrings {
    stops: Vec<String>,
    held: String,
    /// The stop string is let out, too.
    included: bool,
    /// The stop string that ended the reply.
    hit: Option<String>,
}

/// What a piece of text decided.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Text that is final.
    pub(crate) text: String,
    /// Whether a stop string was completed; text after it is dropped.
    pub(crate) stopped: bool,
}

impl StopStrings {
    /// Watches for `stops`; empty strings among them are ignored.
    pub(crate) fn new(stops: &[String]) -> Self {
        let stops = stops
            .iter()
            .filter(|stop| !stop.is_empty())
            .cloned()
            .collect();
        Self {
            stops,
            held: String::new(),
            included: false,
            hit: None,
        }
    }

    /// Whether the stop string itself is let out. Default false.
    #[must_use]
    pub(crate) fn including(mut self, included: bool) -> Self {
        self.included = included;
        self
    }

    /// Adds text and returns what is certain to come before any stop string, or with it.
    pub(crate) fn push(&mut self, text: &str) -> Passed {
        if self.stops.is_empty() {
            return Passed {
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
            let shown = if self.included { stop.len() } else { 0 };
            self.hit = Some(stop.clone());
            self.held.truncate(at + shown);
            return Passed {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        Passed {
            text,
            stopped: false,
        }
    }

    /// The stop string that ended the reply, if one did; of two at the same place the one given first.
    pub(crate) fn hit(&self) -> Option<&str> {
        self.hit.as_deref()
    }

    /// Text still held, once no more comes: it was not a stop string after all.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest proper prefix of `stop` that ends `text`.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(at, _)| at)
        .filter(|at| *at > 0)
        .filter(|at| stop.get(..*at).is_some_and(|prefix| text.ends_with(prefix)))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let owned: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut watch = StopStrings::new(&owned);
        let mut out = Vec::new();
        for piece in pieces {
            let passed = watch.push(piece);
            out.push(passed.text);
            if passed.stopped {
                return (out, true);
            }
        }
        out.push(watch.finish());
        (out, false)
    }

    #[test]
    fn the_stop_string_that_came_first_is_named() {
        let stops = ["two", "one", "on"].map(str::to_owned);
        let mut watch = StopStrings::new(&stops);
        assert!(!watch.push("zero o").stopped);
        assert_eq!(watch.hit(), None);
        assert!(watch.push("ne two").stopped);
        assert_eq!(watch.hit(), Some("one"));
    }

    #[test]
    fn a_stop_string_over_three_pieces_never_shows() {
        let (out, stopped) = run(&["\nUser:"], &["Hi", "\nUs", "er", ": x"]);
        assert!(stopped);
        assert_eq!(out, ["Hi", "", "", ""]);
    }

    #[test]
    fn held_text_is_released_when_it_was_no_stop_string() {
        let (out, stopped) = run(&["</s>"], &["a <", "/b>", "<"]);
        assert!(!stopped);
        assert_eq!(out, ["a ", "</b>", "", "<"]);
    }

    #[test]
    fn the_earliest_of_several_wins() {
        assert_eq!(
            run(&["END", "x"], &["ab x END"]),
            (vec!["ab ".to_owned()], true)
        );
    }

    #[test]
    fn a_stop_string_that_overlaps_itself_is_found() {
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]).0.concat(), "a");
    }

    #[test]
    fn borders_inside_characters_of_the_stop_string_are_respected() {
        assert_eq!(run(&["é!"], &["caf", "é", "?"]).0, ["caf", "", "é?", ""]);
    }

    proptest! {
        #[test]
        fn any_split_gives_the_text_before_the_first_stop(
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
    fn a_stop_string_is_let_out_where_that_is_wanted() {
        let mut stops = StopStrings::new(&["STOP".to_owned()]).including(true);
        assert_eq!(stops.push("one ST").text, "one ");
        let passed = stops.push("OP two");
        assert_eq!((passed.text.as_str(), passed.stopped), ("STOP", true));
        assert_eq!(stops.hit(), Some("STOP"));
    }
}
