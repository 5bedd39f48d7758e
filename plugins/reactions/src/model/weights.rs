//! The weights of the features, and the probabilities that they give.

/// Records of a feature in ascending order of its hash: 3 bytes of hash, the weight of -1 and the weight of +1.
static WEIGHTS: &[u8] = include_bytes!("weights.bin");
const RECORD: usize = 5;
/// A weight of 1 is one 48th.
const UNIT: f32 = 1.0 / 48.0;
/// With more known features than this the sum of their weights grows with the root of their number.
const FULL: f32 = 40.0;

/// The probabilities of a verdict of -1 and of +1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Chances {
    pub(super) against: f32,
    pub(super) accepts: f32,
}

/// Hash of a feature's name: 24 bits of FNV-1a.
pub(super) fn hash(pieces: &[&str]) -> u32 {
    let bytes = pieces.iter().flat_map(|piece| piece.bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash ^ (hash >> 24)) & 0x00ff_ffff
}

/// The probabilities of a reaction with these features.
pub(super) fn chances(hashes: &[u32]) -> Chances {
    let (mut against, mut accepts, mut known) = (0.0_f32, 0.0_f32, 0.0_f32);
    for (one, other) in hashes.iter().filter_map(|hash| of(*hash)) {
        against += f32::from(one);
        accepts += f32::from(other);
        known += 1.0;
    }
    let scale = UNIT * (FULL / known.max(FULL)).sqrt();
    let (against, accepts) = ((against * scale).exp(), (accepts * scale).exp());
    let all = 1.0 + against + accepts;
    Chances {
        against: against / all,
        accepts: accepts / all,
    }
}

/// Whether the feature has a weight.
pub(super) fn knows(hash: u32) -> bool {
    of(hash).is_some()
}

fn of(hash: u32) -> Option<(i8, i8)> {
    let record = |at: usize| match WEIGHTS.get(at * RECORD..(at + 1) * RECORD) {
        Some([a, b, c, one, other]) => Some((
            u32::from_be_bytes([0, *a, *b, *c]),
            (one.cast_signed(), other.cast_signed()),
        )),
        _ => None,
    };
    let (mut from, mut to) = (0, WEIGHTS.len() / RECORD);
    while from < to {
        let middle = from.midpoint(to);
        let (here, weights) = record(middle)?;
        match here.cmp(&hash) {
            std::cmp::Ordering::Equal => return Some(weights),
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Greater => to = middle,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_found_by_their_hash() {
        let hashes: Vec<u32> = WEIGHTS
            .chunks_exact(RECORD)
            .map(|record| u32::from_be_bytes([0, record[0], record[1], record[2]]))
            .collect();
        assert!(hashes.is_sorted() && WEIGHTS.len() < 65_536);
        assert!(hashes.iter().all(|hash| of(*hash).is_some()));
        assert!(hash(&["w", "thanks"]) == hash(&["wthan", "ks"]));
        assert!(of(hash(&["no such feature"])).is_none());
    }
}
