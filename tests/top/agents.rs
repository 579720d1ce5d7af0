//! Servers that answer as agents do, and servers that misbehave.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const STATUS: &str = include_str!("../data/top/status.json");
const METRICS: [&str; 2] = [
    include_str!("../data/top/metrics-1.txt"),
    include_str!("../data/top/metrics-2.txt"),
];

/// Where something answers as an agent does: the status, and in turn the two scrapes.
pub(crate) fn agent(status: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, status) = (Arc::new(AtomicUsize::new(0)), Arc::new(status));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, asked, status) =
                (stream.unwrap(), Arc::clone(&asked), Arc::clone(&status));
            std::thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for line in lines.map_while(Result::ok) {
                    let path = line.split(' ').nth(1).unwrap_or_default();
                    // A prefix of the path is ignored, as with many agents behind a proxy.
                    let body = match path.rsplit('/').next() {
                        Some("status") => status.as_str(),
                        Some("metrics") => METRICS[asked.fetch_add(1, Ordering::Relaxed).min(1)],
                        _ => continue,
                    };
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    // A client that has disconnected needs no response.
                    let _ = stream
                        .write_all(head.as_bytes())
                        .and_then(|()| stream.write_all(body.as_bytes()));
                }
            });
        }
    });
    address
}

/// The address of a server that accepts connections and sends nothing.
pub(crate) fn mute() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Where each connection is answered in a way of the test's own.
pub(crate) fn stranger(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let (listener, address) = mute();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}
