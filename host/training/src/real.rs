//! The two precisions that the formulas are written for.
//!
//! Every loss and the optimizer exist once, generic over [`Real`]: `f32` is what trains, `f64` is
//! what the reference numbers and the finite-difference tests are checked in. The trait is sealed;
//! it is no general numeric tower.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` or `f64`.
pub trait Real:
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
    /// The nearest value of this precision.
    fn of(value: f64) -> Self;
    /// The same value as `f64` (exact).
    fn wide(self) -> f64;
    /// e to the power of the value.
    fn exp(self) -> Self;
    /// e to the power of the value, less one, accurate near zero.
    fn exp_m1(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// The larger of two values.
    fn larger(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
    /// The smaller of two values.
    fn smaller(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
    /// The value moved into `[low, high]`; a NaN stays a NaN, so that it is found later.
    fn within(self, low: Self, high: Self) -> Self {
        if self < low {
            low
        } else if self > high {
            high
        } else {
            self
        }
    }
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[allow(
                clippy::cast_possible_truncation,
                reason = "rounding to the chosen precision is the purpose"
            )]
            fn of(value: f64) -> Self {
                value as $t
            }
            fn wide(self) -> f64 {
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
real!(f32);
real!(f64);
