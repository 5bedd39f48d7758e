//! Calibration: what a real model does with each wish before anything is trained.
//!
//! A wish can be learned when the model does not meet it unasked and does meet it when instructed: training moves what the model
//! does by default towards what it does on request. Of each wish three shares are measured on the same held-out
//! questions: the score unasked, the score when the wish is stated in the question, and how well an explicit request for
//! the opposite is followed. The simple questions of the forgetting probes are measured too; a kind that the model answers
//! no better than chance cannot be forgotten.

use futures_util::StreamExt;
use serde_json::{Map, Value, json};

use crate::client::{ChatClient, RequestParams};
use crate::seeds::{Purpose, request_seed};
use crate::statistics::{Estimate, t_interval};
use crate::wish::skills::{SKILLS, SkillSet};
use crate::wish::{Question, Wish};

/// Minimum mean gain of the score by stating the wish.
const MIN_HEADROOM: f64 = 0.2;
/// Mean score unasked from which on there is nothing to learn.
const ALREADY_MET: f64 = 0.8;

/// Options of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationOptions {
    /// The wishes. Default: all.
    pub wishes: Vec<Wish>,
    /// Held-out questions for each wish. Default: 32.
    pub questions: usize,
    /// Questions of each kind of the forgetting probes; 0 = none. Default: 16.
    pub skills: usize,
    /// Concurrent requests. Default: 4.
    pub concurrency: usize,
    /// Seed of the requests. Default: 1.
    pub seed: u64,
    /// `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// `max_tokens` of requests. Default: 160.
    pub max_tokens: Option<u32>,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        CalibrationOptions {
            wishes: Wish::ALL.into(),
            questions: 32,
            skills: 16,
            concurrency: 4,
            seed: 1,
            temperature: None,
            max_tokens: Some(crate::personalize::WISH_MAX_TOKENS),
        }
    }
}

impl CalibrationOptions {
    /// Number of requests of a calibration.
    pub fn requests(&self) -> usize {
        let skills: usize = SKILLS.iter().map(|set| set.count().min(self.skills)).sum();
        self.wishes.len() * 3 * self.questions + skills
    }
}

/// Whether a wish can be learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learnable {
    /// The model meets it when instructed and not unasked.
    Yes,
    /// The model meets it already.
    AlreadyMet,
    /// The model does not meet it when instructed, or not clearly more often.
    NotFollowed,
}

impl Learnable {
    /// One word, for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Learnable::Yes => "yes",
            Learnable::AlreadyMet => "already-met",
            Learnable::NotFollowed => "not-followed",
        }
    }
}

/// Figures of one wish; intervals are over questions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WishCalibration {
    /// The wish.
    pub wish: Wish,
    /// Score when the wish is not stated; `None` without replies.
    pub unasked: Option<Estimate>,
    /// Score when it is stated.
    pub instructed: Option<Estimate>,
    /// Their difference, paired by question.
    pub headroom: Option<Estimate>,
    /// Score of the form alone when it is stated, whatever the replies say: what training can reach. The rest of the
    /// score is whether a reply is about the question.
    pub instructed_form: Option<Estimate>,
    /// How well an explicit request for the opposite is followed.
    pub opposite: Option<Estimate>,
}

impl WishCalibration {
    /// Whether the wish can be learned.
    pub fn learnable(&self) -> Learnable {
        match (self.unasked, self.headroom) {
            (Some(unasked), _) if unasked.mean >= ALREADY_MET => Learnable::AlreadyMet,
            (Some(_), Some(headroom)) if headroom.mean >= MIN_HEADROOM && headroom.low > 0.0 => {
                Learnable::Yes
            }
            _ => Learnable::NotFollowed,
        }
    }
}

/// Figures of one kind of simple questions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SkillCalibration {
    /// Name of the kind.
    pub name: &'static str,
    /// Share of right answers; `None` without replies.
    pub right: Option<Estimate>,
    /// Share of right answers by guessing.
    pub chance: f64,
}

impl SkillCalibration {
    /// Whether the share of right answers is significantly above chance.
    pub fn is_above_chance(&self) -> bool {
        self.right.is_some_and(|right| right.low > self.chance)
    }
}

/// Result of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Options of the run.
    pub options: CalibrationOptions,
    /// The wishes, in the order of the options.
    pub wishes: Vec<WishCalibration>,
    /// The kinds of simple questions.
    pub skills: Vec<SkillCalibration>,
    /// Errors of failed requests.
    pub failures: Vec<String>,
}

impl Calibration {
    /// The wishes that can be learned.
    pub fn learnable(&self) -> Vec<Wish> {
        let learnable = self
            .wishes
            .iter()
            .filter(|one| one.learnable() == Learnable::Yes);
        learnable.map(|one| one.wish).collect()
    }

