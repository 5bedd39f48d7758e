//! The WASI functions that fixtures use, and their imports.

use super::Guest;

/// A subset of WASI with only the functions called here; the host implements all of it.
pub(super) const PACKAGES: &str = "
package wasi:io@0.2.0 {
  interface error { resource error; }
  interface poll { resource pollable { block: func(); } }
  interface streams {
    use error.{error};
    variant stream-error { last-operation-failed(error), closed }
    resource output-stream {
      write: func(contents: list<u8>) -> result<_, stream-error>;
      blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>;
    }
  }
}
package wasi:cli@0.2.0 {
  interface stdout { use wasi:io/streams@0.2.0.{output-stream}; get-stdout: func() -> output-stream; }
  interface stderr { use wasi:io/streams@0.2.0.{output-stream}; get-stderr: func() -> output-stream; }
}
package wasi:clocks@0.2.0 {
  interface monotonic-clock {
    use wasi:io/poll@0.2.0.{pollable};
    now: func() -> u64;
    subscribe-duration: func(when: u64) -> pollable;
  }
}
package wasi:random@0.2.0 {
  interface random { get-random-u64: func() -> u64; }
  interface insecure-seed { insecure-seed: func() -> tuple<u64, u64>; }
}
package wasi:filesystem@0.2.0 {
  interface types { resource descriptor { sync: func(); } }
  interface preopens {
    use types.{descriptor};
    get-directories: func() -> list<tuple<descriptor, string>>;
  }
}
";

impl Guest {
    /// Imports `$stdout`, which returns the handle of standard output, and `$write`.
    pub fn with_stdout(self) -> Guest {
        self.calling(
            "wasi:cli/stdout@0.2.0",
            "get-stdout",
            "$stdout (result i32)",
        )
        .with_writing()
    }

    /// Imports `$stderr` and `$write`.
    pub fn with_stderr(self) -> Guest {
        self.calling(
            "wasi:cli/stderr@0.2.0",
            "get-stderr",
            "$stderr (result i32)",
        )
        .with_writing()
    }

    fn with_writing(self) -> Guest {
        let streams = "wasi:io/streams@0.2.0";
        self.calling(
            streams,
            "[method]output-stream.blocking-write-and-flush",
            "$write (param i32 i32 i32 i32)",
        )
        .calling(
            streams,
            "[resource-drop]output-stream",
            "$drop-stream (param i32)",
        )
    }

    /// Imports `$now`, `$sleep` and `$block`.
    pub fn with_clock(self) -> Guest {
        let clock = "wasi:clocks/monotonic-clock@0.2.0";
        self.calling(clock, "now", "$now (result i64)")
            .calling(
                clock,
                "subscribe-duration",
                "$sleep (param i64) (result i32)",
            )
            .calling(
                "wasi:io/poll@0.2.0",
                "[method]pollable.block",
                "$block (param i32)",
            )
    }

    /// Imports `$roll` and `$seed(result address)`.
    pub fn with_dice(self) -> Guest {
        self.calling(
            "wasi:random/random@0.2.0",
            "get-random-u64",
            "$roll (result i64)",
        )
        .calling(
            "wasi:random/insecure-seed@0.2.0",
            "insecure-seed",
            "$seed (param i32)",
        )
    }

    /// Imports `$directories(result address)`.
    pub fn with_directories(self) -> Guest {
        self.calling(
            "wasi:filesystem/preopens@0.2.0",
            "get-directories",
            "$directories (param i32)",
        )
    }
}
