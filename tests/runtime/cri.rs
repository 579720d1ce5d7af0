//! A client of the Container Runtime Interface, as the kubelet is one: gRPC over a unix socket.
//!
//! A connection for each call: a runtime that is killed and started again needs nothing more.

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

/// What stands before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The runtime, as one who creates pods sees it.
#[derive(Debug, Clone)]
pub(crate) struct Cri {
    socket: PathBuf,
}

/// Why a call failed: in the runtime's own words, or those of the connection.
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

    /// Calls, and requires that it goes well.
    pub(crate) fn call<C: Call>(&self, request: &C) -> C::Answer {
        self.try_call(request)
            .unwrap_or_else(|refused| panic!("{} with {request:?}: {refused}", C::METHOD))
    }

    /// Calls; a runtime that does not answer at all within a generous time is an error too.
    pub(crate) fn try_call<C: Call>(&self, request: &C) -> Result<C::Answer, Refused> {
        let message = request.encode_to_vec();
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend(message);
        // In a thread's own small runtime: tests call from many threads.
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
    let broken = |error: hyper::Error| Refused(format!("the connection broke: {error}"));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(broken)?;
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
        .map_err(broken)?
        .into_parts();
    // A refusal without a message has its status among the headers.
    status(&head.headers).unwrap_or(Ok(()))?;
    let body = body.collect().await.map_err(broken)?;
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
    let words = headers
        .get("grpc-message")
        .map(|words| String::from_utf8_lossy(words.as_bytes()).into_owned());
    Some(Err(Refused(
        words.unwrap_or_else(|| format!("status {status:?}")),
    )))
}
