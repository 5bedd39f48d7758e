//! Steps with preference pairs and rehearsal.

use clawhost_chat::Message;
use clawhost_engine::{Candidates, Sequence};
use clawhost_journal::{
    Completion, Finish, NewSample, NextState, PromptExperience, ReleaseChange, SampleProvenance,
    StepOutcome, TurnId, VerdictOutcome, VerdictRecord,
};
use clawhost_plugins::{Grants, HostOptions, PluginHost, PluginHostConfig, Profile};

use super::fixture::{Fixture, letters, options};
use crate::component::{ComponentOptions, Components};
use crate::trainer::Trainer;
use clawhost_config::{
    ExperienceOptions, PairLoss, PluginsConfig, TeacherEndpoint, TeacherSource, TrainingMethod,
    TrainingOptions,
};

/// The prompt of the first reply of a conversation.
const PROMPT: [u32; 3] = [1, 2, 3];

/// A rejected reply, the complaint about it and an accepted reply.
pub(super) struct Redo {
    rejected: TurnId,
    accepted: TurnId,
}

const REJECTED: [u32; 3] = [5, 6, 7];
const ACCEPTED: [u32; 3] = [8, 9, 10];

impl Fixture {
    /// Log-probs of a reply after a prompt under the active version.
    fn logprobs(&self, prompt: &[u32], reply: &[u32]) -> Vec<f32> {
        let tokens = [prompt, reply].concat();
        let sequence = Sequence {
            tokens: &tokens,
            start: prompt.len(),
            temperature: 1.0,
            candidates: Candidates::None,
        };
        let active = self.engine.active();
        self.engine.score(&active, &[sequence]).unwrap()[0]
            .logprobs
            .clone()
    }

    /// log p(accepted) - log p(rejected) after the prompt of the rejected reply.
    fn margin(&self) -> f32 {
        let sum = |reply| self.logprobs(&PROMPT, reply).iter().sum::<f32>();
        sum(&ACCEPTED) - sum(&REJECTED)
    }

    /// Records a turn that continues `parent` with a message, which becomes the next state of `parent`.
    fn turn(&mut self, parent: Option<TurnId>, prompt: &[u32], reply: &[u32]) -> TurnId {
        if parent.is_none() {
            self.count += 1;
        }
        let mut request = self.request(prompt);
        if let Some(parent) = parent {
            request.next_state_of = vec![next_state(parent)];
        }
        for turn in &mut request.turns {
            turn.parent = parent;
        }
        let id = self.journal.record_request(&request).unwrap()[0];
        let logprobs = self.logprobs(prompt, reply);
        let completion = Completion {
            ms: 2,
            finish: Finish::Stop,
            reply: "x".into(),
            anchor: None,
            token_ids: reply.to_vec(),
            logprobs: logprobs.clone(),
            full_logprobs: logprobs,
            forced: Vec::new(),
        };
        self.journal.complete(id, &completion).unwrap();
        id
    }

    fn judge(&self, turn: TurnId, reward: f32) {
        let verdict = VerdictRecord {
            source: "plugin:j".to_owned(),
            digest: None,
            outcome: VerdictOutcome::Verdict {
                reward,
                accept: true,
            },
            votes: Vec::new(),
            rationale: String::new(),
            metrics: clawhost_journal::PluginMetrics::new(),
            ms: 3,
        };
        let sample = NewSample {
            turn,
            reward: Some(reward),
            baseline_key: "default".to_owned(),
            provenance: SampleProvenance::default(),
        };
        self.journal
            .commit_judgement(turn, &[verdict], Some(&sample), None, &[])
            .unwrap();
    }

    /// A conversation whose first reply was rejected and whose second one was accepted.
    pub(super) fn redo(&mut self) -> Redo {
        self.temperature = 1.0;
        let rejected = self.turn(None, &PROMPT, &REJECTED);
        let accepted = self.turn(Some(rejected), &[1, 2, 3, 5, 6, 7, 4], &ACCEPTED);
        self.judge(rejected, -1.0);
        self.accept(accepted);
        Redo { rejected, accepted }
    }

    /// A conversation whose only reply was accepted.
    pub(super) fn accepted_at_once(&mut self) {
        self.temperature = 1.0;
        let turn = self.turn(None, &PROMPT, &ACCEPTED);
        self.accept(turn);
    }

