//! `clawhost eval personalize`: compares every training method with the frozen model, with several seeds each.
//!
//! Each arm of each persona and seed is a separate server in this process with its own temporary data directory, and is
//! used over HTTP. Arms differ only in their configuration.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::TypedValueParser;
use clawhost_evaluation::probes::PROMPTS_PER_SET;
use clawhost_evaluation::{
    Arm, PersonalizeOptions, Track, Wish, personalize_page, personalize_table,
};

use super::cells::{EvalRun, about, run_all};
use super::learning::configurations;
use super::selection::selected_or;
use crate::arms::{self, ArmFlags};
use crate::output::check_writable;

/// Arguments of `clawhost eval personalize`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  clawhost eval personalize\n  \
    clawhost eval personalize --seeds 1 --personas student --arms control,hybrid\n  \
    clawhost eval personalize --json --check --jobs 16 --out report.html | tail -n 1\n  \
    clawhost eval personalize --model ./SmolLM2-135M-Instruct.Q4_1.gguf --wish short,bullets --temperature 0.7\n  \
    clawhost eval personalize --model ./SmolLM2-135M-Instruct.Q4_1.gguf --two-people --arms control,configured,one-adapter\n\n\
    Scores are those of the first reply of each conversation. at36 (at24 of a teacher) is the mean over conversations 25 to 36\n\
    (13 to 24); fresh is the mean over held-out tasks after all conversations. Takes about half a minute of one core per arm,\n\
    persona and seed; with a real model minutes to an hour.\n\n\
    With --model the personas are people with a wish, who never state it in advance: clawhost eval calibrate says which of\n\
    them the model can learn.\n\n\
    Exit codes: 0 success, 1 an arm failed (with --check: or a target was missed), 2 wrong usage, 130 interrupted.")]
pub(crate) struct PersonalizeArgs {
    /// Arms to compare [default: control,binary,opd,hybrid,hybrid-divergence; with --model
    /// control,binary,opd,hybrid,redo-dpo-rehearsal,opd-topk-redo-sft-rehearsal,hybrid-redo-sft-rehearsal,memory]
    #[arg(long, value_name = "ARMS", value_delimiter = ',', value_parser = arm_values())]
    arms: Vec<Arm>,
    /// Personas of the embedded model's worlds [default: student,teacher; with --model none]
    #[arg(long, value_name = "PERSONAS", value_delimiter = ',', value_parser = arms::persona_values())]
    personas: Vec<Track>,
    /// Wishes of people who talk to the model of --model [default: short]
    #[arg(long, value_name = "WISHES", value_delimiter = ',', value_parser = arms::wish_values())]
    wish: Vec<Wish>,
    /// Also run a person for each wish who takes it back after 24 of 48 conversations
    #[arg(long, conflicts_with = "conversations")]
    take_back: bool,
    /// Also run two people for each wish who share a server: one has the wish, the other wants the opposite. Each has an API
    /// key and an adapter (training.adapters = "key"), and is also scored with the other's adapter and on the base model
    #[arg(long)]
    two_people: bool,
    /// Seeds per arm and persona
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// First seed; the others follow it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Conversations per arm, persona and seed [default: 36 of a student and of a person with a wish, 24 of a teacher]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    conversations: Option<u32>,
    /// Concurrent conversations per arm
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    /// Fresh tasks whose first replies are scored after the conversations; 0 = none
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=1000))]
    fresh: u32,
    /// Held-out prompts of each kind and seed to measure forgetting; 0 = none, at most 200 for all seeds of a student or
    /// teacher [default: 32; of a person with a wish 16]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=200))]
    probes: Option<u32>,
    /// Maximum tokens of a reply [default: 256; of a person with a wish 160]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Concurrent arms [default: one per core; with --model 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    #[command(flatten)]
    flags: ArmFlags,
    /// Path of the HTML report
    #[arg(long, value_name = "FILE", default_value = "clawhost-personalize.html")]
    out: PathBuf,
    /// Exit with code 1 when a target is missed
    #[arg(long)]
    check: bool,
}

fn arm_values() -> impl TypedValueParser<Value = Arm> {
    arms::named_values(Arm::ALL, Arm::name, Arm::about)
}

