//! Every kernel, compiled as C++, against a plain f32 or f64 computation on odd shapes. Each runs twice, with the threads
//! of a block in both orders between two barriers, and must give the same bits: a missing barrier shows as a difference.

mod attention;
mod gemv;
mod head;
mod optimizer;
mod quantized;
mod rows;
mod sampling;

use std::sync::Arc;

use crate::device::emulated::EmulatedDriver;
use crate::device::{Buffer, Driver, Element, Precision, Stream, StreamPriority, Values};

/// An emulated device and a stream on it.
struct Bench {
    emulated: Arc<EmulatedDriver>,
    driver: Arc<dyn Driver>,
    stream: Stream,
}

impl Bench {
    fn new() -> Option<Self> {
        let emulated = EmulatedDriver::new()?;
        let driver: Arc<dyn Driver> = emulated.clone();
        let stream = Stream::new(&driver, StreamPriority::Serving).unwrap();
        Some(Self {
            emulated,
            driver,
            stream,
        })
    }

    fn values(&self, precision: Precision, values: &[f32]) -> Values {
        let buffer = Values::new(&self.driver, precision, values.len()).unwrap();
        self.stream.upload_values(&buffer, 0, values).unwrap();
        buffer
    }

    fn empty(&self, precision: Precision, len: usize) -> Values {
        Values::new(&self.driver, precision, len).unwrap()
    }

    fn upload<T: Element>(&self, values: &[T]) -> Buffer<T> {
        let buffer = Buffer::new(&self.driver, values.len()).unwrap();
        self.stream.upload(&buffer, 0, values).unwrap();
        buffer
    }

    fn ints(&self, values: &[usize]) -> Buffer<i32> {
        self.upload(&values.iter().map(|v| *v as i32).collect::<Vec<_>>())
    }

    fn read<T: Element>(&self, buffer: &Buffer<T>) -> Vec<T> {
        let mut values = vec![T::default(); buffer.len()];
        self.stream.download(buffer, 0, &mut values).unwrap();
        values
    }

    fn read_values(&self, values: &Values) -> Vec<f32> {
        self.stream
            .download_values(values, 0, values.len())
            .unwrap()
    }
}

/// Runs `work` with the threads in both orders and returns its result.
fn in_both_orders<T: PartialEq + std::fmt::Debug>(work: impl Fn(&Bench) -> T) -> Option<T> {
    let bench = Bench::new()?;
    let forward = work(&bench);
    bench.emulated.reverse(true);
    let reversed = work(&bench);
    assert!(
        forward == reversed,
        "the result depends on the order of threads"
    );
    Some(forward)
}

/// Random numbers in [-1, 1) times `scale`, as bf16 has them.
pub(crate) fn random(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    (0..len)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            let unit = (z >> 40) as f32 / (1u64 << 24) as f32;
            half::bf16::from_f32((2.0 * unit - 1.0) * scale).to_f32()
        })
        .collect()
}

/// Asserts that the error is at most `bound` of the largest expected value.
fn assert_close(what: &str, found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= bound * largest,
            "{what}: value {i} is {found}, expected {expected}; largest {largest}"
        );
    }
}

/// Bound of a kernel that rounds its result once.
fn rounding(precision: Precision) -> f32 {
    match precision {
        Precision::F32 => 2e-6,
        Precision::Bf16 => 4e-3,
    }
}

const BOTH: [Precision; 2] = [Precision::F32, Precision::Bf16];
