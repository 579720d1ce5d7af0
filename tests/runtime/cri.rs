//! A client of the Container Runtime Interface, like the kubelet's: gRPC over a Unix socket.
//!
//! Each call opens a new connection, so nothing has to reconnect when a runtime is killed and
//! restarted.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;

use crate::agent::patience;
use crate::messages::Call;

/// The bytes before each message: a compression flag and the message's length.
const PREFIX: usize = 5;

/// The runtime as seen by a client that creates pods.
#[derive(Debug, Clone)]
pub(crate) struct Cri {
    socket: PathBuf,
}

/// Why a call failed, in the words of the runtime or of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Cri ===

impl Cri {
    pub(crate) fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Calls the runtime and panics if the call fails.
    pub(crate) fn call<C: Call>(&self, request: &C) -> C::Answer {
        self.try_call(request)
            .unwrap_or_else(|refused| panic!("{} with {request:?}: {refused}", C::METHOD))
    }

    /// Calls the runtime. A missing answer is an error after a generous time.
    pub(crate) fn try_call<C: Call>(&self, request: &C) -> Result<C::Answer, Refused> {
        let message = request.encode_to_vec();
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend(message);
        // Tests call from many threads, so each call has a current-thread Tokio runtime.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let deadline = 12 * patience();
        let answer = runtime.block_on(async {
            tokio::time::timeout(
                deadline,
                exchange(&self.socket, C::METHOD, framed, deadline),
            )
            .await
        });
        let answer =
            answer.unwrap_or_else(|_| Err(Refused(format!("no answer within {deadline:?}"))))?;
        C::Answer::decode(answer).map_err(|error| Refused(error.to_string()))
    }
}

async fn exchange(
    socket: &Path,
    method: &str,
    message: Vec<u8>,
    deadline: Duration,
) -> Result<Bytes, Refused> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| Refused(error.to_string()))?;
    let connection_error = |error: hyper::Error| Refused(format!("the connection broke: {error}"));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(connection_error)?;
    tokio::spawn(connection);
    let request = Request::post(format!("http://localhost{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header("grpc-timeout", format!("{}S", deadline.as_secs()))
        .body(Full::new(Bytes::from(message)))
        .unwrap();
    let (head, body) = sender
        .send_request(request)
        .await
        .map_err(connection_error)?
        .into_parts();
    // A refusal without a message has a status in the headers.
    status(&head.headers).unwrap_or(Ok(()))?;
    let body = body.collect().await.map_err(connection_error)?;
    status(body.trailers().unwrap_or(&HeaderMap::new()))
        .unwrap_or_else(|| Err(Refused("the answer broke off".to_owned())))?;
    let bytes = body.to_bytes();
    if bytes.len() < PREFIX {
        Err(Refused("no message".to_owned()))
    } else {
        Ok(bytes.slice(PREFIX..))
    }
}

fn status(headers: &HeaderMap) -> Option<Result<(), Refused>> {
    let status = headers.get("grpc-status")?;
    if status == "0" {
        return Some(Ok(()));
    }
    let message_text = headers
        .get("grpc-message")
        .map(|message_text| String::from_utf8_lossy(message_text.as_bytes()).into_owned());
    Some(Err(Refused(
        message_text.unwrap_or_else(|| format!("status {status:?}")),
    )))
}