impl PersonalizeArgs {
    /// `real` is whether the model is not the embedded one.
    fn options(&self, real: bool) -> PersonalizeOptions {
        let wishes = if real && self.personas.is_empty() {
            selected_or(&self.wish, vec![Wish::Short])
        } else {
            selected_or(&self.wish, Vec::new())
        };
        let mut defaults = if wishes.is_empty() {
            PersonalizeOptions::default()
        } else {
            PersonalizeOptions::of_wishes(&wishes)
        };
        if self.take_back {
            defaults
                .tracks
                .extend(wishes.iter().copied().map(Track::TakenBack));
        }
        if self.two_people {
            let two = |wish: Wish| [Track::OfTwo(wish), Track::Opposite(wish)];
            defaults.tracks.extend(wishes.iter().copied().flat_map(two));
        }
        let mut tracks = selected_or(&self.personas, Vec::new());
        if tracks.is_empty() || !wishes.is_empty() {
            tracks.extend(&defaults.tracks);
        }
        PersonalizeOptions {
            arms: selected_or(&self.arms, defaults.arms.clone()),
            tracks,
            first_seed: self.seed,
            seeds: self.seeds,
            conversations: self.conversations.map(|count| count as usize),
            concurrency: self.concurrency as usize,
            fresh: self.fresh as usize,
            probes: self.probes.map_or(defaults.probes, |count| count as usize),
            temperature: self.flags.temperature,
            max_tokens: self.max_tokens.or(defaults.max_tokens),
            ..defaults
        }
    }

    /// The command line that reproduces this run.
    fn command_line(&self, options: &PersonalizeOptions) -> String {
        let arms: Vec<&str> = options.arms.iter().map(|arm| arm.name()).collect();
        let mut line = format!(
            "clawhost eval personalize --arms {} --seeds {} --seed {} --concurrency {} --fresh {} --probes {}",
            arms.join(","),
            self.seeds,
            self.seed,
            self.concurrency,
            self.fresh,
            options.probes
        );
        let (wishes, personas): (Vec<Track>, Vec<Track>) = options
            .tracks
            .iter()
            .copied()
            .partition(|track| track.wish().is_some());
        for (flag, tracks) in [("--personas", personas), ("--wish", wishes)] {
            let tracks = tracks
                .into_iter()
                .filter(|track| track.wish().is_none() || matches!(track, Track::Wish(_)));
            let names: Vec<&str> = tracks.map(Track::name).collect();
            if !names.is_empty() {
                line.push_str(&format!(" {flag} {}", names.join(",")));
            }
        }
        if self.take_back {
            line.push_str(" --take-back");
        }
        if self.two_people {
            line.push_str(" --two-people");
        }
        if let Some(count) = self.max_tokens {
            line.push_str(&format!(" --max-tokens {count}"));
        }
        if let Some(count) = self.conversations {
            line.push_str(&format!(" --conversations {count}"));
        }
        self.flags.command_line(line)
    }
}

