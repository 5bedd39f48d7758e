//! Episodes of the shipped environments with the embedded policy.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test states what must hold"
)]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clawhost_engine::{Engine, EngineOptions, SamplingParams};
use clawhost_episodes::{
    ArtifactsRoot, EpisodeOptions, EpisodeRecord, EpisodeReport, EpisodeRunner, EpisodeSource,
    FinishedEpisode, SampleUnit, StepJudge, is_recorded, parse_tasks, plan_groups, record_episode,
};
use clawhost_journal::{Journal, VerdictOutcome};
use clawhost_model::ModelFiles;
use clawhost_plugins::{
    CallContext, Grants, HostOptions, Limits, PluginHost, PluginHostConfig, Profile,
};

const TOOLCALL: &[u8] = include_bytes!("../../../plugins/artifacts/environment-toolcall.wasm");
const GUESS: &[u8] = include_bytes!("../../../plugins/artifacts/environment-guess.wasm");
const STEP_JUDGE: &[u8] = include_bytes!("../../../plugins/artifacts/judge-step.wasm");
const GUESS_TASK: &str = r#"{"id":"g","instruction":"Play with me.","tries":3}"#;
const SUM_TASKS: &str = r#"{"id":"a","instruction":"Mia has 12 shells and finds 7 more. How many shells does Mia have now?","answer":19}
{"id":"b","instruction":"Tom has 9 pens and gives away 4 of them. How many pens are left?","answer":5}"#;

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let options = EngineOptions {
            kv_cache_memory: 64 << 20,
            ..EngineOptions::default()
        };
        clawhost_cpu::load_engine(&ModelFiles::embedded(), options).unwrap()
    })
}

fn runner(component: &[u8], options: EpisodeOptions) -> EpisodeRunner {
    let host = PluginHost::new(HostOptions {
        config: PluginHostConfig {
            num_threads: 2,
            max_instances: 8,
            ..PluginHostConfig::default()
        },
        ..HostOptions::default()
    });
    let environment = host.unwrap().load(
        "environment",
        component,
        &Grants::default(),
        Profile::default(),
    );
    EpisodeRunner {
        engine: engine().clone(),
        environment: environment.unwrap(),
        call: CallContext::default(),
        step_judge: None,
        options,
        parallel: 4,
    }
}

fn options(unit: SampleUnit) -> EpisodeOptions {
    EpisodeOptions {
        unit,
        sampling: SamplingParams {
            max_tokens: 60,
            ..SamplingParams::default()
        },
        ..EpisodeOptions::default()
    }
}

async fn run(runner: &EpisodeRunner, tasks: &str, samples: u32) -> Vec<EpisodeRecord> {
    let tasks = parse_tasks(tasks, "tasks").unwrap();
    let tasks: Vec<_> = tasks.into_iter().map(Arc::new).collect();
    let plans = plan_groups(&tasks, samples, 1, "test");
    runner.run(plans, |_| {}).await
}

async fn guess(component: &[u8], unit: SampleUnit) -> FinishedEpisode {
    let records = run(&runner(component, options(unit)), GUESS_TASK, 1).await;
    records.into_iter().next().unwrap().result.unwrap()
}

/// The component with some bytes replaced, as a changed copy would be.
fn changed(component: &[u8], changes: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut copy = component.to_vec();
    for (from, to) in changes {
        assert_eq!(from.len(), to.len());
        let at = copy.windows(from.len()).position(|bytes| bytes == *from);
        let at = at.unwrap();
        copy[at..at + to.len()].copy_from_slice(to);
    }
    copy
}

#[tokio::test(flavor = "multi_thread")]
async fn episodes_become_samples_of_the_sampled_tokens() {
    let runner = runner(TOOLCALL, options(SampleUnit::Trajectory));
    let records = run(&runner, SUM_TASKS, 3).await;
    let report = EpisodeReport::new(&records);
    assert_eq!((report.tasks, report.episodes, report.k), (2, 6, 3));
    // It is nearly always right about such numbers.
    assert!(report.pass_at_1.unwrap().mean >= 0.5, "{report:?}");
    let journal = Journal::in_memory().unwrap();
    let source = EpisodeSource {
        environment: runner.environment.name(),
        digest: runner.environment.digest(),
        model: "test",
        sampling: &runner.options.sampling,
        tokenizer: engine().tokenizer(),
        weight: 1.0,
    };
    for record in &records {
        assert!(!is_recorded(&journal, &record.plan).unwrap());
        let episode = record.result.as_ref().unwrap();
        let samples = record_episode(&journal, &source, &record.plan, episode).unwrap();
        let sample = journal.sample(samples[0]).unwrap().unwrap();
        assert_eq!(sample.token_ids, episode.sequences[0].token_ids);
        assert_eq!(sample.reward, Some(episode.reward));
        assert_eq!(sample.group, record.plan.group);
        assert_eq!(
            sample.provenance.components,
            [runner.environment.digest().to_owned()]
        );
        assert!(is_recorded(&journal, &record.plan).unwrap());
        assert!(record_episode(&journal, &source, &record.plan, episode).is_err());
    }
    assert_eq!(journal.queued_count().unwrap(), 6);
    // Neither judges nor the end of sessions find work in a recorded episode.
    assert!(journal.ready_for_judging(10).unwrap().is_empty());
    assert!(journal.sessions_to_finalize(10).unwrap().is_empty());
}

