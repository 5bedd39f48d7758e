//! `clawhost plugin list`: embedded plugins and grants.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use clawhost_plugins::{EMBEDDED_COMPONENTS, GrantFile, Grants, digest};
use serde_json::{Value, json};

use super::grant::GrantsFlags;
use super::load::ReadingFlags;
use crate::output::{print, print_json};

/// Arguments of `clawhost plugin list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost plugin list --json")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    grants: GrantsFlags,
    #[command(flatten)]
    configuration: ReadingFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn list(args: &ListArgs) -> Result<ExitCode> {
    let path = args.grants.file(&args.configuration.load()?);
    let book = GrantFile::open(&path)?;
    let granted = |grants: &Grants| grants.difference(&Grants::default());
    if args.json {
        let embedded: Vec<Value> = EMBEDDED_COMPONENTS
            .iter()
            .map(|(name, bytes)| json!({"name": name, "sha256": digest(bytes), "bytes": bytes.len()}))
            .collect();
        let grants: Vec<Value> = book
            .entries()
            .map(|(digest, entry)| {
                json!({"plugin": entry.plugin, "sha256": digest, "at_ms": entry.at_ms,
                    "wants": entry.wants, "grants": granted(&entry.grants)})
            })
            .collect();
        print_json(&json!({"embedded": embedded, "grants": grants, "file": path}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::from("embedded\n");
    for (name, bytes) in EMBEDDED_COMPONENTS {
        text.push_str(&format!("  {name:<22} {}\n", digest(bytes)));
    }
    text.push_str(&format!("\ngranted in {}\n", path.display()));
    let mut any = false;
    for (digest, entry) in book.entries() {
        any = true;
        text.push_str(&format!(
            "  {:<22} {digest}\n  {:<22} {}\n",
            entry.plugin,
            "",
            granted(&entry.grants).join("  ")
        ));
        if !entry.wants.is_empty() {
            text.push_str(&format!("  {:<22} wants {}\n", "", entry.wants.join("  ")));
        }
    }
    if !any {
        text.push_str("  nothing\n");
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
