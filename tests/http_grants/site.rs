//! A local HTTP site that records its requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Default response body.
pub(crate) const WELCOME: &str = "welcome";

/// A site; its thread runs until the process exits.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    /// Head of each request, one per connection.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Site {
    /// Listens on this address at a free port. `/away` redirects to `elsewhere`, `/echo` returns the request's head.
    pub(crate) fn on(address: &str, elsewhere: &str) -> Site {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (noted, elsewhere) = (seen.clone(), elsewhere.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                // Connections without a request count as well.
                let at = {
                    let mut noted = noted.lock().unwrap();
                    noted.push(String::new());
                    noted.len() - 1
                };
                let head = answer(stream, &elsewhere);
                noted.lock().unwrap()[at] = head;
            }
        });
        Site { address, seen }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The origin, by address.
    pub(crate) fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// The heads of all requests so far.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, elsewhere: &str) -> String {
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let (status, more, body) = match path {
        "/away" => ("302 Found", format!("location: {elsewhere}\r\n"), "moved"),
        "/echo" => ("200 OK", String::new(), head.as_str()),
        _ => ("200 OK", String::new(), WELCOME),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\n{more}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // The client may be gone.
    let _ = stream.write_all(response.as_bytes());
    head
}
