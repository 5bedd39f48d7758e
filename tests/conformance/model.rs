//! What the clients talk to: a model that answers by the last character of a prompt. Everything else is real.

use std::path::Path;

use clawhost_tests::{Running, Script};
use serde_json::json;
use tempfile::TempDir;

/// Tokens of the longest conversation that fits, so that one that does not fit is short.
const CONTEXT: usize = 4096;

/// A server on that model, which lives in the folder.
pub(crate) async fn start() -> (Running, TempDir) {
    let dir = TempDir::new().unwrap();
    save(dir.path());
    let running = Running::with(|config| {
        config.model.dir = Some(dir.path().to_owned());
        config.engine.context = Some(CONTEXT);
        // The replies are known because nothing is learned meanwhile.
        config.training.enabled = false;
    })
    .await;
    (running, dir)
}

fn save(dir: &Path) {
    let scripts = [
        Script::reply('!', &["Hello", " there", ", friend", "."]),
        Script::call('?', "get_weather", &json!({"city": "Paris"})),
        Script::reply(';', &["It is ", "22 degrees."]),
        Script::reply(
            '#',
            &[
                "<think>\n",
                "Two and ",
                "two.",
                "\n</think>\n\n",
                "It is",
                " 4.",
            ],
        ),
        Script::reply('%', &["one ", "ST", "OP", " two"]),
        Script::endless('~', "la "),
    ];
    Script::save(&scripts, dir);
}
