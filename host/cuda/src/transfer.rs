//! The named tensors of a flat buffer on the device, copied from and to vectors of the host by several threads.

use crate::device::{Buffer, Precision, Region, Result, Staging, Stream, Values, values_of};
use crate::layout::TensorPlace;

/// Most values that a thread copies at once, so that all threads have work.
const RUN: usize = 1 << 18;
/// Most threads: memory bandwidth is the limit.
const MAX_THREADS: usize = 8;

/// Consecutive values of a tensor, and where they lie in the flat buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    flat: usize,
    tensor: usize,
    at: usize,
    len: usize,
}

/// The runs of tensors, in the order of the flat buffer. None crosses a multiple of `part`.
fn runs(places: &[TensorPlace], part: usize) -> Vec<Run> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_unstable_by_key(|tensor| places[*tensor].at);
    let mut runs = Vec::new();
    for tensor in order {
        let place = places[tensor];
        // Rows without gaps are one.
        let (rows, width) = match place.width == place.stride {
            true => (1, place.rows * place.width),
            false => (place.rows, place.width),
        };
        for row in 0..rows {
            let (mut flat, mut at) = (place.at + row * place.stride, row * width);
            let end = at + width;
            while at < end {
                let len = (end - at).min(part - flat % part).min(RUN);
                runs.push(Run {
                    flat,
                    tensor,
                    at,
                    len,
                });
                (flat, at) = (flat + len, at + len);
            }
        }
    }
    runs
}

/// Runs jobs of these sizes on several threads.
fn run_jobs<T: Send>(jobs: Vec<(usize, T)>, run: impl Fn(T) + Sync) {
    let total: usize = jobs.iter().map(|(size, _)| size).sum();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min(MAX_THREADS).min(total.div_ceil(RUN)).max(1);
    let share = total.div_ceil(threads).max(1);
    let mut jobs = jobs.into_iter();
    std::thread::scope(|scope| {
        loop {
            let (mut size, mut own) = (0, Vec::new());
            while size < share
                && let Some((len, job)) = jobs.next()
            {
                size += len;
                own.push(job);
            }
            let run = &run;
            let work = move || own.into_iter().for_each(run);
            if jobs.len() == 0 {
                return work();
            }
            scope.spawn(work);
        }
    });
}

