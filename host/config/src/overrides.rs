//! Values from the environment and from `--set`, which override those of the file.

use crate::config::Config;
use crate::error::{self, ConfigError};
use crate::overlay::overlay;
use crate::renamed;

/// Prefix of the environment's variables: `CLAWHOST_SERVER__PORT` is `server.port`. A variable without `__` after the
/// prefix, such as `CLAWHOST_LOG`, is no key.
const PREFIX: &str = "CLAWHOST_";

/// Keys with their values; the environment's come first and those of `--set` override them.
#[derive(Debug, Default)]
pub(crate) struct Overrides(toml::Table);

impl Overrides {
    /// Reads the environment's variables and the values of `--set`.
    ///
    /// # Errors
    /// A value of `--set` without `=`, an unknown key or a value of the wrong type; the error names the variable or
    /// the flag.
    pub(crate) fn new(
        environment: impl Iterator<Item = (String, String)>,
        sets: &[String],
    ) -> Result<Self, ConfigError> {
        let mut variables: Vec<(String, String)> = environment
            .filter(|(name, _)| name.starts_with(PREFIX) && name.contains("__"))
            .collect();
        variables.sort();
        let mut overrides = Self::default();
        for (name, value) in &variables {
            let key = name
                .trim_start_matches(PREFIX)
                .replace("__", ".")
                .to_lowercase();
            overrides.add(name, &key, value)?;
        }
        for set in sets {
            let Some((key, value)) = set.split_once('=') else {
                return Err(ConfigError(format!(
                    "--set {set}: give a key and its value, such as --set server.port=8080"
                )));
            };
            overrides.add(&format!("--set {set}"), key.trim(), value.trim())?;
        }
        Ok(overrides)
    }

    /// Adds one key. A value that is not TOML is text, so that `10s` and a path need no quotes.
    fn add(&mut self, source: &str, key: &str, value: &str) -> Result<(), ConfigError> {
        let line = match toml::from_str::<toml::Table>(&format!("value = {value}")) {
            Ok(_) => format!("{key} = {value}"),
            Err(_) => format!("{key} = {}", toml::Value::from(value)),
        };
        if let Some((_, message)) = renamed::old_key(&line) {
            return Err(ConfigError(format!("{source}: {message}")));
        }
        let table: toml::Table =
            toml::from_str(&line).map_err(|e| ConfigError(format!("{source}: {}", e.message())))?;
        if let Err(error) = toml::from_str::<Config>(&line)
            // The other keys of the table may be in the file.
            && !error.message().contains("missing field")
        {
            return Err(ConfigError(format!(
                "{source}: {}",
                error::with_suggestion(error.message())
            )));
        }
        overlay(&mut self.0, table);
        Ok(())
    }

    /// The values as one table.
    pub(crate) fn into_table(self) -> toml::Table {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(
        text: &str,
        environment: &[(&str, &str)],
        sets: &[&str],
    ) -> Result<Config, ConfigError> {
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Config::build(text, Overrides::new(environment, &sets)?, None)
    }

    #[test]
    fn the_environment_overrides_the_file_and_set_overrides_both() {
        let text = "[server]\nport = 1\n[training]\nseed = 5";
        let environment = [
            ("CLAWHOST_SERVER__PORT", "2"),
            ("CLAWHOST_SERVER__HOST", "0.0.0.0"),
            ("CLAWHOST_TRAINING__OPTIMIZER__LEARNING_RATE", "2e-3"),
            ("CLAWHOST_LOG", "debug"),
            ("OTHER__PORT", "7"),
        ];
        let config = build(text, &environment, &[]).unwrap();
        assert_eq!(
            (config.server.port, config.server.host.as_str()),
            (2, "0.0.0.0")
        );
        assert_eq!((config.training.seed, config.training.batch_size), (5, 4));
        assert_eq!(config.training.optimizer.learning_rate, 2e-3);
        let sets = [
            "server.port=3",
            "server.write_timeout=1m",
            "model.path=x",
            "plugins.files=[\"a.wasm\"]",
        ];
        let config = build(text, &environment, &sets).unwrap();
        assert_eq!(
            (config.server.port, config.server.write_timeout),
            (3, std::time::Duration::from_secs(60))
        );
        assert_eq!(config.plugins.files, [std::path::PathBuf::from("a.wasm")]);
        // The defaults are those of the model that was set.
        assert_eq!(config.training.batch_size, 16);
    }

    #[test]
    fn errors_name_the_variable_or_the_flag() {
        for (environment, sets, part) in [
            (
                &[][..],
                &["server.prot=3"][..],
                "--set server.prot=3: unknown key `prot`; did you mean `port`?",
            ),
            (
                &[],
                &["server.port"],
                "--set server.port: give a key and its value",
            ),
            (
                &[],
                &["server.data=x"],
                "`server.data` is now `server.data_dir`",
            ),
            (&[], &["server.port=x"], "--set server.port=x: invalid type"),
            (
                &[("CLAWHOST_SERVER__PROT", "1")],
                &[],
                "CLAWHOST_SERVER__PROT: unknown key `prot`; did you mean `port`?",
            ),
            (
                &[],
                &["training.batch_size=0"],
                "training.batch_size = 0: must be at least 1",
            ),
        ] {
            let error = format!("{:#}", build("", environment, sets).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
