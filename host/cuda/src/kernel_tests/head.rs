//! Scores, candidates and gradients of the head, against f64.

use super::*;
use crate::device::Address;
use crate::kernels::{HeadArguments, HeadGradients};

#[test]
fn scores_candidates_and_gradients() {
    let (vocab, stride, positions) = (5003, 5008, 3);
    let mut logits = random(1, positions * stride, 6.0);
    // Ties: the lower id comes first.
    logits[stride + 17] = 7.0;
    logits[stride + 600] = 7.0;
    logits[stride + 601] = 7.0;
    let targets = [5usize, 600, 1002];
    let temperatures = [1.0f32, 0.7, 2.0];
    // The first position has fixed candidates, one twice and one that is the target; the second the best.
    let fixed = [9usize, 5, 9];
    let (first, found) = ([0usize, 3, 5, 5], 2);
    let d_logprobs = random(2, positions, 1.0);
    let d_entropies = random(3, positions, 1.0);
    let d_candidates = random(4, 5, 1.0);
    for precision in BOTH {
        let Some((logprobs, entropies, ids, candidates, dlogits)) = in_both_orders(|b| {
            let s = &b.stream;
            let logit = b.upload(&logits);
            let target = b.ints(&targets);
            let inverse = b.upload(&temperatures.map(|t| 1.0 / t));
            let outputs = [0; 4].map(|_| b.upload(&vec![0f32; positions]));
            let firsts = b.ints(&first);
            let ids = b.ints(&[fixed[0], fixed[1], fixed[2], 0, 0]);
            let values = b.upload(&[0f32; 5]);
            let arguments = HeadArguments {
                logits: logit.address(),
                stride: stride as i32,
                vocab: vocab as i32,
                targets: target.address(),
                inverse_temperatures: inverse.address(),
                logprobs: outputs[0].address(),
                entropies: outputs[1].address(),
                largest: outputs[2].address(),
                log_sums: outputs[3].address(),
                first_candidates: firsts.address(),
                candidates: ids.address(),
                candidate_logprobs: values.address(),
            };
            let find = b.ints(&[0, 1, 0]);
            s.head_scores(arguments, positions).unwrap();
            s.head_top(arguments, find.address(), positions).unwrap();
            s.head_candidates(arguments, positions).unwrap();
            let (one, two) = (b.upload(&d_logprobs), b.upload(&d_entropies));
            let three = b.upload(&d_candidates);
            let d = b.empty(precision, positions * stride);
            let gradients = HeadGradients {
                d_logprobs: one.address(),
                d_entropies: two.address(),
                d_candidates: three.address(),
                dlogits: d.address(),
            };
            s.head_backward(precision, arguments, gradients, positions)
                .unwrap();
            // Without candidates the gradient is that of the others alone.
            let without = HeadGradients {
                d_candidates: Address::NULL,
                ..gradients
            };
            let all = b.read_values(&d);
            s.head_backward(precision, arguments, without, positions)
                .unwrap();
            assert_eq!(b.read_values(&d)[2 * stride..], all[2 * stride..]);
            (
                b.read(&outputs[0]),
                b.read(&outputs[1]),
                b.read(&ids),
                b.read(&values),
                all,
            )
        }) else {
            return;
        };
        assert_eq!(ids[3..3 + found], [17, 600]);
        let mut expected_gradients = Vec::new();
        let (mut expected_logprobs, mut expected_entropies) = (Vec::new(), Vec::new());
        let mut expected_candidates = Vec::new();
        for position in 0..positions {
            let z: Vec<f64> = logits[position * stride..position * stride + vocab]
                .iter()
                .map(|l| f64::from(*l) / f64::from(temperatures[position]))
                .collect();
            let log_sum = z.iter().map(|z| z.exp()).sum::<f64>().ln();
            let logprob = |i: usize| z[i] - log_sum;
            let entropy: f64 = -(0..vocab)
                .map(|i| logprob(i).exp() * logprob(i))
                .sum::<f64>();
            expected_logprobs.push(logprob(targets[position]) as f32);
            expected_entropies.push(entropy as f32);
            let range = first[position]..first[position + 1];
            let own: Vec<usize> = ids[range.clone()].iter().map(|id| *id as usize).collect();
            expected_candidates.extend(own.iter().map(|id| logprob(*id) as f32));
            let mut d: Vec<f64> = (0..vocab)
                .map(|i| {
                    let p = logprob(i).exp();
                    -f64::from(d_entropies[position]) * p * (logprob(i) + entropy)
                })
                .collect();
            let mut add = |id: usize, weight: f32| {
                for (i, d) in d.iter_mut().enumerate() {
                    let same = f64::from(u8::from(i == id));
                    *d += f64::from(weight) * (same - logprob(i).exp());
                }
            };
            add(targets[position], d_logprobs[position]);
            for (id, weight) in own.iter().zip(&d_candidates[range]) {
                add(*id, *weight);
            }
            let temperature = f64::from(temperatures[position]);
            expected_gradients.extend(d.iter().map(|d| (d / temperature) as f32));
            expected_gradients.resize((position + 1) * stride, 0.0);
        }
        assert_close("logprobs", &logprobs, &expected_logprobs, 1e-5);
        assert_close("entropies", &entropies, &expected_entropies, 1e-5);
        assert_close("candidates", &candidates, &expected_candidates, 1e-5);
        assert_close(
            "dlogits",
            &dlogits,
            &expected_gradients,
            rounding(precision) + 1e-5,
        );
    }
}
