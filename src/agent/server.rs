//! [`serve`]: serves HTTP connections within bounds, so that no client can keep a probe or an allowed scraper waiting.
//!
//! Every connection has an [`Activity`]. If there are too many connections, the least active one is
//! closed, and among equals the oldest: first connections without a complete request, then callers
//! who have not been accepted yet, and only then callers whose page is being built or sent. The
//! same holds among the connections of one address, which has only a share of all.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::access;

/// How many connections are served at once.
const CONNECTIONS: usize = 32;

/// How many of them may come from one address. A scraper needs one or two, and several may share an
/// address.
const CONNECTIONS_OF_ADDRESS: usize = 8;

/// How many pages of `/metrics` and `/status` are built at once. Each takes memory and a thread, so
/// further requests wait.
const PAGES: usize = 8;

/// How long a client may take to send the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The time after which a connection takes no further request. A request in progress has the same time again.
pub(super) const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a client may leave an answer unread, in milliseconds, before the kernel ends the
/// connection.
const WRITE_TIMEOUT_MS: u32 = 10_000;

/// A connection without a complete request.
const IDLE: u8 = 0;

/// A caller has sent a request, and may still be refused.
const ASKING: u8 = 1;

/// A caller was accepted, and the page has not left completely.
const ACCEPTED: u8 = 2;

#[derive(Debug, Default)]
struct Activity {
    /// [`IDLE`], [`ASKING`] or [`ACCEPTED`].
    phase: AtomicU8,
    /// Whether hyper has the whole answer, which it may still have to send.
    answered: AtomicBool,
}

struct HttpConnection {
    task: JoinHandle<()>,
    peer: IpAddr,
    activity: Arc<Activity>,
}

/// A request, and where it comes from.
pub(super) struct Caller {
    /// Whether the request comes from this host and not through a proxy.
    pub(super) is_local: bool,
    pub(super) request: Parts,
}

/// What a server answers with.
pub(super) trait Responder: Send + Sync + 'static {
    fn respond(
        &self,
        caller: &Caller,
        making: &PageBuilder,
    ) -> impl Future<Output = Response<BodyPieces>> + Send;
}

/// Builds pages for a connection whose caller was accepted.
#[derive(Clone)]
pub(super) struct PageBuilder {
    /// The limit on the pages that are built at the same time, for all connections together.
    pages: Arc<Semaphore>,
    activity: Arc<Activity>,
}

/// A response body in pieces.
pub(super) struct BodyPieces(VecDeque<Bytes>);

/// A body that tells when hyper has taken all of it or has given it up.
struct SentBody {
    pieces: BodyPieces,
    activity: Arc<Activity>,
}

/// The socket of a connection. hyper flushes it only after it has written everything, so a flush
/// after the last piece of an answer shows that the answer has left.
struct FlushedStream {
    stream: TcpStream,
    activity: Arc<Activity>,
}

// === impl Activity ===

impl Activity {
    /// A complete request arrived.
    fn received(&self) {
        self.answered.store(false, Ordering::Relaxed);
        self.phase.fetch_max(ASKING, Ordering::Relaxed);
    }

    /// The caller may read the page.
    fn accepted(&self) {
        self.phase.store(ACCEPTED, Ordering::Relaxed);
    }

    /// Everything that hyper had to send was sent.
    fn flushed(&self) {
        if self.answered.swap(false, Ordering::Relaxed) {
            self.phase.store(IDLE, Ordering::Relaxed);
        }
    }
}

// === impl PageBuilder ===

impl PageBuilder {
    /// Waits for a permit without blocking a thread, and then builds a page. `None` if no permit
    /// was free by `until`.
    pub(super) async fn run<T>(&self, until: Instant, make: impl FnOnce() -> T) -> Option<T> {
        self.activity.accepted();
        let permit = tokio::time::timeout_at(until.into(), self.pages.acquire())
            .await
            .ok()?;
        let page = tokio::task::block_in_place(make);
        drop(permit);
        Some(page)
    }
}

// === impl BodyPieces ===

impl BodyPieces {
    pub(super) fn one(body: impl Into<Bytes>) -> Self {
        Self(VecDeque::from([body.into()]))
    }
}

impl FromIterator<Bytes> for BodyPieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        Self(
            pieces
                .into_iter()
                .filter(|piece| !piece.is_empty())
                .collect(),
        )
    }
}

// === impl SentBody ===

