//! Measures judges and hint extractors on labelled reactions: precision and recall of each label, by language and by kind.
//!
//! The file has one JSON object in each line, as `benches/reactions/README.md` describes. Who judges is the caller's: this
//! module parses the items, counts, and prints.

use serde::{Deserialize, Serialize};

/// A labelled reaction.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ReactionItem {
    /// Unique name.
    pub id: String,
    /// BCP-47 tag of the language.
    pub language: String,
    /// What the reaction is; for tables only.
    pub kind: String,
    /// What the person asked.
    pub request: String,
    /// The reply of the assistant; for a tool result, the call.
    pub reply: String,
    /// Who reacts.
    pub role: ReactionRole,
    /// The next message.
    pub reaction: String,
    /// -1, 0 or +1.
    pub label: i8,
    /// Whether a hint should be extracted.
    pub hint: bool,
}

/// Who reacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReactionRole {
    /// A person.
    User,
    /// A tool.
    Tool,
}

/// Why a file of reactions cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReactionsError {
    /// A line is no item.
    #[error("line {line} is no labelled reaction: {source}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A label is none.
    #[error("line {line} has the label {label}; a label is -1, 0 or 1")]
    Label {
        /// Number of the line, from 1.
        line: usize,
        /// The label.
        label: i8,
    },
    /// There is no item.
    #[error("there is no labelled reaction in the file")]
    Empty,
}

/// Parses a file of labelled reactions. Empty lines are skipped.
///
/// # Errors
/// The first line that is no item, and a file without items.
pub fn parse_reactions(text: &str) -> Result<Vec<ReactionItem>, ReactionsError> {
    let mut items = Vec::new();
    for (at, text) in text.lines().enumerate() {
        if text.trim().is_empty() {
            continue;
        }
        let line = at + 1;
        let item: ReactionItem =
            serde_json::from_str(text).map_err(|source| ReactionsError::Line { line, source })?;
        if !(-1..=1).contains(&item.label) {
            return Err(ReactionsError::Label {
                line,
                label: item.label,
            });
        }
        items.push(item);
    }
    if items.is_empty() {
        return Err(ReactionsError::Empty);
    }
    Ok(items)
}

/// What a judge and a hint extractor said of an item.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReactionAnswer {
    /// The reward; None if the judge abstained.
    pub reward: Option<f32>,
    /// Whether a hint was extracted; None if no extractor ran.
    pub hint: Option<bool>,
}

/// How often a label was given, was right and is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LabelCounts {
    /// Items that got the label.
    pub given: usize,
    /// Of these, the items that have it.
    pub right: usize,
    /// Items that have the label.
    pub labelled: usize,
}

impl LabelCounts {
    /// The share of the items that got the label which have it; None if none got it.
    pub fn precision(&self) -> Option<f64> {
        (self.given > 0).then(|| self.right as f64 / self.given as f64)
    }

    /// The share of the items with the label that got it; None if there is none.
    pub fn recall(&self) -> Option<f64> {
        (self.labelled > 0).then(|| self.right as f64 / self.labelled as f64)
    }

    fn add(&mut self, given: bool, labelled: bool) {
        self.given += usize::from(given);
        self.labelled += usize::from(labelled);
        self.right += usize::from(given && labelled);
    }
}

/// The counts of a group of items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReactionFigures {
    /// `all`, a language or a kind.
    pub group: String,
    /// Items in the group.
    pub items: usize,
    /// Items without a verdict, or with a reward of 0.
    pub abstained: usize,
    /// The label -1.
    pub negative: LabelCounts,
    /// The label +1.
    pub positive: LabelCounts,
    /// Hints; None if no extractor ran.
    pub hints: Option<LabelCounts>,
}

/// The counts of all items, by language and by kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReactionReport {
    /// All items, English, and all other languages.
    pub total: Vec<ReactionFigures>,
    /// Each language.
    pub languages: Vec<ReactionFigures>,
    /// Each kind.
    pub kinds: Vec<ReactionFigures>,
}

impl ReactionReport {
    /// Counts the answers, one for each item in the same order.
    ///
    /// # Panics
    /// If there are not as many answers as items.
    pub fn new(items: &[ReactionItem], answers: &[ReactionAnswer]) -> ReactionReport {
        assert_eq!(items.len(), answers.len(), "one answer for each item");
        let of = |group: &str, takes: &dyn Fn(&ReactionItem) -> bool| {
            figures(
                group,
                items.iter().zip(answers).filter(|(item, _)| takes(item)),
            )
        };
        let each = |key: fn(&ReactionItem) -> &str| -> Vec<ReactionFigures> {
            let mut groups: Vec<&str> = items.iter().map(key).collect();
            groups.sort_unstable();
            groups.dedup();
            groups
                .into_iter()
                .map(|group| of(group, &|item| key(item) == group))
                .collect()
        };
        ReactionReport {
            total: vec![
                of("all", &|_| true),
                of("English", &|item| item.language == "en"),
                of("other languages", &|item| item.language != "en"),
            ],
            languages: each(|item| &item.language),
            kinds: each(|item| &item.kind),
        }
    }

