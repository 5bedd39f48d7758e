//! The command that starts the compiler subprocess.

use std::ffi::OsString;
use std::path::PathBuf;

/// The command that runs [`crate::compile_component`] in a subprocess. It is started with an empty environment in the
/// root directory. Its output is run as machine code, so the program must be as trusted as this one; usually it *is*
/// this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompilerCommand {
    /// The program, as an absolute path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl CompilerCommand {
    /// Creates a command from a program and its arguments.
    pub fn new<A: Into<OsString>>(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = A>,
    ) -> CompilerCommand {
        CompilerCommand {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }
}
