//! Records of a key are inaccessible to other keys, on every path with an id.

use std::collections::BTreeSet;

use clawhost_gateway::{ApiKey, GatewayOptions, Scope};
use clawhost_journal::SessionId;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{ApiResponse, Server};

/// The session name that the owner uses.
const NAME: &str = "main";

fn keyed(options: &mut GatewayOptions) {
    let user = [Scope::Chat, Scope::Feedback];
    options.keys = vec![
        ApiKey::new("ann", "key-of-ann", user).unwrap(),
        ApiKey::new("bob", "key-of-bob", user).unwrap(),
        ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
    ];
}

/// The kind of an id.
#[derive(Clone, Copy, PartialEq)]
enum Id {
    /// A session, by id.
    Session,
    /// A session, by its name.
    Name,
    Turn,
    Response,
    Model,
    Step,
    /// Of an entry of experience.
    Entry,
}

impl Id {
    /// An unused id of this kind.
    fn unknown(self) -> &'static str {
        match self {
            Self::Session => "s-00000000000000000000",
            Self::Name => "no such name",
            Self::Turn => "999999999",
            Self::Response => "resp_00000000000000000000000000000000",
            Self::Model => "tiny:99",
            Self::Step | Self::Entry => "99",
        }
    }
}

/// A path with an id, and the expected outcome for the owner, another key, no key, and the operator.
struct Row {
    /// Method, path and the parameter or field with the id, as in the OpenAPI document.
    place: &'static str,
    id: Id,
    /// A status, or the session of the reply: `joins` (that of the id) or `apart`.
    expected: [&'static str; 4],
}

const fn row(place: &'static str, id: Id, expected: [&'static str; 4]) -> Row {
    Row {
        place,
        id,
        expected,
    }
}

/// Only the owner's requests continue the session.
const FILED: [&str; 4] = ["joins", "apart", "401", "apart"];
const BY_ID: [&str; 4] = ["200", "404", "401", "200"];
/// Session names are scoped by key.
const BY_NAME: [&str; 4] = ["200", "404", "401", "404"];
/// The same for every key.
const SHARED: [&str; 4] = ["200", "200", "401", "200"];

const ROWS: &[Row] = &[
    row("POST /v1/chat/completions X-Session-Id", Id::Session, FILED),
    row("POST /v1/chat/completions X-Session-Id", Id::Name, FILED),
    row("POST /v1/chat/completions session_id", Id::Session, FILED),
    row("POST /v1/chat/completions session_id", Id::Name, FILED),
    row("POST /v1/messages X-Session-Id", Id::Session, FILED),
    row("POST /v1/messages X-Session-Id", Id::Name, FILED),
    row("POST /v1/messages session_id", Id::Session, FILED),
    row("POST /v1/messages session_id", Id::Name, FILED),
    row("POST /v1/responses X-Session-Id", Id::Session, FILED),
    row("POST /v1/responses X-Session-Id", Id::Name, FILED),
    row("POST /v1/responses session_id", Id::Session, FILED),
    row("POST /v1/responses session_id", Id::Name, FILED),
    row(
        "POST /v1/responses previous_response_id",
        Id::Response,
        ["joins", "400", "401", "apart"],
    ),
    row(
        "POST /v1/responses/input_tokens previous_response_id",
        Id::Response,
        ["200", "400", "401", "200"],
    ),
    // Only counts tokens; nothing is recorded.
    row(
        "POST /v1/messages/count_tokens session_id",
        Id::Session,
        SHARED,
    ),
    row(
        "POST /v1/responses/input_tokens session_id",
        Id::Session,
        SHARED,
    ),
    row("GET /v1/responses/{id} id", Id::Response, BY_ID),
    row("DELETE /v1/responses/{id} id", Id::Response, BY_ID),
    row("GET /v1/models/{id} id", Id::Model, SHARED),
    row("POST /v1/feedback response_id", Id::Response, BY_ID),
    row("POST /v1/feedback turn_id", Id::Turn, BY_ID),
    row("POST /v1/feedback session_id", Id::Session, BY_ID),
    row("POST /v1/feedback session_id", Id::Name, BY_NAME),
    row("GET /v1/sessions/{id} id", Id::Session, BY_ID),
    row("GET /v1/sessions/{id} id", Id::Name, BY_NAME),
    row("GET /v1/sessions/{id}/explain id", Id::Session, BY_ID),
    row("GET /v1/sessions/{id}/explain id", Id::Name, BY_NAME),
    row("POST /v1/sessions/{id}/done id", Id::Session, BY_ID),
    row("POST /v1/sessions/{id}/done id", Id::Name, BY_NAME),
    row("DELETE /v1/sessions/{id} id", Id::Session, BY_ID),
    row("DELETE /v1/sessions/{id} id", Id::Name, BY_NAME),
    row("GET /v1/turns/{id}/explain id", Id::Turn, BY_ID),
    row("PUT /v1/experience/{id} id", Id::Entry, BY_ID),
    row("DELETE /v1/experience/{id} id", Id::Entry, BY_ID),
    // A step has samples of all keys.
    row(
        "GET /v1/steps/{id} id",
        Id::Step,
        ["403", "403", "401", "200"],
    ),
];

