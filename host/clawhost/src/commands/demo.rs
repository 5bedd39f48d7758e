//! `clawhost demo`: does it learn? Two real servers in this process, one that trains and one that does
//! not, a scripted person who talks to both over HTTP, and a report.
//!
//! Everything about talking, scoring and reporting is in `clawhost-evaluation`, which knows nothing of
//! this process; here are the two servers, what a terminal shows meanwhile, and where the page goes.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use clawhost_evaluation::statistics::mean;
use clawhost_evaluation::{
    About, ArmEvent, ChatClient, DemoEndpoints, DemoOptions, DemoOutcome, Endpoint, Glyphs,
    Persona, Progress, Student, Teacher, TerminalOptions, page, plot, run_demo, table,
};
use serde_json::{Value, json};

use crate::config::Config;
use crate::output::{say, say_json};
use crate::serve::{Server, Settings};

/// Arguments of `clawhost demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost demo\n  clawhost demo --seed 7 --json | tail -n 1\n  \
    clawhost demo --model ./my-policy --out report.html\n\n\
    Exit codes: 0 it learned, 1 it did not or something failed, 2 wrong usage, 130 interrupted."
)]
pub(crate) struct DemoArgs {
    /// Seed of the persona, its problems and its requests; the same for both arms
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Conversations of each arm
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    conversations: u32,
    /// Conversations at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    /// Who talks
    #[arg(long, value_enum, default_value_t = Who::Student)]
    persona: Who,
    /// Model directory (Hugging Face layout) instead of the policy inside this program
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Configuration file for both servers; the control arm never trains, whatever it says
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sampling temperature of the requests [default: what the model is served at]
    #[arg(long, value_name = "NUMBER")]
    temperature: Option<f32>,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "clawhost-demo.html")]
    out: PathBuf,
    /// Keep what both servers recorded in this directory [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the result as one JSON object instead of the table and the plot
    #[arg(long)]
    json: bool,
}

/// The personas that can talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Who {
    /// Brings homework and wants it back in plain prose
    Student,
    /// Brings pupils' answers and wants friendly, specific comments
    Teacher,
}

impl Who {
    fn persona(self) -> &'static dyn Persona {
        match self {
            Who::Student => &Student,
            Who::Teacher => &Teacher,
        }
    }

    fn name(self) -> &'static str {
        self.persona().name()
    }
}

/// How many conversations the progress line looks back on.
const WINDOW: usize = 12;

