//! `clawhost plugin grant`: write down what one build of a component may reach.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clawhost_journal::now_ms;
use clawhost_plugins::{GrantBook, GrantEditor, GrantedTo, Grants, HostOptions, Manifest};
use serde_json::json;

use crate::compiling;
use crate::output::{say, say_json};
use crate::serve::{plugin_name, read_plugin};

/// Arguments of `clawhost plugin grant`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin grant judge.wasm model=judge\n  \
    clawhost plugin grant judge.wasm http=https://api.example secret=KEY:EXAMPLE_KEY@https://api.example\n  \
    clawhost plugin grant judge.wasm --revoke\n\n\
    A grant belongs to the sha256 of the file: another build has none until it is granted anew. A server\n\
    reads the file when it loads the plugin. A plugin.toml beside the component narrows what is granted to what its\n\
    table [wants] names: http = [origins], models = [aliases]."
)]
pub(crate) struct GrantArgs {
    /// The component
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What it may reach: model, model=ALIAS, state, http=ORIGIN, secret=NAME:ENV@ORIGIN[#HEADER]; none
    /// shows what it asks for and has. A secret is sent in the header `authorization` unless HEADER is named
    #[arg(value_name = "GRANT")]
    wanted: Vec<String>,
    /// Give this build what the build granted before it had
    #[arg(long, conflicts_with = "revoke")]
    as_before: bool,
    /// Take everything back
    #[arg(long, conflicts_with = "wanted")]
    revoke: bool,
    /// Data directory of the server, where `grants.toml` is kept
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// The grants file, where it is not in the data directory
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn grant(args: &GrantArgs) -> Result<ExitCode> {
    let bytes = read_plugin(&args.file)?;
    let found = compiling::host(HostOptions::default())?
        .inspect(&bytes)
        .with_context(|| format!("{} cannot be used", args.file.display()))?;
    let manifest = Manifest::of(&args.file)?;
    let name = plugin_name(&args.file);
    let path = match &args.grants {
        Some(path) => path.clone(),
        None => args.data.join("grants.toml"),
    };
    let reads_only = !args.revoke && !args.as_before && args.wanted.is_empty();
    let book = if reads_only {
        GrantBook::open(&path)?
    } else {
        change(args, &found.digest, &name, &manifest, &path)?
    };
    let before = predecessor(&book, &name, &found.digest);
    let has = book.grants(&found.digest);
    let lacks = manifest.lacking(&found.capabilities, &has);
    let unwanted = manifest.unwanted(&has);
    let none = Grants::default();
    let earlier = before.as_ref().map_or(&none, |(_, grants)| grants);
    if args.json {
        say_json(&json!({
            "plugin": name,
            "sha256": found.digest,
            "grants": has.beyond(&none),
            "wants": manifest.wants(),
            "lacks": lacks,
            "unwanted": unwanted,
            "more_than_before": has.beyond(earlier),
            "less_than_before": earlier.beyond(&has),
            "before": before.as_ref().map(|(digest, _)| digest),
            "file": path,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let words = |items: &[String]| {
        if items.is_empty() {
            "nothing".to_owned()
        } else {
            items.join("  ")
        }
    };
    let mut text = format!(
        "plugin    {name}\nsha256    {}\ngranted   {}\nlacks     {}\n",
        found.digest,
        words(&has.beyond(&none)),
        words(&lacks),
    );
    if !unwanted.is_empty() {
        text.push_str(&format!(
            "\nwithout effect, because plugin.toml does not name it under [wants]: {}\n",
            words(&unwanted)
        ));
    }
    if let Some((digest, grants)) = &before {
        text.push_str(&format!("\nagainst the build granted before ({digest})\n"));
        for argument in has.beyond(grants) {
            text.push_str(&format!("  + {argument}\n"));
        }
        for argument in grants.beyond(&has) {
            text.push_str(&format!("  - {argument}\n"));
        }
    }
    text.push_str(&format!("\nin {}\n", path.display()));
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes what the arguments ask for, based on what is on disk while no other process writes.
fn change(
    args: &GrantArgs,
    digest: &str,
    name: &str,
    manifest: &Manifest,
    path: &Path,
) -> Result<GrantBook> {
    let mut editor = GrantEditor::open(path)?;
    if args.revoke {
        let any = editor.revoke(digest)?;
        ensure!(any, "nothing was granted to sha256 {digest}");
        return Ok(editor.book().clone());
    }
    let mut grants = editor.book().grants(digest);
    if args.as_before {
        let Some((_, before)) = predecessor(editor.book(), name, digest) else {
            bail!("no other build of {name} has been granted anything; name the grants");
        };
        grants.join(&before);
    }
    for argument in &args.wanted {
        grants.add(argument).map_err(anyhow::Error::msg)?;
    }
    let entry = GrantedTo {
        plugin: name.to_owned(),
        at_ms: now_ms(),
        wants: manifest.wants(),
        grants,
    };
    editor.write(digest, entry)?;
    Ok(editor.book().clone())
}

/// Digest and grants of the build that was granted before this one.
fn predecessor(book: &GrantBook, name: &str, digest: &str) -> Option<(String, Grants)> {
    book.predecessor(name, digest)
        .map(|(digest, entry)| (digest.to_owned(), entry.grants.clone()))
}
