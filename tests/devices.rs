//! The kubelet's PodResources socket, imitated by a server with recorded or faulty answers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/repository.rs"]
mod repository;

use std::convert::Infallible;
use std::fs;
use std::time::{Duration, Instant};

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinfold::cpu::CpuSet;
use pinfold::host::pod_resources::{
    CallError, ContainerDevices, CpuManager, Device, DevicesError, MAX_ANSWER, PodResources, SOCKET,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

// --- protobuf, written as the kubelet writes it ---

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
    [
        varint(number << 3 | 2),
        varint(bytes.len() as u64),
        bytes.to_vec(),
    ]
    .concat()
}

fn number(field: u64, value: u64) -> Vec<u8> {
    // proto3 omits zero values.
    if value == 0 {
        Vec::new()
    } else {
        [varint(field << 3), varint(value)].concat()
    }
}

fn each(list: &Value, encode: impl Fn(&Value) -> Vec<u8>) -> Vec<u8> {
    list.as_array()
        .into_iter()
        .flatten()
        .flat_map(encode)
        .collect()
}

fn text(of: &Value) -> &[u8] {
    of.as_str().unwrap_or_default().as_bytes()
}

/// A `ListPodResourcesResponse` from its JSON form.
fn list(answer: &Value) -> Vec<u8> {
    each(&answer["pod_resources"], |pod| {
        let containers = each(&pod["containers"], |container| {
            let devices = each(&container["devices"], |device| {
                let nodes = each(&device["topology"]["nodes"], |node| {
                    // −1 is ten bytes long.
                    field(1, &number(1, node["ID"].as_i64().unwrap().cast_unsigned()))
                });
                let topology = if device["topology"].is_null() {
                    Vec::new()
                } else {
                    field(3, &nodes)
                };
                let ids = each(&device["device_ids"], |id| field(2, text(id)));
                field(
                    2,
                    &[field(1, text(&device["resource_name"])), ids, topology].concat(),
                )
            });
            let cpus = each(&container["cpu_ids"], |cpu| varint(cpu.as_u64().unwrap()));
            let cpus = if cpus.is_empty() {
                cpus
            } else {
                field(3, &cpus)
            };
            // Fields of a newer kubelet than the client knows.
            let unknown = [field(15, b"later"), number(14, 7), vec![0x6d, 1, 2, 3, 4]].concat();
            field(
                3,
                &[field(1, text(&container["name"])), devices, cpus, unknown].concat(),
            )
        });
        field(
            1,
            &[
                field(1, text(&pod["name"])),
                field(2, text(&pod["namespace"])),
                containers,
            ]
            .concat(),
        )
    })
}

/// An `AllocatableResourcesResponse` from its JSON form.
fn allocatable(answer: &Value) -> Vec<u8> {
    let cpus = each(&answer["cpu_ids"], |cpu| varint(cpu.as_u64().unwrap()));
    if cpus.is_empty() {
        cpus
    } else {
        field(2, &cpus)
    }
}

