//! [`ControllerProbes`]: metrics and probes of the reclaimer, on the HTTP server that the agent
//! also uses. Every caller may read all pages, because none of them names a pod.

use std::sync::Arc;

use hyper::header::{ACCEPT, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::http::{refused_method, text, typed};
use super::server::{BodyPieces, Caller, PageBuilder, Responder, serve};
use crate::metrics::{Format, ReclaimMetrics};

#[derive(Debug)]
pub struct ControllerProbes {
    metrics: ReclaimMetrics,
    /// Why the last round could not list the objects, or that no round has ended yet.
    problem: watch::Receiver<Option<String>>,
}

// === impl ControllerProbes ===

impl ControllerProbes {
    /// The reclaimer is ready while `problem` is `None`.
    pub fn new(metrics: ReclaimMetrics, problem: watch::Receiver<Option<String>>) -> Self {
        Self { metrics, problem }
    }

    /// Serves `/metrics`, `/healthz` and `/readyz` until `stop` is cancelled.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        serve(listener, Arc::new(self), stop).await;
    }

    /// The readiness probe. The problem may name the API server's address, so only callers on this host read it.
    fn readiness(&self, is_local: bool) -> Response<BodyPieces> {
        match &*self.problem.borrow() {
            Some(problem) if is_local => text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: {problem}\n"),
            ),
            Some(_) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: the reclaimer can't read the jobs; its log and /readyz on this host have the reason\n",
            ),
            None => text(StatusCode::OK, "ready\n"),
        }
    }

    fn page(&self, request: &Parts) -> Response<BodyPieces> {
        let accepted = request
            .headers
            .get(ACCEPT)
            .and_then(|value: &HeaderValue| value.to_str().ok());
        let format = Format::accepted(accepted.unwrap_or_default());
        let page = self.metrics.page().text(format);
        typed(StatusCode::OK, format.content_type(), BodyPieces::one(page))
    }
}

impl Responder for ControllerProbes {
    async fn respond(&self, caller: &Caller, _: &PageBuilder) -> Response<BodyPieces> {
        let request = &caller.request;
        if let Some(refusal) = refused_method(request) {
            return refusal;
        }
        match request.uri.path() {
            // Each of the reclaimer's requests has a deadline, so a process that answers here also
            // goes on.
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.readiness(caller.is_local),
            "/metrics" => self.page(request),
            "/" => text(
                StatusCode::OK,
                "pinfold reclaimer: /metrics /healthz /readyz\n",
            ),
            path => text(
                StatusCode::NOT_FOUND,
                format!("no {path}: try /metrics, /healthz, /readyz\n"),
            ),
        }
    }
}
