//! Tests of `pinfold scene … --live` and `pinfold release --cluster-only` against a server on a socket.

use std::time::Duration;

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agents::{NAMESPACE, install, put_node};
use crate::fakeapi::{ADMIN, FakeApi, Fault, FaultScope};

struct Live {
    fake: FakeApi,
    folder: TempDir,
}

impl Live {
    async fn new() -> Self {
        let live = Self {
            fake: FakeApi::start().await,
            folder: TempDir::new().unwrap(),
        };
        live.login(ADMIN);
        live
    }

    fn login(&self, token: &str) {
        std::fs::write(self.kubeconfig(), self.fake.kubeconfig(token)).unwrap();
    }

    fn kubeconfig(&self) -> String {
        self.folder
            .path()
            .join("admin.conf")
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// Runs the program with `--kubeconfig` added.
    async fn pinfold(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let mut all: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        all.extend(["--kubeconfig".to_owned(), self.kubeconfig()]);
        // The program runs on a blocking thread, so the test's server can answer.
        let output = tokio::task::spawn_blocking(move || {
            Command::new(env!("CARGO_BIN_EXE_pinfold"))
                .args(all)
                .env_remove("KUBECONFIG")
                .env_remove("NODE_NAME")
                .env_remove("KUBERNETES_SERVICE_HOST")
                .timeout(Duration::from_secs(60))
                .output()
        });
        let output = output.await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    }
}

fn plan(name: &str, servers: u32) -> Value {
    json!({
        "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan", "metadata": {"name": name},
        "spec": {
            "nodes": {"selector": {"matchLabels": {"pool": "train"}}}, "active": {"scene": "1", "case": "1"},
            "scenes": [{"scene": "1", "groups": [{"name": "m"}], "cases": [{"case": "1", "nodes": {"m": servers}}]}],
        },
    })
}

fn claim(fake: &FakeApi, lease: &str, node: &str) {
    fake.put(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": lease, "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": "pinfold", "pinfold.io/node-uid": format!("uid-{node}")},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": format!("uid-{node}")}],
        },
        "spec": {"holderIdentity": node},
    }));
}

