//! `clawhost export`: the record as JSON lines, or a whole model.

pub(crate) mod merged;

use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use clawhost_journal::{Export, Journal, JournalError};
use clawhost_policy::{ModelFiles, Tokenizer};

/// Arguments of `clawhost export`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  clawhost export > conversations.jsonl\n  \
    clawhost export --what verdicts --out verdicts.jsonl\n  \
    clawhost export merged --out ./my-model\n\nWorks while a server runs on the same data directory. \
    Conversations and verdicts carry the field names of OpenClaw-RL's record and PRM files."
)]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    form: Option<Form>,
    /// What to write
    #[arg(long, value_enum, default_value_t = What::Conversations)]
    what: What,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Model directory whose tokenizer spells out prompts [default: the embedded policy's]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// File to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Form {
    /// Base and adapter as one model in Hugging Face layout
    Merged(merged::MergedArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Each finished main turn with its next state
    Conversations,
    /// Every turn with its tokens and log-probs
    Turns,
    /// Every verdict and every judge that gave none
    Verdicts,
    /// Every hint and every extractor that gave none
    Hints,
    /// Every sample with what became of it
    Samples,
    /// Every training step with its metrics
    Steps,
}

/// Runs the command.
pub(crate) fn export(args: &ExportArgs) -> Result<ExitCode> {
    if let Some(Form::Merged(args)) = &args.form {
        return merged::merged(args);
    }
    let journal = Journal::open_read_only(&args.data)?;
    let what = match args.what {
        What::Conversations => Export::Conversations,
        What::Turns => Export::Turns,
        What::Verdicts => Export::Verdicts,
        What::Hints => Export::Hints,
        What::Samples => Export::Samples,
        What::Steps => Export::Steps,
    };
    let files = match &args.model {
        Some(dir) => ModelFiles::dir(dir)?,
        None => ModelFiles::embedded(),
    };
    let tokenizer = Tokenizer::from_bytes(files.tokenizer()?)?;
    let decode = |ids: &[u32]| tokenizer.decode_with_special(ids);
    let write = |out: &mut dyn Write| journal.export_with(out, what, Some(&decode));
    match &args.out {
        Some(path) => {
            let file = std::fs::File::create(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            let lines = write(&mut BufWriter::new(file))?;
            crate::output::say(&format!("{lines} lines written to {}", path.display()))?;
        }
        None => match write(&mut BufWriter::new(std::io::stdout().lock())) {
            Err(JournalError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {}
            other => {
                other?;
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}