    /// The result as a JSON object.
    pub fn json(&self) -> Value {
        let figures = |estimate: Option<Estimate>| {
            estimate.map_or(Value::Null, |e| {
                let interval = e.has_interval().then(|| [rounded(e.low), rounded(e.high)]);
                json!({"mean": rounded(e.mean), "interval": interval})
            })
        };
        let wishes: Map<String, Value> = self
            .wishes
            .iter()
            .map(|one| {
                let value = json!({
                    "unasked": figures(one.unasked),
                    "instructed": figures(one.instructed),
                    "headroom": figures(one.headroom),
                    "instructed_form": figures(one.instructed_form),
                    "opposite": figures(one.opposite),
                    "learnable": one.learnable().name(),
                });
                (one.wish.name().to_owned(), value)
            })
            .collect();
        let skills: Map<String, Value> = self
            .skills
            .iter()
            .map(|one| {
                let value = json!({
                    "right": figures(one.right),
                    "chance": one.chance,
                    "above_chance": one.is_above_chance(),
                });
                (one.name.to_owned(), value)
            })
            .collect();
        json!({
            "wishes": wishes,
            "skills": skills,
            "questions": self.options.questions,
            "seed": self.options.seed,
            "failed_requests": self.failures.len(),
        })
    }
}

/// Four decimals are significant.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Measures all wishes and simple questions with the endpoint of `client`, which must not train. `progress` is called
/// after each reply.
pub async fn calibrate(
    client: &ChatClient,
    options: &CalibrationOptions,
    progress: &mut (dyn FnMut() + Send),
) -> Calibration {
    let mut run = Run {
        client,
        options,
        progress,
        failures: Vec::new(),
    };
    let mut wishes = Vec::new();
    for wish in &options.wishes {
        wishes.push(run.wish(*wish).await);
    }
    let mut skills = Vec::new();
    for (number, set) in SKILLS.iter().enumerate().filter(|_| options.skills > 0) {
        skills.push(run.skill(number, set).await);
    }
    Calibration {
        options: options.clone(),
        wishes,
        skills,
        failures: run.failures,
    }
}

struct Run<'a> {
    client: &'a ChatClient,
    options: &'a CalibrationOptions,
    progress: &'a mut (dyn FnMut() + Send),
    failures: Vec<String>,
}

impl Run<'_> {
    async fn wish(&mut self, wish: Wish) -> WishCalibration {
        let count = self.options.questions;
        let of = wish as u64 * 3;
        type Scorer = fn(Wish, Question, &str) -> f64;
        let scores = |replies: &[Option<String>], score: Scorer| -> Vec<Option<f64>> {
            let replies = replies.iter().enumerate();
            let scored = replies.map(|(at, reply)| {
                let reply = reply.as_ref()?;
                Some(score(wish, wish.held_out_question(at), reply))
            });
            scored.collect()
        };
        let unasked = self
            .replies(
                of,
                (0..count)
                    .map(|at| wish.held_out_question(at).text().to_owned())
                    .collect(),
            )
            .await;
        let instructed = self
            .replies(of + 1, (0..count).map(|at| wish.instructed(at)).collect())
            .await;
        let opposite = self
            .replies(of + 2, (0..count).map(|at| wish.opposite(at)).collect())
            .await;
        let form = scores(&instructed, |wish, _, reply| wish.form(reply));
        let (unasked, instructed) = (
            scores(&unasked, Wish::score),
            scores(&instructed, Wish::score),
        );
        let gains: Vec<f64> = unasked
            .iter()
            .zip(&instructed)
            .filter_map(|(from, to)| Some((*to)? - (*from)?))
            .collect();
        WishCalibration {
            wish,
            unasked: share(&unasked),
            instructed: share(&instructed),
            headroom: t_interval(&gains).map(|e| e.within(-1.0, 1.0)),
            instructed_form: share(&form),
            opposite: share(&scores(&opposite, Wish::score_opposite)),
        }
    }

    async fn skill(&mut self, number: usize, set: &SkillSet) -> SkillCalibration {
        let count = set.count().min(self.options.skills);
        let prompts = (0..count).map(|at| set.question(at).to_owned()).collect();
        let replies = self.replies(1_000 + number as u64, prompts).await;
        let passed = |(at, reply): (usize, Option<String>)| {
            Some(f64::from(u8::from(set.passes(at, &reply?))))
        };
        let passed: Vec<Option<f64>> = replies.into_iter().enumerate().map(passed).collect();
        SkillCalibration {
            name: set.name,
            right: share(&passed),
            chance: set.chance,
        }
    }

    /// The replies to `prompts`; `None` where the request failed.
    async fn replies(&mut self, set: u64, prompts: Vec<String>) -> Vec<Option<String>> {
        let (client, options) = (self.client, self.options);
        let requests = prompts.into_iter().enumerate().map(|(at, prompt)| {
            let params = RequestParams {
                seed: request_seed(options.seed, set, Purpose::Calibration, at as u64),
                temperature: options.temperature,
                max_tokens: options.max_tokens,
            };
            async move {
                client
                    .chat(&[json!({"role": "user", "content": prompt})], params)
                    .await
            }
        });
        let mut running = futures_util::stream::iter(requests).buffered(options.concurrency.max(1));
        let mut replies = Vec::new();
        while let Some(reply) = running.next().await {
            (self.progress)();
            replies.push(match reply {
                Ok(reply) => Some(reply.text),
                Err(error) => {
                    self.failures.push(error.to_string());
                    None
                }
            });
        }
        replies
    }
}

