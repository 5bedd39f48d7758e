//! One turn's judgement: ask, combine, decide whether there is a sample. Nothing is written here.
//!
//! A choice that was judged together with the others of its request is not put before the judges of single turns for
//! what follows it: one reply is never trained for the one opinion and for the other. What a user says of it in words
//! is new evidence, which they judge as of any turn; a score of the user wins here as everywhere.

use clawhost_journal::{
    JudgementOutcome, NewHint, NewJudgement, NewSample, NewVerdict, TurnId, TurnRecord, TurnSeen,
    VerdictOutcome,
};
use clawhost_plugins::Trajectory;
use serde_json::{Value, json};

use crate::asking::{About, Zero, verdict};
use crate::docket::Docket;
use crate::evidence::Evidence;
use crate::history::trajectory;
use crate::options::JudgingOptions;
use crate::samples::{Given, TRUNCATED, reward, sample};
use crate::seats::Seats;
use crate::status::JudgingStatus;
use crate::votes::Opinion;

/// Source of a verdict that the user gave.
pub(crate) const USER: &str = "user";

/// What the turns of a run are judged with.
pub(crate) struct Bench {
    pub(crate) seats: Seats,
    pub(crate) options: JudgingOptions,
    pub(crate) status: JudgingStatus,
}

/// What is to be recorded.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) verdicts: Vec<NewVerdict>,
    /// What the judges say together; none when they were not asked.
    pub(crate) opinion: Option<Opinion>,
    pub(crate) sample: Option<NewSample>,
    /// Why there is no sample.
    pub(crate) skipped: Option<String>,
    /// An earlier judgement decided; its sample stays, and `skipped` says why there is none where there is none.
    pub(crate) as_before: bool,
    pub(crate) hints: Vec<NewHint>,
    pub(crate) receipts: Vec<Value>,
}

/// A fault ended judging, as the policy `stop` asks for.
#[derive(Debug, thiserror::Error)]
#[error(
    "{plugin} failed on {about} ({fault}) and judging.on_fault is \"stop\"; the turn stays ready for the next start"
)]
pub(crate) struct Stopped {
    pub(crate) plugin: String,
    pub(crate) about: String,
    pub(crate) fault: String,
}

/// A judgement that the host could not finish. It says nothing about turn or plugin, so nothing is recorded and the
/// judgement is tried again later.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) reason: String,
    /// Of the calls that were made; they are recorded with the judgement that replaces this one.
    pub(crate) receipts: Vec<Value>,
}

/// Why there is no judgement.
#[derive(Debug)]
pub(crate) enum Unjudged {
    Stopped(Stopped),
    Deferred(Deferred),
}

impl Unjudged {
    /// With the receipts of the calls before.
    pub(crate) fn after(self, mut earlier: Vec<Value>) -> Self {
        match self {
            Self::Deferred(Deferred { reason, receipts }) => {
                earlier.extend(receipts);
                Self::Deferred(Deferred {
                    reason,
                    receipts: earlier,
                })
            }
            stopped => stopped,
        }
    }
}

impl From<Stopped> for Unjudged {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

impl About {
    pub(crate) fn turn(turn: TurnId, may_defer: bool) -> Self {
        Self {
            sample_id: turn.to_string(),
            shown: format!("turn {turn}"),
            number: turn.0,
            may_defer,
        }
    }
}

impl Bench {
    /// Judges one turn. With `may_defer` a condition of the host ends the judgement, to be tried again; without, the
    /// judge gives no verdict for that reason.
    pub(crate) async fn judge(
        &self,
        docket: &Docket,
        may_defer: bool,
    ) -> Result<Judgement, Unjudged> {
        let turn = &docket.turn;
        let Some(completion) = &turn.completion else {
            return Ok(Judgement::skipped("no reply"));
        };
        let evidence = match Evidence::of(turn) {
            Ok(evidence) => evidence,
            Err(error) => {
                tracing::warn!(turn = %turn.id, %error, "what followed cannot be read");
                return Ok(Judgement::skipped("what followed cannot be read"));
            }
        };
        let mut judgement = Judgement::of(&evidence);
        let asks = evidence.asks_judges(docket.together.is_some());
        let tells = evidence.is_told() && self.takes_hints();
        let mut no_verdict = "no judge".to_owned();
        if asks || tells {
            let shown = evidence.shown.clone();
            let built = trajectory(turn, completion, &docket.earlier, shown, &self.options);
            let (trajectory, index) = match built {
                Ok(built) => built,
                Err(error) => {
                    tracing::warn!(turn = %turn.id, %error, "the conversation cannot be read");
                    return Ok(Judgement::skipped("the conversation cannot be read"));
                }
            };
            let about = About::turn(turn.id, may_defer);
            if asks {
                no_verdict = self
                    .ask_judges(&about, &trajectory, index, &mut judgement)
                    .await?
                    .unwrap_or(no_verdict);
            }
            if tells {
                let (hints, receipts) = self
                    .hints(&about, &trajectory, index)
                    .await
                    .map_err(|unjudged| unjudged.after(judgement.receipts.clone()))?;
                judgement.hints = hints;
                judgement.receipts.extend(receipts);
            }
        }
        let mut given = match (evidence.users_word, judgement.opinion) {
            (Some(score), _) => Given::ByUser(score),
            (None, Some(opinion)) => Given::Apart(opinion),
            (None, None) => Given::None,
        };
        if let Some(outcomes) = &docket.together
            && !asks
            && evidence.new_scores.is_empty()
        {
            judgement.as_before = true;
            if given == Given::None {
                given = Given::Together(self.options.combine.opinion(outcomes));
                no_verdict = last_reason(outcomes).unwrap_or(no_verdict);
            }
        }
        let options = &self.options;
        match reward(
            docket,
            completion,
            given,
            &no_verdict,
            &judgement.hints,
            options,
        ) {
            Err(why) => judgement.skipped = Some(why),
            // The first judgement left a truncated reply out because nothing had followed it yet.
            Ok(Some(_)) if judgement.as_before && docket.samples.is_empty() => {
                judgement.skipped = Some(TRUNCATED.to_owned());
            }
            Ok(Some(_)) if judgement.as_before => {}
            // What came of it before stays; where nothing did, what extractors make of what followed may teach.
            Ok(None) if judgement.as_before && !docket.samples.is_empty() => {}
            Ok(reward) => {
                judgement.as_before = false;
                let Judgement {
                    verdicts, hints, ..
                } = &judgement;
                judgement.sample = Some(sample(docket, reward, verdicts, hints, options));
            }
        }
        Ok(judgement)
    }

