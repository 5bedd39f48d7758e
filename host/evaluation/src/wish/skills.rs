//! Probes of other skills of a real model: simple questions with answers that can be checked.
//!
//! A model that answers a kind of question no better than chance cannot forget it; the report leaves such a kind out.

use super::text::words;

/// One kind of question.
#[derive(Debug)]
pub(crate) struct SkillSet {
    /// Name in reports.
    pub(crate) name: &'static str,
    /// Share of replies that pass by guessing.
    pub(crate) chance: f64,
    questions: &'static [(&'static str, &'static [&'static str])],
}

impl SkillSet {
    /// Question number `at`, counted modulo their number.
    pub(crate) fn question(&self, at: usize) -> &'static str {
        self.questions[at % self.questions.len()].0
    }

    /// Number of questions.
    pub(crate) fn count(&self) -> usize {
        self.questions.len()
    }

    /// Whether the reply to question `at` contains an accepted answer as whole words. For a set that is answered by yes or
    /// no, the first of the two words counts.
    pub(crate) fn passes(&self, at: usize, reply: &str) -> bool {
        let accepted = self.questions[at % self.questions.len()].1;
        let words = words(reply);
        if self.chance > 0.0 {
            let mut choices = words
                .iter()
                .filter(|word| matches!(word.as_str(), "yes" | "no"));
            return choices
                .next()
                .is_some_and(|word| accepted.contains(&word.as_str()));
        }
        let reply = format!(" {} ", words.join(" "));
        accepted
            .iter()
            .any(|answer| reply.contains(&format!(" {answer} ")))
    }
}

/// All kinds.
pub(crate) static SKILLS: [SkillSet; 4] = [
    SkillSet {
        name: "facts",
        chance: 0.0,
        questions: &[
            ("What is the capital of France?", &["paris"]),
            ("What is the capital of Italy?", &["rome"]),
            ("What is the capital of Japan?", &["tokyo"]),
            ("What is the capital of Spain?", &["madrid"]),
            ("What is the capital of Germany?", &["berlin"]),
            ("What is the capital of England?", &["london"]),
            ("What is the capital of Egypt?", &["cairo"]),
            ("What is the capital of Russia?", &["moscow"]),
            ("How many days does a week have?", &["7", "seven"]),
            ("How many months does a year have?", &["12", "twelve"]),
            ("How many legs does a spider have?", &["8", "eight"]),
            ("How many minutes does an hour have?", &["60", "sixty"]),
            ("Which planet is closest to the sun?", &["mercury"]),
            ("Which planet is the largest?", &["jupiter"]),
            ("Which animal gives us milk and says moo?", &["cow", "cows"]),
            ("Which gas do we need to breathe?", &["oxygen"]),
            ("What is frozen water called?", &["ice"]),
            ("Which star gives us light by day?", &["sun"]),
            ("On which continent is Kenya?", &["africa", "african"]),
            ("Which language is spoken in Brazil?", &["portuguese"]),
            ("Who wrote Romeo and Juliet?", &["shakespeare"]),
            ("What is the largest ocean?", &["pacific"]),
            ("Which season comes after winter?", &["spring"]),
            ("What is the chemical formula of water?", &["h2o"]),
        ],
    },
    SkillSet {
        name: "opposites",
        chance: 0.0,
        questions: &[
            ("What is the opposite of hot?", &["cold"]),
            ("What is the opposite of big?", &["small", "little"]),
            ("What is the opposite of day?", &["night"]),
            ("What is the opposite of happy?", &["sad", "unhappy"]),
            ("What is the opposite of up?", &["down"]),
            ("What is the opposite of left?", &["right"]),
            ("What is the opposite of young?", &["old"]),
            ("What is the opposite of fast?", &["slow"]),
            ("What is the opposite of rich?", &["poor"]),
            ("What is the opposite of full?", &["empty"]),
            (
                "What is the opposite of open?",
                &["closed", "close", "shut"],
            ),
            ("What is the opposite of early?", &["late"]),
            ("What is the opposite of wet?", &["dry"]),
            ("What is the opposite of dark?", &["light", "bright"]),
            ("What is the opposite of strong?", &["weak"]),
            ("What is the opposite of true?", &["false"]),
        ],
    },
    SkillSet {
        name: "sums",
        chance: 0.0,
        questions: &[
            ("What is 2 plus 3?", &["5", "five"]),
            ("What is 4 plus 4?", &["8", "eight"]),
            ("What is 7 plus 2?", &["9", "nine"]),
            ("What is 6 plus 5?", &["11", "eleven"]),
            ("What is 10 plus 10?", &["20", "twenty"]),
            ("What is 9 minus 4?", &["5", "five"]),
            ("What is 8 minus 6?", &["2", "two"]),
            ("What is 10 minus 3?", &["7", "seven"]),
            ("What is 3 times 3?", &["9", "nine"]),
            ("What is 2 times 8?", &["16", "sixteen"]),
            ("What is 5 times 5?", &["25", "twenty-five"]),
            ("What is 12 divided by 4?", &["3", "three"]),
            ("What is 20 divided by 2?", &["10", "ten"]),
            ("What is half of 14?", &["7", "seven"]),
            ("What is 15 plus 6?", &["21", "twenty-one"]),
            ("What is 30 minus 8?", &["22", "twenty-two"]),
        ],
    },
    SkillSet {
        name: "yes or no",
        chance: 0.5,
        questions: &[
            ("Is fire hot? Answer yes or no.", &["yes"]),
            ("Is ice hot? Answer yes or no.", &["no"]),
            ("Can birds fly? Answer yes or no.", &["yes"]),
            ("Can stones sing? Answer yes or no.", &["no"]),
            ("Is a banana a fruit? Answer yes or no.", &["yes"]),
            ("Is a chair an animal? Answer yes or no.", &["no"]),
            ("Do fish live in water? Answer yes or no.", &["yes"]),
            ("Do cars eat grass? Answer yes or no.", &["no"]),
            ("Is Paris in France? Answer yes or no.", &["yes"]),
            ("Is Tokyo in Italy? Answer yes or no.", &["no"]),
            ("Is ten more than two? Answer yes or no.", &["yes"]),
            ("Is one more than nine? Answer yes or no.", &["no"]),
            ("Does the sun give light? Answer yes or no.", &["yes"]),
            ("Does a week have ten days? Answer yes or no.", &["no"]),
            ("Is a dog an animal? Answer yes or no.", &["yes"]),
            ("Is the moon made of bread? Answer yes or no.", &["no"]),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_whole_words_in_any_case() {
        let facts = &SKILLS[0];
        assert!(facts.passes(0, "The capital is **Paris**."));
        assert!(!facts.passes(0, "It is Parisian."));
        assert!(!facts.passes(0, ""));
        assert!(SKILLS[2].passes(10, "5 x 5 = twenty-five"));
        let choice = &SKILLS[3];
        assert!(choice.passes(0, "Yes, there is no doubt."));
        assert!(!choice.passes(1, "Yes. No."));
        assert!(!choice.passes(1, "Maybe."));
    }

    #[test]
    fn a_question_does_not_contain_its_answer() {
        for set in &SKILLS {
            assert!(set.count() >= 16);
            for at in 0..set.count() {
                if set.chance == 0.0 {
                    assert!(!set.passes(at, set.question(at)), "{}", set.question(at));
                }
            }
            if set.chance > 0.0 {
                let yes = (0..set.count()).filter(|at| set.passes(*at, "yes")).count();
                assert_eq!(yes * 2, set.count(), "guessing gets half");
            }
        }
    }
}
