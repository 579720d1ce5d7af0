//! Labels and taints of this node's Node.

use std::collections::BTreeMap;
use std::time::Duration;

use pinfold::cluster::own_node::{ApplyOutcome, LabelStep, OwnNode, apply, plan, read, set_taints};
use pinfold::cluster::{Api, ErrorKind, Failure};
use serde_json::json;

use crate::fakeapi::{ADMIN, FakeApi, Fault, FaultScope};

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn cluster() -> (FakeApi, Api) {
    let fake = FakeApi::direct();
    let managed = json!([{
        "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-11-20T15:47:48Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/os": {}}}},
    }]);
    fake.put(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "uid": "u1", "labels": {"kubernetes.io/os": "linux"}, "managedFields": managed},
    }));
    let api = Api::new(fake.client(ADMIN), Duration::from_secs(10));
    (fake, api)
}

/// Reads the Node, plans and applies the labels, as the agent does.
async fn reconcile(
    api: &Api,
    wanted: &BTreeMap<String, String>,
) -> (LabelStep, Option<ApplyOutcome>) {
    let node = read(api, "n1").await.unwrap().unwrap();
    let step = plan(&node, wanted);
    let applied = match &step {
        LabelStep::Apply(labels) => Some(apply(api, &node, labels).await.unwrap()),
        _ => None,
    };
    (step, applied)
}

