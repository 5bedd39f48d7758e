//! Decides about one exchange before anything leaves: origin, method, headers, secrets.

use std::net::IpAddr;

use url::Url;

use crate::capability::http::address::is_public;
use crate::grants::{Grants, Origin, is_secret_name};

/// Methods that a plugin may use.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
/// Headers that belong to the connection, which is the host's.
const HOSTS_OWN: [&str; 12] = [
    // The host reads the answer for secrets, so it must come as it is.
    "accept-encoding",
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-authorization",
    "proxy-connection",
];
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 32 << 10;
const MAX_URL_BYTES: usize = 8 << 10;
/// Where a secret goes.
pub(crate) const OPEN: &str = "{{secret:";
pub(crate) const CLOSE: &str = "}}";

/// An exchange that passed, with its secrets filled in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) method: String,
    pub(crate) url: Url,
    pub(crate) origin: Origin,
    pub(crate) headers: Vec<(String, String)>,
    /// Name and value of every secret of the grants, whether or not it was put in: an earlier exchange may have
    /// left it where this one reads.
    pub(crate) secrets: Vec<(String, String)>,
}

/// Checks an exchange against the grants. `reveal` gives the value of an environment variable.
///
/// # Errors
/// A sentence for the plugin's author; it never holds a secret.
pub(crate) fn admit(
    grants: &Grants,
    method: &str,
    url: &str,
    headers: &[(String, String)],
    body: &[u8],
    reveal: impl Fn(&str) -> Option<String>,
) -> Result<Admitted, String> {
    let (parsed, origin) = check_request(method, url, headers, body)?;
    if !grants.origins.contains(&origin) {
        return Err(format!("origin {origin} is not granted"));
    }
    let mut admitted = Admitted {
        method: method.to_owned(),
        url: parsed,
        origin,
        headers: Vec::with_capacity(headers.len()),
        secrets: grants
            .secrets
            .iter()
            .filter_map(|(name, binding)| Some((name.clone(), reveal(&binding.env)?)))
            .filter(|(_, secret)| !secret.is_empty())
            .collect(),
    };
    let mut bytes = 0;
    for (name, value) in headers {
        let value = fill(grants, &admitted, name, value)?;
        bytes += name.len() + value.len();
        admitted.headers.push((name.to_ascii_lowercase(), value));
    }
    let asks_for_a_part = |(name, _): &(String, String)| name == "range" || name == "if-range";
    if !admitted.secrets.is_empty() && admitted.headers.iter().any(asks_for_a_part) {
        return Err(
            "a component with a secret takes whole answers: leave out Range and If-Range".into(),
        );
    }
    if bytes > MAX_HEADER_BYTES {
        return Err(format!(
            "{bytes} bytes of headers, at most {MAX_HEADER_BYTES}"
        ));
    }
    Ok(admitted)
}

/// Validates the parts of a request that do not depend on grants: method, URL, headers, and that secrets are only in header values.
///
/// # Errors
/// A sentence for the plugin's author.
pub(crate) fn check_request(
    method: &str,
    url: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> Result<(Url, Origin), String> {
    if !METHODS.contains(&method) {
        return Err(format!("method {method:?} is none of {METHODS:?}"));
    }
    if url.len() > MAX_URL_BYTES {
        return Err(format!(
            "a URL of {} bytes, at most {MAX_URL_BYTES}",
            url.len()
        ));
    }
    let parsed = Url::parse(url).map_err(|error| format!("the URL cannot be read: {error}"))?;
    let origin = Origin::of(&parsed)?;
    if url.contains(OPEN) || contains(body, OPEN.as_bytes()) {
        return Err(
            "{{secret:NAME}} is filled in for header values only, not in the URL or body".into(),
        );
    }
    if headers.len() > MAX_HEADERS {
        return Err(format!("{} headers, at most {MAX_HEADERS}", headers.len()));
    }
    for (name, value) in headers {
        check_header(name, value)?;
    }
    Ok((parsed, origin))
}

/// Chooses the address to connect to.
///
/// # Errors
/// A sentence when any address of the name is not one that the grant can mean: a name that leads to
/// a public and to a private address is an attack or a mistake, and is refused whole.
pub(crate) fn choose(origin: &Origin, addresses: &[IpAddr]) -> Result<IpAddr, String> {
    match origin.host() {
        // The operator wrote this very address.
        Ok(written) => Ok(written),
        Err(name) => {
            let Some(first) = addresses.first() else {
                return Err(format!("{name} has no address"));
            };
            let meant = |address: &IpAddr| {
                if name == "localhost" {
                    address.is_loopback()
                } else {
                    is_public(*address)
                }
            };
            match addresses.iter().find(|address| !meant(address)) {
                Some(other) => Err(format!(
                    "{name} resolves to {other}, which is not on the public internet; grant that address itself if it is meant"
                )),
                None => Ok(*first),
            }
        }
    }
}

fn check_header(name: &str, value: &str) -> Result<(), String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!("{name:?} is no name of a header"));
    }
    if HOSTS_OWN.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(format!("header {name:?} is the host's own"));
    }
    if !value
        .bytes()
        .all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
    {
        return Err(format!(
            "the value of header {name:?} has bytes that are not printable ASCII"
        ));
    }
    Ok(())
}

