//! Records of a TensorBoard event file: framing, and the fields of the event message that scalars need.
//!
//! A record is the length of its message (8 bytes, little endian), the masked CRC of the length, the message, and the masked
//! CRC of the message. The message is `Event { wall_time = 1, step = 2, file_version = 3, summary = 5 }` with
//! `Summary { value = 1 }` and `Value { tag = 1, simple_value = 2 }`, encoded as protocol buffers.

use super::checksum::masked_crc32c;

/// Bytes before a message: length and its CRC.
const HEADER_BYTES: usize = 12;
/// Bytes after a message: its CRC.
const FOOTER_BYTES: usize = 4;

/// Frames a message as a record.
fn frame_record(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(HEADER_BYTES + message.len() + FOOTER_BYTES);
    record.extend(length);
    record.extend(masked_crc32c(&length).to_le_bytes());
    record.extend(message);
    record.extend(masked_crc32c(message).to_le_bytes());
    record
}

/// The messages of the complete records at the start of a file, each with the offset of its record's end.
pub(super) fn parse_messages(mut bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut messages = Vec::new();
    let mut offset = 0;
    while let Some((message, size)) = parse_record(bytes) {
        offset += size;
        messages.push((offset, message));
        bytes = &bytes[size..];
    }
    messages
}

/// The message of the first record and the record's size; none if it is incomplete or its CRC is wrong.
fn parse_record(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let length = bytes.get(..8)?;
    let sum = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if sum(8)? != masked_crc32c(length) {
        return None;
    }
    let size = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let end = HEADER_BYTES.checked_add(size)?;
    let message = bytes.get(HEADER_BYTES..end)?;
    (sum(end)? == masked_crc32c(message)).then_some((message, end + FOOTER_BYTES))
}

/// The record that starts a file.
pub(super) fn encode_version(wall_time: f64) -> Vec<u8> {
    let mut message = fixed64(1, wall_time);
    message.extend(delimited(3, b"brain.Event:2"));
    frame_record(&message)
}

/// The record with the scalars of one step.
pub(super) fn encode_scalars(wall_time: f64, step: i64, values: &[(String, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in values {
        let mut one = delimited(1, tag.as_bytes());
        one.push(field_key(2, FIXED32));
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the format keeps scalars in f32"
        )]
        one.extend((*value as f32).to_le_bytes());
        summary.extend(delimited(1, &one));
    }
    let mut message = fixed64(1, wall_time);
    message.push(field_key(2, VARINT));
    message.extend(varint(step.cast_unsigned()));
    message.extend(delimited(5, &summary));
    frame_record(&message)
}

/// The step of an event message; none if it has no step.
pub(super) fn parse_step(message: &[u8]) -> Option<i64> {
    let rest = message.get(9..)?;
    if *message.first()? != field_key(1, FIXED64) || *rest.first()? != field_key(2, VARINT) {
        return None;
    }
    let mut value = 0u64;
    for (index, byte) in rest.iter().skip(1).take(10).enumerate() {
        value |= u64::from(byte & 0x7F).checked_shl(u32::try_from(index).ok()? * 7)?;
        if byte & 0x80 == 0 {
            return Some(value.cast_signed());
        }
    }
    None
}

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const DELIMITED: u8 = 2;
const FIXED32: u8 = 5;

/// Number and wire type of a field; numbers here are below 16.
const fn field_key(field: u8, wire: u8) -> u8 {
    field << 3 | wire
}

fn fixed64(field: u8, value: f64) -> Vec<u8> {
    let mut bytes = vec![field_key(field, FIXED64)];
    bytes.extend(value.to_le_bytes());
    bytes
}

fn delimited(field: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![field_key(field, DELIMITED)];
    bytes.extend(varint(content.len() as u64));
    bytes.extend(content);
    bytes
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = value.to_le_bytes()[0] & 0x7F;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_record_has_the_expected_bytes() {
        let record = encode_scalars(1.5, 300, &[("a".to_owned(), 2.0)]);
        let message: &[u8] = &[
            0x09, 0, 0, 0, 0, 0, 0, 0xF8, 0x3F, // wall_time 1.5
            0x10, 0xAC, 0x02, // step 300
            0x2A, 10, // summary
            0x0A, 8, // value
            0x0A, 1, b'a', // tag
            0x15, 0, 0, 0, 0x40, // simple_value 2
        ];
        assert_eq!(record[..8], (message.len() as u64).to_le_bytes());
        assert_eq!(record[8..12], masked_crc32c(&record[..8]).to_le_bytes());
        assert_eq!(&record[12..12 + message.len()], message);
        assert_eq!(
            record[12 + message.len()..],
            masked_crc32c(message).to_le_bytes()
        );
    }

    #[test]
    fn the_version_record_matches_tensorflow() {
        // The start of a file that TensorFlow wrote at time 0: length, its CRC, message.
        let record = encode_version(0.0);
        let head = [0x18, 0, 0, 0, 0, 0, 0, 0, 0xA3, 0x7F, 0x4B, 0x22];
        assert_eq!(record[..12], head);
        assert_eq!(&record[12..23], b"\x09\0\0\0\0\0\0\0\0\x1A\x0D");
        assert_eq!(&record[23..36], b"brain.Event:2");
    }

    #[test]
    fn records_are_parsed_up_to_the_first_corrupt_one() {
        let mut file = encode_version(0.0);
        for step in [1, 127, 128, 1 << 40] {
            file.extend(encode_scalars(2.0, step, &[("loss".to_owned(), 0.5)]));
        }
        let all = parse_messages(&file);
        let steps: Vec<Option<i64>> = all.iter().map(|(_, m)| parse_step(m)).collect();
        assert_eq!(steps, [None, Some(1), Some(127), Some(128), Some(1 << 40)]);
        assert_eq!(all[4].0, file.len());
        for cut in [1, 5, 20] {
            assert_eq!(parse_messages(&file[..file.len() - cut]).len(), 4);
        }
        let mut flipped = file.clone();
        flipped[all[1].0 + 13] ^= 1;
        assert_eq!(parse_messages(&flipped).len(), 2);
    }
}