    /// The table of all groups.
    pub fn table(&self) -> String {
        let hints = self.total.iter().any(|figures| figures.hints.is_some());
        let mut out = format!(
            "{:<22} {:>5} {:>9}   {:<24} {:<24}{}\n{:<22} {:>5} {:>9}   {:<24} {:<24}{}\n",
            "",
            "",
            "",
            "-1",
            "+1",
            if hints { " hints" } else { "" },
            "",
            "items",
            "abstained",
            "precision      recall",
            "precision      recall",
            if hints { " precision      recall" } else { "" },
        );
        for group in [&self.total, &self.languages, &self.kinds] {
            for figures in group {
                let hints = figures
                    .hints
                    .as_ref()
                    .map_or(String::new(), |hints| format!(" {}", cells(hints)));
                let line = format!(
                    "{:<22} {:>5} {:>9}   {:<24} {:<24}{hints}",
                    figures.group,
                    figures.items,
                    figures.abstained,
                    cells(&figures.negative),
                    cells(&figures.positive),
                );
                out.push_str(line.trim_end());
                out.push('\n');
            }
            out.push('\n');
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }
}

/// `0.95 (38/40)  0.73 (38/52)` without the counts of recall, or a dash where there is no figure.
fn cells(counts: &LabelCounts) -> String {
    let share = |value: Option<f64>, part: usize, whole: usize| match value {
        Some(value) => format!("{value:.2} {part}/{whole}"),
        None => "-".to_owned(),
    };
    format!(
        "{:<12} {:<11}",
        share(counts.precision(), counts.right, counts.given),
        share(counts.recall(), counts.right, counts.labelled),
    )
}

fn figures<'a>(
    group: &str,
    judged: impl Iterator<Item = (&'a ReactionItem, &'a ReactionAnswer)>,
) -> ReactionFigures {
    let mut figures = ReactionFigures {
        group: group.to_owned(),
        items: 0,
        abstained: 0,
        negative: LabelCounts::default(),
        positive: LabelCounts::default(),
        hints: None,
    };
    for (item, answer) in judged {
        let reward = answer.reward.unwrap_or(0.0);
        figures.items += 1;
        figures.abstained += usize::from(reward == 0.0);
        figures.negative.add(reward < 0.0, item.label < 0);
        figures.positive.add(reward > 0.0, item.label > 0);
        if let Some(hint) = answer.hint {
            figures
                .hints
                .get_or_insert_with(LabelCounts::default)
                .add(hint, item.hint);
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(language: &str, kind: &str, label: i8, hint: bool) -> ReactionItem {
        ReactionItem {
            id: format!("{language}-{kind}"),
            language: language.to_owned(),
            kind: kind.to_owned(),
            request: String::new(),
            reply: String::new(),
            role: ReactionRole::User,
            reaction: String::new(),
            label,
            hint,
        }
    }

    #[test]
    fn a_zero_and_an_abstention_count_as_no_verdict() {
        let items = [
            item("en", "thanks", 1, false),
            item("en", "complaint", -1, false),
            item("de", "correction", -1, true),
            item("de", "answer", 0, false),
        ];
        let answer = |reward, hint| ReactionAnswer { reward, hint };
        let report = ReactionReport::new(
            &items,
            &[
                answer(Some(1.0), Some(false)),
                answer(None, Some(true)),
                answer(Some(-1.0), Some(true)),
                answer(Some(0.0), Some(false)),
            ],
        );
        let all = &report.total[0];
        assert_eq!((all.items, all.abstained), (4, 2));
        assert_eq!(
            (all.negative.precision(), all.negative.recall()),
            (Some(1.0), Some(0.5))
        );
        assert_eq!(all.positive.recall(), Some(1.0));
        let hints = all.hints.unwrap();
        assert_eq!((hints.given, hints.right, hints.labelled), (2, 1, 1));
        let groups = |figures: &[ReactionFigures]| -> Vec<String> {
            figures.iter().map(|one| one.group.clone()).collect()
        };
        assert_eq!(groups(&report.languages), ["de", "en"]);
        assert_eq!(report.kinds.len(), 4);
        assert!(report.table().contains("1.00 1/1"), "{}", report.table());
    }

    #[test]
    fn a_false_verdict_lowers_precision_and_not_recall() {
        let items = [
            item("en", "thanks", 1, false),
            item("en", "question", 0, false),
        ];
        let pleased = ReactionAnswer {
            reward: Some(1.0),
            hint: None,
        };
        let report = ReactionReport::new(&items, &[pleased, pleased]);
        let positive = report.total[0].positive;
        assert_eq!(
            (positive.precision(), positive.recall()),
            (Some(0.5), Some(1.0))
        );
        assert_eq!(report.total[0].negative.precision(), None);
        assert_eq!(report.total[2].items, 0);
        assert!(!report.table().contains("hints"));
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = r#"{"id":"a","language":"en","kind":"thanks","request":"q","reply":"r","role":"user","reaction":"ty","label":1,"hint":false}"#;
        assert_eq!(
            parse_reactions(&format!("{good}\n\n{good}\n"))
                .unwrap()
                .len(),
            2
        );
        let error = parse_reactions(&format!("{good}\n{{}}"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("line 2 is no labelled reaction"),
            "{error}"
        );
        let error = parse_reactions(&good.replace("\"label\":1", "\"label\":3")).unwrap_err();
        assert!(error.to_string().contains("label 3"));
        assert!(matches!(parse_reactions("\n"), Err(ReactionsError::Empty)));
    }
}
