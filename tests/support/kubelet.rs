//! The kubelet's PodResources socket with the two methods that the agent calls. The answers have the fields of a real
//! kubelet with CPU Manager policy `none` or `static`.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinfold::host::pod_resources::SOCKET;
use tokio::net::UnixListener;

/// A root with the machine's own `sys` and `proc`, and a place for a kubelet's socket.
pub(crate) struct Root(tempfile::TempDir);

/// The writing end of a pipe from which the reconciler reads. If it is dropped, the reconciler goes
/// on without the file.
pub(crate) struct Pipe {
    path: PathBuf,
    _writer: fs::File,
}

/// A kubelet that answers until dropped. Like a real one, it leaves the socket behind.
pub(crate) struct Kubelet {
    assigns: Arc<AtomicBool>,
    _runtime: tokio::runtime::Runtime,
}

// === impl Root ===

impl Root {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for name in ["sys", "proc"] {
            std::os::unix::fs::symlink(Path::new("/").join(name), root.path().join(name)).unwrap();
        }
        fs::create_dir_all(root.path().join(SOCKET).parent().unwrap()).unwrap();
        Self(root)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.path().join(SOCKET)
    }

    /// Makes the agent's reconciler hang as it reads the CPU topology, by a pipe in the place of a
    /// file. Returns when it hangs.
    pub(crate) fn hang(&self) -> Pipe {
        let sys = self.0.path().join("sys");
        fs::remove_file(&sys).unwrap();
        let cpus = sys.join("devices/system/cpu");
        fs::create_dir_all(&cpus).unwrap();
        let pipe = cpus.join("online");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            // Opening the pipe succeeds once the reader has opened the pipe; the reader then waits for bytes.
            match fs::OpenOptions::new()
                .write(true)
                .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
                .open(&pipe)
            {
                Ok(file) => {
                    return Pipe {
                        path: pipe,
                        _writer: file,
                    };
                }
                Err(error) => assert!(
                    Instant::now() < deadline,
                    "nobody reads {}: {error}",
                    pipe.display()
                ),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A socket without a listener.
    pub(crate) fn leave_socket(&self) {
        drop(std::os::unix::net::UnixListener::bind(self.socket()).unwrap());
    }

    /// Starts a kubelet whose CPU Manager assigns CPUs, or has policy `none`.
    pub(crate) fn kubelet(&self, assigns: bool) -> Kubelet {
        let _ = fs::remove_file(self.socket());
        let assigns = Arc::new(AtomicBool::new(assigns));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(async { UnixListener::bind(self.socket()).unwrap() });
        let policy = Arc::clone(&assigns);
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let policy = Arc::clone(&policy);
                let service =
                    service_fn(move |request| answer(request, policy.load(Ordering::Relaxed)));
                tokio::spawn(
                    http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Kubelet {
            assigns,
            _runtime: runtime,
        }
    }
}

// === impl Pipe ===

impl Drop for Pipe {
    fn drop(&mut self) {
        // The writer is closed afterwards, and a reader does not find the pipe again.
        fs::remove_file(&self.path).unwrap();
    }
}

// === impl Kubelet ===

impl Kubelet {
    pub(crate) fn set_assigns(&self, assigns: bool) {
        self.assigns.store(assigns, Ordering::Relaxed);
    }
}

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn answer(request: Request<Incoming>, assigns: bool) -> Result<Response<Body>, Infallible> {
    let message: &[u8] = match request.uri().path() {
        // A pod without exclusive CPUs; the list has no `cpu_ids` with either policy.
        "/v1.PodResourcesLister/List" => b"\x0a\x0d\x0a\x01p\x12\x03net\x1a\x03\x0a\x01c",
        // Field 2, `cpu_ids`, packed: CPU 1 with `static`, no CPU with `none`.
        "/v1.PodResourcesLister/GetAllocatableResources" if assigns => b"\x12\x01\x01",
        "/v1.PodResourcesLister/GetAllocatableResources" => b"",
        other => panic!("the agent called {other}"),
    };
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let framed = [&[0][..], &length, message].concat();
    let status = HeaderMap::from_iter([(
        "grpc-status".parse().unwrap(),
        HeaderValue::from_static("0"),
    )]);
    let frames = vec![
        Ok(Frame::data(Bytes::from(framed))),
        Ok(Frame::trailers(status)),
    ];
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response
        .body(StreamBody::new(stream::iter(frames)))
        .unwrap())
}
