//! The server of the client scripts: a scripted model that replies by the last character of a prompt; the rest is real.

use std::path::Path;

use clawhost_tests::{Script, TestServer};
use serde_json::json;
use tempfile::TempDir;

/// Maximum context, small so that an overlong conversation is short.
const CONTEXT: usize = 4096;

/// Starts a server with that model, which is in the returned directory.
pub(crate) async fn start() -> (TestServer, TempDir) {
    let dir = TempDir::new().unwrap();
    save(dir.path());
    let running = TestServer::with(|config| {
        config.model.path = Some(dir.path().to_owned());
        config.engine.max_model_len = Some(CONTEXT);
        // The replies stay scripted because training is off.
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
