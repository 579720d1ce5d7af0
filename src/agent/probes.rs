//! [`ControllerProbes`]: metrics and probes of the reclaimer, on the HTTP server that the agent also uses. Every caller may
//! read all pages, because no page names a pod.

use std::sync::Arc;

use hyper::header::{ACCEPT, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::http::{refused_method, text, typed};
use super::server::{BodyPieces, Caller, PageBuilder, Responder, serve};
use crate::cluster::leader::CandidateState;
use crate::metrics::{Format, ReclaimMetrics};

/// The state from which requests to the reclaimer are answered.
#[derive(Debug)]
pub struct ControllerProbes {
    metrics: ReclaimMetrics,
    /// The standing in the election; `None` for a reclaimer without an election.
    standing: Option<Arc<CandidateState>>,
}

// === impl ControllerProbes ===

impl ControllerProbes {
    /// Creates the probes of a reclaimer with these metrics.
    pub fn new(metrics: ReclaimMetrics, standing: Option<Arc<CandidateState>>) -> Self {
        Self { metrics, standing }
    }

    /// Serves `/metrics`, `/healthz` and `/readyz` until `stop` is cancelled.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        serve(listener, Arc::new(self), stop).await;
    }

    fn health(&self) -> Response<BodyPieces> {
        if self
            .standing
            .as_ref()
            .is_some_and(|standing| standing.is_stuck())
        {
            let says =
                "stuck: no try to take or renew the Lease ended in the last minute\n".to_owned();
            return text(StatusCode::SERVICE_UNAVAILABLE, says);
        }
        text(StatusCode::OK, "ok\n")
    }

    /// The readiness probe. The problem may name the API server's address, so only callers on this host read it.
    fn readiness(&self, is_local: bool) -> Response<BodyPieces> {
        let problem = self
            .standing
            .as_ref()
            .and_then(|standing| standing.problem());
        match problem {
            Some(problem) if is_local => text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: {problem}\n"),
            ),
            Some(_) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: the election of the reclaimer fails; the log and /readyz on this host have the reason\n",
            ),
            None => text(StatusCode::OK, "ready\n"),
        }
    }

    fn page(&self, request: &Parts) -> Response<BodyPieces> {
        // A reclaimer without an election always acts.
        let leads = self
            .standing
            .as_ref()
            .is_none_or(|standing| standing.leads());
        self.metrics.leads(leads);
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
            "/healthz" => self.health(),
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
