//! The float types of the losses and the optimizer.
//!
//! Each formula is written once, generic over [`Float`]: training runs in `f32`, the golden and finite-difference tests
//! run in `f64`. The trait is sealed and holds only what the formulas need.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` or `f64`.
pub trait Float:
    sealed::Sealed
    + Copy
    + Debug
    + PartialOrd
    + Send
    + Sync
    + Sum
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + 'static
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Rounds to this precision.
    fn from_f64(value: f64) -> Self;
    /// Converts to `f64` without loss.
    fn to_f64(self) -> f64;
    /// exp(x).
    fn exp(self) -> Self;
    /// exp(x) − 1, accurate near zero.
    fn exp_m1(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// The larger of two values. Unlike `f32::max`, keeps a NaN in `self`.
    fn max(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
    /// The smaller of two values. Unlike `f32::min`, keeps a NaN in `self`.
    fn min(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
    /// Clamps to `[low, high]`; NaN stays NaN, so that the finiteness checks find it.
    fn clamp(self, low: Self, high: Self) -> Self {
        if self < low {
            low
        } else if self > high {
            high
        } else {
            self
        }
    }
}

macro_rules! impl_float {
    ($t:ty) => {
        impl Float for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[allow(
                clippy::cast_possible_truncation,
                reason = "rounding to the chosen precision is the purpose"
            )]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn exp_m1(self) -> Self {
                <$t>::exp_m1(self)
            }
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
        }
    };
}
impl_float!(f32);
impl_float!(f64);
