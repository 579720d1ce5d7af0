//! The memory that an agent needs to read the pods of a large training job (`metrics.maxPeers`): one by one, as agents do, and
//! beside it by whole lists. The list of a job that has more pods than an agent keeps (10,000) is read up to this number.
//! `cargo bench --bench peers` (`-- 5000 20000` for different numbers of pods)
//!
//! The pods come from the tests' fake API server over TCP. Each way of reading has a process of its own, whose resident set is
//! read before the request, and at its maximum until the addresses are there.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/fakeapi/mod.rs"]
mod fakeapi;

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use pinfold::cluster::Api;
use pinfold::cluster::peers::members;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::fakeapi::{ADMIN, FakeApi};

const LABEL: (&str, &str) = ("training.kubeflow.org/job-name", "j");

/// The ways of reading, with the words of the output.
const WAYS: [(&str, &str); 3] = [
    ("stream", "one by one, as agents do"),
    ("texts", "a list of texts, as in earlier versions"),
    ("list", "a list, decoded with k8s-openapi"),
];

/// A list whose objects stay text.
#[derive(Deserialize)]
struct Texts {
    items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Addressed {
    status: k8s_openapi::api::core::v1::PodStatus,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, way, server] = arguments.as_slice()
        && first == "read"
    {
        return read(way, server);
    }
    // Cargo adds `--bench`.
    let sizes = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'));
    let mut sizes: Vec<usize> = sizes
        .map(|size| size.parse().expect("a number of pods"))
        .collect();
    if sizes.is_empty() {
        sizes = vec![1_000, 5_000, 20_000];
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for size in sizes {
        runtime.block_on(measure(size));
    }
}

/// Serves a job of `size` pods, and lets a process read them in each way.
async fn measure(size: usize) {
    let fake = FakeApi::start().await;
    let mut bytes = 0;
    for number in 0..size {
        bytes += fake.put(&pod(number)).to_string().len();
    }
    println!(
        "{size} pods of {:.1} kB each, {} MB of JSON:",
        bytes as f64 / size as f64 / 1e3,
        bytes / 1_000_000
    );
    let server = format!("http://{}", fake.address());
    for (way, words) in WAYS {
        let server = server.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let program = std::env::current_exe().unwrap();
            let mut command = Command::new(program);
            command.args(["read", way, &server]).output().unwrap()
        });
        let output = reading.await.unwrap();
        print!("  {words:40}{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A worker as the API server shows it.
fn pod(number: usize) -> Value {
    let address = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
    let env: Vec<Value> = (0..40)
        .map(|number| json!({"name": format!("SETTING_{number}"), "value": "a value of some length, like a path"}))
        .collect();
    let fields: serde_json::Map<String, Value> = (0..40)
        .map(|number| {
            let key = format!("k:{{\"name\":\"SETTING_{number}\"}}");
            (key, json!({".": {}, "f:name": {}, "f:value": {}}))
        })
        .collect();
    let hosts = vec!["worker-0.j.train.svc:2222"; 20].join(",");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("worker-{number}"), "namespace": "train",
            "labels": {LABEL.0: LABEL.1, "training.kubeflow.org/replica-type": "worker"},
            "managedFields": [{"manager": "operator", "operation": "Update", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:containers": {"k:{\"name\":\"tensorflow\"}": {"f:env": fields}}}}}],
        },
        "spec": {
            "nodeName": format!("n{number}"),
            "containers": [{
                "name": "tensorflow", "image": "registry.example/train:1",
                "command": ["python", "train.py", format!("--worker_hosts={hosts}")], "env": env,
                "resources": {"limits": {"cpu": "8", "memory": "32Gi"}, "requests": {"cpu": "8", "memory": "32Gi"}},
            }],
        },
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    })
}

/// Reads the pods in one way, and prints the memory of this process.
fn read(way: &str, server: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut config = kube::Config::new(server.parse().unwrap());
    config.auth_info.token = Some(ADMIN.to_owned().into());
    let (found, before, most, seconds) = runtime.block_on(async {
        let client = kube::Client::try_from(config).unwrap();
        // The first request makes the connection, and loads what every request needs.
        client.apiserver_version().await.unwrap();
        // This makes the kernel count the maximum anew.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let (before, start) = (memory("VmRSS:"), Instant::now());
        let addresses = match way {
            "stream" => streamed(client).await,
            "texts" => listed_texts(client).await,
            _ => listed(client).await,
        };
        let most = memory("VmHWM:");
        (addresses.len(), before, most, start.elapsed())
    });
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{:6.1} MiB before, {:6.1} MiB at most, {:6.1} MiB more for {found} addresses, in {:.1} s",
        mebibytes(before),
        mebibytes(most),
        mebibytes(most - before),
        seconds.as_secs_f64()
    );
}

async fn streamed(client: kube::Client) -> Vec<IpAddr> {
    let api = Api::new(client, Duration::from_secs(60));
    let members = members(&api, "train", LABEL).await.unwrap();
    let addresses = members.into_iter().flat_map(|member| member.addresses);
    addresses.collect()
}

fn request() -> hyper::http::Request<Vec<u8>> {
    let query = format!(
        "labelSelector={}%3D{}&resourceVersion=0",
        LABEL.0.replace('/', "%2F"),
        LABEL.1
    );
    let path = format!("/api/v1/namespaces/train/pods?{query}");
    hyper::http::Request::get(path).body(Vec::new()).unwrap()
}

async fn listed_texts(client: kube::Client) -> Vec<IpAddr> {
    let text = client.request_text(request()).await.unwrap();
    let list: Texts = serde_json::from_str(&text).unwrap();
    let pods = list.items.iter();
    let pods = pods.map(|pod| serde_json::from_str::<Addressed>(pod.get()).unwrap());
    pods.filter_map(|pod| pod.status.pod_ip?.parse().ok())
        .collect()
}

async fn listed(client: kube::Client) -> Vec<IpAddr> {
    let list: k8s_openapi::List<Pod> = client.request(request()).await.unwrap();
    let pods = list.items.into_iter();
    pods.filter_map(|pod| pod.status?.pod_ip?.parse().ok())
        .collect()
}

/// A value of this process's `/proc/self/status` in bytes.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kibibytes << 10
}
