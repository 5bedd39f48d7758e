//! HTTP origins (`scheme://host:port`), the unit in which HTTP is granted.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// An HTTP origin in normalized form, so that two spellings of one origin compare equal and no text from a guest is
/// compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Origin {
    secure: bool,
    host: Host<String>,
    port: u16,
}

impl Origin {
    /// The origin of a URL.
    ///
    /// # Errors
    /// A message when the URL has another scheme than http or https, no host, or credentials.
    pub(crate) fn of(url: &Url) -> Result<Origin, String> {
        let secure = match url.scheme() {
            "https" => true,
            "http" => false,
            other => {
                return Err(format!(
                    "scheme {other:?} is not allowed, only http and https"
                ));
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "credentials in a URL are not allowed; use {{secret:NAME}} in a header".into(),
            );
        }
        let host = url
            .host()
            .ok_or_else(|| "the URL has no host".to_owned())?
            .to_owned();
        let port = url
            .port_or_known_default()
            .ok_or_else(|| "the URL has no port".to_owned())?;
        Ok(Origin { secure, host, port })
    }

    /// The host's IP address, or `Err` with the name to resolve.
    pub(crate) fn host(&self) -> Result<IpAddr, &str> {
        match &self.host {
            Host::Ipv4(address) => Ok(IpAddr::V4(*address)),
            Host::Ipv6(address) => Ok(IpAddr::V6(*address)),
            Host::Domain(name) => Err(name),
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, default) = if self.secure {
            ("https", 443)
        } else {
            ("http", 80)
        };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port != default {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Origin, String> {
        let expected = "an origin such as https://api.example or http://127.0.0.1:8080";
        let url =
            Url::parse(text).map_err(|error| format!("{text:?} is not {expected}: {error}"))?;
        let origin =
            Origin::of(&url).map_err(|error| format!("{text:?} is not {expected}: {error}"))?;
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(format!(
                "{text:?} is not {expected}: remove the path, query and fragment"
            ));
        }
        Ok(origin)
    }
}

impl TryFrom<String> for Origin {
    type Error = String;

    fn try_from(text: String) -> Result<Origin, String> {
        text.parse()
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> String {
        origin.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_origin_are_equal() {
        let origin = |text: &str| text.parse::<Origin>();
        assert_eq!(
            origin("https://API.example:443/").unwrap(),
            origin("https://api.example").unwrap()
        );
        for loopback in ["http://2130706433", "http://0x7f.1", "http://0177.0.0.1"] {
            assert_eq!(origin(loopback).unwrap().to_string(), "http://127.0.0.1");
        }
        assert_ne!(
            origin("http://api.example").unwrap(),
            origin("https://api.example").unwrap()
        );
        for bad in [
            "api.example",
            "ftp://api.example",
            "https://user@api.example",
            "https://api.example/v1",
            "https://api.example?x",
            "file:///etc/passwd",
            "",
        ] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }
}
