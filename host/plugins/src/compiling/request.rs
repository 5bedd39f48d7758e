//! The protocol between the server and the compiler subprocess.
//!
//! Standard input of the compiler: one line of JSON, the [`CompileRequest`], then the component. Standard output: the
//! compiled code and nothing else, valid only with exit code 0. Standard error: one line with the error.

use std::io::{self, BufRead, Read};

use clawhost_config::{CompileLimits, Profile};
use serde::{Deserialize, Serialize};

/// Exit code: the component is invalid; the reason is on standard error.
pub(super) const EXIT_INVALID: u8 = 10;
/// Exit code: memory ran out.
pub(super) const EXIT_NO_MEMORY: u8 = 11;
/// Exit code: the request could not be read, the limits not be set, or the code not be written.
pub(super) const EXIT_FAILED: u8 = 12;

/// Maximum bytes of the request line.
const LINE_BYTES: u64 = 4 << 10;

/// The profile to compile for and the limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CompileRequest {
    pub(super) profile: Profile,
    pub(super) limits: CompileLimits,
}

impl CompileRequest {
    /// The request as one line of JSON.
    pub(super) fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads the first line and nothing that follows it.
    pub(super) fn read(input: &mut impl BufRead) -> io::Result<CompileRequest> {
        let mut line = Vec::new();
        input.take(LINE_BYTES).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_a_request_stops_before_the_component() {
        let request = CompileRequest {
            profile: Profile::Fast,
            limits: CompileLimits::default(),
        };
        let mut sent = request.to_line().unwrap();
        sent.extend(b"\0asm\n");
        let mut input = sent.as_slice();
        assert_eq!(CompileRequest::read(&mut input).unwrap(), request);
        assert_eq!(input, b"\0asm\n");
        assert!(CompileRequest::read(&mut b"clawhost\n".as_slice()).is_err());
    }
}
