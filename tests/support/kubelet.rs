//! The kubelet's PodResources socket with the two methods that the agent calls. The answers have the fields of a real
//! kubelet with CPU Manager policy `none` or `static`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinfold::cpu::CpuSet;
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
    state: Arc<Mutex<KubeletState>>,
    _runtime: tokio::runtime::Runtime,
}

/// What a kubelet says, and how.
#[derive(Debug, Clone, Default)]
struct KubeletState {
    /// Whether the CPU Manager assigns CPUs.
    assigns: bool,
    /// The exclusive CPUs of each container, by namespace and pod, and by container.
    cpus: BTreeMap<(String, String), BTreeMap<String, CpuSet>>,
    /// How many calls are refused with ResourceExhausted before the next answer.
    refusals: usize,
    /// The pause before each answer.
    pause: Duration,
    calls: usize,
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

    /// Starts a kubelet whose CPU Manager assigns CPUs, or has policy `none`. By the time of its socket, it started two
    /// minutes ago.
    pub(crate) fn kubelet(&self, assigns: bool) -> Kubelet {
        self.kubelet_of_age(assigns, Duration::from_secs(120))
    }

    /// Starts a kubelet that reports no CPUs yet, because its CPU Manager has not started.
    pub(crate) fn starting_kubelet(&self) -> Kubelet {
        self.kubelet_of_age(false, Duration::ZERO)
    }

    /// The same, started so long ago.
    pub(crate) fn kubelet_of_age(&self, assigns: bool, age: Duration) -> Kubelet {
        let _ = fs::remove_file(self.socket());
        let state = KubeletState {
            assigns,
            ..KubeletState::default()
        };
        let state = Arc::new(Mutex::new(state));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(async { UnixListener::bind(self.socket()).unwrap() });
        let since_epoch = (SystemTime::now() - age)
            .duration_since(UNIX_EPOCH)
            .unwrap();
        let seconds = i64::try_from(since_epoch.as_secs()).unwrap();
        let time = nix::sys::time::TimeVal::new(seconds, 0);
        nix::sys::stat::lutimes(&self.socket(), &time, &time).unwrap();
        let said = Arc::clone(&state);
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let said = Arc::clone(&said);
                let service = service_fn(move |request| answer(request, Arc::clone(&said)));
                tokio::spawn(
                    http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Kubelet {
            state,
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
        self.change(|state| state.assigns = assigns);
    }

    fn change(&self, change: impl FnOnce(&mut KubeletState)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Reports these CPUs for the container `main` of a pod in the namespace `train`; an empty list for none.
    pub(crate) fn gives(&self, pod: &str, cpus: &str) {
        self.gives_to(pod, "main", cpus);
    }

    pub(crate) fn gives_to(&self, pod: &str, container: &str, cpus: &str) {
        let key = ("train".to_owned(), pod.to_owned());
        self.change(|state| {
            let of_pod = state.cpus.entry(key).or_default();
            of_pod.insert(container.to_owned(), cpus.parse().unwrap());
        });
    }

    /// Reports the pod no longer.
    pub(crate) fn forgets(&self, pod: &str) {
        let key = ("train".to_owned(), pod.to_owned());
        self.change(|state| drop(state.cpus.remove(&key)));
    }

    /// Refuses the next calls, as the kubelet does above its limit.
    pub(crate) fn refuses(&self, calls: usize) {
        self.change(|state| state.refusals = calls);
    }

    /// Waits before each answer.
    pub(crate) fn is_slow(&self, pause: Duration) {
        self.change(|state| state.pause = pause);
    }

    /// How often the kubelet was called.
    pub(crate) fn calls(&self) -> usize {
        self.state.lock().unwrap().calls
    }
}

// === impl KubeletState ===

impl KubeletState {
    /// A ListPodResourcesResponse: the pods, and one without exclusive CPUs.
    fn list(&self) -> Vec<u8> {
        let mut message = b"\x0a\x0d\x0a\x01p\x12\x03net\x1a\x03\x0a\x01c".to_vec();
        for ((namespace, pod), containers) in &self.cpus {
            let mut of_pod = [field(1, pod.as_bytes()), field(2, namespace.as_bytes())].concat();
            for (name, cpus) in containers {
                let ids: Vec<u8> = cpus.iter().map(|cpu| u8::try_from(cpu).unwrap()).collect();
                let container = [field(1, name.as_bytes()), field(3, &ids)].concat();
                of_pod.extend(field(3, &container));
            }
            message.extend(field(1, &of_pod));
        }
        message
    }
}

/// A field of bytes, as protobuf writes it.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap();
    assert!(length < 128, "one byte holds the length");
    [&[number << 3 | 2, length], bytes].concat()
}

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn answer(
    request: Request<Incoming>,
    state: Arc<Mutex<KubeletState>>,
) -> Result<Response<Body>, Infallible> {
    let (said, is_refused) = {
        let mut state = state.lock().unwrap();
        state.calls += 1;
        let is_refused = state.refusals > 0;
        state.refusals = state.refusals.saturating_sub(1);
        (state.clone(), is_refused)
    };
    tokio::time::sleep(said.pause).await;
    let message: Vec<u8> = match request.uri().path() {
        "/v1.PodResourcesLister/List" => said.list(),
        // Field 2, `cpu_ids`, packed: CPU 1 with `static`, no CPU with `none`.
        "/v1.PodResourcesLister/GetAllocatableResources" if said.assigns => {
            b"\x12\x01\x01".to_vec()
        }
        "/v1.PodResourcesLister/GetAllocatableResources" => Vec::new(),
        other => panic!("the agent called {other}"),
    };
    if is_refused {
        let response = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "8")
            .header("grpc-message", "rejected by rate limit");
        return Ok(response
            .body(StreamBody::new(stream::iter(Vec::new())))
            .unwrap());
    }
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let framed = [&[0][..], &length, message.as_slice()].concat();
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