fn recording(name: &str) -> Value {
    let path = repository::here("tests/data/devices").join(name);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn recorded(name: &str) -> Value {
    recording(name)["List"].clone()
}

// --- the kubelet ---

/// The server's answer: the bytes of the body, and an optional status in the trailers.
#[derive(Debug, Clone)]
struct Answer {
    body: Vec<u8>,
    status: Option<(&'static str, &'static str)>,
    wait: Duration,
    code: u16,
}

impl Answer {
    fn message(message: &[u8]) -> Self {
        Self::raw(framed(message))
    }

    fn raw(body: Vec<u8>) -> Self {
        Self {
            body,
            status: Some(("0", "")),
            wait: Duration::ZERO,
            code: 200,
        }
    }

    fn failed(status: &'static str, words: &'static str) -> Self {
        Self {
            status: Some((status, words)),
            ..Self::raw(Vec::new())
        }
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [
        &[0][..],
        &u32::try_from(message.len()).unwrap().to_be_bytes(),
        message,
    ]
    .concat()
}

/// A fake kubelet with a private root folder.
struct Kubelet {
    root: tempfile::TempDir,
}

impl Kubelet {
    fn absent() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(SOCKET).parent().unwrap()).unwrap();
        Self { root }
    }

    fn listen(&self) -> UnixListener {
        UnixListener::bind(self.root.path().join(SOCKET)).unwrap()
    }

    fn answering(answer: Answer) -> Self {
        let kubelet = Self::absent();
        let listener = kubelet.listen();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = answer.clone();
                let service = service_fn(move |request| serve(request, answer.clone()));
                let connection = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        kubelet
    }

    fn client(&self) -> PodResources {
        PodResources::new(self.root.path()).with_deadline(Duration::from_secs(60))
    }

    async fn list(&self) -> Result<Vec<ContainerDevices>, DevicesError> {
        self.client().list().await
    }

    /// The error of a call. Its message must name the socket.
    async fn error(&self) -> CallError {
        let error = self.list().await.unwrap_err();
        assert!(error.to_string().contains(SOCKET), "{error}");
        match error {
            DevicesError::Call { source, .. } => source,
            other => panic!("{other:?}"),
        }
    }
}

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn serve(request: Request<Incoming>, answer: Answer) -> Result<Response<Body>, Infallible> {
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(request.method(), "POST");
    let methods =
        ["List", "GetAllocatableResources"].map(|name| format!("/v1.PodResourcesLister/{name}"));
    assert!(
        methods.iter().any(|method| method == request.uri().path()),
        "{}",
        request.uri()
    );
    assert_eq!(
        (header("content-type").as_str(), header("te").as_str()),
        ("application/grpc", "trailers")
    );
    assert!(header("grpc-timeout").ends_with('m'));
    assert_eq!(
        request
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .as_ref(),
        [0; 5]
    );
    tokio::time::sleep(answer.wait).await;
    let mut status = HeaderMap::new();
    if let Some((code, words)) = answer.status {
        status.insert(
            HeaderName::from_static("grpc-status"),
            HeaderValue::from_static(code),
        );
        status.insert(
            HeaderName::from_static("grpc-message"),
            HeaderValue::from_static(words),
        );
    }
    // Without a message the status is in the headers, as with a real kubelet.
    let only_status = answer.body.is_empty() && answer.status.is_some();
    let mut frames: Vec<_> = answer
        .body
        .chunks(1000)
        .map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk))))
        .collect();
    if answer.status.is_some() && !only_status {
        frames.push(Ok(Frame::trailers(status.clone())));
    }
    let mut response = Response::builder()
        .status(answer.code)
        .header("content-type", "application/grpc");
    if only_status {
        response.headers_mut().unwrap().extend(status);
    }
    Ok(response
        .body(StreamBody::new(stream::iter(frames)))
        .unwrap())
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

// --- requests and answers ---

#[tokio::test]
async fn a_recorded_answer_is_read_completely() {
    let containers = Kubelet::answering(Answer::message(&list(&recorded("none.json"))))
        .list()
        .await
        .unwrap();
    let names: Vec<_> = containers
        .iter()
        .map(|entry| format!("{}/{}/{}", entry.namespace, entry.pod, entry.container))
        .collect();
    assert_eq!(
        names,
        [
            "default/pre-init-sidecar/sidecar",
            "default/pre-init-sidecar/c1",
            "default/pre-init-sidecar/c2",
            "default/pre-guaranteed/c",
            "default/pre-burstable/c",
            "default/pre-besteffort/c"
        ]
    );
    assert!(
        containers
            .iter()
            .all(|entry| entry.devices.is_empty() && entry.cpus.is_empty())
    );

    let containers = Kubelet::answering(Answer::message(&list(&recorded("static.json"))))
        .list()
        .await
        .unwrap();
    assert_eq!(containers.len(), 10);
    assert_eq!(
        (containers[0].pod.as_str(), &containers[0].cpus),
        ("vm-static", &set("2-3"))
    );
    assert!(containers[1..].iter().all(|entry| entry.cpus.is_empty()));

    assert_eq!(
        Kubelet::answering(Answer::message(&[]))
            .list()
            .await
            .unwrap(),
        [],
        "a node without pods"
    );
}

