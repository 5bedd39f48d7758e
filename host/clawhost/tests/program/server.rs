//! A `clawhost run` of the real program.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A running program, killed on drop.
pub(crate) struct Program(Child);

impl Program {
    /// Starts a server, and returns it with the address of its API, which it prints.
    pub(crate) fn serve(command: &mut Command) -> (Program, String) {
        let mut program = Program(command.stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
        let url = lines.map_while(Result::ok).find_map(|line| {
            let mut words = line.split([' ', ',']);
            words
                .find(|word| word.starts_with("http://") || word.starts_with("https://"))
                .map(str::to_owned)
        });
        (program, url.unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