    /// A message follows a turn, and its reply is judged as accepted.
    fn accept(&self, turn: TurnId) {
        let mut thanks = self.request(&PROMPT);
        thanks.turns.clear();
        thanks.next_state_of = vec![next_state(turn)];
        self.journal.record_request(&thanks).unwrap();
        self.judge(turn, 1.0);
    }
}

fn next_state(turn: TurnId) -> NextState {
    NextState {
        turn,
        messages: vec![Message::user("shorter")],
        ms: 3,
        source: None,
    }
}

fn with_pairs(loss: PairLoss) -> TrainingOptions {
    let mut options = TrainingOptions {
        num_epochs: 4,
        ..options()
    };
    options.pairs.loss = loss;
    options
}

/// Options with which samples only decide when a step starts.
pub(super) fn pairs_only(loss: PairLoss) -> TrainingOptions {
    let mut options = with_pairs(loss);
    options.method = TrainingMethod::Hybrid;
    options.teacher.reward_weight = 0.0;
    options.teacher.distillation_weight = 0.0;
    options
}

/// Options with rehearsal on a few prompts of letters.
fn with_rehearsal(fixture: &Fixture, options: TrainingOptions) -> TrainingOptions {
    let file = fixture.data().join("prompts.txt");
    let prompts = "abc\nbcde\ncdef\nghij\nklm\nnopq\nqrs\nxwv\nuts\nrqpo\nponm\nlkji\nihg\nfedc\ncba\nacegi\n";
    std::fs::write(&file, prompts).unwrap();
    let mut options = options;
    options.rehearsal.enabled = true;
    options.rehearsal.prompts_file = Some(file);
    options.rehearsal.first_replies = 6;
    options.rehearsal.max_tokens = 8;
    options.rehearsal.top_k = 8;
    options
}

#[test]
fn a_step_prefers_the_accepted_reply_for_the_prompt_of_the_rejected_one() {
    let run = |loss| {
        let mut fixture = Fixture::new();
        let redo = fixture.redo();
        let before = fixture.margin();
        let step = fixture
            .trainer(&with_pairs(loss))
            .step(10)
            .unwrap()
            .unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        (fixture.margin() - before, step.metrics, redo)
    };
    let (without, metrics, _) = run(PairLoss::None);
    assert!(metrics.get("pairs").is_none());
    for loss in [PairLoss::Sft, PairLoss::Dpo, PairLoss::Ipo] {
        let (with, metrics, redo) = run(loss);
        assert!(
            with > without.max(0.0),
            "{loss:?}: {with} against {without}"
        );
        let pairs = &metrics["pairs"];
        assert_eq!(pairs["available"], 1, "{pairs}");
        assert_eq!(
            pairs["used"],
            serde_json::json!([{"rejected": redo.rejected, "accepted": redo.accepted}])
        );
        assert!(
            pairs["loss_last"].as_f64() < pairs["loss_first"].as_f64(),
            "{pairs}"
        );
        if loss != PairLoss::Sft {
            assert!(pairs["margin_last"].as_f64().unwrap() > 0.0, "{pairs}");
            assert_eq!(pairs["accuracy"], 1.0);
        }
    }
}

/// A trainer whose pairs are trained on by the component `loss-dpo` with these settings.
fn component_trainer(
    fixture: &Fixture,
    runtime: &tokio::runtime::Runtime,
    settings: &[(&str, serde_json::Value)],
) -> Trainer {
    const DPO: &[u8] = include_bytes!("../../../../plugins/artifacts/loss-dpo.wasm");
    let host = PluginHost::new(HostOptions {
        config: PluginHostConfig {
            num_threads: 1,
            max_instances: 2,
            ..PluginHostConfig::default()
        },
        ..HostOptions::default()
    });
    let dpo = host
        .unwrap()
        .load("dpo", DPO, &Grants::default(), Profile::default())
        .unwrap();
    let mut plugins = PluginsConfig::default();
    let own = plugins.config.entry("dpo".to_owned()).or_default();
    let settings = settings.iter().cloned();
    own.settings = settings
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    let calls = ComponentOptions {
        plugins,
        pair_loss: true,
        ..ComponentOptions::default()
    };
    let components = runtime.block_on(Components::new(&[dpo], &calls)).unwrap();
    fixture.trainer_with(&with_pairs(PairLoss::Component), components)
}

