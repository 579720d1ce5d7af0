//! [`Api`]: sends a request with a deadline and a size limit. A [`Failure`] tells whether a retry may help.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::{Request, Response, StatusCode};
use kube::client::Body;
use kube::core::Status;
use serde::de::DeserializeOwned;

use super::{ApiCounters, Call, ErrorKind};
use crate::text::{connection, parse_errors};

/// The size limit of an answer, in bytes. A page of 500 pods stays far below it.
const LONGEST_ANSWER: usize = 64 << 20;

/// The size limit of a line of a watch, in bytes. etcd stores no object above 1.5 MiB.
const LONGEST_LINE: usize = 8 << 20;

/// The number of characters to which [`short`] cuts a message.
const LONGEST_MESSAGE: usize = 300;

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// The connection failed or broke.
    #[error("the API server can't be reached: {0}")]
    Connection(String),
    /// The answer took longer than the deadline.
    #[error("the API server gave no answer within {0:?}")]
    Timeout(Duration),
    /// The server refused the request.
    #[error("the API server answered {} {}: {}", .status.code, .status.reason, short(&.status.message))]
    Refused {
        /// The answer's Status. If the body has none, it is made from the HTTP code and the text.
        status: Box<Status>,
        retry_after: Option<Duration>,
    },
    /// The answer can't be decoded.
    #[error("the API server's response is invalid: {0}")]
    InvalidResponse(String),
    /// The request can't be built, for example because a name has a space. Nothing was sent.
    #[error(
        "a request to the API server can't be built: {0}: check the names of the Node and of the namespace"
    )]
    InvalidRequest(String),
}

// === impl Failure ===

impl Failure {
    /// The kind of failure, for the counters.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Connection(_) => ErrorKind::Connection,
            Self::Timeout(_) => ErrorKind::Timeout,
            Self::InvalidResponse(_) => ErrorKind::InvalidResponse,
            Self::InvalidRequest(_) => ErrorKind::InvalidRequest,
            Self::Refused { status, .. } => match status.code {
                401 => ErrorKind::Unauthorized,
                403 => ErrorKind::Forbidden,
                404 => ErrorKind::NotFound,
                409 => ErrorKind::Conflict,
                410 => ErrorKind::Gone,
                429 => ErrorKind::TooManyRequests,
                500.. => ErrorKind::Server,
                _ => ErrorKind::Refused,
            },
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The server's Status, if it refused the request.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Whether the server may have executed the request although no usable answer came.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Connection(_) | Self::Timeout(_) | Self::InvalidResponse(_) => true,
            Self::InvalidRequest(_) => false,
            Self::Refused { status, .. } => status.code >= 500,
        }
    }

    /// Whether the requested resourceVersion is too old (410 Gone), so that all objects must be
    /// read again.
    pub fn is_expired(&self) -> bool {
        self.status().is_some_and(|status| {
            status.code == 410 || matches!(&*status.reason, "Expired" | "Gone")
        })
    }

    /// Whether the server's state is older than the resourceVersion of the request.
    pub fn is_too_large(&self) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        let mut causes = details.into_iter().flat_map(|details| &details.causes);
        causes.any(|cause| cause.reason == "ResourceVersionTooLarge")
    }

    /// Whether the failure lasts until a person acts: grants a permission, installs a definition, or corrects the object.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::InvalidRequest(_) => true,
            Self::Refused { status, .. } => {
                (400..500).contains(&status.code) && !matches!(status.code, 408..=410 | 429)
            }
            _ => false,
        }
    }

    /// Whether a later retry of the same request may succeed.
    pub fn is_retryable(&self) -> bool {
        self.is_uncertain() || self.kind() == ErrorKind::TooManyRequests
    }

    /// The failure for an answer that can't be decoded.
    pub(super) fn invalid(error: impl std::fmt::Display) -> Self {
        Self::InvalidResponse(error.to_string())
    }

    /// The failure for a refusal, with the Status's `retryAfterSeconds`.
    pub(super) fn refused(status: Status) -> Self {
        let seconds = status
            .details
            .as_ref()
            .map_or(0, |details| details.retry_after_seconds);
        let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Self::Refused {
            status: Box::new(status),
            retry_after,
        }
    }
}

