//! Metrics, health and status over HTTP.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, VARY,
    WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use serde::Serialize;
use tokio::sync::watch;

use super::access::{self, AccessRefusal, AccessRules};
use super::api::{ClusterLink, ClusterLinkState};
use super::exporter::Exporter;
use super::heartbeat::{Health, Heartbeat};
use super::node_capacity::CapacityState;
use super::runtime;
use super::server::{BodyPieces, CONNECTION_TIMEOUT, Caller, PageBuilder, Responder};
use crate::metrics::{Chunk, Format, PAGE_TIME};
use crate::pin::{Enforcement, Snapshot};
use crate::text::terminal::{escape, escape_json, escape_lines};

/// The header in which Prometheus states its scrape timeout in seconds.
const SCRAPE_TIMEOUT: &str = "x-prometheus-scrape-timeout-seconds";

/// At most this much of the scrape timeout is reserved for sending the page; of a short timeout, a
/// quarter.
const SCRAPE_MARGIN: Duration = Duration::from_millis(500);

/// The answer before the first successful turn.
const NO_TURN: &str = "not ready: no turn of the reconciler has succeeded so far\n";

/// The state from which requests are answered.
#[derive(Debug)]
pub(super) struct HttpState {
    pub(super) snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    pub(super) heartbeat: Heartbeat,
    pub(super) exporter: Exporter,
    /// The rules that decide which callers may read names of pods.
    pub(super) access: AccessRules,
}

/// The JSON document of `/status`.
#[derive(Serialize)]
struct StatusDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterLinkState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<runtime::RuntimeLinkState>,
    /// Absent where Pinfold gives no CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<CapacityState>,
    #[serde(flatten)]
    snapshot: Snapshot,
}

/// The JSON document of `/status` for a caller who may not read names of pods.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShortStatus {
    /// Why the caller gets the short form, with the remedy.
    restricted: String,
    ready: bool,
    enforcement: Enforcement,
    exclusive_containers: usize,
    /// The problems that `/readyz` counts.
    problems: usize,
}

// === impl HttpState ===

impl HttpState {
    /// The response to a scrape; `None` if another page was still being built at `until`.
    fn scrape(
        &self,
        snapshot: &Arc<Snapshot>,
        request: &HeaderMap,
        until: Instant,
    ) -> Option<Response<BodyPieces>> {
        let header = |name| {
            request
                .get(name)
                .and_then(|value: &HeaderValue| value.to_str().ok())
                .unwrap_or_default()
        };
        let format = Format::accepted(header(ACCEPT));
        let chunks = self.exporter.scrape(snapshot, format, until)?;
        let mut response = if accepts_gzip(header(ACCEPT_ENCODING)) {
            let mut response = typed(StatusCode::OK, format.content_type(), gzip(&chunks));
            response
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        } else {
            // The collected chunks go to the client without a copy.
            typed(
                StatusCode::OK,
                format.content_type(),
                chunks.into_iter().map(Bytes::from_owner).collect(),
            )
        };
        response
            .headers_mut()
            .insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
        Some(response)
    }

    fn status(&self, snapshot: &Arc<Snapshot>, until: Instant) -> serde_json::Result<String> {
        let cluster = self.exporter.link.as_ref().map(ClusterLink::state);
        let runtime = self
            .exporter
            .runtime
            .as_ref()
            .map(runtime::RuntimeLink::state);
        // `/status` collects fresh data, because the node may have no scraper.
        let threads = self.exporter.sources.thread_statuses(snapshot, until);
        let mut snapshot = Snapshot::clone(snapshot);
        for (container, threads) in snapshot.containers.iter_mut().zip(threads) {
            container.observed = threads;
        }
        serde_json::to_string_pretty(&StatusDocument {
            cluster,
            runtime,
            capacity: self.exporter.capacity.state(&snapshot),
            snapshot,
        })
    }

    /// # Errors
    ///
    /// The reason why the caller may not read the path.
    async fn check(
        &self,
        path: access::ProtectedPath,
        caller: &Caller,
    ) -> Result<(), AccessRefusal> {
        let headers = &caller.request.headers;
        self.access.check(path, caller.is_local, headers).await
    }

    fn short_status(&self, snapshot: &Snapshot, refusal: AccessRefusal) -> Response<BodyPieces> {
        let containers = snapshot.containers.iter();
        let status = ShortStatus {
            restricted: refusal.to_string(),
            ready: self.is_ready(),
            enforcement: snapshot.enforcement,
            exclusive_containers: containers
                .filter(|container| container.assigned.is_some() && container.effective.is_some())
                .count(),
            problems: self.problems(snapshot).len(),
        };
        json(serde_json::to_string_pretty(&status))
    }

    /// The reason why a working agent is not ready yet.
    fn awaited(&self) -> Option<String> {
        self.exporter.link.as_ref().and_then(ClusterLink::awaited)
    }

