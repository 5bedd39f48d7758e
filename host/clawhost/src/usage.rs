//! Errors of wrong command lines: one line that says what is wrong and which help to read, where clap would print a
//! paragraph, a usage line and a hint.
//!
//! Knows no command by name; uses only the context of clap's error.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// The message for `error`, the result of parsing `args` (program name first) with `command`.
pub(crate) fn error_message(error: &Error, mut command: Command, args: &[OsString]) -> String {
    command.build();
    let (target, path) = addressed_command(&command, args);
    one_line(&format!(
        "{}; see '{path} --help'",
        describe(error, target, &path)
    ))
}

/// Text without line breaks, with control characters escaped.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let mut escaped = String::new();
    for character in lines.join(" ").chars() {
        if character.is_control() {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// The subcommand that was addressed, as far as its name was right, and its full name for `--help`.
fn addressed_command<'a>(command: &'a Command, args: &[OsString]) -> (&'a Command, String) {
    let mut path = command.get_name().to_owned();
    let mut command = command;
    for word in args.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(sub) = command.find_subcommand(word) else {
            break;
        };
        path = format!("{path} {}", sub.get_name());
        command = sub;
    }
    (command, path)
}

fn describe(error: &Error, target: &Command, path: &str) -> String {
    let context = |kind| context_text(error, kind);
    let argument = context(ContextKind::InvalidArg);
    let value = context(ContextKind::InvalidValue).unwrap_or_default();
    let hint = [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
    ]
    .into_iter()
    .find_map(context)
    .map(|near| format!(" (did you mean {near}?)"))
    .unwrap_or_default();
    match (error.kind(), argument) {
        (ErrorKind::UnknownArgument, Some(word)) if word.starts_with('-') => {
            format!("unknown flag {word}{hint}")
        }
        (ErrorKind::UnknownArgument, Some(word)) => {
            format!("'{path}' does not expect '{word}'{hint}")
        }
        (ErrorKind::InvalidSubcommand, _) => {
            let word = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("'{path}' has no command '{word}'{hint}")
        }
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            let names: Vec<&str> = target
                .get_subcommands()
                .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
                .map(Command::get_name)
                .collect();
            format!("'{path}' needs a command: {}", names.join(", "))
        }
        (ErrorKind::MissingRequiredArgument, Some(missing)) => {
            format!("'{path}' needs {missing}")
        }
        (ErrorKind::InvalidValue, Some(argument)) => {
            let choices = context(ContextKind::ValidValue)
                .map(|values| format!(" (one of {values})"))
                .unwrap_or_default();
            if value.is_empty() {
                format!("{argument} needs a value{choices}")
            } else {
                format!("'{value}' is not valid for {argument}{choices}{hint}")
            }
        }
        (ErrorKind::ValueValidation, Some(argument)) => {
            format!("'{value}' is not valid for {argument}: {}", reason(error))
        }
        (ErrorKind::ArgumentConflict, Some(argument)) => match context(ContextKind::PriorArg) {
            Some(prior) if prior != argument => {
                format!("{argument} and {prior} cannot be used together")
            }
            _ => format!("{argument} was passed more than once"),
        },
        (ErrorKind::InvalidUtf8, _) => "an argument is not valid UTF-8".to_owned(),
        _ => first_paragraph(error),
    }
}

/// Why a value was rejected.
fn reason(error: &Error) -> String {
    match error.source() {
        Some(source) if source.is::<ParseIntError>() => "it must be a whole number".to_owned(),
        Some(source) if source.is::<ParseFloatError>() => "it must be a number".to_owned(),
        Some(source) => source.to_string(),
        None => "it is out of range".to_owned(),
    }
}

