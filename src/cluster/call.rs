//! [`Api`]: one request and its answer, in time and in bounds, or a [`Failure`] that says what to do next.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::{Request, Response, StatusCode};
use kube::client::Body;
use kube::core::Status;
use serde::de::DeserializeOwned;

use super::{Call, Counters, ErrorKind};

/// The longest answer that is read: a page of 500 pods stays far below.
const LONGEST_ANSWER: usize = 64 << 20;

/// The longest line of a watch: etcd stores no object above 1.5 MiB.
const LONGEST_LINE: usize = 8 << 20;

/// The longest part of somebody's message that is passed on.
const LONGEST_WORDS: usize = 300;

/// Why a request came to nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// No connection, or one that broke.
    #[error("the API server can't be reached: {0}")]
    Connection(String),
    /// No answer in time.
    #[error("the API server gave no answer within {0:?}")]
    Timeout(Duration),
    /// An answer that says no.
    #[error("the API server answered {} {}: {}", .status.code, .status.reason, short(&.status.message))]
    Refused {
        /// Its Status; made up from the code and the text where the body was none.
        status: Box<Status>,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// An answer that can't be read.
    #[error("the API server's answer makes no sense: {0}")]
    InvalidResponse(String),
}

// === impl Failure ===

impl Failure {
    /// Its kind, for counting.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Connection(_) => ErrorKind::Connection,
            Self::Timeout(_) => ErrorKind::Timeout,
            Self::InvalidResponse(_) => ErrorKind::InvalidResponse,
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

    /// How long the server wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The server's own words, where it refused.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Whether the request may have been carried out although no answer came.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Connection(_) | Self::Timeout(_) | Self::InvalidResponse(_) => true,
            Self::Refused { status, .. } => status.code >= 500,
        }
    }

    /// Whether the version that was asked for is too old: the server has forgotten it, and all must be read anew.
    pub fn is_expired(&self) -> bool {
        self.status().is_some_and(|status| {
            status.code == 410 || matches!(&*status.reason, "Expired" | "Gone")
        })
    }

    /// Whether it lasts until somebody does something about it: gives a right, installs a definition, mends what was refused.
    pub fn is_terminal(&self) -> bool {
        let code = self.status().map_or(0, |status| status.code);
        (400..500).contains(&code) && !matches!(code, 408..=410 | 429)
    }

    /// Whether trying the same again later may help.
    pub fn is_retryable(&self) -> bool {
        self.is_uncertain() || self.kind() == ErrorKind::TooManyRequests
    }

    /// A request that could not be built.
    pub(super) fn unbuilt(error: impl std::fmt::Display) -> Self {
        Self::InvalidResponse(format!("a request that can't be made: {error}"))
    }

    /// An answer that could not be decoded.
    pub(super) fn invalid(error: impl std::fmt::Display) -> Self {
        Self::InvalidResponse(error.to_string())
    }

    pub(super) fn refused(status: Status) -> Self {
        let asked = status
            .details
            .as_ref()
            .map_or(0, |details| details.retry_after_seconds);
        let retry_after = (asked > 0).then(|| Duration::from_secs(asked.into()));
        Self::Refused {
            status: Box::new(status),
            retry_after,
        }
    }
}

/// A message that may be a proxy's whole page, cut to a line.
pub(crate) fn short(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST_WORDS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// The API, with a deadline for each request and counters of all of them. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    deadline: Duration,
    counters: Arc<Counters>,
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
    /// A request that is not answered within `deadline` has failed.
    pub fn new(client: kube::Client, deadline: Duration) -> Self {
        Self {
            client,
            deadline,
            counters: Arc::default(),
        }
    }

    /// What was asked so far; shared by all clones.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Asks, and reads the answer as JSON.
    ///
    /// # Errors
    /// Any [`Failure`]; it is counted.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        call: Call,
        request: Request<Vec<u8>>,
    ) -> Result<T, Failure> {
        let asked = tokio::time::timeout(self.deadline, async {
            let body = self.send(call, request).await?.into_body();
            let bytes = Limited::new(body, LONGEST_ANSWER).collect().await;
            let bytes = bytes
                .map_err(|error| Failure::Connection(words(&*error)))?
                .to_bytes();
            serde_json::from_slice(&bytes).map_err(Failure::invalid)
        });
        let answer = asked.await.unwrap_or(Err(Failure::Timeout(self.deadline)));
        self.count(&answer);
        answer
    }

    /// Opens a watch.
    pub(super) async fn open(
        &self,
        call: Call,
        request: Request<Vec<u8>>,
    ) -> Result<Lines, Failure> {
        let sent = tokio::time::timeout(self.deadline, self.send(call, request)).await;
        let answer = sent.unwrap_or(Err(Failure::Timeout(self.deadline)));
        self.count(&answer);
        Ok(Lines {
            body: answer?.into_body(),
            buffer: Vec::new(),
            looked: 0,
        })
    }

    pub(super) fn count<T>(&self, answer: &Result<T, Failure>) {
        match answer {
            Ok(_) => self.counters.succeeded(),
            Err(failure) => self.counters.failed(failure.kind()),
        }
    }

    async fn send(&self, call: Call, request: Request<Vec<u8>>) -> Result<Response<Body>, Failure> {
        self.counters.asked(call);
        let response = self.client.send(request.map(Body::from)).await;
        let response = response.map_err(|error| Failure::Connection(words(&error)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response).await)
    }
}

/// An error and its causes, each once.
pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some put their cause into their own words.
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    short(&said)
}

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
        .unwrap_or_else(|| told_in_text(code, &String::from_utf8_lossy(&bytes)));
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

/// Flow control and proxies answer with a text.
fn told_in_text(code: StatusCode, text: &str) -> Status {
    Status::failure(text.trim(), code.canonical_reason().unwrap_or("unknown"))
        .with_code(code.as_u16())
}

/// A watch's body, line by line.
pub(super) struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// How much of the buffer holds no end of a line.
    looked: usize,
}

// === impl Lines ===

impl Lines {
    /// The next whole line; `None` at the end. What is left without an end of line is dropped: half a line says nothing.
    ///
    /// Cancel safe: what was read stays in the buffer.
    ///
    /// # Errors
    /// The connection broke, nothing came within `idle`, or a line is too long.
    pub(super) async fn next(&mut self, idle: Duration) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            let end = self
                .buffer
                .iter()
                .skip(self.looked)
                .position(|byte| *byte == b'\n');
            if let Some(end) = end.map(|end| end + self.looked) {
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                self.looked = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.looked = self.buffer.len();
            if self.looked > LONGEST_LINE {
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
