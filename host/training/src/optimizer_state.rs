//! The optimizer's state as one safetensors file: `first/<tensor>` and `second/<tensor>` in f32, `average/<tensor>`
//! where a running mean of the parameters is kept, and the number of updates in the metadata. Read back bit for bit, or refused.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, View, serialize_to_file};

use crate::optimizer::Moments;

const UPDATES: &str = "updates";
const AVERAGE: &str = "average";

/// One tensor's values; they become bytes when the file gets to them, so that no second copy of all is made.
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
        self.values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// Writes the file; `names` are the tensors' names in the order of the moments.
pub(crate) fn write(
    path: &Path,
    names: &[String],
    moments: &Moments<f32>,
) -> Result<(), SafeTensorError> {
    let halves = [
        ("first", &moments.first),
        ("second", &moments.second),
        (AVERAGE, &moments.average),
    ];
    let tensors = halves.into_iter().flat_map(|(half, tensors)| {
        names.iter().zip(tensors).map(move |(name, values)| {
            let shape = [values.len()];
            (format!("{half}/{name}"), Values { values, shape })
        })
    });
    let metadata = HashMap::from([(UPDATES.to_owned(), moments.updates.to_string())]);
    serialize_to_file(tensors, Some(metadata), path)
}

/// Reads what [`write`] wrote, for tensors of these names and lengths.
pub(crate) fn read(bytes: &[u8], layout: &[(&str, usize)]) -> Result<Moments<f32>, String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let updates = metadata
        .metadata()
        .as_ref()
        .and_then(|data| data.get(UPDATES))
        .and_then(|text| text.parse().ok())
        .ok_or("it does not say how many updates were made")?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let averaged = tensors.names().iter().any(|name| name.starts_with(AVERAGE));
    let half = |half: &str| -> Result<Vec<Vec<f32>>, String> {
        layout
            .iter()
            .map(|(name, length)| {
                let name = format!("{half}/{name}");
                let view = tensors.tensor(&name).map_err(|e| e.to_string())?;
                if view.dtype() != Dtype::F32 || view.shape() != [*length] {
                    return Err(format!("{name} does not have {length} f32 values"));
                }
                let (values, _) = view.data().as_chunks::<4>();
                Ok(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
            })
            .collect()
    };
    Ok(Moments {
        updates,
        first: half("first")?,
        second: half("second")?,
        average: if averaged { half(AVERAGE)? } else { Vec::new() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(names: &[String], moments: &Moments<f32>) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        write(&path, names, moments).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn state_is_read_back_bit_for_bit_or_refused() {
        let moments = Moments {
            updates: 12_345_678_901,
            first: vec![vec![0.1, -0.0], vec![f32::MIN_POSITIVE]],
            second: vec![vec![1e-30, 3.0], vec![2.0]],
            average: Vec::new(),
        };
        let names = ["a".to_owned(), "b".to_owned()];
        let bytes = written(&names, &moments);
        let read_back = read(&bytes, &[("a", 2), ("b", 1)]).unwrap();
        assert_eq!(read_back, moments);
        let averaged = Moments {
            average: vec![vec![1.0, 2.0], vec![3.0]],
            ..moments.clone()
        };
        let bytes_averaged = written(&names, &averaged);
        assert_eq!(
            read(&bytes_averaged, &[("a", 2), ("b", 1)]).unwrap(),
            averaged
        );
        assert_eq!(read_back.first[0][1].to_bits(), (-0.0f32).to_bits());
        let error = read(&bytes, &[("a", 3), ("b", 1)]).unwrap_err();
        assert!(error.contains("first/a does not have 3"), "{error}");
        assert!(read(&bytes[..bytes.len() - 3], &[("a", 2), ("b", 1)]).is_err());
        assert!(read(b"", &[]).is_err());
    }
}