/// Writes tensors into a flat buffer in its precision; zero between them.
fn upload(
    stream: &Stream,
    staging: &mut Staging,
    (to, precision): (Region<'_>, Precision),
    places: &[TensorPlace],
    tensors: &[&[f32]],
) -> Result<()> {
    let size = precision.bytes();
    let runs = runs(places, staging.part() / size);
    let mut rest = runs.as_slice();
    staging.upload(stream, to, |range, bytes| {
        let here = rest.partition_point(|run| run.flat * size < range.end);
        let (own, later) = rest.split_at(here);
        rest = later;
        if own.iter().map(|run| run.len).sum::<usize>() * size < bytes.len() {
            bytes.fill(0);
        }
        let (mut at, mut unfilled) = (range.start, bytes);
        let mut jobs = Vec::with_capacity(own.len());
        for run in own {
            let begin = run.flat * size;
            let (_, tail) = std::mem::take(&mut unfilled).split_at_mut(begin - at);
            let (to, tail) = tail.split_at_mut(run.len * size);
            (at, unfilled) = (begin + to.len(), tail);
            let from = &tensors[run.tensor][run.at..run.at + run.len];
            jobs.push((run.len, (from, to)));
        }
        run_jobs(jobs, |(from, to)| precision.encode_into(from, to));
    })
}

/// As [`upload`], in f32.
pub(crate) fn upload_tensors(
    stream: &Stream,
    staging: &mut Staging,
    to: &Buffer<f32>,
    places: &[TensorPlace],
    tensors: &[&[f32]],
) -> Result<()> {
    let to = (to.region(), Precision::F32);
    upload(stream, staging, to, places, tensors)
}

/// As [`upload`].
pub(crate) fn upload_values(
    stream: &Stream,
    staging: &mut Staging,
    to: &Values,
    places: &[TensorPlace],
    tensors: &[&[f32]],
) -> Result<()> {
    let to = (to.region(), to.precision);
    upload(stream, staging, to, places, tensors)
}

/// Zeros for every tensor, made by the threads that touch their memory first.
fn zeros(places: &[TensorPlace]) -> Vec<Vec<f32>> {
    let mut tensors = vec![Vec::new(); places.len()];
    let jobs = tensors.iter_mut().zip(places).map(|(tensor, place)| {
        let len = place.rows * place.width;
        (len, (tensor, len))
    });
    run_jobs(jobs.collect(), |(tensor, len)| *tensor = vec![0.0; len]);
    tensors
}

/// Reads the tensors of a flat buffer.
pub(crate) fn download_tensors(
    stream: &Stream,
    staging: &mut Staging,
    from: &Buffer<f32>,
    places: &[TensorPlace],
) -> Result<Vec<Vec<f32>>> {
    let size = size_of::<f32>();
    let mut tensors = zeros(places);
    let mut unread: Vec<&mut [f32]> = tensors.iter_mut().map(Vec::as_mut_slice).collect();
    let runs = runs(places, staging.part() / size);
    let mut rest = runs.as_slice();
    staging.download(stream, from.region(), |range, bytes| {
        let values: &[f32] = values_of(bytes);
        let first = range.start / size;
        let here = rest.partition_point(|run| run.flat < first + values.len());
        let (own, later) = rest.split_at(here);
        rest = later;
        let mut jobs = Vec::with_capacity(own.len());
        for run in own {
            // The runs of a tensor come in order.
            let tensor = &mut unread[run.tensor];
            let (to, tail) = std::mem::take(tensor).split_at_mut(run.len);
            *tensor = tail;
            let at = run.flat - first;
            jobs.push((run.len, (&values[at..at + run.len], to)));
        }
        run_jobs(jobs, |(from, to): (&[f32], &mut [f32])| {
            to.copy_from_slice(from)
        });
    })?;
    Ok(tensors)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::emulated::EmulatedDriver;
    use crate::device::{Driver, StreamPriority};

    fn place(at: usize, rows: usize, width: usize, stride: usize) -> TensorPlace {
        TensorPlace {
            at,
            rows,
            width,
            stride,
        }
    }

    #[test]
    fn tensors_survive_a_flat_buffer_in_parts() {
        let driver: Arc<dyn Driver> =
            EmulatedDriver::new().expect("this test needs a C++ compiler");
        let stream = Stream::new(&driver, StreamPriority::Background).unwrap();
        // Out of order, with gaps between rows and between tensors.
        let places = [
            place(40, 5, 3, 8),
            place(0, 1, 37, 37),
            place(88, 2, 4, 4),
            place(100, 0, 4, 4),
        ];
        let tensor = |place: &TensorPlace| -> Vec<f32> {
            (0..place.rows * place.width)
                .map(|i| (place.at + i) as f32 + 0.5)
                .collect()
        };
        let tensors: Vec<Vec<f32>> = places.iter().map(tensor).collect();
        let slices: Vec<&[f32]> = tensors.iter().map(Vec::as_slice).collect();
        let mut flat = vec![0.0; 101];
        for (place, tensor) in places.iter().zip(&tensors) {
            for row in 0..place.rows {
                let values = &tensor[row * place.width..][..place.width];
                flat[place.at + row * place.stride..][..place.width].copy_from_slice(values);
            }
        }
        for part in [16, 64, 1 << 12] {
            let mut staging = Staging::new(&driver, part).unwrap();
            let buffer = Buffer::new(&driver, flat.len()).unwrap();
            upload_tensors(&stream, &mut staging, &buffer, &places, &slices).unwrap();
            let mut found = vec![0.0; flat.len()];
            stream.download(&buffer, 0, &mut found).unwrap();
            assert_eq!(found, flat);
            let read = download_tensors(&stream, &mut staging, &buffer, &places).unwrap();
            assert_eq!(read, tensors);
            let values = Values::new(&driver, Precision::Bf16, flat.len()).unwrap();
            upload_values(&stream, &mut staging, &values, &places, &slices).unwrap();
            let found = stream.download_values(&values, 0, flat.len()).unwrap();
            assert_eq!(found, flat, "these values are exact in bf16");
        }
    }

    #[test]
    fn jobs_of_all_sizes_run_once() {
        for size in [0, 1, RUN, 3 * RUN + 1] {
            let mut counts = vec![0; 37];
            let jobs = counts.iter_mut().map(|count| (size, count)).collect();
            run_jobs(jobs, |count| *count += 1);
            assert_eq!(counts, vec![1; 37]);
        }
        run_jobs(Vec::new(), |()| ());
    }
}
