//! Tests of whole batches against independently computed values.

use super::*;

/// Parses numbers of a line.
struct Numbers(std::vec::IntoIter<f64>);

impl Numbers {
    fn of(line: &str) -> Numbers {
        let numbers: Vec<f64> = line
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        Numbers(numbers.into_iter())
    }

    fn next(&mut self) -> f64 {
        self.0.next().unwrap()
    }

    fn take(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.next()).collect()
    }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|z| z.exp()).sum();
    logits.iter().map(|z| z.exp() / sum).collect()
}

const LOGITS: [[f64; 6]; 2] = [
    [1.2, 0.3, -0.5, 0.0, -1.0, 0.7],
    [0.1, 0.2, 0.3, -0.4, 2.0, -2.0],
];

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

#[test]
fn values_and_partials_match_the_goldens() {
    let mut cases = 0;
    for line in include_str!("goldens.txt").lines() {
        if line.starts_with('#') {
            continue;
        }
        let mut numbers = Numbers::of(line);
        let divergence = Divergence {
            alpha: numbers.next(),
            tail: numbers.next() == 1.0,
        };
        let k = numbers.next() as usize;
        let (mut ids, mut losses, mut slopes) = (Vec::new(), Vec::new(), Vec::new());
        let mut batch = Batch {
            offsets: vec![0, 2],
            mask: vec![1, 1],
            step_tokens: 2,
            step_sequences: 1,
            ..Batch::default()
        };
        for _ in 0..2 {
            ids.push(numbers.take(k));
            batch.topk_logprob.extend(narrow(&numbers.take(k)));
            batch.teacher_topk_logprob.extend(narrow(&numbers.take(k)));
            losses.push(numbers.next());
            slopes.push(numbers.take(6));
        }
        let got = evaluate(&batch, k as u32, &divergence, Aggregation::TokenMean).unwrap();
        let loss = losses.iter().sum::<f64>() / 2.0;
        assert!(
            (got.loss - loss).abs() < 1e-6,
            "{line}: {} {loss}",
            got.loss
        );
        for (row, logits) in LOGITS.iter().enumerate() {
            let d: Vec<f64> = got.d_topk[row * k..(row + 1) * k]
                .iter()
                .map(|d| f64::from(*d))
                .collect();
            // The logprob of entry i has the derivative [v = i] - p(v) with respect to logit v.
            let total: f64 = d.iter().sum();
            for (v, p) in softmax(logits).into_iter().enumerate() {
                let own: f64 = ids[row]
                    .iter()
                    .zip(&d)
                    .filter(|(id, _)| **id == v as f64)
                    .map(|(_, d)| d)
                    .sum();
                let slope = own - p * total;
                assert!(
                    (slope - slopes[row][v]).abs() < 1e-6,
                    "{line}: row {row} logit {v}: {slope} {}",
                    slopes[row][v]
                );
            }
        }
        cases += 1;
    }
    assert_eq!(cases, 7);
}

fn batch() -> Batch {
    Batch {
        offsets: vec![0, 3],
        mask: vec![1, 1, 0],
        topk_logprob: vec![-1.0, -2.0, -1.5, -1.6, f32::NAN, f32::NAN],
        teacher_topk_logprob: vec![-0.5, -3.0, -1.0, -1.1, 0.0, 0.0],
        step_tokens: 2,
        step_sequences: 1,
        ..Batch::default()
    }
}

#[test]
fn a_missing_teacher_row_has_no_loss_but_counts_in_the_denominator() {
    let of =
        |batch: &Batch| evaluate(batch, 2, &Divergence::default(), Aggregation::TokenMean).unwrap();
    let whole = of(&batch());
    assert_eq!(whole.metrics[0].value, 0.0);
    assert_eq!(whole.d_topk[4..], [0.0, 0.0]);
    for missing in [[0.0, 0.0], [f32::NAN, -1.0], [-0.1, -0.1], [1.0, -9.0]] {
        let mut batch = batch();
        batch.teacher_topk_logprob[2..4].copy_from_slice(&missing);
        let got = of(&batch);
        assert_eq!(got.metrics[0].value, 1.0, "{missing:?}");
        assert_eq!(got.d_topk[..2], whole.d_topk[..2]);
        assert_eq!(got.d_topk[2..], [0.0; 4]);
        assert!(got.loss > 0.0 && got.loss < whole.loss);
    }
}

#[test]
fn length_mismatches_and_invalid_settings_are_reported() {
    let evaluate = |k| evaluate(&batch(), k, &Divergence::default(), Aggregation::default());
    assert!(evaluate(2).is_ok());
    assert!(matches!(evaluate(3), Err(PluginError::InvalidInput(_))));
    assert!(Divergence::of(&Settings::given(&[("alpha", "2")])).is_err());
    assert!(entries(&Settings::given(&[("k", "65")])).is_err());
    assert_eq!(entries(&Settings::given(&[("k", "8")])).unwrap(), 8);
}
