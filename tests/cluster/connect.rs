//! The way to the API server.

use std::path::Path;
use std::time::Duration;

use pinfold::cluster::connect::connect;
use pinfold::cluster::{Api, node};
use serde_json::json;

use crate::fakeapi::{ADMIN, FakeApi};

fn chain(error: &dyn std::error::Error) -> String {
    let cause = error
        .source()
        .map(|cause| format!(": {}", chain(cause)))
        .unwrap_or_default();
    format!("{error}{cause}")
}

#[tokio::test]
async fn a_kubeconfig_leads_there_by_flag_or_by_environment() {
    let fake = FakeApi::start().await;
    fake.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, fake.kubeconfig(ADMIN)).unwrap();
    let named = connect(Some(&path), |_| None).await.unwrap();
    let set = connect(None, |key| {
        (key == "KUBECONFIG").then(|| path.display().to_string())
    })
    .await
    .unwrap();
    for connection in [named, set] {
        assert_eq!(connection.namespace, "pinfold");
        assert!(
            connection.server.contains(&fake.address().to_string()),
            "{connection:?}"
        );
        let api = Api::new(connection.client, Duration::from_secs(5));
        assert_eq!(node::read(&api, "n1").await.unwrap().unwrap().name, "n1");
        let agent = fake.log().pop().unwrap().agent;
        assert_eq!(agent, concat!("pinfold/", env!("CARGO_PKG_VERSION")));
    }
    // The flag wins.
    let error = connect(Some(Path::new("/no/such/file")), |_| {
        Some(path.display().to_string())
    })
    .await
    .unwrap_err();
    let told = chain(&error);
    assert!(
        told.contains("/no/such/file") && told.contains("--kubeconfig"),
        "{told}"
    );
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    for (text, says) in [
        ("{", "kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "context"),
        (
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: x, user: u}}]\n",
            "x",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let told = chain(&connect(Some(&path), |_| None).await.unwrap_err());
        assert!(
            told.contains(&path.display().to_string()) && told.contains(says),
            "{told}"
        );
    }
    let told = chain(&connect(None, |_| None).await.unwrap_err());
    assert!(
        told.contains("--kubeconfig") && told.contains("KUBERNETES_SERVICE_HOST"),
        "{told}"
    );
    // In a pod whose token is not mounted; the environment of this process has no such host, which kube reads itself.
    let told = chain(
        &connect(None, |key| {
            (key == "KUBERNETES_SERVICE_HOST").then(|| "h".to_owned())
        })
        .await
        .unwrap_err(),
    );
    assert!(told.contains("service account"), "{told}");
}
