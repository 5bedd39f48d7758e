//! Masked CRC-32C (Castagnoli), as the TFRecord format uses it. The mask keeps CRCs of data that contains CRCs strong.

/// The reversed polynomial.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// Added after the rotation.
const MASK: u32 = 0xA282_EAD8;

const TABLE: [u32; 256] = table();

#[allow(
    clippy::indexing_slicing,
    reason = "computed by the compiler: an index that is out of range would not compile"
)]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 {
                (rest >> 1) ^ POLYNOMIAL
            } else {
                rest >> 1
            };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
}

/// CRC-32C of some bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let fold = |rest: u32, byte: &u8| {
        let index = usize::from((rest as u8) ^ byte);
        (rest >> 8) ^ TABLE.get(index).copied().unwrap_or_default()
    };
    !bytes.iter().fold(!0, fold)
}

/// The masked CRC that a record stores.
pub(super) fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_the_standard_test_vectors() {
        // RFC 3720, appendix B.4, and the common check value.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46DD_794E);
        assert_eq!(crc32c(b""), 0);
    }
}
