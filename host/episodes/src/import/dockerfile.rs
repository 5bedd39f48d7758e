//! The part of a Dockerfile that a machine without an image can follow: `WORKDIR`, `COPY`, `ADD` of files, `ENV` and `RUN`.

use std::str::Lines;

/// Words of commands that install packages or download.
const INSTALLERS: [&str; 14] = [
    "apt-get", "apt", "apk", "dnf", "yum", "pip", "pip3", "uv", "npm", "conda", "curl", "wget",
    "cargo", "gem",
];

/// One instruction that matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    WorkDir(String),
    /// Sources, and the destination.
    Copy(Vec<String>, String),
    Env(String, String),
    Run(String),
}

/// Parses the instructions that matter, in order.
///
/// # Errors
/// An instruction that a machine cannot follow, with its line.
pub(super) fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = next_line(&mut lines) {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
        let rest = rest.trim();
        let reject = |why: &str| Err(format!("the Dockerfile's `{line}` {why}"));
        match word.to_ascii_uppercase().as_str() {
            "WORKDIR" => steps.push(Step::WorkDir(rest.trim_matches('"').to_owned())),
            "COPY" | "ADD" => {
                let mut words: Vec<String> = match rest.starts_with('[') {
                    true => serde_json::from_str(rest)
                        .map_err(|error| format!("the Dockerfile's `{line}`: {error}"))?,
                    false => rest.split_whitespace().map(str::to_owned).collect(),
                };
                if words.iter().any(|word| word.starts_with("--from")) {
                    return reject("copies from another image, which a machine does not have");
                }
                words.retain(|word| !word.starts_with("--"));
                if words.iter().any(|word| word.contains("://")) {
                    return reject("downloads, but a machine has no network");
                }
                match words.pop() {
                    Some(to) if !words.is_empty() => steps.push(Step::Copy(words, to)),
                    _ => return reject("has no source and destination"),
                }
            }
            "ENV" => {
                let pair = rest.split_once('=').or_else(|| rest.split_once(' '));
                let Some((name, value)) = pair else {
                    return reject("has no value");
                };
                steps.push(Step::Env(
                    name.to_owned(),
                    value.trim_matches('"').to_owned(),
                ));
            }
            "RUN" if rest.starts_with("<<") => return reject("is a here-document"),
            "RUN" => steps.push(Step::Run(rest.to_owned())),
            // What the image is, and how a container of it would start.
            "FROM" | "CMD" | "ENTRYPOINT" | "LABEL" | "ARG" | "EXPOSE" | "SHELL" | "STOPSIGNAL"
            | "HEALTHCHECK" | "MAINTAINER" | "USER" | "VOLUME" => {}
            _ => return reject("is not known"),
        }
    }
    Ok(steps)
}

/// The next instruction, with its continued lines; without comments and blank lines.
fn next_line(lines: &mut Lines<'_>) -> Option<String> {
    let mut whole = String::new();
    for line in lines.by_ref() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => whole.push_str(&format!("{} ", part.trim_end())),
            None => {
                whole.push_str(line);
                return Some(whole);
            }
        }
    }
    (!whole.is_empty()).then(|| whole.trim_end().to_owned())
}

/// The program of a shell command that installs packages or downloads.
pub(super) fn installer(command: &str) -> Option<&'static str> {
    let words = command.split(|c: char| c.is_whitespace() || ";&|()".contains(c));
    let mut words = words.map(|word| word.rsplit('/').next().unwrap_or(word));
    words.find_map(|word| INSTALLERS.into_iter().find(|name| *name == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_parsed() {
        let text = "FROM debian\n# a comment\nWORKDIR /app\nCOPY --chown=a a.txt b/ ./in/\nRUN mkdir x && \\\n  # why\n  \
            touch x/y\nENV A=\"b c\"\nCMD [\"sh\"]\n";
        assert_eq!(
            parse(text).unwrap(),
            [
                Step::WorkDir("/app".to_owned()),
                Step::Copy(
                    vec!["a.txt".to_owned(), "b/".to_owned()],
                    "./in/".to_owned()
                ),
                Step::Run("mkdir x && touch x/y".to_owned()),
                Step::Env("A".to_owned(), "b c".to_owned()),
            ]
        );
        for (bad, why) in [
            ("COPY --from=build /a /b", "another image"),
            ("ADD https://example.org/a /a", "no network"),
            ("COPY a", "no source and destination"),
            ("RUN <<EOF", "here-document"),
            ("FLY away", "is not known"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(why) && error.contains(bad), "{error}");
        }
    }

    #[test]
    fn installers_are_found() {
        assert_eq!(installer("apt-get update && x"), Some("apt-get"));
        assert_eq!(installer("cd a;/usr/bin/pip install b"), Some("pip"));
        assert_eq!(installer("echo apt-getter > pipe.txt"), None);
    }
}
