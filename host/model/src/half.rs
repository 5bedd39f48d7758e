//! Half-precision floats as bits: the scales of quantized weights.

/// The value of a half-precision float; exact.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    // Exponents differ in their bias: 127 - 15 = 112. The product is exact, also for subnormals.
    const BIAS: f32 = f32::from_bits((127 + 112) << 23);
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * BIAS).to_bits();
    let special = bits & 0x7c00 == 0x7c00;
    f32::from_bits(
        if special {
            magnitude | 0x7f80_0000
        } else {
            finite
        } | sign,
    )
}

/// The nearest half-precision float, ties to even; infinity beyond the range.
pub(crate) fn f16_from_f32(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = value.abs();
    sign | if magnitude.is_nan() {
        0x7e00
    } else if magnitude >= 65_520.0 {
        0x7c00
    } else if magnitude < 6.103_515_6e-5 {
        // Subnormal: a multiple of 2^-24.
        (magnitude * 16_777_216.0).round_ties_even() as u16
    } else {
        let bits = magnitude.to_bits();
        let rounded = bits + 0xfff + (bits >> 13 & 1);
        ((rounded >> 13) - (112 << 10)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_half_survives_and_neighbours_round_to_the_nearest() {
        for bits in (0..0x7c00u16).chain(0x8000..0xfc00) {
            let value = f16_to_f32(bits);
            assert_eq!(f16_from_f32(value), bits, "{value}");
        }
        assert_eq!(f16_to_f32(0x3c00), 1.0);
        assert_eq!(f16_to_f32(0xc000), -2.0);
        assert_eq!(f16_to_f32(0x0001), 2f32.powi(-24));
        assert_eq!(f16_to_f32(0x7bff), 65_504.0);
        assert_eq!(f16_to_f32(0xfc00), f32::NEG_INFINITY);
        assert!(f16_to_f32(0x7e00).is_nan());
        for bits in 0..0x7bffu16 {
            let (low, high) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            let middle = f32::midpoint(low, high);
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(f16_from_f32(middle), even);
            assert_eq!(f16_from_f32(f32::midpoint(low, middle)), bits);
            assert_eq!(f16_from_f32(f32::midpoint(middle, high)), bits + 1);
        }
        assert_eq!(f16_from_f32(1e6), 0x7c00);
        assert_eq!(f16_from_f32(f32::NEG_INFINITY), 0xfc00);
    }
}
