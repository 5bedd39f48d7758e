//! What the two processes say to each other.
//!
//! On standard input of the compiler: one line of JSON, the [`Order`], then the component. On its
//! standard output: the compiled code and nothing else, which counts only with exit code 0. On its
//! standard error: one line that says why not.

use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};

use super::limits::CompileLimits;
use crate::profile::Profile;

/// The component is not valid; why is on standard error.
pub(super) const INVALID: u8 = 10;
/// There was not enough memory.
pub(super) const NO_MEMORY: u8 = 11;
/// The order could not be read, the limits not be set or the code not be written.
pub(super) const BROKEN: u8 = 12;

/// Longest line that an order may be.
const LINE_BYTES: u64 = 4 << 10;

/// What to compile for, and with how much.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    pub(super) profile: Profile,
    pub(super) limits: CompileLimits,
}

impl Order {
    pub(super) fn line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads the first line and nothing that follows it.
    pub(super) fn read(input: &mut impl BufRead) -> io::Result<Order> {
        let mut line = Vec::new();
        input.take(LINE_BYTES).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_ends_where_the_component_begins() {
        let order = Order {
            profile: Profile::Fast,
            limits: CompileLimits::default(),
        };
        let mut sent = order.line().unwrap();
        sent.extend(b"\0asm\n");
        let mut input = sent.as_slice();
        assert_eq!(Order::read(&mut input).unwrap(), order);
        assert_eq!(input, b"\0asm\n");
        assert!(Order::read(&mut b"clawhost\n".as_slice()).is_err());
    }
}