#[tokio::test]
async fn the_cpu_manager_policy_follows_from_recorded_answers() {
    for (name, cpus, policy) in [
        ("none.json", "", CpuManager::Disabled),
        ("static.json", "1-7", CpuManager::Assigns),
    ] {
        let message = allocatable(&recording(name)["GetAllocatableResources"]);
        let kubelet = Kubelet::answering(Answer::message(&message));
        assert_eq!(
            kubelet.client().allocatable_cpus().await.unwrap(),
            set(cpus),
            "{name}"
        );
        assert_eq!(
            kubelet.client().cpu_manager(&[]).await.unwrap(),
            policy,
            "{name}"
        );
    }
    // A container with CPUs in the list proves the static policy.
    let listed = ContainerDevices {
        cpus: set("2"),
        ..ContainerDevices::default()
    };
    let absent = Kubelet::absent();
    assert_eq!(
        absent.client().cpu_manager(&[listed]).await.unwrap(),
        CpuManager::Assigns
    );
    // Kubelets before 1.21 lack the method. Later ones have a feature gate for it.
    for (status, words) in [
        ("12", "unknown method"),
        ("2", "Pod Resources API GetAllocatableResources disabled"),
    ] {
        let old = Kubelet::answering(Answer::failed(status, words));
        assert_eq!(
            old.client().cpu_manager(&[]).await.unwrap(),
            CpuManager::Disabled,
            "{words}"
        );
    }
    // Every different failure is an error.
    let failing = Kubelet::answering(Answer::failed("2", "Pod Resources API is not ready"));
    assert!(failing.client().cpu_manager(&[]).await.is_err());
}

#[tokio::test]
async fn the_last_answer_stays_while_the_kubelet_does_not_answer() {
    let kubelet = Kubelet::absent();
    let unanswered = |known| kubelet.client().unanswered(known);
    assert_eq!(unanswered(None), CpuManager::NoSocket);
    assert_eq!(unanswered(Some(CpuManager::Assigns)), CpuManager::Assigns);
    assert_eq!(unanswered(Some(CpuManager::Disabled)), CpuManager::Disabled);
    drop(kubelet.listen());
    assert_eq!(
        unanswered(Some(CpuManager::NoSocket)),
        CpuManager::Unanswered
    );
    assert_eq!(unanswered(Some(CpuManager::Disabled)), CpuManager::Disabled);
}

#[tokio::test]
async fn devices_have_numa_nodes_by_topology_or_by_address() {
    let answer = serde_json::json!({"pod_resources": [{
        "name": "train", "namespace": "ml", "containers": [{"name": "main", "devices": [
            {"resource_name": "nvidia.com/gpu", "device_ids": ["GPU-1", "GPU-2"],
             "topology": {"nodes": [{"ID": 0}]}},
            {"resource_name": "nvidia.com/gpu", "device_ids": ["GPU-9"], "topology": {"nodes": [{"ID": 1}, {"ID": 3}]}},
            {"resource_name": "intel.com/sriov", "device_ids": ["0000:3b:02.1", "0000:af:02.0"]},
            {"resource_name": "vendor.com/plain", "device_ids": ["0000:00:00.7", "x"], "topology": {"nodes": []}},
            {"resource_name": "vendor.com/nowhere", "device_ids": ["y"], "topology": {"nodes": [{"ID": -1}]}},
        ]}]},
        {"name": "train", "namespace": "other", "containers": [{"name": "main"}]},
    ]});
    let kubelet = Kubelet::answering(Answer::message(&list(&answer)));
    for (address, node) in [("0000:3b:02.1", "2\n"), ("0000:af:02.0", "-1\n")] {
        let device = kubelet
            .root
            .path()
            .join("sys/bus/pci/devices")
            .join(address);
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), node).unwrap();
    }
    let containers = kubelet.list().await.unwrap();
    let numa: Vec<_> = containers[0]
        .devices
        .iter()
        .map(|device| device.numa.to_string())
        .collect();
    assert_eq!(numa, ["0", "1,3", "2", "", ""]);
    let gpus = ["GPU-1", "GPU-2"].map(str::to_owned).to_vec();
    assert_eq!(
        containers[0].devices[0],
        Device {
            resource: "nvidia.com/gpu".to_owned(),
            ids: gpus,
            numa: set("0")
        }
    );
    assert_eq!(numa_of_pod(&containers, "ml", "train"), set("0-3"));
    assert_eq!(numa_of_pod(&containers, "other", "train"), set(""));
    assert_eq!(numa_of_pod(&containers, "ml", "absent"), set(""));
}

/// The NUMA nodes near a pod's devices.
fn numa_of_pod(containers: &[ContainerDevices], namespace: &str, pod: &str) -> CpuSet {
    let own = containers
        .iter()
        .filter(|container| container.namespace == namespace && container.pod == pod);
    own.flat_map(|container| &container.devices)
        .fold(CpuSet::new(), |all, device| all.union(&device.numa))
}

