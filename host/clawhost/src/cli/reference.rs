//! `docs/src/cli.md`: the help of every command, generated from the command line itself.

use std::fmt::Write;

use clap::{Command, CommandFactory};

use super::Cli;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/cli.md");

/// Appends a section for `command` and for each of its visible subcommands.
fn append(out: &mut String, command: &mut Command, path: &str, depth: usize) {
    let heading = "#".repeat(depth.min(4));
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\n{heading} `{path}`\n\n```text");
    let help = command.render_long_help().to_string();
    for line in help.trim_end().lines() {
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push_str("```\n");
    for sub in command.get_subcommands_mut() {
        if sub.get_name() != "help" && !sub.is_hide_set() {
            let path = format!("{path} {}", sub.get_name());
            append(out, sub, &path, depth + 1);
        }
    }
}

#[test]
fn the_command_line_reference_is_current() {
    // The width is fixed, so that the text does not depend on the terminal.
    let mut cli = Cli::command().term_width(110);
    cli.build();
    let mut text =
        "# Command line reference\n\nThe output of `clawhost COMMAND --help`.\n".to_owned();
    append(&mut text, &mut cli, "clawhost", 2);
    if std::env::var_os("CLAWHOST_RENEW").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    assert!(
        std::fs::read_to_string(FILE).unwrap_or_default() == text,
        "docs/src/cli.md is out of date; renew it with `CLAWHOST_RENEW=1 cargo test --lib the_command_line_reference`"
    );
}
