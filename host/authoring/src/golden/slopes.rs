//! Whether the partials of a loss are the slopes of its value.
//!
//! The host back-propagates the partials that a loss returns and never looks at its value, so a wrong
//! partial trains the wrong thing in silence. Here each input that the loss is differentiated by is moved
//! a little up and a little down, one at a time, and the loss is evaluated again.
//!
//! Inputs travel as `f32`: the distance is what is left of the step after rounding, so nothing is lost by
//! it. A loss that is itself computed in `f32` is noisy; it is recognized by its values, and gets longer steps and
//! the tolerance that its rounding needs. At a kink, such as the edge of a clip, every slope between those
//! of the two sides is right.

use clawhost_plugins::{CallContext, CallResult, LossBatch, PairBatch, Plugin, Requirements};

use super::call::result;

/// How far a partial may be from the slope, relative to the larger of them.
const TOLERANCE: f64 = 1e-3;
/// Step of a loss computed in `f64`, relative to the input and at least to 1.
const STEP: f32 = 1.0 / 4096.0;
/// Step of a loss computed in `f32`.
const COARSE_STEP: f32 = 1.0 / 128.0;
/// Most partials that are compared; of more, some all over the batch.
const MOST: usize = 256;

/// An input that a loss is differentiated by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Logprob,
    Topk,
    Entropy,
}

impl Input {
    fn name(self) -> &'static str {
        match self {
            Input::Logprob => "logprob",
            Input::Topk => "topk-logprob",
            Input::Entropy => "entropy",
        }
    }

    fn values(self, batch: &mut LossBatch) -> &mut Vec<f32> {
        match self {
            Input::Logprob => &mut batch.logprob,
            Input::Topk => &mut batch.topk_logprob,
            Input::Entropy => &mut batch.entropy,
        }
    }

    /// The values that it can have.
    fn holds(self, value: f32) -> bool {
        match self {
            Input::Logprob | Input::Topk => value <= 0.0,
            Input::Entropy => value >= 0.0,
        }
    }
}

/// One number of the input of a loss.
#[derive(Debug, Clone, Copy)]
struct Place {
    input: Input,
    /// In the input's tensor.
    at: usize,
    /// Numbers that the tensor has for each token.
    width: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of token {}", self.input.name(), self.at / self.width)?;
        if self.input == Input::Topk {
            write!(f, ", entry {}", self.at % self.width)?;
        }
        Ok(())
    }
}

/// The logprob of one token of a pair.
#[derive(Debug, Clone, Copy)]
struct PairPlace {
    pair: usize,
    is_chosen: bool,
    token: usize,
}

impl std::fmt::Display for PairPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reply = if self.is_chosen { "chosen" } else { "rejected" };
        write!(
            f,
            "logprob of token {} of the {reply} reply of pair {}",
            self.token, self.pair
        )
    }
}

/// A partial that the loss gave.
#[derive(Debug, Clone, Copy)]
struct Partial<P> {
    place: P,
    partial: f32,
    /// The loss that it is the partial of.
    here: f64,
}

/// Compares partials with slopes; returns how many there were, or which one is wrong.
pub(super) async fn compare(
    plugin: &Plugin,
    call: CallContext,
    batch: &LossBatch,
) -> Result<String, String> {
    let needs = checked(plugin.describe_loss(call.clone()).await)?;
    let found = plugin.evaluate_loss(call.clone(), needs, batch.clone());
    let gradient = checked(found.await)?;
    let here = gradient.loss;
    let partials = [
        (Input::Logprob, 1, gradient.d_logprob),
        (Input::Topk, needs.k as usize, gradient.d_topk),
        (Input::Entropy, 1, gradient.d_entropy),
    ]
    .into_iter()
    .flat_map(|(input, width, partials)| {
        let width = width.max(1);
        let partial = move |(at, partial)| Partial {
            place: Place { input, at, width },
            partial,
            here,
        };
        partials.into_iter().enumerate().map(partial)
    })
    .collect();
    let probe = LossProbe {
        plugin,
        call,
        needs,
        batch: batch.clone(),
    };
    compare_all(probe, partials).await
}

