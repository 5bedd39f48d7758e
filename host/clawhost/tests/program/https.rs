//! `clawhost run --tls-cert --tls-key` serves https to a client that trusts the certificate.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A running program, killed on drop.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn chat_completions_are_served_over_https() {
    let dir = TempDir::new().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(dir.path().join("cert.pem"), certificate.cert.pem()).unwrap();
    std::fs::write(
        dir.path().join("key.pem"),
        certificate.signing_key.serialize_pem(),
    )
    .unwrap();
    let mut program = Program(
        Command::new(env!("CARGO_BIN_EXE_clawhost"))
            .args(["run", "--no-train", "--port", "0", "--data", "data"])
            .args(["--tls-cert", "cert.pem", "--tls-key", "key.pem"])
            .env_remove("CLAWHOST_API_KEY")
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    let url = lines.map_while(Result::ok).find_map(|line| {
        let mut words = line.split([' ', ',']);
        words
            .find(|word| word.starts_with("https://"))
            .map(str::to_owned)
    });
    let url = format!("{}/chat/completions", url.unwrap());

    let trusted = Certificate::from_pem(certificate.cert.pem().as_bytes()).unwrap();
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&[trusted]))
        .build();
    let agent: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
    let body = r#"{"messages": [{"role": "user", "content": "What is 2 + 3?"}], "stream": true}"#;
    let post = |agent: &ureq::Agent| {
        agent
            .post(&url)
            .header("content-type", "application/json")
            .send(body)
    };
    let mut answer = post(&agent).unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.body_mut().read_to_string().unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    // A client with the default root certificates rejects it.
    assert!(post(&ureq::Agent::new_with_defaults()).is_err());
}