/// A judge of steps.
fn step_judge(component: &[u8], limits: Limits) -> StepJudge {
    let host = PluginHost::new(HostOptions {
        config: PluginHostConfig {
            num_threads: 1,
            max_instances: 2,
            ..PluginHostConfig::default()
        },
        ..HostOptions::default()
    });
    let judge = host.unwrap().load(
        "steps",
        component,
        &Grants::default(),
        Profile::Deterministic,
    );
    StepJudge {
        judge: judge.unwrap(),
        call: CallContext {
            limits,
            ..CallContext::default()
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_are_judged_and_a_fault_is_no_vote() {
    for unit in [SampleUnit::Turn, SampleUnit::Trajectory] {
        let judged = |limits| EpisodeRunner {
            step_judge: Some(step_judge(STEP_JUDGE, limits)),
            ..runner(GUESS, options(unit))
        };
        let faulty = Limits {
            fuel: 1000,
            ..Limits::default()
        };
        for (limits, works) in [(Limits::default(), true), (faulty, false)] {
            let runner = judged(limits);
            let records = run(&runner, GUESS_TASK, 1).await;
            let record = &records[0];
            let episode = record.result.as_ref().unwrap();
            // The verdict on the episode is that of the environment alone.
            assert_eq!(episode.reward, -1.0);
            let steps = episode.judged.as_ref().unwrap();
            assert_eq!(steps.verdicts.len(), 3);
            assert_eq!(steps.vote(0).is_some(), works, "{steps:?}");
            let journal = Journal::in_memory().unwrap();
            let source = EpisodeSource {
                environment: "guess",
                digest: runner.environment.digest(),
                model: "test",
                sampling: &runner.options.sampling,
                tokenizer: engine().tokenizer(),
                weight: 1.0,
            };
            let samples = record_episode(&journal, &source, &record.plan, episode).unwrap();
            let per_sample = 3 / samples.len();
            let first = journal.sample(samples[0]).unwrap().unwrap();
            let position = first.provenance.episode.as_ref().unwrap();
            assert!(position.judged);
            assert_eq!(position.votes.len(), if works { per_sample } else { 0 });
            let verdicts = journal.verdicts(first.turn).unwrap();
            assert_eq!(verdicts.len(), 1 + per_sample);
            assert_eq!(verdicts[1].source, "plugin:steps");
            let has_reward = matches!(verdicts[1].outcome, VerdictOutcome::Verdict { .. });
            assert_eq!(has_reward, works, "{verdicts:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_continue_with_the_sampled_tokens_and_mask_observations() {
    let whole = guess(GUESS, SampleUnit::Trajectory).await;
    let turns = guess(GUESS, SampleUnit::Turn).await;
    assert_eq!((whole.steps, turns.steps), (3, 3));
    let [trajectory] = &whole.sequences[..] else {
        panic!("{} sequences", whole.sequences.len());
    };
    assert_eq!(trajectory.replies, 3);
    let masked = trajectory.masked.len();
    assert!(masked > 0);
    assert_eq!(trajectory.token_ids.len() - masked, whole.sampled_tokens);
    assert_eq!(turns.sequences.len(), 3);
    for pair in turns.sequences.windows(2) {
        assert!(pair[1].prompt_ids.starts_with(&pair[0].all_ids()));
        assert!(pair[0].masked.is_empty());
    }
    // The same seed samples the same tokens, however they are divided into samples.
    assert_eq!(turns.sequences[2].all_ids(), trajectory.all_ids());
    // The context reads as the chat template renders the conversation.
    let text = engine()
        .tokenizer()
        .decode_with_special(&trajectory.all_ids());
    assert_eq!(text.matches("That was no call of a tool.").count(), 2);
    assert_eq!(text.matches("<|im_start|>assistant\n").count(), 3);
    assert!(!text.contains("<|im_end|><|im_end|>"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_conversation_goes_on_without_its_middle() {
    const LIMIT: usize = 160;
    let windowed = EpisodeOptions {
        context_tokens: Some(LIMIT as u32),
        ..options(SampleUnit::Trajectory)
    };
    let task = r#"{"id":"g","instruction":"Play with me.","tries":12}"#;
    let records = run(&runner(GUESS, windowed), task, 1).await;
    let episode = records[0].result.as_ref().unwrap();
    assert_eq!((episode.steps, episode.reward), (12, -1.0));
    let cut = &episode.sequences[1..];
    assert!(!cut.is_empty(), "one sequence");
    let first = &episode.sequences[0].prompt_ids;
    for sequence in cut {
        assert!(sequence.prompt_ids.len() <= LIMIT);
        // The beginning stays, and a marker says that something is missing.
        assert_eq!(sequence.prompt_ids[..36], first[..36]);
        let text = engine()
            .tokenizer()
            .decode_with_special(&sequence.prompt_ids);
        assert_eq!(
            text.matches("tokens are left out here").count(),
            1,
            "{text}"
        );
        assert!(text.ends_with("<|im_start|>assistant\n"), "{text}");
    }
    let replies: u32 = episode.sequences.iter().map(|one| one.replies).sum();
    assert_eq!(replies, 12);
    let sampled: usize = episode
        .sequences
        .iter()
        .map(|one| one.token_ids.len() - one.masked.len())
        .sum();
    assert_eq!(sampled, episode.sampled_tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_component_changes_observations_and_rewards() {
    let before = guess(GUESS, SampleUnit::Trajectory).await;
    // The text of the observation, and the `f32.const -1` of a failed episode's grade.
    let copy = changed(
        GUESS,
        &[
            (b"I think of a whole number", b"I dream of a whole number"),
            (&[0x43, 0, 0, 0x80, 0xbf], &[0x43, 0, 0, 0, 0xbf]),
        ],
    );
    let after = guess(&copy, SampleUnit::Trajectory).await;
    let question = |episode: &FinishedEpisode| {
        let tokenizer = engine().tokenizer();
        tokenizer.decode_with_special(&episode.sequences[0].prompt_ids)
    };
    assert!(question(&before).contains("I think of a whole number"));
    assert!(question(&after).contains("I dream of a whole number"));
    assert_eq!((before.reward, after.reward), (-1.0, -0.5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_infrastructure_is_no_verdict() {
    let reason = |records: &[EpisodeRecord]| records[0].result.as_ref().unwrap_err().0.clone();
    let unfit = runner(TOOLCALL, options(SampleUnit::Trajectory));
    let records = run(&unfit, GUESS_TASK, 1).await;
    assert!(
        reason(&records).contains("no `answer`"),
        "{}",
        reason(&records)
    );
    let report = EpisodeReport::new(&records);
    assert_eq!((report.no_verdict, report.reward), (1, None));
    let hurried = EpisodeOptions {
        wall_limit: Duration::from_millis(1),
        ..options(SampleUnit::Trajectory)
    };
    let records = run(&runner(TOOLCALL, hurried), SUM_TASKS, 1).await;
    assert!(
        reason(&records).contains("--wall-limit"),
        "{}",
        reason(&records)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_episode_ends_no_other() {
    // The last task is none of this environment; the others run beside it.
    let tasks = format!("{SUM_TASKS}\n{GUESS_TASK}");
    let root = tempfile::tempdir().unwrap();
    let kept = EpisodeOptions {
        artifacts: Some(ArtifactsRoot::open(root.path()).unwrap()),
        ..options(SampleUnit::Trajectory)
    };
    let runner = runner(TOOLCALL, kept);
    let records = run(&runner, &tasks, 2).await;
    let verdicts: Vec<bool> = records.iter().map(|record| record.result.is_ok()).collect();
    assert_eq!(verdicts, [true, true, true, true, false, false]);
    let report = EpisodeReport::new(&records);
    assert_eq!((report.episodes, report.no_verdict), (4, 2), "{report:?}");
    // The last owner of the directory brings its page up to date.
    drop(runner);
    let page = std::fs::read_to_string(root.path().join("index.html")).unwrap();
    assert!(page.contains("0 running, 6 ended"), "{page}");
    assert_eq!(page.matches("no `answer`").count(), 2, "{page}");
}