#[test]
fn a_component_trains_on_pairs_as_the_native_loss_does() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut fixture = Fixture::new();
    fixture.redo();
    let native = fixture
        .trainer(&with_pairs(PairLoss::Dpo))
        .step(10)
        .unwrap()
        .unwrap();
    let native_margin = fixture.margin();

    let run = |settings: &[(&str, serde_json::Value)]| {
        let mut fixture = Fixture::new();
        fixture.redo();
        let mut trainer = component_trainer(&fixture, &runtime, settings);
        let step = trainer.step(10).unwrap().unwrap();
        (step, fixture.margin())
    };
    let (step, margin) = run(&[]);
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let pairs = |metrics: &serde_json::Value, key: &str| metrics["pairs"][key].as_f64().unwrap();
    for key in ["loss_first", "loss_last", "margin_last"] {
        let (native, found) = (pairs(&native.metrics, key), pairs(&step.metrics, key));
        assert!(
            (native - found).abs() <= 1e-4 * native.abs().max(1.0),
            "{key}: {native} and {found}"
        );
    }
    assert!(
        (native_margin - margin).abs() < 1e-3,
        "{native_margin} {margin}"
    );
    assert_eq!(step.metrics["pairs"]["loss"], "component");
    assert_eq!(step.metrics["pairs"]["component"]["accuracy"], 1.0);
    assert!(step.metrics["components"]["pair_loss"]["digest"].is_string());
    // Its settings are its own: those of `training.pairs` do not reach it.
    let (other, _) = run(&[("sft_coef", 0.0.into())]);
    assert!(pairs(&other.metrics, "loss_first") < pairs(&step.metrics, "loss_first"));
}

#[test]
fn a_component_that_fails_leaves_the_samples_in_the_queue() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut fixture = Fixture::new();
    fixture.redo();
    let queued = fixture.journal.queued_count().unwrap();
    let mut trainer = component_trainer(&fixture, &runtime, &[("beta", 0.0.into())]);
    let error = trainer.step(10).unwrap_err().to_string();
    assert!(error.contains("`beta` is 0"), "{error}");
    assert_eq!(fixture.journal.queued_count().unwrap(), queued);
}

#[test]
fn a_pair_loss_and_its_setting_belong_together() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let calls = ComponentOptions {
        pair_loss: true,
        ..ComponentOptions::default()
    };
    let error = runtime.block_on(Components::new(&[], &calls)).unwrap_err();
    assert!(error.to_string().contains("--plugin"), "{error}");
}

#[test]
fn samples_without_a_weight_are_not_differentiated_and_no_teacher_is_asked() {
    let run = |reward: f32| {
        let mut fixture = Fixture::new();
        fixture.temperature = 1.0;
        fixture.hinted_sample(Some(reward), &["bcdefghijklmn"]);
        fixture.redo();
        let mut options = pairs_only(PairLoss::Dpo);
        options.teacher.hint_marker = String::new();
        // There is no such teacher, so asking it would fail the step.
        options.teacher.source = TeacherSource::Endpoint;
        options.teacher.endpoint = Some(TeacherEndpoint {
            url: "http://127.0.0.1:1/v1".to_owned(),
            model: "t".to_owned(),
            api_key: None,
            timeout: std::time::Duration::from_secs(1),
        });
        let step = fixture.trainer(&options).step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        for row in step.metrics["samples_moved"].as_array().unwrap() {
            assert_eq!(row["advantage"], 0.0, "{row}");
            assert!(row["logprob_before"].is_number() && row.get("logprob_after").is_none());
        }
        assert!(step.metrics["entropy"].as_f64().unwrap() > 0.0);
        assert!(step.metrics["parity"]["samples"].as_u64().unwrap() >= 3);
        fixture.engine.active().digest().to_owned()
    };
    assert_eq!(
        run(1.0),
        run(-1.0),
        "the reward of a sample changes nothing"
    );
}

#[test]
fn satisfied_pairs_end_a_step_and_stop_training() {
    let run = |max_reward_margin: f64| {
        let mut fixture = Fixture::new();
        fixture.redo();
        let mut options = pairs_only(PairLoss::Dpo);
        options.num_epochs = 40;
        options.pairs.max_reward_margin = max_reward_margin;
        let mut trainer = fixture.trainer(&options);
        let first = trainer.step(10).unwrap().unwrap();
        assert_eq!(first.outcome, StepOutcome::Published, "{:?}", first.reason);
        let margin = fixture.margin();
        fixture.redo();
        (first.metrics, trainer.step(11).unwrap().unwrap(), margin)
    };
    let (unbounded, second, far) = run(0.0);
    assert_eq!(unbounded["updates"], 40);
    assert_eq!(second.outcome, StepOutcome::Published);
    let (bounded, second, margin) = run(0.05);
    let updates = bounded["updates"].as_u64().unwrap();
    assert!(
        updates < 40 && bounded["pairs_satisfied"] == true,
        "{bounded}"
    );
    assert_eq!(bounded["pairs"]["satisfied"], 1);
    assert!(bounded["pairs"]["margin_last"].as_f64().unwrap() > 0.5);
    assert!(margin < far, "{margin} and {far}");
    // The new pair is that of the same replies, so the policy already prefers the accepted one.
    assert_eq!(second.outcome, StepOutcome::NoSignal);
    assert_eq!(second.reason.unwrap(), "no pair is left to learn from");
}

