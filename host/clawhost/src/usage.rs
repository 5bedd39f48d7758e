//! What somebody is told who typed a command line that cannot work: one sentence that says what is wrong
//! and what to do, where clap would print a paragraph, a usage line and a hint.
//!
//! It knows no command by name: it reads what clap found out.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// The sentence for `error`, which `args` (the program's name first) came to under `command`.
pub(crate) fn sentence(error: &Error, mut command: Command, args: &[OsString]) -> String {
    command.build();
    let (meant, spoken) = meant(&command, args);
    one_line(&format!(
        "{}; see '{spoken} --help'",
        complaint(error, meant, &spoken)
    ))
}

/// Text without line breaks and without what would move a terminal's cursor.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let mut shown = String::new();
    for character in lines.join(" ").chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The command that was meant, as far as its name was right, and how it is called: its help is the one to
/// read.
fn meant<'a>(command: &'a Command, args: &[OsString]) -> (&'a Command, String) {
    let mut spoken = command.get_name().to_owned();
    let mut at = command;
    for word in args.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(below) = at.find_subcommand(word) else {
            break;
        };
        spoken = format!("{spoken} {}", below.get_name());
        at = below;
    }
    (at, spoken)
}

fn complaint(error: &Error, meant: &Command, spoken: &str) -> String {
    let named = |kind| said(error, kind);
    let argument = named(ContextKind::InvalidArg);
    let value = named(ContextKind::InvalidValue).unwrap_or_default();
    let hint = [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
    ]
    .into_iter()
    .find_map(named)
    .map(|near| format!(" (did you mean {near}?)"))
    .unwrap_or_default();
    match (error.kind(), argument) {
        (ErrorKind::UnknownArgument, Some(word)) if word.starts_with('-') => {
            format!("unknown flag {word}{hint}")
        }
        (ErrorKind::UnknownArgument, Some(word)) => {
            format!("'{spoken}' does not expect '{word}'{hint}")
        }
        (ErrorKind::InvalidSubcommand, _) => {
            let word = named(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("'{spoken}' has no command '{word}'{hint}")
        }
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            let names: Vec<&str> = meant
                .get_subcommands()
                .filter(|below| !below.is_hide_set() && below.get_name() != "help")
                .map(Command::get_name)
                .collect();
            format!("'{spoken}' needs a command: {}", names.join(", "))
        }
        (ErrorKind::MissingRequiredArgument, Some(missing)) => {
            format!("'{spoken}' needs {missing}")
        }
        (ErrorKind::InvalidValue, Some(argument)) => {
            let choices = named(ContextKind::ValidValue)
                .map(|values| format!(", one of {values}"))
                .unwrap_or_default();
            if value.is_empty() {
                format!("{argument} needs a value{choices}")
            } else {
                format!("'{value}' does not fit {argument}{choices}{hint}")
            }
        }
        (ErrorKind::ValueValidation, Some(argument)) => {
            format!("'{value}' does not fit {argument}: {}", reason(error))
        }
        (ErrorKind::ArgumentConflict, Some(argument)) => match named(ContextKind::PriorArg) {
            Some(prior) if prior != argument => {
                format!("{argument} and {prior} cannot be given together")
            }
            _ => format!("{argument} was given more than once; give it once"),
        },
        (ErrorKind::InvalidUtf8, _) => "an argument is not valid UTF-8".to_owned(),
        _ => first_paragraph(error),
    }
}

/// Why a value was refused, in words that a person would choose.
fn reason(error: &Error) -> String {
    match error.source() {
        Some(source) if source.is::<ParseIntError>() => "it must be a whole number".to_owned(),
        Some(source) if source.is::<ParseFloatError>() => "it must be a number".to_owned(),
        Some(source) => source.to_string(),
        None => "it is out of range".to_owned(),
    }
}

/// What clap found out of one kind.
fn said(error: &Error, kind: ContextKind) -> Option<String> {
    let text = match error.get(kind)? {
        ContextValue::String(text) => text.clone(),
        ContextValue::Strings(texts) => texts.join(", "),
        ContextValue::Number(number) => number.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// For the kinds that no flag of ours can come to: clap's own words, without its usage and tips.
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

    fn told(words: &[&str]) -> (ErrorKind, String) {
        let args: Vec<OsString> = std::iter::once("tool")
            .chain(words.iter().copied())
            .map(OsString::from)
            .collect();
        let error = tool().try_get_matches_from(&args).unwrap_err();
        (error.kind(), sentence(&error, tool(), &args))
    }

    #[test]
    fn every_kind_of_wrong_usage_is_one_sentence() {
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
                "'bees' does not fit --kind <kind>, one of a, bee (did you mean bee?); see 'tool lay --help'",
            ),
            (
                &["lay", "--kind"],
                ErrorKind::InvalidValue,
                "--kind <kind> needs a value, one of a, bee; see 'tool lay --help'",
            ),
            (
                &["lay", "--port", "seventy"],
                ErrorKind::ValueValidation,
                "'seventy' does not fit --port <port>: it must be a whole number; see 'tool lay --help'",
            ),
            (
                &["lay", "--port", "70000"],
                ErrorKind::ValueValidation,
                "'70000' does not fit --port <port>: 70000 is not in 0..=65535; see 'tool lay --help'",
            ),
            (
                &["lay", "--rate", "fast"],
                ErrorKind::ValueValidation,
                "'fast' does not fit --rate <rate>: it must be a number; see 'tool lay --help'",
            ),
            (
                &["lay", "--port", "1", "--port", "2"],
                ErrorKind::ArgumentConflict,
                "--port <port> was given more than once; give it once; see 'tool lay --help'",
            ),
            (
                &["lay", "--plain", "--json"],
                ErrorKind::ArgumentConflict,
                "--plain and --json cannot be given together; see 'tool lay --help'",
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
        for (words, kind, wanted) in rows {
            assert_eq!(told(words), (kind, wanted.to_owned()), "{words:?}");
        }
    }

    #[test]
    fn what_was_typed_cannot_break_the_line() {
        let (_, told) = told(&["two\nlines\u{1b}[2J"]);
        assert_eq!(told.lines().count(), 1);
        assert!(!told.contains('\u{1b}'), "{told:?}");
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_no_text_are_told_too() {
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
            sentence(&error, tool(), &args),
            "an argument is not valid UTF-8; see 'tool lay --help'"
        );
    }
}