impl Body for SentBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(
            self.pieces
                .0
                .pop_front()
                .map(|piece| Ok(Frame::data(piece))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.0.is_empty()
    }

    /// The exact length of the body, which the client gets before the first piece.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

impl Drop for SentBody {
    fn drop(&mut self) {
        self.activity.answered.store(true, Ordering::Relaxed);
    }
}

// === impl FlushedStream ===

impl AsyncRead for FlushedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for FlushedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.activity.flushed();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Serves connections until `stop` is cancelled.
pub(super) async fn serve<R: Responder>(
    listener: TcpListener,
    responder: Arc<R>,
    stop: CancellationToken,
) {
    let mut open: VecDeque<HttpConnection> = VecDeque::with_capacity(CONNECTIONS);
    let pages = Arc::new(Semaphore::new(PAGES));
    let mut last_error = None;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip().to_canonical()),
            Err(error) => {
                // The process may be out of file descriptors, and then only waiting helps.
                if last_error.replace(error.kind()) != Some(error.kind()) {
                    tracing::warn!("can't accept a connection: {error}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        last_error = None;
        if let Err(error) = setsockopt(&stream, sockopt::TcpUserTimeout, &WRITE_TIMEOUT_MS) {
            tracing::debug!("can't set the write timeout of a connection: {error}");
        }
        make_room(&mut open, peer);
        let activity = Arc::<Activity>::default();
        let making = PageBuilder {
            pages: Arc::clone(&pages),
            activity: Arc::clone(&activity),
        };
        let serving = serve_connection(stream, Arc::clone(&responder), making, stop.clone());
        open.push_back(HttpConnection {
            task: tokio::spawn(serving),
            peer,
            activity,
        });
    }
}

/// Closes a connection if there are too many, or too many of the address `peer`.
fn make_room(open: &mut VecDeque<HttpConnection>, peer: IpAddr) {
    open.retain(|connection| !connection.task.is_finished());
    let of_peer = |connection: &HttpConnection| connection.peer == peer;
    let is_peer_full = open.iter().filter(|other| of_peer(other)).count() >= CONNECTIONS_OF_ADDRESS;
    if !is_peer_full && open.len() < CONNECTIONS {
        return;
    }
    let candidates = open.iter().enumerate();
    let least = candidates
        .filter(|(_, connection)| !is_peer_full || of_peer(connection))
        .min_by_key(|(index, connection)| {
            (connection.activity.phase.load(Ordering::Relaxed), *index)
        })
        .map(|(index, _)| index);
    if let Some(connection) = least.and_then(|index| open.remove(index)) {
        connection.task.abort();
    }
}

/// Answers the requests of a connection until the client leaves, the time is up, or `stop` is cancelled.
async fn serve_connection<R: Responder>(
    stream: TcpStream,
    responder: Arc<R>,
    making: PageBuilder,
    stop: CancellationToken,
) {
    let is_local_connection = match (stream.peer_addr(), stream.local_addr()) {
        (Ok(peer), Ok(own)) => access::is_local_connection(peer.ip(), own.ip()),
        _ => false,
    };
    let stream = FlushedStream {
        stream,
        activity: Arc::clone(&making.activity),
    };
    let answer = service_fn(move |request: Request<Incoming>| {
        let (responder, making) = (Arc::clone(&responder), making.clone());
        making.activity.received();
        let request = request.into_parts().0;
        let caller = Caller {
            is_local: access::is_on_this_host(is_local_connection, &request.headers),
            request,
        };
        async move {
            let response = responder.respond(&caller, &making).await;
            Ok::<_, Infallible>(response.map(|pieces| SentBody {
                pieces,
                activity: making.activity,
            }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    // A client that disconnects early, or never reads the answer, is no error.
    tokio::select! {
        () = stop.cancelled() => return,
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => {}
    }
    // A page that is being built or sent is not cut off.
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        () = stop.cancelled() => {}
        _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use hyper::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::sync::Notify;

    use super::*;

    /// More than the kernel's buffers of a connection hold.
    const LARGE: usize = 16 << 20;

    /// Answers `/metrics` after a review that the test ends, `/later` after 90 s, and all other
    /// paths at once.
    struct Reviewed(Arc<Notify>);

    impl Responder for Reviewed {
        async fn respond(&self, caller: &Caller, making: &PageBuilder) -> Response<BodyPieces> {
            let path = caller.request.uri.path();
            if path == "/metrics" {
                self.0.notified().await;
            } else if path == "/later" {
                tokio::time::sleep(Duration::from_secs(90)).await;
                return Response::new(BodyPieces::one("late"));
            } else {
                let mut refused = Response::new(BodyPieces::one("no"));
                *refused.status_mut() = StatusCode::FORBIDDEN;
                return refused;
            }
            let until = Instant::now() + Duration::from_secs(60);
            let page = making.run(until, || vec![b'x'; LARGE]).await;
            Response::new(BodyPieces::one(page.unwrap()))
        }
    }

    struct Server {
        address: SocketAddr,
        review: Arc<Notify>,
    }

    impl Server {
        async fn start() -> Self {
            let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
            let address = ([127, 0, 0, 1], listener.local_addr().unwrap().port()).into();
            let review = Arc::<Notify>::default();
            let responder = Arc::new(Reviewed(Arc::clone(&review)));
            tokio::spawn(serve(listener, responder, CancellationToken::new()));
            Self { address, review }
        }

        /// A connection from the address 127.0.0.`last`, over which `text` was sent.
        async fn connect(&self, last: u8, text: &str) -> TcpStream {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 0, last], 0).into()).unwrap();
            let mut stream = socket.connect(self.address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            stream
        }

        /// `count` connections from each of five other addresses.
        async fn flood(&self, count: usize, text: &str) -> Vec<TcpStream> {
            let mut flood = Vec::new();
            for last in 2..7 {
                for _ in 0..count {
                    flood.push(self.connect(last, text).await);
                }
            }
            // The server accepts in order, so it has accepted the flood before this answer.
            let probe = self.connect(200, "GET /healthz HTTP/1.1\r\nHost: p\r\n\r\n");
            assert!(
                status_of(&mut probe.await)
                    .await
                    .starts_with("HTTP/1.1 403")
            );
            flood
        }
    }

    const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n";

    /// The beginning of an answer; empty if the connection was closed.
    async fn status_of(stream: &mut TcpStream) -> String {
        let mut bytes = [0; 12];
        match stream.read_exact(&mut bytes).await {
            Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }

    /// The number of bytes until the end of the connection.
    async fn length(stream: &mut TcpStream) -> usize {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes.len()
    }

    async fn moment() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn connections_without_a_request_never_push_out_a_caller_under_review() {
        for text in ["", "GET /metrics HTTP/1.1\r\nHost: slow"] {
            let server = Server::start().await;
            let mut scraper = server.connect(1, SCRAPE).await;
            moment().await;
            let _flood = server.flood(20, text).await;
            server.review.notify_one();
            assert_eq!(status_of(&mut scraper).await, "HTTP/1.1 200", "{text:?}");
            assert!(length(&mut scraper).await >= LARGE);
        }
    }

    /// 200 idle connections and 50 with half a request come from other addresses, some of them
    /// during each review.
    #[tokio::test(flavor = "multi_thread")]
    async fn each_scrape_succeeds_beside_connections_without_a_request() {
        let server = Server::start().await;
        let mut flood = Vec::new();
        for round in 0..5 {
            let mut scraper = server.connect(1, SCRAPE).await;
            moment().await;
            flood.extend(server.flood(8, "").await);
            flood.extend(server.flood(2, "GET /metrics HTTP/1.1\r\nHost: slow").await);
            server.review.notify_one();
            assert_eq!(status_of(&mut scraper).await, "HTTP/1.1 200", "{round}");
            assert!(length(&mut scraper).await >= LARGE, "{round}");
        }
        assert_eq!(flood.len(), 250);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn callers_under_review_never_push_out_a_page_that_is_sent() {
        let server = Server::start().await;
        let mut scraper = server.connect(1, SCRAPE).await;
        server.review.notify_one();
        assert_eq!(status_of(&mut scraper).await, "HTTP/1.1 200");
        // hyper has the whole page, but the kernel only a part of it, because the scraper reads
        // slowly.
        moment().await;
        let _flood = server.flood(20, SCRAPE).await;
        assert!(length(&mut scraper).await >= LARGE);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_answered_connection_is_closed_before_a_caller_under_review() {
        let server = Server::start().await;
        let mut scraper = server.connect(1, SCRAPE).await;
        moment().await;
        // Refused callers keep their connections open, and wait for nothing.
        let refused = server.flood(20, "GET / HTTP/1.1\r\nHost: p\r\n\r\n").await;
        moment().await;
        server.review.notify_one();
        assert_eq!(status_of(&mut scraper).await, "HTTP/1.1 200");
        drop(refused);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_address_has_only_its_share_of_the_connections() {
        let server = Server::start().await;
        // Idle connections of two other addresses, and a flood of complete requests of one.
        let mut quiet = [server.connect(1, "").await, server.connect(3, "").await];
        let mut flood = Vec::new();
        for _ in 0..3 * CONNECTIONS {
            flood.push(server.connect(2, SCRAPE).await);
        }
        moment().await;
        for stream in &mut quiet {
            let asked = stream.write_all(b"GET / HTTP/1.1\r\nHost: p\r\n\r\n").await;
            asked.unwrap();
            assert_eq!(status_of(stream).await, "HTTP/1.1 403");
        }
        // A newer caller from the same address gets an answer, too.
        let mut probe = server.connect(2, "GET / HTTP/1.1\r\nHost: p\r\n\r\n").await;
        assert_eq!(status_of(&mut probe).await, "HTTP/1.1 403");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_in_progress_outlives_the_time_of_its_connection() {
        let server = Server::start().await;
        let request = "GET /later HTTP/1.1\r\nHost: p\r\n\r\n";
        let mut scraper = server.connect(1, request).await;
        let began = tokio::time::Instant::now();
        assert_eq!(status_of(&mut scraper).await, "HTTP/1.1 200");
        assert_eq!(began.elapsed().as_secs(), 90);
        // The connection takes no second request.
        let mut rest = String::new();
        scraper.read_to_string(&mut rest).await.unwrap();
        assert!(
            rest.contains("connection: close") && rest.ends_with("late"),
            "{rest}"
        );
    }
}
