//! Measures what plugin calls cost here, and what the bare engine needs for the same.
//!
//! Every call makes a fresh instance, through the whole host: grants, limits, receipt, checks. The peer is a
//! plain loop over the engine in the same run: its default configuration, no limits, no threads of its own
//! between caller and guest. Nothing here decides what is fast enough.

mod calls;
mod failing;
mod looping;
mod peer;
mod resident;
mod sample;
mod spread;

pub use calls::calls;
pub use failing::failing_calls;
pub use looping::LoopingCalls;
pub use peer::Peer;
pub use resident::{bytes_per_instance, resident_bytes};
pub use sample::{LOSS_TOKENS, Sample};
pub use spread::Spread;