#[test]
fn rehearsal_asks_for_the_opposite_of_what_is_learned() {
    let mut fixture = Fixture::new();
    // The complaint about the rejected reply is "shorter".
    fixture.redo();
    let mut options = with_rehearsal(&fixture, pairs_only(PairLoss::Dpo));
    let file = fixture.data().join("prompts.txt");
    let contrary = "# contrary to: shorter\nxw\nwvu\n+ uts\n+ srq\n# contrary to: longer\nb\n+ c\n";
    let general = "#\n? abc\n? bcd\n? cde\n? def\nghij\nhijk\nijkl\njklm\nklmn\nlmno\nmnop\nnopq\nopqr\npqrs\nqrst\n";
    std::fs::write(&file, format!("{contrary}{general}")).unwrap();
    options.rehearsal.first_replies = 8;
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let rehearsal = &step.metrics["rehearsal"];
    assert_eq!(
        (&rehearsal["replies"], &rehearsal["contrary"]),
        (&8.into(), &4.into())
    );
    assert!(rehearsal["held_out_contrary_kl"].is_number(), "{rehearsal}");
    // Each of the four epochs compares four replies of up to eight tokens.
    let tokens = rehearsal["tokens"].as_u64().unwrap();
    assert!((16..=128).contains(&tokens), "{rehearsal}");
    // The norms of both losses are measured in turn; that of rehearsal grows once the policy has moved.
    let norm = |of: &str| step.metrics[of]["gradient_norm"].as_f64().unwrap();
    let (pairs, rehearsal) = (norm("pairs"), norm("rehearsal"));
    assert!(pairs > 0.0 && rehearsal > 0.0, "{pairs} {rehearsal}");
    assert!(rehearsal > 1e-3 * pairs, "{pairs} {rehearsal}");
}

#[test]
fn rehearsal_leaves_out_what_the_user_asks_about() {
    let replies = |subject: &str| {
        let mut fixture = Fixture::new();
        fixture.redo();
        let mut options = with_rehearsal(&fixture, pairs_only(PairLoss::Dpo));
        let section = format!("# unless asked about: {subject}\nxw\nwvu\nuts\nsrq\nqpo\nonm\n");
        let file = fixture.data().join("prompts.txt");
        std::fs::write(&file, section + "#\nghij\nhijk\n").unwrap();
        options.rehearsal.first_replies = 8;
        let step = fixture.trainer(&options).step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        step.metrics["rehearsal"]["replies"].as_u64().unwrap()
    };
    // One of the eight prompts is held out.
    assert_eq!(replies("something else"), 7);
    assert!(replies(&letters(&PROMPT)) <= 2);
    // The complaint is not what the conversation began with.
    assert_eq!(replies("shorter"), 7);
}

/// Options with which the policy replies to three prompts that are contrary to "shorter".
fn with_policy_replies(fixture: &Fixture) -> TrainingOptions {
    let mut options = with_rehearsal(fixture, with_pairs(PairLoss::Dpo));
    let file = fixture.data().join("prompts.txt");
    let contrary = "# contrary to: shorter\nxw\nwvu\nuts\nsrq\nqpo\nonm\n";
    let general = "#\nghij\nhijk\nijkl\njklm\nklmn\nlmno\n";
    std::fs::write(&file, format!("{contrary}{general}")).unwrap();
    options.rehearsal.first_replies = 8;
    options.rehearsal.policy_replies = 3;
    options
}

