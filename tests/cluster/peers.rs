//! The pods of a training job on all nodes, as the agents of its nodes read them.

use std::net::IpAddr;
use std::time::Duration;

use pinfold::cluster::peers::members;
use pinfold::cluster::{Api, Call};
use serde_json::{Value, json};

use crate::fakeapi::{ADMIN, FakeApi, Fault, FaultScope, WatchFault};

const LABEL: (&str, &str) = ("training.kubeflow.org/job-name", "j");

fn pod(number: usize, padding: &str) -> Value {
    let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("worker-{number}"), "namespace": "train",
            "labels": {LABEL.0: LABEL.1, "training.kubeflow.org/replica-type": "worker"},
            "annotations": {"padding": padding},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    })
}

fn api(fake: &FakeApi) -> Api {
    Api::new(fake.client(ADMIN), Duration::from_secs(10))
}

#[tokio::test(start_paused = true)]
async fn the_pods_come_one_by_one_with_and_without_streaming_lists() {
    for streaming in [true, false] {
        let fake = FakeApi::direct();
        fake.set_streaming_lists(streaming);
        for number in 0..300 {
            fake.put(&pod(number, ""));
        }
        let mut other = pod(999, "");
        other["metadata"]["labels"] = json!({});
        fake.put(&other);
        let found = members(&api(&fake), "train", LABEL).await.unwrap();
        assert_eq!(found.len(), 300);
        let first = found.iter().find(|member| member.pod == "worker-0");
        let address: IpAddr = [10, 0, 0, 1].into();
        assert_eq!(first.unwrap().addresses, [address]);
        assert!(fake.log().iter().all(|logged| logged.from_etcd == 0));
    }
}

/// The server sends a bookmark after the pods, or ignores the parameter that asks for one.
#[tokio::test(start_paused = true)]
async fn a_server_that_ignores_the_parameter_of_streaming_lists_is_no_failure() {
    let fake = FakeApi::direct();
    fake.put(&pod(0, ""));
    let unended = Fault::Watch(WatchFault::Unended);
    fake.fail(FaultScope::always().verb("watch").on("pods"), unended);
    let found = members(&api(&fake), "train", LABEL).await.unwrap();
    assert_eq!(found.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_may_be_larger_than_the_limit_of_an_answer() {
    let fake = FakeApi::direct();
    let padding = "x".repeat(100_000);
    for number in 0..700 {
        fake.put(&pod(number, &padding));
    }
    let found = members(&api(&fake), "train", LABEL).await.unwrap();
    assert_eq!(found.len(), 700, "70 MB, and an answer may have 64 MiB");
}

#[tokio::test(start_paused = true)]
async fn a_broken_list_is_a_failure_and_counted() {
    for (fault, requests) in [
        (Fault::Drop, 1),
        (Fault::Garbage, 1),
        (
            Fault::Refuse {
                code: 429,
                text: "too many requests",
                retry_after: None,
            },
            1,
        ),
    ] {
        let fake = FakeApi::direct();
        fake.put(&pod(0, ""));
        fake.fail(FaultScope::always().on("pods"), fault.clone());
        let api = api(&fake);
        let failure = members(&api, "train", LABEL).await.unwrap_err();
        let counters = api.counters();
        assert_eq!(counters.requests(Call::ListJob), requests, "{fault:?}");
        assert_eq!(counters.errors(failure.kind()), 1, "{fault:?}: {failure}");
    }
}