    /// Asks the judges about one turn, until the opinion is decided. Gives the last reason for which one gave no
    /// verdict.
    async fn ask_judges(
        &self,
        about: &About,
        trajectory: &Trajectory,
        index: u32,
        judgement: &mut Judgement,
    ) -> Result<Option<String>, Unjudged> {
        let bank = self.seats.judges();
        let mut opinions = Vec::new();
        // A judgement ends with the judges that it began with.
        for seat in bank.now().iter() {
            let asked = &*seat.asked;
            let given = self
                .ask(bank, seat, about, |call| {
                    asked.score(call, trajectory, index)
                })
                .await
                .map_err(|unjudged| unjudged.after(judgement.receipts.clone()))?;
            let verdict = verdict(asked, &given.results, given.fault, Zero::Abstains);
            opinions.push(verdict.outcome.clone());
            judgement.verdicts.push(verdict);
            judgement.receipts.extend(given.receipts);
            if self.options.combine.is_decided(&opinions) {
                break;
            }
        }
        judgement.opinion = Some(self.options.combine.opinion(&opinions));
        Ok(last_reason(&opinions))
    }
}

/// Why the last of those who gave no verdict gave none.
pub(crate) fn last_reason(outcomes: &[VerdictOutcome]) -> Option<String> {
    outcomes.iter().rev().find_map(|outcome| match outcome {
        VerdictOutcome::None { reason } => Some(reason.clone()),
        VerdictOutcome::Verdict { .. } => None,
    })
}

impl Judgement {
    /// One that begins with the scores that the user gave.
    pub(crate) fn of(evidence: &Evidence<'_>) -> Self {
        let verdicts = evidence
            .new_scores
            .iter()
            .map(|(feedback, score)| NewVerdict {
                source: USER.to_owned(),
                digest: None,
                outcome: VerdictOutcome::Verdict {
                    reward: *score,
                    accept: true,
                },
                votes: json!([]),
                rationale: feedback.text.clone().unwrap_or_default(),
                metrics: json!({}),
                ms: feedback.ms,
            })
            .collect();
        Self {
            verdicts,
            ..Self::default()
        }
    }

    /// One in which nobody was asked.
    pub(crate) fn skipped(reason: &str) -> Self {
        Self {
            skipped: Some(reason.to_owned()),
            ..Self::default()
        }
    }

    /// As the journal takes it. `turn` is as the judges saw it.
    pub(crate) fn record<'a>(&'a self, turn: &TurnRecord) -> NewJudgement<'a> {
        NewJudgement {
            turn: TurnSeen::from(turn),
            verdicts: &self.verdicts,
            hints: &self.hints,
            receipts: &self.receipts,
            outcome: match (&self.sample, self.skipped.as_deref()) {
                (_, reason) if self.as_before => JudgementOutcome::AsBefore(reason),
                (Some(sample), _) => JudgementOutcome::Sample(sample),
                (None, Some(reason)) => JudgementOutcome::Skipped(reason),
                (None, None) => JudgementOutcome::Nothing,
            },
        }
    }
}
