//! The optimizer state as a safetensors file: `first/<tensor>` and `second/<tensor>` in f32 (AdamW's moments),
//! `average/<tensor>` if an EMA of the parameters is kept, and the number of updates in the metadata. Reading restores it
//! bit for bit or fails.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use clawhost_engine::AdamWState;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, View, serialize_to_file};

use crate::optimizer::OptimizerState;

const UPDATES: &str = "updates";
const AVERAGE: &str = "average";

/// A tensor that is converted to bytes only while it is written, so that the state is not copied as a whole.
struct Values<'a> {
    values: &'a [f32],
    shape: [usize; 1],
}

impl View for Values<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.values) {
            *bytes = value.to_le_bytes();
        }
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// Writes the file; `names` are the tensor names in the order of the state's tensors.
pub(crate) fn write(
    path: &Path,
    names: &[String],
    moments: &OptimizerState,
) -> Result<(), SafeTensorError> {
    let groups = [
        ("first", &*moments.adamw.exp_avg),
        ("second", &*moments.adamw.exp_avg_sq),
        (AVERAGE, &moments.ema),
    ];
    let tensors = groups.into_iter().flat_map(|(prefix, tensors)| {
        names.iter().zip(tensors).map(move |(name, values)| {
            let shape = [values.len()];
            (format!("{prefix}/{name}"), Values { values, shape })
        })
    });
    let metadata = HashMap::from([(UPDATES.to_owned(), moments.adamw.updates.to_string())]);
    serialize_to_file(tensors, Some(metadata), path)
}

/// Reads a file of [`write`] for tensors with these names and lengths.
pub(crate) fn read(bytes: &[u8], layout: &[(&str, usize)]) -> Result<OptimizerState, String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let updates = metadata
        .metadata()
        .as_ref()
        .and_then(|data| data.get(UPDATES))
        .and_then(|text| text.parse().ok())
        .ok_or("its metadata has no valid `updates`")?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let has_ema = tensors.names().iter().any(|name| name.starts_with(AVERAGE));
    let read_group = |group: &str| -> Result<Vec<Vec<f32>>, String> {
        layout
            .iter()
            .map(|(name, length)| {
                let name = format!("{group}/{name}");
                let view = tensors.tensor(&name).map_err(|e| e.to_string())?;
                if view.dtype() != Dtype::F32 || view.shape() != [*length] {
                    return Err(format!("{name} does not have {length} f32 values"));
                }
                let (values, _) = view.data().as_chunks::<4>();
                Ok(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
            })
            .collect()
    };
    Ok(OptimizerState {
        adamw: AdamWState {
            updates,
            exp_avg: Arc::new(read_group("first")?),
            exp_avg_sq: Arc::new(read_group("second")?),
        },
        ema: if has_ema {
            read_group(AVERAGE)?
        } else {
            Vec::new()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serialize(names: &[String], moments: &OptimizerState) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        write(&path, names, moments).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn optimizer_state_round_trips_bit_for_bit() {
        let moments = OptimizerState {
            adamw: AdamWState {
                updates: 12_345_678_901,
                exp_avg: Arc::new(vec![vec![0.1, -0.0], vec![f32::MIN_POSITIVE]]),
                exp_avg_sq: Arc::new(vec![vec![1e-30, 3.0], vec![2.0]]),
            },
            ema: Vec::new(),
        };
        let names = ["a".to_owned(), "b".to_owned()];
        let bytes = serialize(&names, &moments);
        let read_back = read(&bytes, &[("a", 2), ("b", 1)]).unwrap();
        assert_eq!(read_back, moments);
        let averaged = OptimizerState {
            ema: vec![vec![1.0, 2.0], vec![3.0]],
            ..moments.clone()
        };
        let bytes_averaged = serialize(&names, &averaged);
        assert_eq!(
            read(&bytes_averaged, &[("a", 2), ("b", 1)]).unwrap(),
            averaged
        );
        assert_eq!(read_back.adamw.exp_avg[0][1].to_bits(), (-0.0f32).to_bits());
        let error = read(&bytes, &[("a", 3), ("b", 1)]).unwrap_err();
        assert!(error.contains("first/a does not have 3"), "{error}");
        assert!(read(&bytes[..bytes.len() - 3], &[("a", 2), ("b", 1)]).is_err());
        assert!(read(b"", &[]).is_err());
    }
}