    /// Whether the agent does its work: it knows its pods, and its turns do not fail again and again.
    fn is_ready(&self) -> bool {
        self.awaited().is_none() && self.heartbeat.failing().is_none()
    }

    /// The problems of a ready agent, as sentences for people.
    fn problems(&self, snapshot: &Snapshot) -> Vec<String> {
        let problem = self.exporter.link.as_ref().and_then(ClusterLink::problem);
        let runtime = self
            .exporter
            .runtime
            .as_ref()
            .and_then(runtime::RuntimeLink::problem);
        let taint = self.exporter.link.as_ref();
        let taint = taint.and_then(ClusterLink::startup_taint);
        problem
            .into_iter()
            .chain(taint)
            .chain(runtime)
            .chain(snapshot.errors.iter().cloned())
            .collect()
    }
}

impl Responder for HttpState {
    async fn respond(&self, caller: &Caller, making: &PageBuilder) -> Response<BodyPieces> {
        answer(caller, self, making).await
    }
}

/// The response to a request with a method other than GET and HEAD.
pub(super) fn refused_method(request: &Parts) -> Option<Response<BodyPieces>> {
    if request.method == Method::GET || request.method == Method::HEAD {
        return None;
    }
    let says = "only GET and HEAD are possible\n".to_owned();
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, says);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    Some(response)
}

async fn answer(caller: &Caller, state: &HttpState, making: &PageBuilder) -> Response<BodyPieces> {
    let request = &caller.request;
    if let Some(refusal) = refused_method(request) {
        return refusal;
    }
    let snapshot = state.snapshot.borrow().clone();
    match (request.uri.path(), snapshot) {
        ("/healthz", _) => health(state),
        ("/readyz", snapshot) => readiness(state, snapshot.as_deref(), caller.is_local),
        ("/metrics" | "/status", None) => text(StatusCode::SERVICE_UNAVAILABLE, NO_TURN),
        ("/metrics", Some(snapshot)) => metrics_page(caller, state, making, &snapshot).await,
        ("/status", Some(snapshot)) => status_page(caller, state, making, &snapshot).await,
        ("/", _) => text(
            StatusCode::OK,
            "pinfold: /metrics /status /healthz /readyz\n",
        ),
        (path, _) => text(
            StatusCode::NOT_FOUND,
            format!("no {path}: try /metrics, /status, /healthz, /readyz\n"),
        ),
    }
}

fn health(state: &HttpState) -> Response<BodyPieces> {
    match state.heartbeat.health() {
        Health::Alive => text(StatusCode::OK, "ok\n"),
        Health::Starting(reason) => text(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("starting: {reason}\n"),
        ),
        Health::Stuck(reason) => text(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("stuck: {reason}\n"),
        ),
    }
}

/// Only callers on this host get the sentences, because these may name pods and the API server's
/// address.
fn readiness(
    state: &HttpState,
    snapshot: Option<&Snapshot>,
    is_local: bool,
) -> Response<BodyPieces> {
    if let Some(failing) = state.heartbeat.failing() {
        let remote = "the turns of the reconciler fail again and again (the log has the reason)";
        let reason = if is_local { failing.as_str() } else { remote };
        let says = format!("not ready: {}; assignments stay\n", escape(reason));
        return text(StatusCode::SERVICE_UNAVAILABLE, says);
    }
    let Some(snapshot) = snapshot else {
        return text(StatusCode::SERVICE_UNAVAILABLE, NO_TURN);
    };
    match (state.awaited(), state.problems(snapshot)) {
        (Some(awaited), _) => {
            let remote = "the agent waits for the API server (the log has the reason)";
            let reason = if is_local { awaited.as_str() } else { remote };
            let says = format!("not ready: {reason}; running containers stay unchanged\n");
            text(StatusCode::SERVICE_UNAVAILABLE, says)
        }
        (None, problems) if problems.is_empty() => text(StatusCode::OK, "ready\n"),
        (None, problems) if is_local => text(
            StatusCode::OK,
            format!("ready, with errors:\n{}\n", as_lines(&problems)),
        ),
        (None, problems) => text(
            StatusCode::OK,
            format!("ready, with errors: {}\n", problems.len()),
        ),
    }
}

async fn metrics_page(
    caller: &Caller,
    state: &HttpState,
    making: &PageBuilder,
    snapshot: &Arc<Snapshot>,
) -> Response<BodyPieces> {
    let headers = &caller.request.headers;
    let until = Instant::now() + page_time(headers);
    let checked = state.check(access::ProtectedPath::Metrics, caller).await;
    if let Err(refusal) = checked {
        return refused(refusal);
    }
    let page = making
        .run(until, || state.scrape(snapshot, headers, until))
        .await;
    page.flatten().unwrap_or_else(too_late)
}

