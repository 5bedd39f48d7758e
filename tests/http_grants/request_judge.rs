//! A judge that sends one HTTP request and returns its result: the body as rationale, or the host's error as its own.

use clawhost_tests::guest::{Guest, HTTP};

/// The request.
#[derive(Clone)]
pub(crate) struct HttpRequestJudge {
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) header: Option<(String, String)>,
    pub(crate) body: String,
}

/// Address of the header's name and value pointers.
const HEADER: u32 = 1024;
/// Address of the texts.
const TEXTS: u32 = 1040;
/// Address of the response.
const ANSWER: u32 = 3584;

impl HttpRequestJudge {
    pub(crate) fn to(url: impl Into<String>) -> HttpRequestJudge {
        HttpRequestJudge {
            method: "GET".to_owned(),
            url: url.into(),
            header: None,
            body: String::new(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> HttpRequestJudge {
        self.header = Some((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn body(mut self, text: &str) -> HttpRequestJudge {
        text.clone_into(&mut self.body);
        self
    }

    pub(crate) fn method(mut self, method: &str) -> HttpRequestJudge {
        method.clone_into(&mut self.method);
        self
    }

    /// The component.
    pub(crate) fn wasm(&self) -> Vec<u8> {
        let (name, value) = self.header.clone().unwrap_or_default();
        let mut at = TEXTS;
        let mut data = String::new();
        let mut place = |text: &str| {
            let (start, length) = (at, u32::try_from(text.len()).unwrap());
            let bytes: String = text.bytes().map(|byte| format!("\\{byte:02x}")).collect();
            data.push_str(&format!("(data (i32.const {start}) \"{bytes}\")"));
            at += length;
            assert!(at < ANSWER, "the request is too long for the fixture");
            (start, length)
        };
        let (method, url, name, value, body) = (
            place(&self.method),
            place(&self.url),
            place(&name),
            place(&value),
            place(&self.body),
        );
        let pair =
            |(start, length): (u32, u32)| format!("(i32.const {start}) (i32.const {length})");
        let store =
            |at: u32, value: u32| format!("(i32.store (i32.const {at}) (i32.const {value}))");
        let copy = |to: u32, from: u32| {
            format!("(i32.store (i32.const {to}) (i32.load (i32.const {from})))")
        };
        let header = [
            store(HEADER, name.0),
            store(HEADER + 4, name.1),
            store(HEADER + 8, value.0),
            store(HEADER + 12, value.1),
        ];
        // A request denied by the host is `denied` (case 2 of the judge's errors), any other error is `internal` (case
        // 4); only `denied` and `transport` have a message.
        let failed = [
            "(i32.store8 (i32.const 0) (i32.const 1))".to_owned(),
            format!(
                "(i32.store8 (i32.const 4) (select (i32.const 4) (i32.const 2) (i32.load8_u (i32.const {}))))",
                ANSWER + 4
            ),
            copy(8, ANSWER + 8),
            copy(12, ANSWER + 12),
        ];
        let done = [
            "(f32.store (i32.const 4) (f32.const 1))".to_owned(),
            "(i32.store8 (i32.const 8) (i32.const 1))".to_owned(),
            copy(20, ANSWER + 16),
            copy(24, ANSWER + 20),
        ];
        Guest::judge(&format!(
            "{} (call $send {} {} (i32.const {HEADER}) (i32.const {}) {} (i32.const 20000) (i32.const {ANSWER}))
             (if (i32.load8_u (i32.const {ANSWER})) (then {}) (else {}))
             (i32.const 0)",
            header.concat(),
            pair(method),
            pair(url),
            u32::from(self.header.is_some()),
            pair(body),
            failed.concat(),
            done.concat(),
        ))
        .calling(
            HTTP,
            "send",
            "$send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)",
        )
        .with(&data)
        .wasm()
    }
}
