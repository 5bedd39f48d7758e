//! Advantages, losses, optimizer, checkpoints and release of adapters.

mod real;

pub mod advantage;
pub mod loss;
pub mod optimizer;

pub use real::Real;