/// One context value of clap's error as text.
fn context_text(error: &Error, kind: ContextKind) -> Option<String> {
    let text = match error.get(kind)? {
        ContextValue::String(text) => text.clone(),
        ContextValue::Strings(texts) => texts.join(", "),
        ContextValue::Number(number) => number.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// For the kinds that no flag of this program can produce: clap's own text, without usage and tips.
fn first_paragraph(error: &Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn tool() -> Command {
        Command::new("tool")
            .subcommand_required(true)
            .subcommand(
                Command::new("lay")
                    .arg(
                        Arg::new("port")
                            .long("port")
                            .value_parser(clap::value_parser!(u16)),
                    )
                    .arg(
                        Arg::new("rate")
                            .long("rate")
                            .value_parser(clap::value_parser!(f64)),
                    )
                    .arg(Arg::new("kind").long("kind").value_parser(["a", "bee"]))
                    .arg(Arg::new("pair").long("pair").num_args(2))
                    .arg(Arg::new("few").long("few").num_args(2..=3))
                    .arg(Arg::new("equal").long("equal").require_equals(true))
                    .arg(Arg::new("json").long("json").action(ArgAction::SetTrue))
                    .arg(
                        Arg::new("plain")
                            .long("plain")
                            .action(ArgAction::SetTrue)
                            .conflicts_with("json"),
                    ),
            )
            .subcommand(Command::new("read").arg(Arg::new("TURN").required(true)))
            .subcommand(
                Command::new("more")
                    .subcommand_required(true)
                    .arg_required_else_help(true)
                    .subcommand(Command::new("deep")),
            )
    }

    fn parse_failure(words: &[&str]) -> (ErrorKind, String) {
        let args: Vec<OsString> = std::iter::once("tool")
            .chain(words.iter().copied())
            .map(OsString::from)
            .collect();
        let error = tool().try_get_matches_from(&args).unwrap_err();
        (error.kind(), error_message(&error, tool(), &args))
    }

    #[test]
    fn every_kind_of_wrong_usage_is_one_line() {
        let rows: [(&[&str], ErrorKind, &str); 20] = [
            (
                &["lay", "--prot", "1"],
                ErrorKind::UnknownArgument,
                "unknown flag --prot (did you mean --port?); see 'tool lay --help'",
            ),
            (
                &["lay", "-x"],
                ErrorKind::UnknownArgument,
                "unknown flag -x; see 'tool lay --help'",
            ),
            (
                &["lay", "egg"],
                ErrorKind::UnknownArgument,
                "'tool lay' does not expect 'egg'; see 'tool lay --help'",
            ),
            (
                &["red"],
                ErrorKind::InvalidSubcommand,
                "'tool' has no command 'red' (did you mean read?); see 'tool --help'",
            ),
            (
                &["more", "depe"],
                ErrorKind::InvalidSubcommand,
                "'tool more' has no command 'depe' (did you mean deep?); see 'tool more --help'",
            ),
            (
                &[],
                ErrorKind::MissingSubcommand,
                "'tool' needs a command: lay, read, more; see 'tool --help'",
            ),
            (
                &["more"],
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
                "'tool more' needs a command: deep; see 'tool more --help'",
            ),
            (
                &["read"],
                ErrorKind::MissingRequiredArgument,
                "'tool read' needs <TURN>; see 'tool read --help'",
            ),
            (
                &["lay", "--port"],
                ErrorKind::InvalidValue,
                "--port <port> needs a value; see 'tool lay --help'",
            ),
            (
                &["lay", "--kind", "bees"],
                ErrorKind::InvalidValue,
                "'bees' is not valid for --kind <kind> (one of a, bee) (did you mean bee?); see 'tool lay --help'",
            ),
            (
                &["lay", "--kind"],
                ErrorKind::InvalidValue,
                "--kind <kind> needs a value (one of a, bee); see 'tool lay --help'",
            ),
            (
                &["lay", "--port", "seventy"],
                ErrorKind::ValueValidation,
                "'seventy' is not valid for --port <port>: it must be a whole number; see 'tool lay --help'",
            ),
            (
                &["lay", "--port", "70000"],
                ErrorKind::ValueValidation,
                "'70000' is not valid for --port <port>: 70000 is not in 0..=65535; see 'tool lay --help'",
            ),
            (
                &["lay", "--rate", "fast"],
                ErrorKind::ValueValidation,
                "'fast' is not valid for --rate <rate>: it must be a number; see 'tool lay --help'",
            ),
            (
                &["lay", "--port", "1", "--port", "2"],
                ErrorKind::ArgumentConflict,
                "--port <port> was passed more than once; see 'tool lay --help'",
            ),
            (
                &["lay", "--plain", "--json"],
                ErrorKind::ArgumentConflict,
                "--plain and --json cannot be used together; see 'tool lay --help'",
            ),
            (
                &["lay", "--pair", "1"],
                ErrorKind::WrongNumberOfValues,
                "2 values required for '--pair <pair> <pair>' but 1 was provided; see 'tool lay --help'",
            ),
            (
                &["lay", "--few", "1"],
                ErrorKind::TooFewValues,
                "2 values required by '--few <few> <few>...'; only 1 was provided; see 'tool lay --help'",
            ),
            (
                &["lay", "--equal", "1"],
                ErrorKind::NoEquals,
                "equal sign is needed when assigning values to '--equal=<equal>'; see 'tool lay --help'",
            ),
            (
                &["lay", "--json=yes"],
                ErrorKind::TooManyValues,
                "unexpected value 'yes' for '--json' found; no more were expected; see 'tool lay --help'",
            ),
        ];
        for (words, kind, expected) in rows {
            assert_eq!(
                parse_failure(words),
                (kind, expected.to_owned()),
                "{words:?}"
            );
        }
    }

    #[test]
    fn control_characters_in_arguments_are_escaped() {
        let (_, message) = parse_failure(&["two\nlines\u{1b}[2J"]);
        assert_eq!(message.lines().count(), 1);
        assert!(!message.contains('\u{1b}'), "{message:?}");
    }

    #[cfg(unix)]
    #[test]
    fn arguments_that_are_not_utf_8_are_reported() {
        use std::os::unix::ffi::OsStringExt;
        let args = [
            "tool".into(),
            "lay".into(),
            "--port".into(),
            OsString::from_vec(vec![0xff]),
        ];
        let error = tool().try_get_matches_from(&args).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUtf8);
        assert_eq!(
            error_message(&error, tool(), &args),
            "an argument is not valid UTF-8; see 'tool lay --help'"
        );
    }
}
