//! The pages of a task, which the host serves from memory: every request of the browser is answered here.
//!
//! There is no network behind it. An address that is not one of the pages is blocked, whatever it is.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use url::{Host, Url};

use crate::error::SandboxError;
use crate::frame::Page;

/// Where pages with a path instead of an address are.
pub(super) const BASE: &str = "http://task.test/";
/// Most files.
const MAX_PAGES: usize = 500;
/// Most bytes of all files together.
const MAX_BYTES: usize = 16 << 20;

/// Files by address, without fragment.
#[derive(Debug, Default)]
pub(super) struct PageSet(BTreeMap<String, (String, String)>);

impl PageSet {
    /// # Errors
    /// An address is invalid, or there are too many files.
    pub(super) fn new(pages: Vec<Page>) -> Result<Self, SandboxError> {
        let bytes: usize = pages.iter().map(|page| page.data.len()).sum();
        if pages.len() > MAX_PAGES || bytes > MAX_BYTES {
            return Err(SandboxError::QuotaExceeded(format!(
                "{} pages of {bytes} bytes; {MAX_PAGES} of {MAX_BYTES} are allowed",
                pages.len()
            )));
        }
        let mut files = BTreeMap::new();
        for page in pages {
            let mut url = resolve(&page.url)?;
            url.set_fragment(None);
            files.insert(url.into(), (page.media_type, STANDARD.encode(page.data)));
        }
        Ok(Self(files))
    }

    /// The address that shows a page of the task.
    ///
    /// # Errors
    /// It is no address, or not one of a page.
    pub(super) fn find(&self, url: &str) -> Result<Url, SandboxError> {
        let url = resolve(url)?;
        match self.file(url.clone()) {
            Some(_) => Ok(url),
            None => Err(SandboxError::Denied(format!(
                "{url} is not one of the task's pages"
            ))),
        }
    }

    /// The file of an address: that address, else without its query, else its directory's `index.html`.
    fn file(&self, mut url: Url) -> Option<&(String, String)> {
        url.set_fragment(None);
        if let Some(file) = self.0.get(url.as_str()) {
            return Some(file);
        }
        url.set_query(None);
        if let Some(file) = self.0.get(url.as_str()) {
            return Some(file);
        }
        let index = url
            .path()
            .ends_with('/')
            .then(|| format!("{url}index.html"))?;
        self.0.get(&index)
    }

    /// The command that answers a paused request.
    pub(super) fn answer(&self, paused: &Value) -> (&'static str, Value) {
        let id = &paused["requestId"];
        let url = paused["request"]["url"].as_str().unwrap_or_default();
        let url = Url::parse(url).ok();
        if url
            .as_ref()
            .is_some_and(|url| matches!(url.scheme(), "data" | "blob"))
        {
            return ("Fetch.continueRequest", json!({"requestId": id}));
        }
        let web = url.filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some((media_type, body)) = web.and_then(|url| self.file(url)) else {
            let blocked = json!({"requestId": id, "errorReason": "BlockedByClient"});
            return ("Fetch.failRequest", blocked);
        };
        let headers = json!([
            {"name": "Content-Type", "value": media_type},
            {"name": "Cache-Control", "value": "no-store"},
        ]);
        let answer =
            json!({"requestId": id, "responseCode": 200, "responseHeaders": headers, "body": body});
        ("Fetch.fulfillRequest", answer)
    }
}

/// The address of a path or an address.
fn resolve(url: &str) -> Result<Url, SandboxError> {
    let denied = |why: &str| SandboxError::Denied(format!("{url:?} {why}"));
    let base = Url::parse(BASE).expect("a constant address");
    let found = base.join(url).map_err(|_| denied("is not an address"))?;
    if !matches!(found.scheme(), "http" | "https") {
        return Err(denied(
            "is not one of the task's pages: its scheme is not http or https",
        ));
    }
    match found.host() {
        Some(Host::Domain(name)) if name != "localhost" && !name.ends_with(".localhost") => {
            Ok(found)
        }
        _ => Err(denied(
            "is not one of the task's pages: displays reach no machine by its address",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> PageSet {
        let page = |url: &str| Page {
            url: url.to_owned(),
            media_type: "text/html".to_owned(),
            data: url.as_bytes().to_vec(),
        };
        PageSet::new(vec![
            page("index.html"),
            page("a/index.html"),
            page("https://shop.example/cart?id=1"),
        ])
        .unwrap()
    }

    #[test]
    fn only_addresses_of_pages_are_found() {
        let pages = pages();
        for (url, found) in [
            ("", "http://task.test/"),
            ("index.html?x=1#top", "http://task.test/index.html?x=1#top"),
            ("/a/", "http://task.test/a/"),
            (
                "https://shop.example/cart?id=1",
                "https://shop.example/cart?id=1",
            ),
        ] {
            assert_eq!(pages.find(url).unwrap().as_str(), found);
        }
        for url in [
            "file:///etc/passwd",
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://[::1]/index.html",
            "http://localhost:8080/",
            "http://192.168.0.1/index.html",
            "https://task.test/index.html",
            "https://shop.example/cart",
            "chrome://version",
            "javascript:1",
            "b.html",
            "http://",
        ] {
            let error = pages.find(url).unwrap_err();
            assert!(matches!(error, SandboxError::Denied(_)), "{url}: {error}");
        }
    }

    #[test]
    fn requests_are_served_from_memory_or_blocked() {
        let pages = pages();
        let answer = |url: &str| pages.answer(&json!({"requestId": "1", "request": {"url": url}}));
        let (method, served) = answer("http://task.test/a/?q");
        assert_eq!(method, "Fetch.fulfillRequest");
        assert_eq!(served["body"], STANDARD.encode("a/index.html"));
        for url in ["file:///etc/passwd", "http://10.0.0.1/", "ftp://a/b", ""] {
            assert_eq!(answer(url).0, "Fetch.failRequest", "{url}");
        }
        assert_eq!(answer("data:text/plain,a").0, "Fetch.continueRequest");
    }

    #[test]
    fn addresses_of_machines_are_no_pages() {
        let page = Page {
            url: "http://10.0.0.1/".to_owned(),
            media_type: "text/html".to_owned(),
            data: Vec::new(),
        };
        let error = PageSet::new(vec![page.clone()]).unwrap_err();
        assert!(error.to_string().contains("10.0.0.1"), "{error}");
        assert!(PageSet::new(vec![page; MAX_PAGES + 1]).is_err());
    }
}