/// Every parameter and field of the document that is an id, as in [`Row::place`].
fn places(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let parameters = parameters.map(|parameter| parameter["name"].as_str().unwrap());
            let body = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
            let schema = body.as_str().map(|name| {
                let target = document.pointer(name.trim_start_matches('#')).unwrap();
                target["properties"].as_object().unwrap()
            });
            let fields = schema.into_iter().flat_map(|fields| fields.keys());
            for name in parameters.chain(fields.map(String::as_str)) {
                let plain = name.to_ascii_lowercase().replace('-', "_");
                if plain == "id" || plain.ends_with("_id") {
                    let method = method.to_ascii_uppercase();
                    found.insert(format!("{method} {path} {name}"));
                }
            }
        }
    }
    found
}

/// The records of one key: one reply in a named session, and an entry of experience from another one;
/// the journal has nothing else.
struct Collected {
    session: String,
    turn: i64,
    response: String,
    entry: i64,
}

impl Collected {
    async fn by_ann(server: &Server) -> Self {
        for session in server.journal.sessions(u32::MAX).unwrap() {
            server.journal.forget_session(&session.id).unwrap();
        }
        let body = json!({"input": "A", "temperature": 0, "session_id": NAME});
        let request = server.request(Method::POST, "/v1/responses");
        let request = request.bearer_auth("key-of-ann").json(&body);
        let answer = ApiResponse::read(request.send().await.unwrap()).await;
        let turn = answer.turn();
        assert_eq!(answer.header("x-clawhost-session"), NAME);
        let entry = crate::experience::entry_of(server, "key-of-ann", "Be brief, please.").await;
        Self {
            entry,
            session: server.turn(turn).session.to_string(),
            turn,
            response: answer.ok()["id"].as_str().unwrap().to_owned(),
        }
    }

    fn id(&self, of: Id) -> String {
        match of {
            Id::Session => self.session.clone(),
            Id::Name => NAME.to_owned(),
            Id::Turn => self.turn.to_string(),
            Id::Response => self.response.clone(),
            Id::Model => "tiny".to_owned(),
            Id::Step => "1".to_owned(),
            Id::Entry => self.entry.to_string(),
        }
    }

    fn assert_untouched(&self, server: &Server, case: &str) {
        let session = SessionId::from(self.session.as_str());
        let record = server.journal.session(&session).unwrap();
        let record = record.unwrap_or_else(|| panic!("{case}: the session is gone"));
        assert_eq!((record.turns, record.ended_ms), (1, None), "{case}");
        let turn = server.turn(self.turn);
        assert!(
            turn.feedback.is_empty() && turn.next_state.is_none(),
            "{case}: {turn:?}"
        );
    }
}

