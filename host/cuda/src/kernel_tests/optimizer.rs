//! AdamW and the norm of the gradient, against f64.

use super::*;
use crate::kernels::AdamWArguments;

#[test]
fn updates_follow_adamw() {
    let (count, decayed, updates) = (5003, 4000, 3);
    let start = random(1, count, 1.0);
    let (beta1, beta2, rate, decay, epsilon, scale) = (0.9, 0.98, 1e-2, 0.1, 1e-8, 0.5);
    let gradients: Vec<Vec<f32>> = (0..updates).map(|i| random(2 + i, count, 1.0)).collect();
    let Some((found, copy, norm)) = in_both_orders(|b| {
        let parameters = b.upload(&start);
        let (m, v) = (b.upload(&vec![0f32; count]), b.upload(&vec![0f32; count]));
        let copy = b.empty(Precision::Bf16, count);
        let mut norm = 0.0;
        for (i, gradient) in gradients.iter().enumerate() {
            let gradient = b.upload(gradient);
            let power = |beta: f64| (1.0 / (1.0 - beta.powi(i as i32 + 1))) as f32;
            b.stream
                .adamw(AdamWArguments {
                    parameters: parameters.address(),
                    gradients: gradient.address(),
                    exp_avg: m.address(),
                    exp_avg_sq: v.address(),
                    copy: copy.address(),
                    count: count as i64,
                    decayed: decayed as i64,
                    rate: rate as f32,
                    beta1: beta1 as f32,
                    one_minus_beta1: (1.0 - beta1) as f32,
                    beta2: beta2 as f32,
                    one_minus_beta2: (1.0 - beta2) as f32,
                    bias_correction1: power(beta1),
                    bias_correction2: power(beta2),
                    epsilon: epsilon as f32,
                    decay_factor: (1.0 - rate * decay) as f32,
                    scale: scale as f32,
                })
                .unwrap();
            let partials = Buffer::<f64>::new(&b.driver, Stream::NORM_PARTS).unwrap();
            let sum = Buffer::<f64>::new(&b.driver, 1).unwrap();
            let at = (gradient.address(), partials.address(), sum.address());
            b.stream.squared_norm(at, count).unwrap();
            norm = b.read(&sum)[0];
        }
        (b.read(&parameters), b.read_values(&copy), norm)
    }) else {
        return;
    };
    let mut expected: Vec<f64> = start.iter().map(|v| f64::from(*v)).collect();
    let (mut m, mut v) = (vec![0f64; count], vec![0f64; count]);
    for (i, gradient) in gradients.iter().enumerate() {
        for at in 0..count {
            let g = f64::from(gradient[at]) * scale;
            m[at] = beta1 * m[at] + (1.0 - beta1) * g;
            v[at] = beta2 * v[at] + (1.0 - beta2) * g * g;
            let (m, v) = (
                m[at] / (1.0 - f64::powi(beta1, i as i32 + 1)),
                v[at] / (1.0 - f64::powi(beta2, i as i32 + 1)),
            );
            if at < decayed {
                expected[at] -= rate * decay * expected[at];
            }
            expected[at] -= rate * m / (v.sqrt() + epsilon);
        }
    }
    let expected: Vec<f32> = expected.iter().map(|v| *v as f32).collect();
    assert_close("parameters", &found, &expected, 1e-6);
    let rounded: Vec<f32> = found
        .iter()
        .map(|v| half::bf16::from_f32(*v).to_f32())
        .collect();
    assert_eq!(copy, rounded);
    let squares: f64 = gradients[2].iter().map(|g| f64::from(*g).powi(2)).sum();
    assert!((norm / squares - 1.0).abs() < 1e-12);
}