/// Puts a message on one line and cuts it, because a proxy may answer with a long page.
pub(crate) fn short(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// The API client, with a deadline for each request, and counters. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    deadline: Duration,
    counters: Arc<ApiCounters>,
    /// The server's address, for messages about connections.
    server: Option<Arc<str>>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

// === impl Api ===

impl Api {
    /// A request without an answer within `deadline` fails.
    pub fn new(client: kube::Client, deadline: Duration) -> Self {
        Self {
            client,
            deadline,
            counters: Arc::default(),
            server: None,
        }
    }

    /// A client whose connection failures name the server. A command that names it in each of its messages needs no other.
    #[must_use]
    pub fn naming(self, server: &str) -> Self {
        Self {
            server: Some(server.into()),
            ..self
        }
    }

    /// A client with another deadline and the same counters.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self {
            deadline,
            ..self.clone()
        }
    }

    /// The counters of requests and failures, shared by all clones.
    pub fn counters(&self) -> &Arc<ApiCounters> {
        &self.counters
    }

    /// Sends a request, and decodes the answer as JSON.
    ///
    /// # Errors
    /// Any [`Failure`]; the counters include it.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        call: Call,
        request: Request<Vec<u8>>,
    ) -> Result<T, Failure> {
        let sent = tokio::time::timeout(self.deadline, async {
            let body = self.send(call, request).await?.into_body();
            let bytes = Limited::new(body, LONGEST_ANSWER).collect().await;
            let bytes = bytes.map_err(|error| self.broken(&*error))?.to_bytes();
            serde_json::from_slice(&bytes)
                .map_err(|error| Failure::InvalidResponse(parse_errors::json(&error)))
        });
        let answer = sent.await.unwrap_or(Err(Failure::Timeout(self.deadline)));
        self.count(&answer);
        answer
    }

    /// Sends a request whose answer is a text, for example a container's log. Of a longer text only the beginning counts.
    ///
    /// # Errors
    /// Any [`Failure`]; the counters include it.
    #[cfg(feature = "lab")]
    pub(super) async fn text(
        &self,
        call: Call,
        request: Request<Vec<u8>>,
    ) -> Result<String, Failure> {
        let sent = tokio::time::timeout(self.deadline, async {
            let mut body = self.send(call, request).await?.into_body();
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| self.broken(&error))?;
                bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                if bytes.len() > LONGEST_ANSWER {
                    break;
                }
            }
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        });
        let answer = sent.await.unwrap_or(Err(Failure::Timeout(self.deadline)));
        self.count(&answer);
        answer
    }

    /// Sends a watch request, and returns its lines.
    pub(super) async fn open(
        &self,
        call: Call,
        request: Request<Vec<u8>>,
    ) -> Result<WatchLines, Failure> {
        let sent = tokio::time::timeout(self.deadline, self.send(call, request)).await;
        let answer = sent.unwrap_or(Err(Failure::Timeout(self.deadline)));
        self.count(&answer);
        Ok(WatchLines {
            body: answer?.into_body(),
            buffer: Vec::new(),
            scanned: 0,
        })
    }

    /// The failure for a request that can't be built; the counters include it.
    pub(super) fn unbuilt(&self, error: impl std::fmt::Display) -> Failure {
        let failure = Failure::InvalidRequest(error.to_string());
        self.counters.failed(failure.kind());
        failure
    }

    pub(super) fn count<T>(&self, answer: &Result<T, Failure>) {
        match answer {
            Ok(_) => self.counters.succeeded(),
            Err(failure) => self.counters.failed(failure.kind()),
        }
    }

    /// The failure of the connection.
    fn broken(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        let words = words(error);
        Failure::Connection(match &self.server {
            Some(server) => format!("{words} ({server})"),
            None => words,
        })
    }

    async fn send(&self, call: Call, request: Request<Vec<u8>>) -> Result<Response<Body>, Failure> {
        self.counters.add_request(call);
        let response = self.client.send(request.map(Body::from)).await;
        let response = response.map_err(|error| self.broken(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response).await)
    }
}

/// Why a request failed, as a line of text: in words if the connection failed, else the error and its causes. A cause that the
/// text already contains is left out, and so are the names by which the HTTP client tells its own layers apart.
pub(crate) fn words(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(words) = connection::in_words(error) {
        return words;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // The message of some errors contains the cause already.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    let text = text.strip_prefix("ServiceError: ").unwrap_or(&text);
    let inside = text.strip_prefix("client error (");
    let inside = inside.and_then(|rest| Some(rest.split_once("): ")?.1));
    short(inside.unwrap_or(text))
}

/// Reads the body of an unsuccessful response. The header `Retry-After` overrides the Status's `retryAfterSeconds`.
async fn refusal(response: Response<Body>) -> Failure {
    let code = response.status();
    let header = response.headers().get(hyper::header::RETRY_AFTER);
    let seconds = header
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.trim().parse().ok());
    let body = Limited::new(response.into_body(), LONGEST_LINE)
        .collect()
        .await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let mut status = serde_json::from_slice::<Status>(&bytes)
        .ok()
        .filter(|status| status.code > 0)
        .unwrap_or_else(|| status_from_text(code, &String::from_utf8_lossy(&bytes)));
    status.code = code.as_u16();
    match Failure::refused(status) {
        Failure::Refused {
            status,
            retry_after,
        } => Failure::Refused {
            status,
            retry_after: seconds.map(Duration::from_secs).or(retry_after),
        },
        other => other,
    }
}

/// A Status for a plain-text answer, as from the server's flow control and from proxies.
fn status_from_text(code: StatusCode, text: &str) -> Status {
    Status::failure(text.trim(), code.canonical_reason().unwrap_or("unknown"))
        .with_code(code.as_u16())
}

/// The body of a watch, line by line.
pub(super) struct WatchLines {
    body: Body,
    buffer: Vec<u8>,
    /// How many bytes at the start of the buffer are known to have no end of line.
    scanned: usize,
}

// === impl WatchLines ===

impl WatchLines {
    /// The next complete line, or `None` at the end of the body. An incomplete last line is dropped.
    ///
    /// Cancel safe: received bytes stay in the buffer.
    ///
    /// # Errors
    /// The connection broke, no data came within `idle`, or a line is too long.
    pub(super) async fn next(&mut self, idle: Duration) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            let end = self
                .buffer
                .iter()
                .skip(self.scanned)
                .position(|byte| *byte == b'\n');
            if let Some(end) = end.map(|end| end + self.scanned) {
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                self.scanned = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.scanned = self.buffer.len();
            if self.scanned > LONGEST_LINE {
                return Err(Failure::InvalidResponse(format!(
                    "a line of more than {LONGEST_LINE} bytes"
                )));
            }
            match tokio::time::timeout(idle, self.body.frame()).await {
                Err(_) => return Err(Failure::Timeout(idle)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Failure::Connection(words(&error))),
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}
