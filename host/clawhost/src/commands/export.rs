//! `clawhost export`: recorded data as JSON lines, or the merged model.

pub(crate) mod merged;

use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use clawhost_chat::Tokenizer;
use clawhost_journal::{Export, Journal, JournalError};

use crate::serve::model_files;

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
    target: Option<Target>,
    /// What to export
    #[arg(long, value_enum, default_value_t = What::Conversations)]
    what: What,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Model directory or GGUF file whose tokenizer decodes prompts [default: the embedded model]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// File to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Target {
    /// Base model and adapter merged into one model in Hugging Face layout
    Merged(merged::MergedArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Finished main turns, each with its next state
    Conversations,
    /// All turns with their tokens and log-probs
    Turns,
    /// All verdicts, and judges that gave none
    Verdicts,
    /// All hints, and extractors that gave none
    Hints,
    /// All samples and how each was used
    Samples,
    /// All training steps with their metrics
    Steps,
}

/// Runs the command.
pub(crate) fn export(args: &ExportArgs) -> Result<ExitCode> {
    if let Some(Target::Merged(args)) = &args.target {
        return merged::export_merged(args);
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
    let files = model_files(args.model.as_deref())?;
    let tokenizer = Tokenizer::from_bytes(files.tokenizer()?)?;
    let decode = |ids: &[u32]| tokenizer.decode_with_special(ids);
    let write = |out: &mut dyn Write| journal.export_with(out, what, Some(&decode));
    match &args.out {
        Some(path) => {
            let file = std::fs::File::create(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            let lines = write(&mut BufWriter::new(file))?;
            crate::output::print(&format!("wrote {lines} lines to {}", path.display()))?;
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