/// Fills the secrets into a header value.
fn fill(grants: &Grants, admitted: &Admitted, header: &str, value: &str) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once(OPEN) {
        let (name, after) = after
            .split_once(CLOSE)
            .ok_or_else(|| "{{secret: without }}".to_owned())?;
        if !is_secret_name(name) {
            return Err(format!("{name:?} is no name of a secret"));
        }
        let binding = grants
            .secrets
            .get(name)
            .filter(|binding| binding.origin == admitted.origin)
            .ok_or_else(|| format!("secret {name} is not granted for {}", admitted.origin))?;
        if !binding.header.eq_ignore_ascii_case(header) {
            return Err(format!(
                "secret {name} is granted for header {:?}, not {header:?}; to send it there, grant \
                 secret={name}:{}@{}#{}",
                binding.header,
                binding.env,
                binding.origin,
                header.to_ascii_lowercase()
            ));
        }
        let secret = admitted
            .secrets
            .iter()
            .find_map(|(known, secret)| (known == name).then_some(secret))
            .ok_or_else(|| format!("secret {name} has no value on this host"))?;
        check_header(header, secret)
            .map_err(|_| format!("the value of secret {name} cannot stand in a header"))?;
        filled.push_str(before);
        filled.push_str(secret);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants() -> Grants {
        let mut grants = Grants::default();
        for argument in [
            "http=https://api.example",
            "http=https://other.example",
            "http=http://127.0.0.1:9000",
            "secret=KEY:API_KEY@https://api.example",
        ] {
            grants.add(argument).unwrap();
        }
        grants
    }

    fn reveal(env: &str) -> Option<String> {
        (env == "API_KEY").then(|| "s3cret".to_owned())
    }

    fn ask(url: &str, headers: &[(&str, &str)]) -> Result<Admitted, String> {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        admit(&grants(), "POST", url, &headers, b"{}", reveal)
    }

    #[test]
    fn other_spellings_reach_no_other_place() {
        assert!(ask("https://api.example/v1?q=1", &[]).is_ok());
        assert!(ask("HTTPS://API.EXAMPLE:443/../v1", &[]).is_ok());
        assert!(ask("http://2130706433:9000/", &[]).is_ok());
        for elsewhere in [
            "http://api.example/",
            "https://api.example:8443/",
            "https://api.example.evil.example/",
            "https://api.example@evil.example/",
            "https://evil.example/#https://api.example",
            "https://evil.example\\@api.example/",
            "https://user:pass@api.example/",
            "http://127.0.0.1/",
            "http://127.0.0.1:9001/",
            "http://0x7f000001/",
            "http://[::ffff:127.0.0.1]:9000/",
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "gopher://api.example/",
            "//api.example/",
            "/v1",
            "",
        ] {
            let refused = ask(elsewhere, &[]);
            // A back-slash is a slash in these schemes: that one leads to evil.example.
            assert!(refused.is_err(), "{elsewhere}: {refused:?}");
        }
        for method in ["CONNECT", "TRACE", "get", "GET / HTTP/1.1\r\nx"] {
            assert!(admit(&grants(), method, "https://api.example", &[], b"", reveal).is_err());
        }
    }

    #[test]
    fn headers_cannot_break_out() {
        for (name, value) in [
            ("x", "a\r\nhost: evil"),
            ("x\r\ny", "a"),
            ("x y", "a"),
            ("", "a"),
            ("Host", "evil.example"),
            ("content-length", "0"),
            ("Transfer-Encoding", "chunked"),
            ("x", "\u{e9}"),
            ("x", "\0"),
        ] {
            assert!(
                ask("https://api.example", &[(name, value)]).is_err(),
                "{name:?}"
            );
        }
        assert!(ask("https://api.example", &[("x", &"a".repeat(40_000))]).is_err());
        assert!(ask("https://api.example", &[("x", "y"); 65]).is_err());
    }

    #[test]
    fn a_secret_goes_to_its_origin_in_a_header_and_nowhere_else() {
        let auth = ("Authorization", "Bearer {{secret:KEY}}");
        let sent = ask("https://api.example", &[auth]).unwrap();
        assert_eq!(
            sent.headers,
            [("authorization".into(), "Bearer s3cret".into())]
        );
        for refused in [
            ask("https://other.example", &[auth]),
            ask("https://api.example/{{secret:KEY}}", &[]),
            ask("https://api.example", &[("x", "{{secret:OTHER}}")]),
            ask("https://api.example", &[("x", "{{secret:KEY")]),
            ask("https://api.example", &[("{{secret:KEY}}", "x")]),
            admit(
                &grants(),
                "POST",
                "https://api.example",
                &[],
                b"{{secret:KEY}}",
                reveal,
            ),
        ] {
            let message = refused.unwrap_err();
            assert!(!message.contains("s3cret"), "{message}");
        }
        // In its header only, and the error says how to allow another.
        let elsewhere = ask("https://api.example", &[("X-Api-Key", "{{secret:KEY}}")]).unwrap_err();
        assert!(
            elsewhere.contains("secret=KEY:API_KEY@https://api.example#x-api-key"),
            "{elsewhere}"
        );
        // It is looked for in every answer: an earlier exchange may have stored it there.
        for url in ["https://api.example", "https://other.example"] {
            let known = [("KEY".to_owned(), "s3cret".to_owned())];
            assert_eq!(ask(url, &[]).unwrap().secrets, known);
        }
        // A part of an answer, or a compressed one, could hide it.
        assert!(ask("https://api.example", &[auth, ("Range", "bytes=0-3")]).is_err());
        assert!(ask("https://other.example", &[("Range", "bytes=0-3")]).is_err());
        let none = Grants {
            secrets: std::collections::BTreeMap::new(),
            ..grants()
        };
        let range = [("Range".to_owned(), "bytes=0-3".to_owned())];
        assert!(admit(&none, "GET", "https://api.example", &range, b"", reveal).is_ok());
        assert!(ask("https://api.example", &[("Accept-Encoding", "gzip")]).is_err());
    }

    #[test]
    fn the_address_behind_a_name_is_looked_at() {
        let origin = |text: &str| text.parse::<Origin>().unwrap();
        let to = |text: &str, addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            choose(&origin(text), &addresses)
        };
        assert!(to("https://api.example", &["1.1.1.1", "1.0.0.1"]).is_ok());
        assert!(to("https://api.example", &["127.0.0.1"]).is_err());
        assert!(to("https://api.example", &["1.1.1.1", "169.254.169.254"]).is_err());
        assert!(to("https://api.example", &["::ffff:10.0.0.1"]).is_err());
        assert!(to("https://api.example", &[]).is_err());
        assert!(to("http://localhost:9000", &["127.0.0.1", "::1"]).is_ok());
        assert!(to("http://localhost:9000", &["1.1.1.1"]).is_err());
        assert_eq!(
            to("http://10.0.0.5:80", &[]).unwrap(),
            "10.0.0.5".parse::<IpAddr>().unwrap()
        );
    }
}
