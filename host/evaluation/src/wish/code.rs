//! `code-only`: the code and nothing else. Its opposite: code with an explanation.

use super::spec::{Topic, WishSpec, names};
use super::text::word_count;

pub(super) static CODE_ONLY: WishSpec = WishSpec {
    names: names!("code-only"),
    about: "Only the code, without an explanation",
    topic: Topic::Programs,
    ask: "Reply with the code only, without any explanation.",
    opposite: &[
        "Explain in words how it works after the code.",
        "Please describe the code in a few sentences too.",
        "Also write a paragraph that explains each step.",
    ],
    complaints: &[
        "I only need the code. No explanation, please.",
        "Please leave out the text around it, just the code.",
        "Too much talk. Only the code, please.",
        "Can I have the bare code, nothing before and nothing after?",
    ],
    takes_back: &[
        "Now I am learning: please explain the code in words as well.",
        "From now on I'd like an explanation with the code.",
        "Please describe what each step does, too.",
    ],
    thanks: &[
        "Thanks, ready to paste.",
        "Perfect, that runs.",
        "Great, nothing to cut away. Thanks.",
    ],
    score,
    score_opposite,
};

/// 1 for code without prose, 0.5 with at most eight words of it, else 0; 0 without code.
fn score(text: &str) -> f64 {
    match split(text) {
        (false, _) => 0.0,
        (true, 0) => 1.0,
        (true, 1..=8) => 0.5,
        (true, _) => 0.0,
    }
}

/// 1 for code with 25 words of prose or more, 0.5 from ten words on, else 0; 0 without code.
fn score_opposite(text: &str) -> f64 {
    match split(text) {
        (true, 25..) => 1.0,
        (true, 10..) => 0.5,
        _ => 0.0,
    }
}

/// Whether the text has code, and the words outside of it. In a text without fences a line is code by its looks.
fn split(text: &str) -> (bool, usize) {
    let fenced = text.contains("```");
    let (mut code, mut prose) = (false, 0);
    let mut inside = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
            continue;
        }
        if inside || (!fenced && looks_like_code(line)) {
            code |= !line.trim().is_empty();
        } else {
            prose += word_count(line);
        }
    }
    (code, prose)
}

fn looks_like_code(line: &str) -> bool {
    const STARTS: &[&str] = &[
        "def ", "import ", "from ", "return", "class ", "for ", "while ", "if ", "else:", "elif ",
        "print(", "try:", "except", "with ", "#", "@",
    ];
    let bare = line.trim();
    let indented = line.starts_with([' ', '\t']) && !bare.is_empty();
    let starts = STARTS.iter().any(|start| bare.starts_with(start));
    let ends =
        bare.ends_with([':', ')', ']', '}']) || bare.starts_with("return") || bare.starts_with('#');
    let defines = ["def ", "import ", "class "]
        .iter()
        .any(|start| bare.starts_with(start));
    indented || defines || (starts && ends) || bare.contains(" = ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_around_the_code_is_counted() {
        const CODE: &str = "def add(a, b):\n    return a + b";
        let explained = format!(
            "Here is the function:\n```python\n{CODE}\n```\nIt takes two numbers and returns their sum, which works for \
             integers, floats and every other type that has an addition of its own."
        );
        let brief = format!("```python\n{CODE}\n```\nThat adds two numbers.");
        for (text, only, with_words) in [
            ("", 0.0, 0.0),
            ("You add both numbers.", 0.0, 0.0),
            (CODE, 1.0, 0.0),
            (&format!("```python\n{CODE}\n```"), 1.0, 0.0),
            (&brief, 0.5, 0.0),
            (&explained, 0.0, 1.0),
        ] {
            assert_eq!(
                (score(text), score_opposite(text)),
                (only, with_words),
                "{text:?}"
            );
        }
    }
}