#[tokio::test]
async fn each_change_of_the_labels_is_one_write() {
    let (fake, api) = cluster();
    let first = labels(&[("SCENCE", "1"), ("CASE", "2"), ("INDEX", "3")]);
    let (_, applied) = reconcile(&api, &first).await;
    let Some(ApplyOutcome::Done(node)) = applied else {
        panic!("{applied:?}")
    };
    assert_eq!(
        node.own_labels
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
        ["CASE", "INDEX", "SCENCE"]
    );
    assert_eq!(node.owners["kubernetes.io/os"], "kubelet");
    for _ in 0..5 {
        assert_eq!(reconcile(&api, &first).await.0, LabelStep::Nothing);
    }
    assert_eq!(
        fake.count("apply", "nodes"),
        1,
        "no writes without a difference"
    );
    reconcile(
        &api,
        &labels(&[
            ("SCENCE", "2"),
            ("CASE", "1"),
            ("INDEX", "0"),
            ("TYPE", "ps"),
        ]),
    )
    .await;
    let there =
        |key: &str| fake.get("v1", "Node", "", "n1").unwrap()["metadata"]["labels"][key].clone();
    assert_eq!((there("SCENCE"), there("TYPE")), (json!("2"), json!("ps")));
    reconcile(&api, &labels(&[])).await;
    assert_eq!(there("SCENCE"), json!(null));
    assert_eq!(there("kubernetes.io/os"), json!("linux"));
    // A Node without labels of the agent has no entry of it either, as before the first label.
    let node = fake.get("v1", "Node", "", "n1").unwrap();
    let managers: Vec<&str> = node["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["manager"].as_str().unwrap())
        .collect();
    assert_eq!(managers, ["kubelet"], "{node:#}");
    assert_eq!(reconcile(&api, &labels(&[])).await.0, LabelStep::Nothing);
    assert_eq!(fake.count("apply", "nodes"), 3);
}

/// The kubelet writes the CPUs in its own way, and a Node may have none yet.
#[tokio::test]
async fn the_cpus_of_the_node_are_read_in_thousandths() {
    let (fake, api) = cluster();
    for (status, [allocatable, capacity]) in [
        (json!({}), [None, None]),
        (
            json!({"allocatable": {"cpu": "3920m", "pods": "110"}, "capacity": {"cpu": "4"}}),
            [Some(3920), Some(4000)],
        ),
        (
            json!({"allocatable": {"cpu": "0"}, "capacity": {"memory": "1Gi"}}),
            [Some(0), None],
        ),
        (
            json!({"allocatable": {"cpu": "many"}, "capacity": {"cpu": "-1"}}),
            [None, None],
        ),
    ] {
        fake.put(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "uid": "u1"}, "status": status,
        }));
        let node = read(&api, "n1").await.unwrap().unwrap();
        assert_eq!(
            [node.allocatable_cpu, node.capacity_cpu],
            [allocatable, capacity],
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_value_of_another_manager_is_reported_and_stays() {
    let (fake, api) = cluster();
    let wanted = labels(&[("SCENCE", "1"), ("CASE", "2")]);
    let before = read(&api, "n1").await.unwrap().unwrap();
    // A user labels the Node between the agent's read and write.
    let by_hand = kube::Api::<k8s_openapi::api::core::v1::Node>::all(fake.client(ADMIN));
    let params = kube::api::PatchParams {
        field_manager: Some("kubectl-label".to_owned()),
        ..Default::default()
    };
    let patch =
        kube::api::Patch::Merge(json!({"metadata": {"labels": {"SCENCE": "9", "CASE": "8"}}}));
    by_hand.patch("n1", &params, &patch).await.unwrap();
    let ApplyOutcome::Conflict(conflicts) = apply(&api, &before, &wanted).await.unwrap() else {
        panic!("no conflict")
    };
    let managers: Vec<(&str, &str)> = conflicts
        .iter()
        .map(|conflict| (&*conflict.key, &*conflict.manager))
        .collect();
    assert_eq!(
        managers,
        [("CASE", "kubectl-label"), ("SCENCE", "kubectl-label")]
    );
    // After a second read, the plan reports the conflict and no apply is sent.
    let (step, applied) = reconcile(&api, &wanted).await;
    let LabelStep::Conflict(conflicts) = step else {
        panic!("{step:?}")
    };
    assert_eq!((applied, conflicts.len()), (None, 2));
    assert!(
        conflicts[1]
            .to_string()
            .contains("is 9, set by kubectl-label"),
        "{}",
        conflicts[1]
    );
    assert_eq!(
        fake.get("v1", "Node", "", "n1").unwrap()["metadata"]["labels"]["SCENCE"],
        json!("9")
    );
    assert_eq!(fake.count("apply", "nodes"), 1);
    // After the user removes the labels, the agent sets them.
    let patch =
        kube::api::Patch::Merge(json!({"metadata": {"labels": {"SCENCE": null, "CASE": null}}}));
    by_hand.patch("n1", &params, &patch).await.unwrap();
    assert!(matches!(
        reconcile(&api, &wanted).await.1,
        Some(ApplyOutcome::Done(_))
    ));
}

#[tokio::test]
async fn an_apply_never_recreates_a_deleted_node() {
    let (fake, api) = cluster();
    let wanted = labels(&[("SCENCE", "1")]);
    let old = read(&api, "n1").await.unwrap().unwrap();
    fake.remove(&fake.get("v1", "Node", "", "n1").unwrap());
    assert_eq!(read(&api, "n1").await.unwrap(), None);
    assert_eq!(
        apply(&api, &old, &wanted).await.unwrap(),
        ApplyOutcome::Gone
    );
    assert!(
        fake.all("v1", "Node").is_empty(),
        "an apply without a uid would have created the Node"
    );

    fake.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u2"}}));
    assert_eq!(
        apply(&api, &old, &wanted).await.unwrap(),
        ApplyOutcome::Replaced
    );
    assert_eq!(
        fake.get("v1", "Node", "", "n1").unwrap()["metadata"]["labels"],
        json!(null)
    );

    // The second protection: the agent has no permission to create Nodes, even by an apply without a uid.
    fake.remove(&fake.get("v1", "Node", "", "n1").unwrap());
    fake.user("agent", "agent");
    fake.allow("agent", &["get", "patch"], "", "nodes", &[]);
    let agent = Api::new(fake.client("agent"), Duration::from_secs(10));
    let without_uid = OwnNode {
        name: "n1".to_owned(),
        ..OwnNode::default()
    };
    assert_eq!(
        apply(&agent, &without_uid, &wanted).await.unwrap(),
        ApplyOutcome::Gone
    );
    assert!(fake.all("v1", "Node").is_empty());
}

#[tokio::test]
async fn an_answer_without_the_requested_node_is_an_error() {
    let (fake, api) = cluster();
    let node = read(&api, "n1").await.unwrap().unwrap();
    for text in [
        "{}",
        r#"{"metadata": {}}"#,
        r#"{"metadata": {"name": "n1"}}"#,
        r#"{"metadata": {"name": "n1", "uid": ""}}"#,
        r#"{"metadata": {"name": "n2", "uid": "u2"}}"#,
        r#"{"kind": "NodeList", "metadata": {"resourceVersion": "7"}, "items": []}"#,
    ] {
        fake.fail(
            FaultScope::always().on("nodes"),
            Fault::Refuse {
                code: 200,
                text,
                retry_after: None,
            },
        );
        let wanted = labels(&[("SCENCE", "1")]);
        for failure in [
            read(&api, "n1").await.unwrap_err(),
            apply(&api, &node, &wanted).await.unwrap_err(),
            set_taints(&api, &node, &[]).await.unwrap_err(),
        ] {
            assert!(
                matches!(failure, Failure::InvalidResponse(_)),
                "{text}: {failure}"
            );
        }
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_built_is_terminal_and_not_repeated() {
    let (fake, api) = cluster();
    fake.clear_log();
    let failure = read(&api, "a node").await.unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::InvalidRequest);
    assert!(
        failure.is_terminal() && !failure.is_retryable() && !failure.is_uncertain(),
        "{failure}"
    );
    assert!(failure.to_string().contains("check the names"), "{failure}");
    assert_eq!(fake.count("", ""), 0, "nothing was sent");
    assert_eq!(api.counters().errors(ErrorKind::InvalidRequest), 1);
}

#[tokio::test]
async fn refusals_carry_the_servers_message() {
    let (fake, api) = cluster();
    let node = read(&api, "n1").await.unwrap().unwrap();
    let failure = apply(&api, &node, &labels(&[("SCENCE", "not a label!")]))
        .await
        .unwrap_err();
    assert!(
        failure.to_string().contains("a valid label must be"),
        "{failure}"
    );
    assert_eq!(failure.kind(), ErrorKind::Refused);
    fake.user("agent", "system:serviceaccount:pinfold:pinfold");
    let agent = Api::new(fake.client("agent"), Duration::from_secs(10));
    let failure = apply(&agent, &node, &labels(&[("SCENCE", "1")]))
        .await
        .unwrap_err();
    assert!(
        failure
            .to_string()
            .contains("cannot patch resource \"nodes\""),
        "{failure}"
    );
    let failure = read(
        &Api::new(fake.client("stale"), Duration::from_secs(10)),
        "n1",
    )
    .await
    .unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::Unauthorized);
}