fn label(fake: &FakeApi, name: &str, index: &str) {
    let mut node = fake.get("v1", "Node", "", name).unwrap();
    for (key, value) in [("SCENCE", "1"), ("CASE", "1"), ("INDEX", index)] {
        node["metadata"]["labels"][key] = json!(value);
    }
    node["metadata"]["managedFields"].as_array_mut().unwrap().push(json!({
        "manager": "pinfold", "operation": "Apply", "apiVersion": "v1", "time": "2026-11-20T16:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:SCENCE": {}, "f:CASE": {}, "f:INDEX": {}}}},
    }));
    node["metadata"]["resourceVersion"] = Value::Null;
    fake.put(&node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_labels_and_status_read_the_cluster() {
    let live = Live::new().await;
    install(&live.fake);
    for name in ["a", "b", "c"] {
        put_node(&live.fake, name, &format!("uid-{name}"));
    }
    live.fake.put(&plan("p", 3));
    let (code, out, error) = live.pinfold(&["scene", "check", "--live"]).await;
    assert_eq!(
        (code, &*out, &*error),
        (Some(0), "1 plan: 0 errors, 0 warnings\n", "")
    );

    // A node with a claim gets the slot of the claim. The other nodes get the free slots in the order of their names.
    claim(&live.fake, "scene.p.1.1.0", "c");
    let (code, out, error) = live
        .pinfold(&["scene", "labels", "--live", "-o", "json"])
        .await;
    assert_eq!((code, &*error), (Some(0), ""));
    let of = |index: &str| json!({"SCENCE": "1", "CASE": "1", "INDEX": index});
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer, json!({"c": of("0"), "a": of("1"), "b": of("2")}));

    // Node c has a claim and labels, node a only a claim, node b only labels.
    label(&live.fake, "c", "0");
    claim(&live.fake, "scene.p.1.1.1", "a");
    claim(&live.fake, "scene.other.1.1.1", "b");
    label(&live.fake, "b", "2");
    let (code, out, error) = live.pinfold(&["scene", "status", "--live"]).await;
    assert_eq!((code, &*error), (Some(1), ""));
    for line in [
        "scene 1 case 1: 3 slots, 2 claimed, 1 missing, 0 double; 0 waiting, 1 spare",
        "2 claims on this case, 1 on other cases or plans",
        "a holds the claim on scene 1 case 1 index 1, but lacks its labels",
        "scene 1 case 1 index 2 has labels on b, but no claim",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    label(&live.fake, "a", "1");
    claim(&live.fake, "scene.p.1.1.2", "b");
    let (code, out, _) = live
        .pinfold(&["scene", "status", "--live", "-o", "json"])
        .await;
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(0), "{out}");
    assert_eq!(
        answer["claims"],
        json!({"scene.p.1.1.0": "c", "scene.p.1.1.1": "a", "scene.p.1.1.2": "b"})
    );
    assert_eq!(answer["problems"], json!([]));

    // Node a also holds the other claims: only the claim on the slot of its labels counts, and the others are no slots of a.
    for index in ["0", "2"] {
        claim(&live.fake, &format!("scene.p.1.1.{index}"), "a");
    }
    let (code, out, _) = live.pinfold(&["scene", "status", "--live"]).await;
    assert_eq!(code, Some(1), "{out}");
    assert!(
        out.contains("\na holds 3 claims of the case, and only scene.p.1.1.1 counts: the reclaimer removes the others"),
        "{out}"
    );
    assert!(!out.contains("lacks its labels"), "{out}");
    let (code, out, error) = live
        .pinfold(&["scene", "labels", "--live", "-o", "json"])
        .await;
    assert_eq!((code, &*error), (Some(0), ""));
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer, json!({"c": of("0"), "a": of("1"), "b": of("2")}));

    // A second plan for the same nodes, with a too large case, gives errors with the plan's name.
    live.fake.put(&plan("q", 4));
    let (code, out, _) = live.pinfold(&["scene", "check", "--live"]).await;
    assert_eq!(code, Some(1), "{out}");
    assert!(
        out.contains("sceneplan/q: error: spec.nodes: a, b, c are also candidates of plan p"),
        "{out}"
    );
    assert!(
        out.contains("sceneplan/q: error: spec.nodes.selector: 3 nodes match the selector"),
        "{out}"
    );
    let (code, _, error) = live.pinfold(&["scene", "labels", "--live"]).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("has several plans (p, q): choose one with --plan NAME"),
        "{error}"
    );
    let (code, _, error) = live
        .pinfold(&["scene", "labels", "--live", "--plan", "q"])
        .await;
    assert_eq!(code, Some(1), "{error}");

    // A plan from a file, checked against the cluster's nodes.
    let file = live.folder.path().join("plan.json");
    std::fs::write(&file, plan("r", 4).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let (code, out, _) = live.pinfold(&["scene", "check", file, "--live"]).await;
    assert_eq!(code, Some(1));
    assert!(
        out.contains("3 nodes match the selector, but scene 1 case 1 needs 4"),
        "{out}"
    );
    // Schema errors of a cluster's plan are reported like errors of a file.
    live.fake.put(&json!({
        "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan", "metadata": {"name": "q"}, "spec": {"scenes": 7},
    }));
    let (code, out, _) = live.pinfold(&["scene", "check", "--live"]).await;
    assert_eq!(code, Some(1));
    assert!(out.contains("sceneplan/q:"), "{out}");
    // The commands only list objects.
    assert!(
        live.fake.log().iter().all(|logged| logged.verb == "list"),
        "{:?}",
        live.fake.log()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leftover_claims_without_a_plan_are_reported() {
    let live = Live::new().await;
    install(&live.fake);
    put_node(&live.fake, "a", "uid-a");
    let status = ["scene", "status", "--live"];
    let (code, out, error) = live.pinfold(&status).await;
    assert_eq!(
        (code, &*out, &*error),
        (Some(0), "the cluster has no ScenePlan and no claims\n", "")
    );
    claim(&live.fake, "scene.p.1.1.0", "a");
    let (code, out, error) = live.pinfold(&status).await;
    assert_eq!((code, &*error), (Some(1), ""), "{out}");
    for line in [
        "the cluster has no ScenePlan, but 1 claim remains",
        "scene.p.1.1.0 of node a",
        "pinfold release --cluster-only",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    let (code, out, _) = live.pinfold(&[&status[..], &["-o", "json"]].concat()).await;
    assert_eq!(code, Some(1));
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        answer,
        json!({"plan": null, "claims": {"scene.p.1.1.0": "a"}, "leaving": []})
    );
    // The plan has ordered the removal, and the node waits for its pods.
    let mut node = live.fake.get("v1", "Node", "", "a").unwrap();
    node["metadata"]["labels"]["pinfold.io/leaving"] = json!("p");
    node["metadata"]["resourceVersion"] = Value::Null;
    live.fake.put(&node);
    let (_, out, _) = live.pinfold(&status).await;
    assert!(
        out.contains("of node a, which it gives up when its pods have ended"),
        "{out}"
    );
    // The plan named by `--plan` does not exist.
    let (code, _, error) = live
        .pinfold(&[&status[..], &["--plan", "p"]].concat())
        .await;
    assert_eq!(code, Some(2));
    assert!(error.contains("has no ScenePlan"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_the_remedy() {
    let live = Live::new().await;
    let check = ["scene", "check", "--live"];
    let (code, _, error) = live.pinfold(&check).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("pinfold scene crd | kubectl apply -f -"),
        "{error}"
    );
    assert!(
        error.contains("404") && error.contains(&live.fake.address().to_string()),
        "{error}"
    );
    install(&live.fake);
    let (code, _, error) = live.pinfold(&check).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("the cluster has no ScenePlan: create one with kubectl apply"),
        "{error}"
    );
    live.fake.put(&plan("p", 1));
    live.fake.user("somebody", "somebody");
    live.login("somebody");
    let (code, _, error) = live.pinfold(&check).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("allow your account to list sceneplans"),
        "{error}"
    );
    live.login("stale");
    let (code, _, error) = live.pinfold(&["scene", "status", "--live"]).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("check the token or the client certificate in the kubeconfig"),
        "{error}"
    );
    live.login(ADMIN);
    let busy = Fault::Refuse {
        code: 503,
        text: "busy",
        retry_after: None,
    };
    live.fake.fail(FaultScope::always().on("nodes"), busy);
    let (code, _, error) = live.pinfold(&["scene", "labels", "--live"]).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("can't list nodes") && error.contains("503"),
        "{error}"
    );
    live.fake.heal();
    live.fake.go_away();
    let (code, _, error) = live.pinfold(&check).await;
    assert_eq!(code, Some(2));
    assert!(error.contains("check that the API server runs"), "{error}");
    std::fs::remove_file(live.kubeconfig()).unwrap();
    let (code, _, error) = live.pinfold(&check).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("admin.conf, named by --kubeconfig"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_removes_labels_and_claims() {
    let live = Live::new().await;
    install(&live.fake);
    for name in ["a", "b"] {
        put_node(&live.fake, name, &format!("uid-{name}"));
        label(&live.fake, name, "0");
        claim(&live.fake, &format!("scene.p.1.1.{name}"), name);
    }
    let release = ["release", "--cluster-only", "--node-name", "a"];
    let (code, out, error) = live.pinfold(&[&release[..], &["--dry-run"]].concat()).await;
    assert_eq!((code, &*error), (Some(0), ""));
    assert_eq!(
        out,
        "would be removed from Node a:\n  label CASE=1\n  label INDEX=0\n  label SCENCE=1\n  claim scene.p.1.1.a\n"
    );
    let labels =
        |name: &str| live.fake.get("v1", "Node", "", name).unwrap()["metadata"]["labels"].clone();
    assert_eq!(labels("a")["SCENCE"], json!("1"));
    let (code, out, _) = live
        .pinfold(&[&release[..], &["-o", "json"]].concat())
        .await;
    assert_eq!(code, Some(0));
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["cluster"]["claims"], json!(["scene.p.1.1.a"]));
    assert_eq!(labels("a"), json!({"pool": "train"}));
    assert_eq!(
        labels("b")["SCENCE"],
        json!("1"),
        "the other node keeps its labels"
    );
    assert_eq!(live.fake.all("coordination.k8s.io/v1", "Lease").len(), 1);
    let (code, out, _) = live.pinfold(&release).await;
    assert_eq!(
        (code, &*out),
        (
            Some(0),
            "Node a has no labels, taints or claims of Pinfold\n"
        )
    );
    // No Node has the machine's host name.
    let (code, _, error) = live.pinfold(&release[..2]).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("does not exist") && error.contains("with --node-name or NODE_NAME"),
        "{error}"
    );
    let (code, out, _) = live
        .pinfold(&["release", "--cluster-only", "--node-name", "gone"])
        .await;
    assert_eq!(code, Some(0));
    assert!(out.contains("the Node gone does not exist"), "{out}");
    live.fake.go_away();
    let (code, _, error) = live.pinfold(&release).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("labels and claims of Node a may remain"),
        "{error}"
    );
}