/// Runs the command.
pub(crate) fn demo(args: &DemoArgs) -> Result<ExitCode> {
    // A report that cannot be written after minutes of work is worse than one that is refused now.
    check_writable(&args.out)?;
    let config = config(args)?;
    let data = Data::open(args.data.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the servers")?;
    let finished = runtime.block_on(async {
        tokio::select! {
            outcome = both_arms(args, &config, data.path()) => outcome.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        }
    });
    // Servers that were interrupted are dropped with the runtime; give their threads a moment.
    runtime.shutdown_timeout(Duration::from_secs(5));
    let Some((outcome, about)) = finished? else {
        return Ok(ExitCode::from(130));
    };
    std::fs::write(&args.out, page(&outcome, &about))
        .with_context(|| format!("cannot write the report {}", args.out.display()))?;
    tell(args, &outcome)?;
    Ok(if outcome.verdict().learned() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The configuration of both servers: the file's, or what suits the model that is served.
fn config(args: &DemoArgs) -> Result<Config> {
    let mut config = Config::load(args.config.as_deref(), args.model.as_deref())?;
    config.server.host = "127.0.0.1".to_owned();
    config.server.port = 0;
    config.keys = Vec::new();
    Ok(config)
}

/// Starts both servers, lets the persona talk to them, and stops them whatever came of it.
async fn both_arms(args: &DemoArgs, config: &Config, data: &Path) -> Result<(DemoOutcome, About)> {
    let trained = Server::start(arm(config, &data.join("trained"), true))
        .await
        .context("the server that trains did not start")?;
    let control = match Server::start(arm(config, &data.join("control"), false)).await {
        Ok(server) => server,
        Err(error) => {
            trained.stop().await;
            return Err(error.context("the control server did not start"));
        }
    };
    let outcome = talk(args, config, &trained, &control).await;
    trained.stop().await;
    control.stop().await;
    outcome
}

/// The settings of one arm: its own data, and whether it trains.
fn arm(config: &Config, data: &Path, train: bool) -> Settings {
    let mut config = config.clone();
    config.server.data = data.to_owned();
    config.training.enabled = train;
    Settings::from(config)
}

async fn talk(
    args: &DemoArgs,
    config: &Config,
    trained: &Server,
    control: &Server,
) -> Result<(DemoOutcome, About)> {
    let mut options = DemoOptions {
        seed: args.seed,
        conversations: args.conversations as usize,
        concurrency: args.concurrency as usize,
        temperature: args.temperature,
        ..DemoOptions::default()
    };
    options.patience.batch = config.training.batch as u64;
    let endpoints = DemoEndpoints {
        trained: trained.url().to_owned(),
        control: control.url().to_owned(),
        model: trained.model().to_owned(),
        // The servers of this process take the same key from the environment as any other.
        api_key: std::env::var("CLAWHOST_API_KEY")
            .ok()
            .filter(|key| !key.is_empty()),
    };
    let health = health(trained.url()).await?;
    let about = About {
        served: served(trained, config, &health),
        reproduce: command_line(args),
        date: today(),
    };
    let mut progress = Live::new(args.conversations as usize);
    let outcome = run_demo(&endpoints, args.persona.persona(), options, &mut progress).await;
    progress.end();
    Ok((outcome?, about))
}

/// What the report says about the server that trains.
fn served(server: &Server, config: &Config, health: &Value) -> Vec<(String, String)> {
    let judges = health.get("plugins").and_then(Value::as_array);
    let judge = |plugin: &Value| {
        let of = |name: &str| {
            plugin
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or("unknown")
        };
        format!("{} (sha256 {})", of("name"), of("digest"))
    };
    let judges: Vec<String> = judges.into_iter().flatten().map(judge).collect();
    let training = &config.training;
    [
        ("program", format!("clawhost {}", env!("CARGO_PKG_VERSION"))),
        ("model", server.model().to_owned()),
        (
            "sha256 of its weights",
            server.engine().model().digest().to_owned(),
        ),
        ("judges", judges.join("\n")),
        (
            "a step",
            format!(
                "{} samples, {} epochs, learning rate {}, LoRA of rank {}",
                training.batch,
                training.epochs,
                training.optimizer.learning_rate,
                training.lora.rank
            ),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

async fn health(url: &str) -> Result<Value> {
    let endpoint = Endpoint {
        url: url.to_owned(),
        model: String::new(),
        api_key: None,
    };
    let client = ChatClient::new(endpoint, Duration::from_secs(10))?;
    Ok(client.health().await?)
}

fn tell(args: &DemoArgs, outcome: &DemoOutcome) -> Result<()> {
    let report = std::path::absolute(&args.out).unwrap_or_else(|_| args.out.clone());
    if args.json {
        let mut line = outcome.json();
        if let Some(fields) = line.as_object_mut() {
            fields.insert("report".into(), json!(report.display().to_string()));
        }
        return say_json(&line);
    }
    let options = TerminalOptions {
        width: columns(),
        glyphs: glyphs(),
        ..TerminalOptions::default()
    };
    say(&plot(outcome, options))?;
    say(&table(outcome))?;
    say(&format!("Report: {}", report.display()))
}

/// The command line that gives this run again.
fn command_line(args: &DemoArgs) -> String {
    let mut line = format!(
        "clawhost demo --seed {} --conversations {} --concurrency {} --persona {}",
        args.seed,
        args.conversations,
        args.concurrency,
        args.persona.name()
    );
    for (flag, value) in [("--model", &args.model), ("--config", &args.config)] {
        if let Some(value) = value {
            line.push_str(&format!(" {flag} {}", value.display()));
        }
    }
    if let Some(temperature) = args.temperature {
        line.push_str(&format!(" --temperature {temperature}"));
    }
    line
}

fn check_writable(out: &Path) -> Result<()> {
    anyhow::ensure!(
        !out.is_dir(),
        "{} is a directory; name a file for the report with --out",
        out.display()
    );
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let probe = folder.join(format!(".{name}.{}", std::process::id()));
    std::fs::write(&probe, b"")
        .and_then(|()| std::fs::remove_file(&probe))
        .with_context(|| {
            format!(
                "cannot write a report to {}; name another place with --out",
                folder.display()
            )
        })
}

/// The folder of both servers' data; a temporary one goes when this value goes.
struct Data {
    path: PathBuf,
    temporary: bool,
}

impl Data {
    fn open(kept: Option<&Path>) -> Result<Data> {
        let made = |path: &Path| {
            std::fs::create_dir_all(path)
                .with_context(|| format!("cannot make the data folder {}", path.display()))
        };
        if let Some(path) = kept {
            for arm in ["trained", "control"] {
                anyhow::ensure!(
                    !path.join(arm).exists(),
                    "{} holds an earlier demo; name a new folder with --data",
                    path.display()
                );
            }
            made(path)?;
            return Ok(Data {
                path: path.to_owned(),
                temporary: false,
            });
        }
        let begun = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos());
        let name = format!("clawhost-demo-{}-{begun}", std::process::id());
        let path = std::env::temp_dir().join(name);
        made(&path)?;
        Ok(Data {
            path,
            temporary: true,
        })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "the temporary data folder is left behind");
        }
    }
}

/// What one arm has come to so far.
#[derive(Debug, Default)]
struct Standing {
    values: Vec<f64>,
    ended: usize,
    failures: usize,
    steps: u64,
}

impl Standing {
    /// Mean of the last few values.
    fn recent(&self) -> String {
        let from = self.values.len().saturating_sub(WINDOW);
        let recent = self.values.get(from..).unwrap_or_default();
        mean(recent).map_or_else(|| "–".to_owned(), |mean| format!("{mean:.2}"))
    }
}

/// Progress on standard error: one line that moves on a terminal, one line a round elsewhere.
struct Live {
    conversations: usize,
    begun: Instant,
    terminal: bool,
    trained: Standing,
    control: Standing,
}

impl Live {
    fn new(conversations: usize) -> Live {
        Live {
            conversations,
            begun: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
            trained: Standing::default(),
            control: Standing::default(),
        }
    }

    fn line(&self) -> String {
        let (trained, control) = (&self.trained, &self.control);
        let mut line = format!(
            "trained {}/{} · last {WINDOW}: {} · {} steps   control {}/{} · last {WINDOW}: {}",
            trained.ended,
            self.conversations,
            trained.recent(),
            trained.steps,
            control.ended,
            self.conversations,
            control.recent(),
        );
        let failures = trained.failures + control.failures;
        if failures > 0 {
            line.push_str(&format!("   {failures} requests failed"));
        }
        if let Some(left) = left(
            self.begun.elapsed(),
            trained.ended,
            control.ended,
            self.conversations,
        ) {
            let seconds = left.as_secs();
            line.push_str(&format!("   {}:{:02} left", seconds / 60, seconds % 60));
        }
        line
    }

    fn show(&self, round_over: bool) {
        let mut err = std::io::stderr().lock();
        // Progress is a courtesy: a closed terminal must not end the run.
        let _ = if self.terminal {
            write!(err, "\r\x1b[2K{}", self.line()).and_then(|()| err.flush())
        } else if round_over {
            writeln!(err, "{}", self.line())
        } else {
            Ok(())
        };
    }

    fn end(&self) {
        if self.terminal {
            let _ = writeln!(std::io::stderr().lock());
        }
    }
}

/// Time that is left when the slower arm goes on as it has; nothing before it has ended one.
fn left(elapsed: Duration, one: usize, other: usize, all: usize) -> Option<Duration> {
    let slower = one.min(other);
    (slower > 0).then(|| {
        let share = all.saturating_sub(slower) as f64 / slower as f64;
        elapsed.mul_f64(share)
    })
}

impl Progress for Live {
    fn event(&mut self, event: &ArmEvent) {
        let (ArmEvent::Ended { arm, .. } | ArmEvent::Settled { arm, .. }) = event;
        let trained = arm == "trained";
        let standing = if trained {
            &mut self.trained
        } else {
            &mut self.control
        };
        let mut round_over = false;
        match event {
            ArmEvent::Ended {
                value, failures, ..
            } => {
                standing.ended += 1;
                standing.failures += failures;
                standing.values.extend(value);
            }
            ArmEvent::Settled { health, .. } => {
                standing.steps = health.steps;
                round_over = trained;
            }
        }
        self.show(round_over);
    }
}

/// Columns of the terminal as the shell tells them. Default: 80.
fn columns() -> usize {
    let told = std::env::var("COLUMNS").ok();
    told.and_then(|text| text.trim().parse().ok())
        .map_or(80, |columns: usize| columns.clamp(40, 160))
}

/// Braille where the locale says that the terminal shows UTF-8, or says nothing; else ASCII.
fn glyphs() -> Glyphs {
    let told = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok());
    locale_glyphs(told)
}

fn locale_glyphs(told: impl IntoIterator<Item = String>) -> Glyphs {
    let Some(locale) = told.into_iter().find(|value| !value.is_empty()) else {
        return Glyphs::Braille;
    };
    let locale = locale.to_lowercase();
    if locale.contains("utf-8") || locale.contains("utf8") {
        Glyphs::Braille
    } else {
        Glyphs::Ascii
    }
}

/// The day in UTC, `2026-11-21`.
fn today() -> String {
    let seconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    date(seconds / 86_400)
}

/// The date of a day counted from 1970-01-01: whole years, then whole months, then the rest.
fn date(mut day: u64) -> String {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        let cases = [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (20_453, "2025-12-31"),
            (20_778, "2026-11-21"),
        ];
        for (day, expected) in cases {
            assert_eq!(date(day), expected);
        }
    }

    #[test]
    fn the_slower_arm_tells_the_time_left() {
        let minute = Duration::from_secs(60);
        assert_eq!(left(minute, 0, 9, 60), None);
        assert_eq!(left(minute, 30, 60, 60), Some(minute));
        assert_eq!(left(minute, 60, 60, 60), Some(Duration::ZERO));
    }

    #[test]
    fn a_locale_without_utf_8_gets_ascii() {
        let of = |text: &str| locale_glyphs([String::new(), text.to_owned()]);
        assert_eq!(of("de_DE.UTF-8"), Glyphs::Braille);
        assert_eq!(of("C.utf8"), Glyphs::Braille);
        assert_eq!(of("C"), Glyphs::Ascii);
        assert_eq!(locale_glyphs([]), Glyphs::Braille);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_refused_before_the_run() {
        let error = check_writable(Path::new("/nowhere-at-all/report.html")).unwrap_err();
        assert!(error.to_string().contains("--out"), "{error}");
        assert!(check_writable(&std::env::temp_dir()).is_err());
    }

    #[test]
    fn progress_counts_both_arms() {
        let mut live = Live::new(60);
        live.terminal = false;
        for value in [Some(1.0), Some(0.0), None] {
            live.event(&ArmEvent::Ended {
                arm: "trained".into(),
                value,
                replies: 1,
                failures: usize::from(value.is_none()),
            });
        }
        let line = live.line();
        assert!(line.contains("trained 3/60 · last 12: 0.50"), "{line}");
        assert!(line.contains("control 0/60 · last 12: –"), "{line}");
        assert!(line.contains("1 requests failed"), "{line}");
    }
}
