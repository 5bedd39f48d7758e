//! `clawhost plugin grant`: grants capabilities to one build of a component.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clawhost_config::component_name;
use clawhost_journal::now_ms;
use clawhost_plugins::{GrantEditor, GrantEntry, GrantFile, Grants, Manifest};
use serde_json::json;

use super::load::ReadingFlags;
use crate::compiling;
use crate::config::Config;
use crate::output::{join_or, print_result};
use crate::plugin_file::PluginFiles;

/// Arguments of `clawhost plugin grant`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin grant judge.wasm model=judge\n  \
    clawhost plugin grant judge.wasm http=https://api.example secret=KEY:EXAMPLE_KEY@https://api.example\n  \
    clawhost plugin grant judge.wasm --revoke\n\n\
    Grants belong to the sha256 of the component: another build has none until it is granted again. A server\n\
    reads the file when it loads the plugin. A plugin.toml beside the component, or in its registry, limits the\n\
    effective grants to its [wants] table: http = [origins], models = [aliases]."
)]
pub(crate) struct GrantArgs {
    /// Component file, or oci://REGISTRY/NAME@sha256:DIGEST
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Capabilities to grant: model, model=ALIAS, state, http=ORIGIN, secret=NAME:ENV@ORIGIN[#HEADER]; without any,
    /// prints requested and granted capabilities. A secret is sent in the header `authorization` unless HEADER is given
    #[arg(value_name = "GRANT")]
    wanted: Vec<String>,
    /// Grant this build what the previously granted build has
    #[arg(long, conflicts_with = "revoke")]
    as_before: bool,
    /// Revoke all grants of this build
    #[arg(long, conflicts_with = "wanted")]
    revoke: bool,
    #[command(flatten)]
    grants: GrantsFlags,
    #[command(flatten)]
    configuration: ReadingFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Where the grants are.
#[derive(Debug, Args)]
pub(super) struct GrantsFlags {
    /// Data directory of the server, where `grants.toml` is kept [default: clawhost-data, or that of the configuration]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Grants file, if it is not in the data directory
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
}

impl GrantsFlags {
    /// The grants file: as these flags say, else as the configuration does.
    pub(super) fn file(&self, config: &Config) -> PathBuf {
        match (&self.grants, &self.data) {
            (Some(file), _) => file.clone(),
            (None, Some(data)) => data.join("grants.toml"),
            (None, None) => config.grants_file(),
        }
    }
}

/// Runs the command.
pub(crate) fn grant(args: &GrantArgs) -> Result<ExitCode> {
    let config = args.configuration.load()?;
    let files = PluginFiles::new(&config);
    let bytes = files.read(&args.file)?;
    let component = compiling::host(config.plugins.host.into())?
        .inspect(&bytes)
        .with_context(|| format!("cannot load {}", args.file.display()))?;
    let manifest = files.manifest(&args.file)?;
    let name = component_name(&args.file);
    let path = args.grants.file(&config);
    let read_only = !args.revoke && !args.as_before && args.wanted.is_empty();
    let book = if read_only {
        GrantFile::open(&path)?
    } else {
        change(args, &component.digest, &name, &manifest, &path)?
    };
    let before = predecessor(&book, &name, &component.digest);
    let has = book.grants(&component.digest);
    let lacks = manifest.missing_grants(&component.capabilities, &has);
    let unrequested_grants = manifest.unrequested_grants(&has);
    let none = Grants::default();
    let earlier = before.as_ref().map_or(&none, |(_, grants)| grants);
    let value = json!({
        "plugin": name,
        "sha256": component.digest,
        "grants": has.difference(&none),
        "wants": manifest.wants(),
        "lacks": lacks,
        "unwanted": unrequested_grants,
        "more_than_before": has.difference(earlier),
        "less_than_before": earlier.difference(&has),
        "before": before.as_ref().map(|(digest, _)| digest),
        "file": path,
    });
    let list_or_nothing = |items: &[String]| join_or(items, "  ", "nothing");
    let mut text = format!(
        "plugin    {name}\nsha256    {}\ngranted   {}\nlacks     {}\n",
        component.digest,
        list_or_nothing(&has.difference(&none)),
        list_or_nothing(&lacks),
    );
    if !unrequested_grants.is_empty() {
        text.push_str(&format!(
            "\nwithout effect, because [wants] in plugin.toml does not list it: {}\n",
            list_or_nothing(&unrequested_grants)
        ));
    }
    if let Some((digest, grants)) = &before {
        text.push_str(&format!(
            "\ncompared with the previously granted build ({digest})\n"
        ));
        for argument in has.difference(grants) {
            text.push_str(&format!("  + {argument}\n"));
        }
        for argument in grants.difference(&has) {
            text.push_str(&format!("  - {argument}\n"));
        }
    }
    text.push_str(&format!("\nin {}\n", path.display()));
    print_result(args.json, &value, || text)
}

/// Applies the arguments to the grants file, under the editor's lock.
fn change(
    args: &GrantArgs,
    digest: &str,
    name: &str,
    manifest: &Manifest,
    path: &Path,
) -> Result<GrantFile> {
    let mut editor = GrantEditor::open(path)?;
    if args.revoke {
        let any = editor.revoke(digest)?;
        ensure!(any, "no grants to revoke for sha256 {digest}");
        return Ok(editor.file().clone());
    }
    let mut grants = editor.file().grants(digest);
    if args.as_before {
        let Some((_, before)) = predecessor(editor.file(), name, digest) else {
            bail!("no other build of {name} has grants; list the capabilities to grant");
        };
        grants.merge(&before);
    }
    for argument in &args.wanted {
        grants.add(argument).map_err(anyhow::Error::msg)?;
    }
    let entry = GrantEntry {
        plugin: name.to_owned(),
        at_ms: now_ms(),
        wants: manifest.wants(),
        grants,
    };
    editor.write(digest, entry)?;
    Ok(editor.file().clone())
}

/// Digest and grants of the previously granted build.
fn predecessor(book: &GrantFile, name: &str, digest: &str) -> Option<(String, Grants)> {
    book.predecessor(name, digest)
        .map(|(digest, entry)| (digest.to_owned(), entry.grants.clone()))
}