/// The mean over questions with its interval.
fn share(scores: &[Option<f64>]) -> Option<Estimate> {
    let present: Vec<f64> = scores.iter().copied().flatten().collect();
    t_interval(&present).map(|e| e.within(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::Endpoint;
    use crate::scripted::{RequestLog, ScriptedReply, message, serve};

    fn list(prompt: &str) -> String {
        format!("- {prompt}\n- green\n- tea")
    }

    fn paragraph(prompt: &str) -> String {
        format!("To the words {prompt:?} there is nothing to add but green tea.")
    }

    async fn calibrate_scripted(wishes: &[Wish]) -> Calibration {
        // Writes lists when asked for them, knows capitals, and guesses otherwise.
        let reply = |body: &Value, log: &RequestLog| {
            let prompt = message(body, 0);
            ScriptedReply::Text(match prompt {
                _ if log.bodies.len() == 3 => {
                    return ScriptedReply::Error(500, "broken".to_owned());
                }
                _ if Wish::Bullets.is_asked_for(prompt) || Wish::Plain.is_opposed(prompt) => {
                    list(prompt)
                }
                _ if prompt.contains("capital of") => {
                    "It is Paris, Rome, Tokyo, Madrid, Berlin, London, Cairo or Moscow.".to_owned()
                }
                _ if prompt.ends_with("yes or no.") => "Yes.".to_owned(),
                _ => paragraph(prompt),
            })
        };
        let server = serve(reply, |_: &RequestLog| json!({})).await;
        let endpoint = Endpoint {
            url: server.url.clone(),
            model: "scripted".into(),
            api_key: None,
        };
        let client = ChatClient::new(endpoint, Duration::from_secs(20)).unwrap();
        let options = CalibrationOptions {
            wishes: wishes.to_vec(),
            questions: 12,
            skills: 8,
            concurrency: 1,
            ..CalibrationOptions::default()
        };
        let mut replies = 0;
        let calibration = calibrate(&client, &options, &mut || replies += 1).await;
        assert_eq!(replies, options.requests());
        calibration
    }

    #[tokio::test]
    async fn a_wish_is_learnable_when_the_model_follows_it_only_when_told() {
        let found = calibrate_scripted(&[Wish::Bullets, Wish::Plain, Wish::French]).await;
        let [bullets, plain, french] = found.wishes[..] else {
            panic!("{found:?}");
        };
        let mean = |estimate: Option<Estimate>| estimate.map(|e| e.mean);
        assert_eq!(
            (mean(bullets.unasked), mean(bullets.instructed)),
            (Some(0.0), Some(1.0))
        );
        assert_eq!(
            (mean(bullets.headroom), mean(bullets.opposite)),
            (Some(1.0), Some(1.0))
        );
        // One request failed; its question is left out.
        assert_eq!(bullets.unasked.map(|e| e.count), Some(11));
        assert_eq!(bullets.headroom.map(|e| e.count), Some(11));
        assert_eq!(bullets.learnable(), Learnable::Yes);
        assert_eq!(plain.learnable(), Learnable::AlreadyMet);
        assert_eq!(french.learnable(), Learnable::NotFollowed);
        assert_eq!(found.learnable(), [Wish::Bullets]);
        assert_eq!(found.failures.len(), 1);
        let above: Vec<bool> = found
            .skills
            .iter()
            .map(SkillCalibration::is_above_chance)
            .collect();
        // Facts are known; opposites and sums are not; always yes is right half of the time.
        assert_eq!(above, [true, false, false, false]);
        let line = found.json();
        assert_eq!(
            line.pointer("/wishes/bullets/learnable"),
            Some(&json!("yes"))
        );
        assert_eq!(
            line.pointer("/wishes/french/instructed/mean"),
            Some(&json!(0.0))
        );
        assert_eq!(
            line.pointer("/skills/yes or no/right/mean"),
            Some(&json!(0.5))
        );
        assert_eq!(line.pointer("/failed_requests"), Some(&json!(1)));
        let table = crate::calibration_table(&found);
        assert!(
            table.contains("bullets") && table.contains("can be learned"),
            "{table}"
        );
        assert!(
            table.contains("left out of the forgetting probes"),
            "{table}"
        );
    }
}