/// Sends the request of a row with this id.
async fn send(server: &Server, row: &Row, key: Option<&str>, id: &str) -> ApiResponse {
    let parts: Vec<&str> = row.place.split(' ').collect();
    let [method, path, name] = parts.try_into().unwrap();
    let method: Method = method.parse().unwrap();
    let in_path = path.contains("{id}");
    let encoded = id.replace(' ', "%20");
    let mut request = server.request(method.clone(), &path.replace("{id}", &encoded));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let mut body = match path {
        "/v1/chat/completions" | "/v1/messages" | "/v1/messages/count_tokens" => {
            json!({"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "B"}]})
        }
        "/v1/responses" | "/v1/responses/input_tokens" => json!({"input": "B"}),
        "/v1/feedback" => json!({"score": 1}),
        "/v1/experience/{id}" => json!({"text": "Be brief."}),
        _ => json!({}),
    };
    if name == "X-Session-Id" {
        request = request.header(name, id);
    } else if !in_path {
        body[name] = match row.id {
            Id::Turn => json!(id.parse::<i64>().unwrap()),
            _ => json!(id),
        };
    }
    if method == Method::POST || method == Method::PUT {
        request = request.json(&body);
    }
    ApiResponse::read(request.send().await.unwrap()).await
}

/// The outcome, as in [`Row::expected`].
fn outcome(server: &Server, answer: &ApiResponse, of: &Collected) -> String {
    match answer.headers.contains_key("x-clawhost-turn") {
        false => answer.status.to_string(),
        true if server.turn(answer.turn()).session.as_str() == of.session => "joins".to_owned(),
        true => "apart".to_owned(),
    }
}

#[tokio::test]
#[allow(
    clippy::print_stdout,
    reason = "the matrix is what a person wants to see of this test"
)]
async fn every_path_with_an_id_checks_the_owner() {
    let server = Server::with(keyed).await;
    server.loops.releases.get().unwrap().publish(1);
    let document = server.get("/openapi.json").await.ok();
    let known: BTreeSet<String> = ROWS.iter().map(|row| row.place.to_owned()).collect();
    assert_eq!(
        places(&document),
        known,
        "every place that takes an id has a row, and no row is left over"
    );

    let who = [
        ("own", Some("key-of-ann")),
        ("other's", Some("key-of-bob")),
        ("none", None),
        ("operator", Some("key-of-ops")),
    ];
    let mut matrix = format!("{:58}{:9}", "place", "id");
    for (name, _) in who {
        matrix.push_str(&format!("{name:>9}"));
    }
    let mut wrong = Vec::new();
    for row in ROWS {
        let kind = match row.id {
            Id::Session | Id::Turn | Id::Response | Id::Entry => "id",
            Id::Name => "name",
            Id::Model | Id::Step => "shared",
        };
        matrix.push_str(&format!("\n{:58}{kind:9}", row.place));
        for ((name, key), expected) in who.iter().zip(row.expected) {
            let case = format!("{} {kind}, {name}", row.place);
            let collected = Collected::by_ann(&server).await;
            let id = collected.id(row.id);
            let answer = send(&server, row, *key, &id).await;
            let actual = outcome(&server, &answer, &collected);
            matrix.push_str(&format!("{actual:>9}"));
            if actual != expected {
                wrong.push(format!("{case}: {actual}, not {expected}: {}", answer.text));
            }
            if matches!(*name, "other's" | "none") {
                collected.assert_untouched(&server, &case);
            }
            if *name == "other's" && row.expected[1] != "200" {
                // Inaccessible records are reported as not found.
                let unknown = send(&server, row, *key, row.id.unknown()).await;
                let shown = |answer: &ApiResponse, id: &str| match actual.as_str() {
                    "apart" => String::new(),
                    _ => answer.text.replace(id, "ID"),
                };
                assert_eq!(
                    (answer.status, shown(&answer, &id)),
                    (unknown.status, shown(&unknown, row.id.unknown())),
                    "{case}: like an id that nothing has"
                );
            }
        }
    }
    println!("{matrix}");
    assert!(wrong.is_empty(), "{}\n{matrix}", wrong.join("\n"));
}