/// As [`compare`], of a loss on pairs.
pub(super) async fn compare_pairs(
    plugin: &Plugin,
    call: CallContext,
    batch: &PairBatch,
) -> Result<String, String> {
    let found = checked(plugin.evaluate_pairs(call.clone(), batch.clone()).await)?;
    let mut partials = Vec::new();
    for (pair, gradient) in found.gradients.into_iter().enumerate() {
        let here = gradient.loss;
        for (is_chosen, values) in [(true, gradient.d_chosen), (false, gradient.d_rejected)] {
            let partial = |(token, partial)| Partial {
                place: PairPlace {
                    pair,
                    is_chosen,
                    token,
                },
                partial,
                here,
            };
            partials.extend(values.into_iter().enumerate().map(partial));
        }
    }
    let batch = batch.clone();
    compare_all(
        PairProbe {
            plugin,
            call,
            batch,
        },
        partials,
    )
    .await
}

async fn compare_all<P: Probe>(
    mut probe: P,
    partials: Vec<Partial<P::Place>>,
) -> Result<String, String> {
    let skip = partials.len().div_ceil(MOST).max(1);
    let chosen = partials.iter().copied().step_by(skip);
    let (mut step, mut compared) = (STEP, 0);
    for Partial {
        place,
        partial,
        here,
    } in chosen
    {
        let mut slope = slope(&mut probe, place, here, step).await?;
        if step == STEP && slope.is_coarse {
            step = COARSE_STEP;
            slope = self::slope(&mut probe, place, here, step).await?;
        }
        if !slope.allows(f64::from(partial)) {
            return Err(format!(
                "the gradient is wrong: the partial by {place} is {partial}, but the slope of the loss there is {}; a loss that \
                 holds a part of itself constant says \"stop_gradient\": true in its transcript",
                slope.shown()
            ));
        }
        compared += 1;
    }
    Ok(if compared == partials.len() {
        format!("{compared} partials are the slopes of the loss")
    } else {
        format!(
            "{compared} of {} partials are the slopes of the loss",
            partials.len()
        )
    })
}

/// The result of a call, or why there is none.
fn checked<T>(called: CallResult<T>) -> Result<T, String> {
    result(called).map_err(|failure| failure.to_string())
}

/// A loss and the input that it is evaluated on.
trait Probe {
    /// Where one number of the input is.
    type Place: Copy + std::fmt::Display;

    fn value(&mut self, place: Self::Place) -> Result<f32, String>;

    /// Whether the number can have this value.
    fn holds(place: Self::Place, value: f32) -> bool;

    /// The loss when the number has this value.
    async fn loss_with(&mut self, place: Self::Place, value: f32) -> Result<f64, String>;
}

struct LossProbe<'a> {
    plugin: &'a Plugin,
    call: CallContext,
    needs: Requirements,
    batch: LossBatch,
}

impl Probe for LossProbe<'_> {
    type Place = Place;

    fn value(&mut self, place: Place) -> Result<f32, String> {
        let values = place.input.values(&mut self.batch);
        values.get(place.at).copied().ok_or_else(|| {
            format!(
                "the batch has no {}, which the loss is differentiated by",
                place.input.name()
            )
        })
    }

    fn holds(place: Place, value: f32) -> bool {
        place.input.holds(value)
    }

    async fn loss_with(&mut self, place: Place, value: f32) -> Result<f64, String> {
        let mut batch = self.batch.clone();
        place.input.values(&mut batch)[place.at] = value;
        let call = self.call.clone();
        let found = self.plugin.evaluate_loss(call, self.needs, batch).await;
        Ok(moved(found, place, value)?.loss)
    }
}

struct PairProbe<'a> {
    plugin: &'a Plugin,
    call: CallContext,
    batch: PairBatch,
}

impl PairProbe<'_> {
    fn logprobs(batch: &mut PairBatch, place: PairPlace) -> &mut Vec<f32> {
        let pair = &mut batch.pairs[place.pair];
        match place.is_chosen {
            true => &mut pair.chosen.logprob,
            false => &mut pair.rejected.logprob,
        }
    }
}

impl Probe for PairProbe<'_> {
    type Place = PairPlace;

    fn value(&mut self, place: PairPlace) -> Result<f32, String> {
        let values = Self::logprobs(&mut self.batch, place);
        let value = values.get(place.token).copied();
        value.ok_or_else(|| format!("the transcript has no {place}"))
    }

    fn holds(_: PairPlace, value: f32) -> bool {
        Input::Logprob.holds(value)
    }

    async fn loss_with(&mut self, place: PairPlace, value: f32) -> Result<f64, String> {
        let mut batch = self.batch.clone();
        Self::logprobs(&mut batch, place)[place.token] = value;
        let found = self.plugin.evaluate_pairs(self.call.clone(), batch).await;
        Ok(moved(found, place, value)?.gradients[place.pair].loss)
    }
}

