//! As much of HTTP/1.1 as a test needs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Asks, and reads to the end.
pub(crate) fn ask(address: SocketAddr, method: &str, path: &str) -> std::io::Result<Answer> {
    let (head, body) = exchange(address, method, path, "")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_default();
    let body = String::from_utf8(body).map_err(std::io::Error::other)?;
    Ok(Answer {
        status,
        head: head.to_ascii_lowercase(),
        body,
    })
}

/// Sends a request with the given headers, each with a line end. Returns the head and the body of the answer.
pub(crate) fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
) -> std::io::Result<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(30))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap_or(bytes.len());
    let body = bytes.get(end + 4..).unwrap_or_default().to_vec();
    Ok((String::from_utf8_lossy(&bytes[..end]).into_owned(), body))
}