#[test]
fn the_policy_replies_anew_to_some_requests_for_the_opposite() {
    let run = |restart: bool| {
        let mut fixture = Fixture::new();
        // The complaints about the rejected replies are "shorter".
        fixture.redo();
        fixture.redo();
        let options = with_policy_replies(&fixture);
        let mut trainer = fixture.trainer(&options);
        let first = trainer.step(10).unwrap().unwrap();
        assert_eq!(first.outcome, StepOutcome::Published, "{:?}", first.reason);
        let first = &first.metrics["rehearsal"];
        assert!(first.get("of_policy").is_none(), "the base model: {first}");
        let path = fixture.data().join("rehearsal.jsonl");
        let kept = |path| std::fs::read_to_string(path).unwrap().lines().count();
        let before = kept(&path);
        let policy = fixture.engine.active().digest().to_owned();
        if restart {
            fixture.restart();
            trainer = fixture.trainer(&options);
        }
        fixture.redo();
        let second = trainer.step(11).unwrap().unwrap();
        assert_eq!(second.outcome, StepOutcome::Published);
        let second = second.metrics["rehearsal"].clone();
        assert_eq!(second["of_policy"], 3, "{second}");
        let keys = second["used"].as_array().unwrap().iter();
        let keys: Vec<&str> = keys.map(|key| key.as_str().unwrap()).collect();
        let of_policy = keys.iter().filter(|key| key.contains('/'));
        for key in of_policy.clone() {
            assert!(key.ends_with(&policy), "{key} of {policy}");
        }
        assert!(of_policy.count() > 0, "{keys:?}");
        assert!(kept(&path) <= before + 4, "only the base model's are kept");
        (fixture.engine.active().digest().to_owned(), second)
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn the_policy_that_a_step_starts_from_replies_though_another_version_is_pinned() {
    let mut fixture = Fixture::new();
    let options = with_policy_replies(&fixture);
    let mut trainer = fixture.trainer(&options);
    let mut step = |now| {
        fixture.redo();
        let policy = trainer.digest().to_owned();
        let step = trainer.step(now).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        if now == 10 {
            let pin = ReleaseChange::Pin(1);
            trainer.publisher.apply(pin, None).unwrap();
        }
        (policy, step.metrics["rehearsal"]["used"].clone())
    };
    let [_, _, (policy, used)] = [10, 11, 12].map(&mut step);
    assert_eq!(fixture.engine.active().version, 1);
    assert_ne!(policy, fixture.engine.active().digest());
    let used = used.as_array().unwrap().iter();
    let of_policy: Vec<&str> = used
        .filter_map(|key| key.as_str().unwrap().split_once('/'))
        .map(|(_, digest)| digest)
        .collect();
    assert!(!of_policy.is_empty());
    assert!(of_policy.iter().all(|digest| *digest == policy));
}

#[test]
fn the_base_model_replies_and_is_compared_with_whatever_was_learned() {
    let mut fixture = Fixture::new();
    fixture.redo();
    let options = with_rehearsal(&fixture, pairs_only(PairLoss::Dpo));
    let path = fixture.data().join("rehearsal.jsonl");
    let replies = |fixture: &Fixture, options: &TrainingOptions| {
        let step = fixture.trainer(options).step(10).unwrap().unwrap();
        (step, std::fs::read_to_string(&path).unwrap())
    };
    let (first, of_base) = replies(&fixture, &options);
    assert_eq!(first.outcome, StepOutcome::Published);
    assert!(fixture.engine.active().version > 0);
    // The policy serves an adapter now; the base model replies again, with the same tokens.
    std::fs::remove_file(&path).unwrap();
    fixture.redo();
    let (second, again) = replies(&fixture, &options);
    for line in of_base.lines() {
        assert!(again.contains(line), "{line}");
    }
    // A step begins where the last one ended, and the divergence is still that from the base model.
    let kl = |step: &crate::trainer::RecordedStep| step.metrics["rehearsal"]["kl_first"].as_f64();
    assert!(kl(&second) > Some(1e-4), "{:?}", kl(&second));
}

#[test]
fn rehearsal_keeps_the_policy_close_to_the_base_model() {
    let run = |coef: f64| {
        let mut fixture = Fixture::new();
        fixture.redo();
        let mut options = with_rehearsal(&fixture, with_pairs(PairLoss::Dpo));
        options.num_epochs = 12;
        options.rehearsal.coef = coef;
        let step = fixture.trainer(&options).step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        let rehearsal = step.metrics["rehearsal"].clone();
        assert_eq!(rehearsal["replies"], 6);
        assert_eq!(rehearsal["held_out"], 2);
        (rehearsal["held_out_kl"].as_f64().unwrap(), fixture)
    };
    let ((without, _), (with, fixture)) = (run(1e-9), run(300.0));
    assert!(with < 0.7 * without, "{with} against {without}");
    let file = std::fs::read_to_string(fixture.data().join("rehearsal.jsonl")).unwrap();
    assert_eq!(file.lines().count(), 8, "six to train on and two held out");
}

#[test]
fn a_restart_between_steps_with_auxiliary_losses_is_bit_identical() {
    let run = |restart: bool| {
        let mut fixture = Fixture::new();
        fixture.eight_samples();
        fixture.redo();
        fixture.redo();
        let mut options = with_rehearsal(&fixture, with_pairs(PairLoss::Dpo));
        options.num_minibatches = 2;
        options.pairs.per_update = 1;
        options.estimator = crate::advantage::Estimator::Baseline;
        options.optimizer.adaptive_lr = true;
        let mut trainer = fixture.trainer(&options);
        let first = trainer.step(10).unwrap().unwrap();
        if restart {
            fixture.restart();
            trainer = fixture.trainer(&options);
        }
        let second = trainer.step(11).unwrap().unwrap();
        assert_eq!(second.outcome, StepOutcome::Published);
        assert_ne!(
            first.metrics["rehearsal"]["replies"], second.metrics["rehearsal"]["replies"],
            "the base model replies to more prompts"
        );
        (
            fixture.engine.active().digest().to_owned(),
            second.metrics["rehearsal"].clone(),
            second.metrics["pairs"].clone(),
            second.metrics["learning_rate"].clone(),
        )
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn a_version_that_forgets_too_much_is_not_published() {
    let mut fixture = Fixture::new();
    fixture.redo();
    let mut options = with_rehearsal(&fixture, with_pairs(PairLoss::Dpo));
    options.rehearsal.max_kl = 1e-9;
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Failed);
    let reason = step.reason.unwrap();
    assert!(
        reason.contains("training.rehearsal.max_kl allows 0.000000001"),
        "{reason}"
    );
    assert_eq!(fixture.engine.active().version, 0);
}

#[test]
fn a_preview_writes_no_replies() {
    let mut fixture = Fixture::new();
    fixture.redo();
    let options = with_rehearsal(&fixture, with_pairs(PairLoss::Sft));
    let preview = crate::OfflineTrainer::preview(
        fixture.journal.clone(),
        fixture.engine.clone(),
        fixture.data(),
        (options, ExperienceOptions::default()),
        crate::Components::default(),
    );
    let step = preview.unwrap().unwrap();
    assert_eq!(step.metrics["rehearsal"]["replies"], 6);
    assert!(!fixture.data().join("rehearsal.jsonl").exists());
}

#[test]
fn a_step_ends_at_the_target_divergence() {
    let run = |target_kl| {
        let mut fixture = Fixture::new();
        for reward in [1.0, -1.0, 1.0, -1.0] {
            fixture.sample(reward);
        }
        let options = TrainingOptions {
            num_epochs: 5,
            target_kl,
            ..options()
        };
        fixture.trainer(&options).step(10).unwrap().unwrap().metrics
    };
    let free = run(0.0);
    assert_eq!(
        (&free["updates"], free.get("stopped_at_kl")),
        (&5.into(), None)
    );
    let bounded = run(1e-7);
    assert_eq!(bounded["updates"], 1, "{bounded}");
    assert!(bounded["stopped_at_kl"].as_f64().unwrap() > 1e-7);
}

#[test]
fn rehearsal_compares_the_policy_that_reads_experience_with_the_base_model_that_does_not() {
    let run = |share: f64| {
        let mut fixture = Fixture::new();
        fixture.injected = Some(PromptExperience {
            text: "bcdefg".to_owned(),
            entries: vec![1],
        });
        fixture.redo();
        let mut options = with_rehearsal(&fixture, with_pairs(PairLoss::Dpo));
        options.rehearsal.experience_share = share;
        let step = fixture.trainer(&options).step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        let rehearsal = &step.metrics["rehearsal"];
        let drawn = rehearsal["with_experience"].as_u64().unwrap_or(0);
        (drawn, rehearsal["kl_first"].as_f64().unwrap())
    };
    // Each of the four updates draws four replies. In the first one the policy is the base model still, so only what it reads can
    // differ.
    assert_eq!(run(0.0), (0, 0.0));
    assert_eq!(run(0.5).0, 8);
    let (drawn, first) = run(1.0);
    assert_eq!(drawn, 16);
    assert!(first > 1e-6, "{first}");
}
