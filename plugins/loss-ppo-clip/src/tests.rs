//! Tests against independently computed values and against finite differences.

use super::*;

/// Current and old logprobs, mask and advantages of four sequences of at most four tokens.
fn batch(last: f32) -> Batch {
    let logprob = vec![
        -0.9, -0.5, -1.7, 0.0, -1.25, -1.1, 0.0, 0.0, -0.02, -3.6, -0.46, -1.15, last, 0.0, 0.0,
        0.0,
    ];
    let old_logprob = vec![
        -1.2, -0.35, -2.1, 0.0, -0.8, -1.6, 0.0, 0.0, -0.05, -3.0, -0.7, -1.1, -0.45, 0.0, 0.0, 0.0,
    ];
    Batch {
        offsets: vec![0, 4, 8, 12, 16],
        mask: vec![1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0],
        advantages: [1.0, -1.0, 0.5, -2.0]
            .iter()
            .flat_map(|a| [*a; 4])
            .collect(),
        logprob,
        old_logprob,
        step_tokens: 10,
        step_sequences: 4,
        ..Batch::default()
    }
}

/// The cases: clip range, the last sequence's logprob, fraction of clipped tokens, loss, partials.
fn goldens() -> Vec<(Clip, f32, f64, f64, [f64; 16])> {
    include_str!("goldens.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let numbers: Vec<f64> = line
                .split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect();
            let [low, high, dual, last, fraction, loss, partials @ ..] = numbers.as_slice() else {
                unreachable!("a line has 22 numbers")
            };
            let clip = Clip {
                low: *low,
                high: *high,
                dual: (*dual > 0.0).then_some(*dual),
            };
            let partials = partials.try_into().unwrap();
            (clip, *last as f32, *fraction, *loss, partials)
        })
        .collect()
}

#[test]
fn values_and_partials_match_the_goldens() {
    let goldens = goldens();
    assert!(goldens.len() >= 3);
    for (clip, last, fraction, loss, partials) in goldens {
        let got = evaluate(&batch(last), &clip, Aggregation::TokenMean).unwrap();
        assert!(
            (got.loss - loss).abs() < 1e-6,
            "{clip:?}: {} {loss}",
            got.loss
        );
        for (got, expected) in got.d_logprob.iter().zip(partials) {
            assert!((f64::from(*got) - expected).abs() < 1e-6, "{clip:?}");
        }
        if clip.dual.is_none() {
            let got = got.metrics.first().unwrap().value;
            assert!((got - fraction).abs() < 1e-9);
        }
    }
}

#[test]
fn partials_match_finite_differences() {
    let h = 1e-6;
    for dual in [None, Some(3.0)] {
        let clip = Clip {
            dual,
            ..Clip::default()
        };
        for step in -30..30 {
            let (old, logprob) = (-2.0, -2.0 + f64::from(step) * 0.05 + 0.013);
            for advantage in [-1.5, -0.1, 0.3, 2.0] {
                let here = clip.token(logprob, old, advantage);
                let up = clip.token(logprob + h, old, advantage).loss;
                let down = clip.token(logprob - h, old, advantage).loss;
                let slope = (up - down) / (2.0 * h);
                assert!(
                    (slope - here.d_logprob).abs() < 1e-6 * (1.0 + slope.abs()),
                    "{step} {advantage}: {slope} {here:?}"
                );
            }
        }
    }
}

#[test]
fn micro_batches_sum_to_the_step() {
    let whole = batch(-0.2);
    for aggregation in [
        Aggregation::TokenMean,
        Aggregation::SeqMeanTokenMean,
        Aggregation::SeqMeanTokenSum,
    ] {
        let all = evaluate(&whole, &Clip::default(), aggregation).unwrap();
        let parts: f64 = [0..8, 8..16]
            .into_iter()
            .map(|range: std::ops::Range<usize>| {
                let part = Batch {
                    offsets: vec![0, 4, 8],
                    mask: whole.mask[range.clone()].to_vec(),
                    advantages: whole.advantages[range.clone()].to_vec(),
                    logprob: whole.logprob[range.clone()].to_vec(),
                    old_logprob: whole.old_logprob[range].to_vec(),
                    step_tokens: 10,
                    step_sequences: 4,
                    ..Batch::default()
                };
                evaluate(&part, &Clip::default(), aggregation).unwrap().loss
            })
            .sum();
        assert!((all.loss - parts).abs() < 1e-12);
    }
}

#[test]
fn masked_tokens_have_no_partial_and_nan_is_preserved() {
    let mut batch = batch(-0.2);
    batch.logprob[3] = f32::NAN;
    let got = evaluate(&batch, &Clip::default(), Aggregation::default()).unwrap();
    assert!(got.loss.is_finite() && got.d_logprob[3] == 0.0);
    batch.logprob[0] = f32::NAN;
    let got = evaluate(&batch, &Clip::default(), Aggregation::default()).unwrap();
    assert!(got.loss.is_nan() && got.d_logprob[0].is_nan());
}

#[test]
fn length_mismatches_are_reported() {
    let mut batch = batch(-0.2);
    batch.old_logprob.pop();
    let error = evaluate(&batch, &Clip::default(), Aggregation::default()).unwrap_err();
    assert_eq!(
        error,
        PluginError::InvalidInput("old-logprob has 15 numbers, expected 16".to_owned())
    );
}

#[test]
fn settings_are_parsed() {
    let settings = Settings::given(&[("clip_high", "0.3"), ("dual_clip", "3")]);
    let clip = Clip::of(&settings).unwrap();
    assert_eq!((clip.low, clip.high, clip.dual), (0.2, 0.3, Some(3.0)));
    assert_eq!(Clip::of(&Settings::of_plugin()).unwrap(), Clip::default());
    assert!(Clip::of(&Settings::given(&[("dual_clip", "0.5")])).is_err());
}
