//! Records OpenClaw's first request, before there is a model to answer it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::home::Home;

/// The first request of an agent run in a temporary home directory; the server rejects it after recording.
pub(crate) async fn first_request(openclaw: &Path, message: &str) -> Value {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let recorded = Arc::new(Mutex::new(None));
    let first = recorded.clone();
    // The thread runs until the process exits.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if let Some(request) = refused(stream.unwrap()) {
                first.lock().unwrap().get_or_insert(request);
            }
        }
    });
    let output = Home::new(openclaw, &url).run(message).await;
    let request = recorded.lock().unwrap().take();
    request.unwrap_or_else(|| {
        let complaints = String::from_utf8_lossy(&output.stderr);
        panic!("OpenClaw asked nothing: {complaints}")
    })
}

/// The JSON body of a request, if any.
fn refused(mut stream: TcpStream) -> Option<Value> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let refusal = r#"{"error": {"message": "written down", "type": "invalid_request_error"}}"#;
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close";
    let answer = format!(
        "{head}\r\ncontent-length: {}\r\n\r\n{refusal}",
        refusal.len()
    );
    stream.write_all(answer.as_bytes()).ok()?;
    serde_json::from_slice(&body).ok()
}