/// Runs the command.
pub(crate) fn personalize(args: &PersonalizeArgs) -> Result<ExitCode> {
    // Check the report path now, not after minutes of work.
    check_writable(&args.out)?;
    let real = args.flags.configuration()?.model.path.is_some();
    anyhow::ensure!(
        real || (args.wish.is_empty() && !args.take_back && !args.two_people),
        "the embedded model knows homework only, so it cannot meet a wish; pass --model"
    );
    let options = args.options(real);
    let embedded = options.tracks.iter().any(|track| track.wish().is_none());
    anyhow::ensure!(
        !embedded || options.probes * args.seeds as usize <= PROMPTS_PER_SET,
        "{} probes for each of {} seeds are more than the {PROMPTS_PER_SET} prompts of each kind; lower --probes or --seeds",
        options.probes,
        args.seeds
    );
    let mut configs = configurations(&args.flags, &options.arms)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cells = options.cells();
    let jobs = args
        .jobs
        .map_or(if real { 1 } else { cores }, |jobs| jobs as usize)
        .min(cells.len())
        .max(1);
    for config in configs.values_mut() {
        if config.engine.num_threads == 0 {
            config.engine.num_threads = (cores / jobs).max(1);
        }
    }
    let names: Vec<String> = cells.iter().map(|cell| cell.name()).collect();
    let eval = Arc::new(EvalRun {
        configs,
        data: args.flags.data_dir(&names)?,
        jobs,
        served: tokio::sync::Mutex::default(),
        options,
    });
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let (outcome, about) = runtime.block_on(async {
        let outcome = run_all(&eval).await;
        let about = about(&eval, args.command_line(&eval.options)).await;
        (outcome, about)
    });
    // Interrupted servers are dropped with the runtime; give their threads time to end.
    runtime.shutdown_timeout(Duration::from_secs(5));
    std::fs::write(&args.out, personalize_page(&outcome, &about))
        .with_context(|| format!("cannot write the report {}", args.out.display()))?;
    args.flags.print_outcome(outcome.json(), &args.out, || {
        vec![personalize_table(&outcome)]
    })?;
    Ok(if outcome.interrupted {
        ExitCode::from(130)
    } else if !outcome.failed.is_empty() || (args.check && !outcome.all_targets_met()) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{FromArgMatches, Subcommand};

    fn read(flags: &[&str]) -> Result<PersonalizeOptions, clap::Error> {
        args(flags).map(|args| args.options(false))
    }

    fn args(flags: &[&str]) -> Result<PersonalizeArgs, clap::Error> {
        #[derive(Subcommand)]
        enum Only {
            Personalize(Box<PersonalizeArgs>),
        }
        let command = Only::augment_subcommands(clap::Command::new("eval"));
        let words = [&["eval", "personalize"], flags].concat();
        let matches = command.try_get_matches_from(words)?;
        let Only::Personalize(args) = Only::from_arg_matches(&matches)?;
        Ok(*args)
    }

    #[test]
    fn arms_are_sorted_and_deduplicated() {
        let options = read(&["--arms", "hybrid,control,hybrid", "--personas", "teacher"]).unwrap();
        assert_eq!(options.arms, [Arm::CONTROL, Arm::HYBRID]);
        assert_eq!(options.tracks, [Track::Teacher]);
        let options = read(&[]).unwrap();
        assert_eq!(options, PersonalizeOptions::default());
        assert!(!options.arms.contains(&Arm::MEMORY));
        assert!(read(&["--arms", "memory"]).is_ok());
    }

    #[test]
    fn people_with_wishes_talk_to_a_real_model() {
        let options = |flags: &[&str]| args(flags).unwrap().options(true);
        assert_eq!(options(&[]).tracks, [Track::Wish(Wish::Short)]);
        assert_eq!(options(&[]).arms, Arm::REAL);
        assert_eq!(
            (options(&[]).probes, options(&[]).max_tokens),
            (16, Some(160))
        );
        let two = options(&["--wish", "plain,short", "--take-back", "--max-tokens", "99"]);
        let (short, plain) = (Wish::Short, Wish::Plain);
        let tracks = [
            Track::Wish(short),
            Track::Wish(plain),
            Track::TakenBack(short),
            Track::TakenBack(plain),
        ];
        assert_eq!(
            (two.tracks.as_slice(), two.max_tokens),
            (tracks.as_slice(), Some(99))
        );
        assert_eq!(options(&["--personas", "teacher"]).tracks, [Track::Teacher]);
        let line = args(&["--wish", "lower", "--take-back"])
            .unwrap()
            .command_line(&two);
        assert!(
            line.contains(" --wish short,plain --take-back") && !line.contains("taken-back"),
            "{line}"
        );
        assert!(args(&["--take-back", "--conversations", "9"]).is_err());
        let pair = options(&["--two-people", "--conversations", "9"]);
        let people = [
            Track::Wish(short),
            Track::OfTwo(short),
            Track::Opposite(short),
        ];
        assert_eq!(pair.tracks, people);
        let line = args(&["--two-people"]).unwrap().command_line(&pair);
        assert!(line.contains(" --wish short --two-people"), "{line}");
    }

    #[test]
    fn unknown_values_are_rejected() {
        for flags in [
            ["--arms", "grpo"],
            ["--personas", "pupil"],
            ["--seeds", "0"],
            ["--conversations", "1"],
            ["--jobs", "0"],
            ["--wish", "fame"],
        ] {
            assert!(read(&flags).is_err(), "{flags:?}");
        }
    }
}