#[tokio::test]
async fn same_session_name_of_two_keys_is_two_sessions() {
    let server = Server::with(keyed).await;
    let say = async |key: &str, messages: Value| {
        let body = json!({"model": "tiny", "messages": messages, "temperature": 0});
        let request = server.request(Method::POST, "/v1/chat/completions");
        let request = request.bearer_auth(key).header("x-session-id", NAME);
        let answer = ApiResponse::read(request.json(&body).send().await.unwrap()).await;
        assert_eq!(answer.header("x-clawhost-session"), NAME);
        answer
    };
    let send_request = async |key: &str, method: Method, path: &str| {
        let request = server.request(method, path).bearer_auth(key);
        ApiResponse::read(request.send().await.unwrap()).await
    };
    let secret = "the code of ann is quokka, A";
    let of_ann = say("key-of-ann", json!([{"role": "user", "content": secret}]))
        .await
        .turn();
    let of_bob = say(
        "key-of-bob",
        json!([{"role": "user", "content": "no, that is wrong. B"}]),
    )
    .await
    .turn();
    assert_ne!(server.turn(of_ann).session, server.turn(of_bob).session);
    assert_eq!(server.turn(of_ann).next_state, None);
    let path = format!("/v1/sessions/{NAME}");
    let shown = send_request(
        "key-of-bob",
        Method::GET,
        &format!("{path}?include=messages"),
    )
    .await;
    assert_eq!(shown.ok()["turns"].as_array().unwrap().len(), 1);
    assert!(!shown.text.contains("quokka"), "{}", shown.text);
    send_request("key-of-bob", Method::DELETE, &path).await.ok();
    send_request("key-of-bob", Method::DELETE, &path)
        .await
        .error(404);
    let left = send_request("key-of-ann", Method::GET, &path).await.ok();
    assert_eq!(left["name"], NAME);
    assert_eq!(left["turns"][0]["id"], of_ann);
    // The operator distinguishes them by id.
    let list = send_request("key-of-ops", Method::GET, "/v1/sessions")
        .await
        .ok();
    let id = list["data"][0]["id"].as_str().unwrap();
    assert_eq!(list["data"][0]["key"], "ann");
    send_request("key-of-ops", Method::GET, &format!("/v1/sessions/{id}"))
        .await
        .ok();
}

#[tokio::test]
async fn identical_openings_of_different_users_stay_separate() {
    for keys in [false, true] {
        let server = Server::with(|options| {
            if keys {
                keyed(options);
            }
        })
        .await;
        let mut people = Vec::new();
        for _ in 0..6 {
            let body = crate::server::chat_body("Hello! A", json!({}));
            let mut request = server.request(Method::POST, "/v1/chat/completions");
            if keys {
                request = request.bearer_auth("key-of-ops");
            }
            let answer = ApiResponse::read(request.json(&body).send().await.unwrap()).await;
            people.push((
                answer.header("x-clawhost-session").to_owned(),
                answer.turn(),
            ));
        }
        let sessions: BTreeSet<&String> = people.iter().map(|(session, _)| session).collect();
        assert_eq!(sessions.len(), people.len());
        let (first, _) = &people[0];
        let mut request = server.request(Method::DELETE, &format!("/v1/sessions/{first}"));
        if keys {
            request = request.bearer_auth("key-of-ops");
        }
        ApiResponse::read(request.send().await.unwrap()).await.ok();
        for (session, turn) in &people[1..] {
            assert_eq!(server.turn(*turn).session.as_str(), session);
        }
    }
}

#[tokio::test]
async fn same_request_id_makes_an_opening_a_retry() {
    let server = Server::start().await;
    for header in ["x-request-id", "idempotency-key", "traceparent"] {
        let value = match header {
            "traceparent" => "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            _ => header,
        };
        let mut sessions = BTreeSet::new();
        for _ in 0..2 {
            let body = crate::server::chat_body(&format!("{header} A"), json!({}));
            let request = server.request(Method::POST, "/v1/chat/completions");
            let request = request.header(header, value).json(&body);
            let answer = ApiResponse::read(request.send().await.unwrap()).await;
            sessions.insert(answer.header("x-clawhost-session").to_owned());
        }
        assert_eq!(sessions.len(), 1, "{header}");
    }
}
