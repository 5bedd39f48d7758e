//! Masked CRC-32C (Castagnoli), as the TFRecord format uses it. The mask keeps CRCs of data that contains CRCs strong.

/// Added after the rotation.
const MASK: u32 = 0xA282_EAD8;

/// The masked CRC that a record stores.
pub(super) fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}