async fn status_page(
    caller: &Caller,
    state: &HttpState,
    making: &PageBuilder,
    snapshot: &Arc<Snapshot>,
) -> Response<BodyPieces> {
    let checked = state.check(access::ProtectedPath::Status, caller).await;
    if let Err(refusal) = checked {
        return state.short_status(snapshot, refusal);
    }
    let until = Instant::now() + PAGE_TIME;
    match making.run(until, || state.status(snapshot, until)).await {
        Some(status) => json(status),
        None => too_late(),
    }
}

fn refused(refusal: AccessRefusal) -> Response<BodyPieces> {
    let mut response = text(refusal.status(), format!("{refusal}\n"));
    if response.status() == StatusCode::UNAUTHORIZED {
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn json(document: serde_json::Result<String>) -> Response<BodyPieces> {
    match document {
        Ok(json) => typed(
            StatusCode::OK,
            "application/json",
            BodyPieces::one(escape_json(&json).into_owned() + "\n"),
        ),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

pub(super) fn text(status: StatusCode, text: impl AsRef<str>) -> Response<BodyPieces> {
    // People read the answers with curl, too.
    let text = escape_lines(text.as_ref()).into_owned();
    typed(status, "text/plain; charset=utf-8", BodyPieces::one(text))
}

/// The problems, a line each, whatever texts of others they hold.
fn as_lines(problems: &[String]) -> String {
    let lines: Vec<_> = problems.iter().map(|problem| escape(problem)).collect();
    lines.join("\n")
}

/// The response to a client whose page could not be built in time.
fn too_late() -> Response<BodyPieces> {
    let says = "the page was not ready in time, because the agent served other clients: raise the scrape timeout, or \
                scrape less often\n";
    text(StatusCode::SERVICE_UNAVAILABLE, says)
}

/// The time for building the page: the scraper's timeout less a margin, or the default if it sends
/// no usable one.
fn page_time(request: &HeaderMap) -> Duration {
    let seconds = request
        .get(SCRAPE_TIMEOUT)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match timeout.filter(|timeout| !timeout.is_zero()) {
        Some(timeout) => {
            let timeout = timeout.min(CONNECTION_TIMEOUT);
            timeout - SCRAPE_MARGIN.min(timeout / 4)
        }
        None => PAGE_TIME,
    }
}

/// Whether a client takes compressed answers, by its `Accept-Encoding` header.
fn accepts_gzip(header: &str) -> bool {
    let mut others = false;
    for coding in header.split(',') {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight =
            parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        let accepted = weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0)) > 0.0;
        if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") {
            return accepted;
        }
        // `*` stands for every coding that the header does not name.
        others |= name == "*" && accepted;
    }
    others
}

/// Compresses at the fastest level, because series are much alike and a higher one saves little.
fn gzip(chunks: &[Chunk]) -> BodyPieces {
    let length: usize = chunks.iter().map(|chunk| chunk.as_ref().len()).sum();
    let mut encoder = GzEncoder::new(Vec::with_capacity(length / 8), Compression::fast());
    // Writing to memory does not fail.
    chunks
        .iter()
        .for_each(|chunk| drop(encoder.write_all(chunk.as_ref())));
    BodyPieces::one(encoder.finish().unwrap_or_default())
}

pub(super) fn typed(
    status: StatusCode,
    kind: &'static str,
    body: BodyPieces,
) -> Response<BodyPieces> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_complete_before_the_scraper_gives_up() {
        let time = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            page_time(&HeaderMap::from_iter([(
                SCRAPE_TIMEOUT.parse().unwrap(),
                value,
            )]))
        };
        assert_eq!(page_time(&HeaderMap::new()), PAGE_TIME);
        for (header, milliseconds) in [
            ("10", 9500),
            ("10.000000", 9500),
            ("1", 750),
            (" 0.2 ", 150),
        ] {
            assert_eq!(
                time(header),
                Duration::from_millis(milliseconds),
                "{header:?}"
            );
        }
        for header in ["", "x", "0", "-1", "NaN", "inf", "1e300"] {
            assert_eq!(time(header), PAGE_TIME, "{header:?}");
        }
        assert!(time("1e9") < CONNECTION_TIMEOUT);
    }

    #[test]
    fn only_a_client_that_accepts_gzip_gets_gzip() {
        for (header, accepted) in [
            ("gzip", true),
            ("deflate, gzip;q=0.5", true),
            ("*", true),
            ("", false),
            ("identity", false),
            ("gzip;q=0", false),
            ("gzip; q=0.0, br", false),
            ("gzip;q=0, *", false),
            ("*, gzip;q=0", false),
            ("*;q=0, gzip;q=0.1", true),
            ("br, *;q=0", false),
            ("GZIP", true),
            ("gzip;q=nonsense", false),
        ] {
            assert_eq!(accepts_gzip(header), accepted, "{header}");
        }
    }
}
