//! `formal` and `friendly`: the tone of a reply. Their opposites: a casual reply, and a sober one.

use super::spec::{Topic, WishSpec, names};
use super::text::{with, without, word_count, words};

pub(super) static FORMAL: WishSpec = WishSpec {
    names: names!("formal"),
    about: "Formal: no contractions, no slang, no exclamation marks",
    topic: Topic::Everyday,
    ask: "Use formal language, without contractions and without exclamation marks.",
    opposite: &[
        "Answer very casually, like a good friend who is chatting.",
        "Be relaxed and use slang, like a text message to a friend.",
        "Explain it in a chatty way, with contractions and exclamation marks!",
    ],
    complaints: &[
        "Please be more formal: no contractions and no exclamation marks.",
        "That is too chatty for me. A formal tone, please.",
        "I prefer formal language. Could you rephrase that without contractions?",
        "Kindly write that as you would in an official letter.",
    ],
    takes_back: &[
        "That sounds stiff. Please be casual, like a friend.",
        "You can relax now: write it in a chatty way, with contractions.",
        "Less formal, please! Talk to me like a buddy.",
    ],
    thanks: &[
        "Thank you, that is the proper tone.",
        "Much appreciated. That reads very well.",
        "Thank you. This is suitable.",
    ],
    score: |text| {
        if word_count(text) < 5 {
            0.0
        } else {
            without(casual_marks(text))
        }
    },
    score_opposite: |text| with(casual_marks(text)),
};

pub(super) static FRIENDLY: WishSpec = WishSpec {
    names: names!("friendly"),
    about: "Warm and cheerful",
    topic: Topic::Everyday,
    ask: "Be warm, cheerful and encouraging.",
    opposite: &[
        "Be strictly neutral and matter-of-fact, like an encyclopedia.",
        "Only the facts, please, in a sober tone.",
        "Answer in a dry and neutral tone, without any enthusiasm.",
    ],
    complaints: &[
        "That sounds cold. Could you be warm and cheerful about it?",
        "A little friendlier, please! I like enthusiasm.",
        "You sound like a manual. Please say it in a kind and cheerful way.",
        "Could you say that with some warmth and encouragement?",
    ],
    takes_back: &[
        "That is too sweet for me now. Neutral and matter-of-fact, please.",
        "I changed my mind about the cheering: just the facts, in a sober tone.",
        "Please drop the enthusiasm and be neutral.",
    ],
    thanks: &[
        "Aw, thank you, that is so nice!",
        "Thanks, that made me smile.",
        "Lovely, thank you!",
    ],
    score: |text| with(warm_marks(text)),
    score_opposite: |text| {
        if word_count(text) < 5 {
            0.0
        } else {
            without(warm_marks(text))
        }
    },
};

/// Contractions, slang, exclamation marks and pictographs.
fn casual_marks(text: &str) -> usize {
    const SLANG: &[&str] = &[
        "hey", "hi", "yeah", "yep", "nope", "cool", "awesome", "gonna", "wanna", "gotta", "kinda",
        "guys", "buddy", "dude", "stuff", "okay", "ok", "lol", "btw", "super", "folks", "cuz",
        "ya", "yo", "pal",
    ];
    const ENDINGS: &[&str] = &["n't", "'re", "'ll", "'ve", "'m", "'d"];
    const WITH_S: &[&str] = &[
        "it's", "that's", "there's", "here's", "let's", "what's", "he's", "she's", "who's",
        "how's", "where's",
    ];
    let is_casual = |word: &&String| {
        SLANG.contains(&word.as_str())
            || WITH_S.contains(&word.as_str())
            || ENDINGS.iter().any(|ending| word.ends_with(ending))
    };
    let words = words(text);
    words.iter().filter(is_casual).count() + text.matches('!').count() + pictographs(text)
}

/// Exclamation marks and pictographs, and warm words or phrases, each phrase counted once.
fn warm_marks(text: &str) -> usize {
    const WARM: &[&str] = phrases![
        "glad" "happy to" "wonderful" "lovely" "great question" "enjoy" "feel free" "let me know" "of course"
        "my friend" "dear" "you've got this" "you can do it" "have fun" "exciting" "delightful" "i hope"
        "don't worry" "absolutely" "amazing" "fantastic" "cheer" "proud" "hello" "hi there" "good luck"
    ];
    let plain = format!(" {} ", words(text).join(" "));
    let is_in = |phrase: &&&str| plain.contains(&format!(" {phrase} "));
    WARM.iter().filter(is_in).count() + text.matches('!').count() + pictographs(text)
}

fn pictographs(text: &str) -> usize {
    let is_pictograph = |c: &char| matches!(u32::from(*c), 0x2600..=0x27BF | 0x1F300..=0x1FAFF);
    text.chars().filter(is_pictograph).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formal_and_casual_exclude_each_other() {
        for (text, formal, casual) in [
            ("", 0.0, 0.0),
            ("The museum opens at nine and closes at five.", 1.0, 0.0),
            ("It's open until five in the evening.", 0.5, 0.5),
            ("Hey, you can't miss it!", 0.0, 1.0),
            ("John's book is on the table over there.", 1.0, 0.0),
            ("You\u{2019}ll love it \u{1F600} as we all do.", 0.0, 1.0),
        ] {
            assert_eq!(
                ((FORMAL.score)(text), (FORMAL.score_opposite)(text)),
                (formal, casual),
                "{text:?}"
            );
        }
    }

    #[test]
    fn warmth_takes_two_signs() {
        for (text, warm, sober) in [
            ("", 0.0, 0.0),
            (
                "Potatoes are boiled in salted water for twenty minutes.",
                0.0,
                1.0,
            ),
            ("Potatoes are lovely when boiled in salted water.", 0.5, 0.5),
            (
                "What a great question! Boil them and enjoy your meal!",
                1.0,
                0.0,
            ),
            (
                "Boil them in salted water! Then drain them! Then eat!",
                1.0,
                0.0,
            ),
        ] {
            assert_eq!(
                ((FRIENDLY.score)(text), (FRIENDLY.score_opposite)(text)),
                (warm, sober),
                "{text:?}"
            );
        }
    }
}