#[tokio::test]
async fn a_long_answer_is_read_completely() {
    let pod = |index: usize| serde_json::json!({"name": format!("pod-{index}"), "namespace": "default", "containers": [{"name": "c"}]});
    let pods: Vec<_> = (0..20_000).map(pod).collect();
    let message = list(&serde_json::json!({"pod_resources": pods}));
    assert!(message.len() > 500_000);
    let containers = Kubelet::answering(Answer::message(&message))
        .list()
        .await
        .unwrap();
    assert_eq!(
        (containers.len(), containers[19_999].pod.as_str()),
        (20_000, "pod-19999")
    );
}

// --- failures ---

#[tokio::test]
async fn a_missing_server_is_an_error() {
    let kubelet = Kubelet::absent();
    assert!(matches!(kubelet.error().await, CallError::NoSocket { .. }));
    // A dead kubelet leaves the socket behind.
    drop(kubelet.listen());
    assert!(matches!(kubelet.error().await, CallError::NoSocket { .. }));
}

#[tokio::test]
async fn a_slow_or_silent_server_is_an_error() {
    let slow = Kubelet::answering(Answer {
        wait: Duration::from_secs(60),
        ..Answer::message(&[])
    });
    let silent = Kubelet::absent();
    let _listener = silent.listen();
    for kubelet in [slow, silent] {
        let begun = Instant::now();
        let deadline = Duration::from_millis(300);
        let error = kubelet
            .client()
            .with_deadline(deadline)
            .list()
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                DevicesError::Call {
                    source: CallError::Slow { .. },
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

#[tokio::test]
async fn a_refusal_of_the_server_is_an_error() {
    let error = Kubelet::answering(Answer::failed("12", "unknown method List"))
        .error()
        .await;
    assert!(matches!(error, CallError::Unimplemented), "{error:?}");
    let error = Kubelet::answering(Answer::failed("8", "rejected by%20rate limit"))
        .error()
        .await;
    let CallError::Status { status: 8, message } = error else {
        panic!("{error:?}")
    };
    assert_eq!(message, "rejected by rate limit");
    // A status after a message counts as well.
    let late = Answer {
        status: Some(("13", "late")),
        ..Answer::message(b"")
    };
    assert!(matches!(
        Kubelet::answering(late).error().await,
        CallError::Status { status: 13, .. }
    ));
}

#[tokio::test]
async fn answers_outside_the_grpc_protocol_are_errors() {
    let complete = framed(&list(&recorded("static.json")));
    let cut = Answer::raw(complete[..complete.len() - 1].to_vec());
    let more = Answer::raw([&complete[..], &complete].concat());
    let compressed = Answer::raw([&[1], &complete[1..]].concat());
    let without_status = Answer {
        status: None,
        ..Answer::raw(complete.clone())
    };
    let no_number = Answer {
        status: Some(("fine", "")),
        ..Answer::raw(complete.clone())
    };
    let http = Answer {
        code: 404,
        ..Answer::raw(complete)
    };
    for (answer, message) in [
        (cut, "length"),
        (more, "length"),
        (compressed, "compressed"),
        (without_status, "without a status"),
        (no_number, "fine"),
        (http, "404"),
        (Answer::failed("0", ""), "without a message"),
    ] {
        let error = Kubelet::answering(answer).error().await;
        assert!(
            matches!(error, CallError::Protocol { .. }) && error.to_string().contains(message),
            "{message}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_truncated_message_is_an_error() {
    let message = list(&recorded("static.json"));
    let error = Kubelet::answering(Answer::message(&message[..message.len() - 3]))
        .list()
        .await
        .unwrap_err();
    assert!(matches!(error, DevicesError::Answer { .. }), "{error:?}");
}

#[tokio::test]
async fn a_huge_answer_is_not_read() {
    // The length prefix alone is enough for the refusal.
    let huge = Answer {
        wait: Duration::ZERO,
        ..Answer::raw(vec![0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3])
    };
    assert!(matches!(
        Kubelet::answering(huge).error().await,
        CallError::TooLong { limit: MAX_ANSWER }
    ));
    let body = [framed(&[])[..].to_vec(), vec![0; MAX_ANSWER + 10_000]].concat();
    assert!(matches!(
        Kubelet::answering(Answer::raw(body)).error().await,
        CallError::TooLong { .. }
    ));
}

#[tokio::test]
async fn a_server_of_a_different_protocol_is_an_error() {
    let kubelet = Kubelet::absent();
    let listener = kubelet.listen();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    assert!(matches!(kubelet.error().await, CallError::Broken { .. }));
}
