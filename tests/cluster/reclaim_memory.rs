//! The memory of the reclaimer in a cluster that keeps its finished Jobs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::fakeapi::{FakeApi, yaml};
use crate::reclaim::{Cluster, Watching, ago};

/// The number of training jobs.
const JOBS: usize = 200;

/// The number of workers of each training job.
const WORKERS: usize = 50;

/// The memory limit of the shipped Deployment, in KiB.
fn memory_limit() -> u64 {
    let deployment = &yaml::documents("deploy/components/reclaim/deployment.yaml")[0];
    let pointer = "/spec/template/spec/containers/0/resources/limits/memory";
    let limit = deployment.pointer(pointer).and_then(Value::as_str).unwrap();
    limit.strip_suffix("Mi").unwrap().parse::<u64>().unwrap() << 10
}

/// An object of a training job. As after `kubectl apply`, an annotation has a copy of the manifest.
fn object(version: &str, kind: &str, job: usize, role: &str, task: usize) -> Value {
    let (job, task) = (format!("job-{job}"), task.to_string());
    json!({
        "apiVersion": version, "kind": kind,
        "metadata": {
            "name": format!("{job}-{role}-{task}"), "namespace": "train", "creationTimestamp": ago(7200),
            "labels": {"name": job, "job": role, "task": task, "pinfold.io/reclaim": "ps", "app.kubernetes.io/name": "training"},
            "annotations": {
                "pinfold.io/workers": (WORKERS + 1).to_string(),
                "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(10_000),
            },
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": "y".repeat(2000)}}],
        },
        "spec": {"template": {"spec": {"containers": [{"name": "c", "env": [{"name": "HOSTS", "value": "z".repeat(2000)}]}]}}},
    })
}

/// A worker that has succeeded.
fn worker(job: usize, task: usize) -> Value {
    let mut worker = object("batch/v1", "Job", job, "worker", task);
    worker["status"] = json!({
        "succeeded": 1, "completionTime": ago(3600),
        "conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": ago(3600)}],
    });
    worker
}

/// The peak of a process's resident memory, in KiB.
fn peak(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().trim().strip_suffix(" kB").unwrap();
    number.parse().unwrap()
}

/// The servers stay, because each job should have one worker more, so every round lists all Jobs
/// while the watch holds them.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_finished_jobs_fit_into_the_memory_of_the_deployment() {
    let cluster = Cluster::of(FakeApi::start().await);
    for job in 0..JOBS {
        let tasks: Vec<Value> = (0..WORKERS).map(|task| worker(job, task)).collect();
        cluster.put(&tasks);
        cluster.put(&[object("apps/v1", "Deployment", job, "ps", 0)]);
    }
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("reclaimer.conf");
    std::fs::write(&kubeconfig, cluster.fake.kubeconfig("reclaimer")).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .args(["scene", "reclaim", "--watch", "--kubeconfig"])
        .arg(&kubeconfig)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut watching = Watching(child.unwrap());
    let mut lines = BufReader::new(watching.0.stdout.take().unwrap()).lines();
    let measured = move || {
        // The result of the first round.
        let kept = "the parameter servers stay: 50 workers exist, but the job has 51: 1 missing";
        for _ in 0..JOBS {
            let line = lines.next().unwrap().unwrap();
            assert!(line.ends_with(kept), "{line}");
        }
        // The next result comes from the watches alone, which hold every object.
        let mut changed = object("apps/v1", "Deployment", 7, "ps", 0);
        changed["metadata"]["annotations"]["pinfold.io/workers"] = json!("70");
        while cluster.fake.count("watch", "jobs") == 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
        cluster.put(&[changed]);
        let line = lines.next().unwrap().unwrap();
        assert!(
            line.contains("train/job-7: the parameter servers stay"),
            "{line}"
        );
        peak(watching.0.id())
    };
    let peak = tokio::task::spawn_blocking(measured).await.unwrap();
    println!("{} finished Jobs: {} MiB", JOBS * WORKERS, peak >> 10);
    assert!(peak < memory_limit(), "{peak} KiB");
}
