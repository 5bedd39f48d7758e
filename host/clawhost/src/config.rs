//! What the configuration means for the other crates: API keys, TLS, engine options and the remote backend.

use anyhow::{Context, Result};
use clawhost_chat::{ReasoningFormat, ToolCallFormat};
use clawhost_engine::EngineOptions;
use clawhost_gateway::{AllowedOrigins, ApiKey, RateLimit, Scope, Tls, check_key_names};

pub use clawhost_config::{
    AdapterScope, Config, EnvironmentConfig, ExperienceMode, KeyConfig, ModelAlias, PluginConfig,
    ReasoningParser, RemoteConfig, ServerConfig, StateConfig, ToolCallParser,
};

/// The accepted API keys, including `CLAWHOST_API_KEY` of the environment.
///
/// # Errors
/// A key without a name or secret, a duplicate name, or a missing environment variable.
pub(crate) fn api_keys(config: &Config) -> Result<Vec<ApiKey>> {
    let keys = config.api_keys.iter().map(api_key);
    let mut keys = keys.collect::<Result<Vec<_>>>()?;
    if let Ok(secret) = std::env::var("CLAWHOST_API_KEY")
        && !secret.is_empty()
    {
        keys.push(ApiKey::new("environment", &secret, Scope::ALL)?);
    }
    check_key_names(&keys)?;
    Ok(keys)
}

fn api_key(config: &KeyConfig) -> Result<ApiKey> {
    let secret = config
        .secret
        .read()
        .with_context(|| format!("the secret of the API key {}", config.name))?;
    let key = ApiKey::new(config.name.clone(), &secret, config.scopes.iter().copied())?;
    let key = match config.requests_per_minute {
        Some(requests) => key.with_rate(RateLimit::per_minute(requests)),
        None => key,
    };
    Ok(match config.adapter_version {
        Some(version) => key.with_adapter(version),
        None => key,
    })
}

/// Origins that may call the server from a browser.
///
/// # Errors
/// An origin that is not `scheme://host`.
pub(crate) fn origins(server: &ServerConfig) -> Result<AllowedOrigins> {
    AllowedOrigins::parse(&server.allowed_origins).context("server.allowed_origins")
}

/// The TLS certificate and key, if configured.
///
/// # Errors
/// A file cannot be read or parsed.
pub(crate) fn tls(server: &ServerConfig) -> Result<Option<Tls>> {
    match (&server.tls_cert, &server.tls_key) {
        (Some(cert), Some(key)) => Ok(Some(Tls::load(cert, key)?)),
        _ => Ok(None),
    }
}

/// The engine's options: those of `[engine]` and the parsers of `[model]`.
pub(crate) fn engine_options(config: &Config) -> EngineOptions {
    EngineOptions {
        tool_call_format: match config.model.tool_call_parser {
            ToolCallParser::Auto => None,
            ToolCallParser::Hermes => Some(ToolCallFormat::Hermes),
            ToolCallParser::QwenXml => Some(ToolCallFormat::QwenXml),
            ToolCallParser::Llama => Some(ToolCallFormat::Llama),
        },
        reasoning_format: match config.model.reasoning_parser {
            ReasoningParser::Auto => None,
            ReasoningParser::Think => Some(ReasoningFormat::Think),
            ReasoningParser::Unopened => Some(ReasoningFormat::Unopened),
            ReasoningParser::None => Some(ReasoningFormat::None),
        },
        ..EngineOptions::from(&config.engine)
    }
}

/// The remote backend with the adapter directory as the other program needs it: absolute.
///
/// # Errors
/// The current directory cannot be read.
pub(crate) fn remote(config: &RemoteConfig) -> Result<RemoteConfig> {
    let directory = config.adapter_dir.as_ref().map(std::path::absolute);
    Ok(RemoteConfig {
        adapter_dir: directory.transpose()?,
        ..config.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_call_and_reasoning_formats_can_be_set() {
        let formats = |text: &str| {
            let options = engine_options(&Config::parse(text).unwrap());
            (options.tool_call_format, options.reasoning_format)
        };
        assert_eq!(formats(""), (None, None));
        assert_eq!(
            formats("[model]\ntool_call_parser = \"qwen-xml\"\nreasoning_parser = \"unopened\""),
            (
                Some(ToolCallFormat::QwenXml),
                Some(ReasoningFormat::Unopened)
            )
        );
        assert_eq!(
            formats("[model]\ntool_call_parser = \"llama\"\nreasoning_parser = \"none\""),
            (Some(ToolCallFormat::Llama), Some(ReasoningFormat::None))
        );
        let wrong = format!(
            "{:#}",
            Config::parse("[model]\ntool_call_parser = \"xml\"").unwrap_err()
        );
        assert!(
            wrong.contains("line 2") && wrong.contains("qwen-xml"),
            "{wrong}"
        );
    }

    #[test]
    fn duplicate_key_names_are_rejected() {
        let key = |name: &str, secret: &str| {
            format!("[[api_keys]]\nname = \"{name}\"\nsecret = \"{secret}\"\n")
        };
        let keys = |second: &str| {
            let text = key("app", "0123456789abcdef") + &key(second, "fedcba9876543210");
            api_keys(&Config::parse(&text).unwrap())
        };
        assert!(keys("other").is_ok());
        let error = keys("app").unwrap_err().to_string();
        assert!(
            error.contains("two API keys have the name `app`"),
            "{error}"
        );
    }
}
