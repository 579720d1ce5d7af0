//! The transport: HTTP/1.1 over TCP, or direct calls without a socket.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::SharedState;
use super::forward;
use super::serve::{self, ApiRequest};
use super::status::Refusal;

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) kind: &'static str,
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Payload,
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Payload {
    Whole(Option<Bytes>),
    /// The lines of a watch. An error cuts the connection.
    Lines(mpsc::Receiver<std::io::Result<Bytes>>),
    /// The connection is cut after these bytes.
    Half(Option<Bytes>),
}

// === impl Reply ===

impl Reply {
    pub(crate) fn json(code: u16, value: &Value) -> Self {
        let body = Payload::whole(&(value.to_string() + "\n"));
        Self {
            code,
            kind: "application/json",
            retry_after: None,
            body,
        }
    }

    /// A response from serialized JSON.
    pub(crate) fn text(code: u16, text: Bytes) -> Self {
        Self {
            code,
            kind: "application/json",
            retry_after: None,
            body: Payload::Whole(Some(text)),
        }
    }

    pub(crate) fn refusal(refusal: &Refusal) -> Self {
        let mut reply = match &refusal.body {
            Value::String(text) => Self {
                code: refusal.code,
                kind: "text/plain; charset=utf-8",
                retry_after: None,
                body: Payload::whole(text),
            },
            status => Self::json(refusal.code, status),
        };
        reply.retry_after = refusal.retry_after;
        reply
    }

    /// The response, cut after half of the body.
    pub(crate) fn half(mut self) -> Self {
        if let Payload::Whole(Some(bytes)) = self.body {
            self.body = Payload::Half(Some(bytes.slice(..bytes.len() / 2)));
        }
        self
    }

    fn response(self) -> Response<Payload> {
        let mut response = Response::builder()
            .status(self.code)
            .header("content-type", self.kind)
            .header("cache-control", "no-cache, private");
        if let Some(seconds) = self.retry_after {
            response = response.header("retry-after", seconds);
        }
        response.body(self.body).unwrap()
    }
}

// === impl Payload ===

impl Payload {
    pub(crate) fn whole(text: &str) -> Self {
        Self::Whole(Some(Bytes::copy_from_slice(text.as_bytes())))
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Lines(lines) => lines
                .poll_recv(context)
                .map(|line| line.map(|line| line.map(Frame::data))),
            Self::Half(bytes) => Poll::Ready(Some(match bytes.take() {
                Some(bytes) => Ok(Frame::data(bytes)),
                None => Err(std::io::Error::other("cut")),
            })),
        }
    }
}

/// Answers a request without an upgrade.
pub(crate) async fn answer<B: Body + Send>(
    shared: &Arc<SharedState>,
    request: Request<B>,
) -> std::io::Result<Response<Payload>>
where
    B::Error: std::fmt::Debug,
    B::Data: Send,
{
    let (head, body) = request.into_parts();
    let header = |name: &str| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let token = header("authorization")
        .strip_prefix("Bearer ")
        .map(str::to_owned);
    let ask = ApiRequest {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        content_type: header("content-type").to_owned(),
        accept: header("accept").to_owned(),
        token,
        agent: header("user-agent").to_owned(),
        body: body
            .collect()
            .await
            .map_err(|_| std::io::Error::other("no body"))?
            .to_bytes(),
    };
    match serve::handle(shared, ask).await {
        Some(reply) => Ok(reply.response()),
        None => Err(std::io::Error::other("dropped on demand")),
    }
}

/// Serves connections until `stop` is cancelled.
pub(crate) async fn listen(
    listener: TcpListener,
    shared: Arc<SharedState>,
    stop: CancellationToken,
) {
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        // The token comes first: if the server goes away after the check, the token is cancelled.
        let end = shared.connections.lock().unwrap().clone();
        if shared.away.load(Ordering::SeqCst) {
            // A TCP reset, as from a machine without a listener on the port.
            let _ = stream.set_zero_linger();
            continue;
        }
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = Arc::clone(&shared);
                async move { forward::serve(&shared, request).await }
            });
            let connection = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            // With `biased`, a request that arrives after the cut gets no answer.
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                _ = connection => {}
            }
        });
    }
}

/// A client that calls the server directly. Without a socket, tokio's paused clock advances when all tasks wait.
pub(crate) fn direct_client(shared: &Arc<SharedState>, token: &str) -> kube::Client {
    kube::Client::new(
        Direct {
            shared: Arc::clone(shared),
            token: token.to_owned(),
        },
        "default",
    )
}

#[derive(Debug, Clone)]
struct Direct {
    shared: Arc<SharedState>,
    token: String,
}

type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<Cuttable>, std::io::Error>> + Send>>;

impl tower_service::Service<Request<kube::client::Body>> for Direct {
    type Response = Response<Cuttable>;
    type Error = std::io::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<kube::client::Body>) -> ResponseFuture {
        let shared = Arc::clone(&self.shared);
        let bearer = format!("Bearer {}", self.token);
        Box::pin(async move {
            if shared.away.load(Ordering::SeqCst) {
                return Err(std::io::Error::new(
                    std::io::ErrorKind::ConnectionRefused,
                    "connection refused",
                ));
            }
            let end = shared.connections.lock().unwrap().clone();
            request
                .headers_mut()
                .insert("authorization", bearer.parse().unwrap());
            let answer = tokio::select! {
                answer = answer(&shared, request) => answer?,
                () = end.cancelled() => return Err(std::io::Error::other("connection reset")),
            };
            Ok(answer.map(|body| Cuttable {
                body,
                cut: Box::pin(end.cancelled_owned()),
            }))
        })
    }
}

/// A body that fails when the fake cuts its connections.
struct Cuttable {
    body: Payload,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Body for Cuttable {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(std::io::Error::other("connection reset"))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
}
