//! One gRPC call without a request body over a unix socket: HTTP/2, a message in each direction, a status in the
//! trailers.
//!
//! The crate `tonic` 0.14 was measured as a replacement. A small release binary would grow by 50
//! kB, or by 126 kB with tonic's own transport, and the crate brings four others along. In return
//! it would do the framing and read the status, about 60 of the 200 lines here; the connection, the
//! limits and the errors would stay.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;

/// The length of a message's prefix, which says whether the message is compressed, and how long it
/// is.
const PREFIX: usize = 5;

/// The gRPC status for a method that the server lacks.
const UNIMPLEMENTED: u32 = 12;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No server listens on the socket.
    #[error(
        "no kubelet listens on the socket: mount the kubelet's folder into the agent's pod, or run a kubelet on the \
         node"
    )]
    NoSocket {
        /// The kernel's error.
        source: io::Error,
    },
    /// The socket can't be used.
    #[error("the socket can't be opened")]
    Connect {
        /// The kernel's error.
        source: io::Error,
    },
    /// The server did not answer in time.
    #[error("no answer within {} s", deadline.as_secs_f64())]
    Slow {
        /// The time limit for the answer.
        deadline: Duration,
    },
    /// The connection broke, or the server does not speak HTTP/2.
    #[error("the connection broke")]
    Broken {
        /// The library's error.
        source: hyper::Error,
    },
    /// The server doesn't know the method.
    #[error("the server has no such method: Kubernetes 1.20 or newer is needed")]
    Unimplemented,
    /// The server answered with an error.
    #[error("the server answered with status {status}: {message}")]
    Status {
        /// The number of the gRPC status.
        status: u32,
        /// The server's error message.
        message: String,
    },
    /// The answer is longer than the limit.
    #[error("the answer is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The answer breaks gRPC's rules.
    #[error("the answer is not valid gRPC: {what}")]
    Protocol {
        /// The broken rule.
        what: String,
    },
}

/// Calls a method with an empty message, and returns the bytes of the answer.
pub(super) async fn call(
    socket: &Path,
    method: &'static str,
    deadline: Duration,
    limit: usize,
) -> Result<Bytes, CallError> {
    let request = Request::post(format!("http://localhost{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(
            "grpc-timeout",
            format!("{}m", deadline.as_millis().clamp(1, 99_999_999)),
        )
        .body(Full::new(Bytes::from_static(&[0; PREFIX])))
        .map_err(|error| invalid(error.to_string()))?;
    let answer = tokio::time::timeout(deadline, send(socket, request, limit));
    answer.await.unwrap_or(Err(CallError::Slow { deadline }))
}

async fn send(
    socket: &Path,
    request: Request<Full<Bytes>>,
    limit: usize,
) -> Result<Bytes, CallError> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                CallError::NoSocket { source }
            }
            _ => CallError::Connect { source },
        })?;
    let broken = |source| CallError::Broken { source };
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let answer =
        async move { read(sender.send_request(request).await.map_err(broken)?, limit).await };
    tokio::pin!(answer, connection);
    // The connection makes progress only while it is polled. How it ends doesn't matter, because
    // the answer shows the outcome.
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

async fn read(response: Response<Incoming>, limit: usize) -> Result<Bytes, CallError> {
    let (head, mut body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(invalid(format!("HTTP status {}", head.status)));
    }
    // An answer without a message has its status among the headers.
    if let Some(status) = status(&head.headers) {
        status?;
        return Err(invalid("a status without a message"));
    }
    let mut data: Vec<u8> = Vec::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|source| CallError::Broken { source })?;
        match frame.into_data() {
            Ok(bytes) => data.extend_from_slice(&bytes),
            Err(frame) => trailers.extend(frame.into_trailers().ok().unwrap_or_default()),
        }
        // The length comes first, so an answer above the limit is refused without waiting for its
        // end.
        let announced = length(&data).unwrap_or(0);
        if announced > limit || data.len() > limit + PREFIX {
            return Err(CallError::TooLong { limit });
        }
    }
    let no_status = || invalid("it ends without a status: the server closed the stream");
    status(&trailers).ok_or_else(no_status)??;
    if data.first().is_some_and(|compressed| *compressed != 0) {
        return Err(invalid(
            "it is compressed, which the agent does not support",
        ));
    }
    match length(&data) {
        Some(length) if data.len() == PREFIX + length => Ok(Bytes::from(data).slice(PREFIX..)),
        _ => Err(invalid(format!(
            "its length is {} bytes, which is not the length that its prefix announces",
            data.len()
        ))),
    }
}

fn invalid(what: impl Into<String>) -> CallError {
    CallError::Protocol { what: what.into() }
}

fn length(data: &[u8]) -> Option<usize> {
    let bytes = data.get(1..PREFIX)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes) as usize)
}

/// The outcome, if the headers have a status: success, or the server's error.
fn status(headers: &HeaderMap) -> Option<Result<(), CallError>> {
    let value = headers.get("grpc-status")?;
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    Some(match number {
        Some(0) => Ok(()),
        Some(UNIMPLEMENTED) => Err(CallError::Unimplemented),
        Some(status) => {
            let message = headers.get("grpc-message").map(HeaderValue::as_bytes);
            let message = message.map(decode_percent).unwrap_or_default();
            Err(CallError::Status { status, message })
        }
        None => Err(invalid(format!("its status is {value:?}"))),
    })
}

/// Decodes the message of a status. Bytes outside plain ASCII are percent-encoded.
fn decode_percent(encoded: &[u8]) -> String {
    let text = percent_encoding::percent_decode(encoded);
    text.decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_decoded() {
        assert_eq!(decode_percent(b"no%20such pod: %C3%A9%"), "no such pod: é%");
        assert_eq!(decode_percent(b"100%zz%4"), "100%zz%4");
    }
}