/// The result of a call with a moved number.
fn moved<T>(called: CallResult<T>, place: impl std::fmt::Display, value: f32) -> Result<T, String> {
    checked(called).map_err(|failure| {
        format!("the gradient cannot be checked: with {value} as {place}: {failure}")
    })
}

/// The slopes on both sides of a place, where the input can go there.
async fn slope<P: Probe>(
    probe: &mut P,
    place: P::Place,
    here: f64,
    step: f32,
) -> Result<Slope, String> {
    let x = probe.value(place)?;
    let mut slope = Slope {
        sides: Vec::new(),
        noise: 0.0,
        is_coarse: is_f32(here),
    };
    let step = step * x.abs().max(1.0);
    for signed in [-step, step] {
        // What is at the edge of its range goes one way only. An input that is out of range
        // already goes both ways.
        if P::holds(place, x) && !P::holds(place, x + signed) {
            continue;
        }
        let near = difference(probe, place, x, here, signed / 2.0).await?;
        let far = difference(probe, place, x, here, signed).await?;
        slope.is_coarse &= near.is_coarse && far.is_coarse;
        // Two steps show how the slope itself changes, and so what it is at the place.
        slope.sides.push(2.0 * near.slope - far.slope);
    }
    let rounding = if slope.is_coarse {
        f64::from(f32::EPSILON)
    } else {
        f64::EPSILON
    };
    slope.noise = 16.0 * rounding * here.abs() / f64::from(step);
    Ok(slope)
}

/// How the loss differs when the input does.
async fn difference<P: Probe>(
    probe: &mut P,
    place: P::Place,
    x: f32,
    here: f64,
    step: f32,
) -> Result<Difference, String> {
    let moved = x + step;
    let there = probe.loss_with(place, moved).await?;
    Ok(Difference {
        slope: (there - here) / (f64::from(moved) - f64::from(x)),
        is_coarse: is_f32(there),
    })
}

struct Difference {
    slope: f64,
    is_coarse: bool,
}

/// Slopes of the loss by one number.
#[derive(Debug, Clone, PartialEq)]
struct Slope {
    /// Below and above, or the one that there is.
    sides: Vec<f64>,
    /// What rounding of the loss may add to a slope.
    noise: f64,
    /// Each loss was an `f32`.
    is_coarse: bool,
}

impl Slope {
    fn least(&self) -> f64 {
        self.sides.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn most(&self) -> f64 {
        self.sides.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Whether a partial is the slope, or between the slopes of a kink.
    fn allows(&self, partial: f64) -> bool {
        let (least, most) = (self.least(), self.most());
        let scale = least.abs().max(most.abs()).max(partial.abs());
        let tolerance = TOLERANCE * scale + self.noise;
        (least - tolerance..=most + tolerance).contains(&partial)
    }

    fn shown(&self) -> String {
        let (least, most) = (self.least(), self.most());
        if most - least <= TOLERANCE * least.abs().max(most.abs()) + self.noise {
            format!("{:.6}", (least + most) / 2.0)
        } else {
            format!("{least:.6} to {most:.6}")
        }
    }
}

fn is_f32(value: f64) -> bool {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "whether something is lost is the question"
    )]
    let short = value as f32;
    f64::from(short).to_bits() == value.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slope(sides: &[f64]) -> Slope {
        Slope {
            sides: sides.to_vec(),
            noise: 1e-9,
            is_coarse: false,
        }
    }

    #[test]
    fn a_partial_is_the_slope_or_between_those_of_a_kink() {
        assert!(slope(&[-0.25, -0.25]).allows(-0.250_1));
        assert!(!slope(&[-0.25, -0.25]).allows(-0.251));
        assert!(!slope(&[-0.25, -0.25]).allows(0.25));
        assert!(slope(&[0.0, 0.5]).allows(0.3));
        assert!(!slope(&[0.0, 0.5]).allows(0.51));
        assert!(slope(&[0.0, 0.0]).allows(0.0));
        assert!(!slope(&[0.0, 0.0]).allows(1e-6));
        assert!(!slope(&[1e-6, 1e-6]).allows(0.0));
        assert_eq!(slope(&[-0.25, -0.25]).shown(), "-0.250000");
        assert_eq!(slope(&[0.0, 0.5]).shown(), "0.000000 to 0.500000");
    }

    #[test]
    fn what_was_computed_in_f32_is_told() {
        assert!(is_f32(-0.25) && is_f32(f64::from(0.1_f32)));
        assert!(!is_f32(0.1));
    }
}
