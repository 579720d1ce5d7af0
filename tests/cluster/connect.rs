//! The configuration of the API client.

use std::path::Path;
use std::time::Duration;

use pinfold::cluster::connect::connect;
use pinfold::cluster::{Api, own_node};
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
async fn a_kubeconfig_is_found_by_flag_or_environment() {
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
        let api = Api::new(connection.client, Duration::from_secs(60));
        assert_eq!(
            own_node::read(&api, "n1").await.unwrap().unwrap().name,
            "n1"
        );
        let agent = fake.log().pop().unwrap().agent;
        assert_eq!(agent, concat!("pinfold/", env!("CARGO_PKG_VERSION")));
    }
    // The flag wins.
    let error = connect(Some(Path::new("/no/such/file")), |_| {
        Some(path.display().to_string())
    })
    .await
    .unwrap_err();
    let message = chain(&error);
    assert!(
        message.contains("/no/such/file") && message.contains("--kubeconfig"),
        "{message}"
    );
}

#[tokio::test]
async fn an_error_names_the_unusable_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    for (text, cause) in [
        ("{", "kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "context"),
        (
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: x, user: u}}]\n",
            "x",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let message = chain(&connect(Some(&path), |_| None).await.unwrap_err());
        assert!(
            message.contains(&path.display().to_string()) && message.contains(cause),
            "{message}"
        );
    }
    let message = chain(&connect(None, |_| None).await.unwrap_err());
    assert!(
        message.contains("--kubeconfig") && message.contains("KUBERNETES_SERVICE_HOST"),
        "{message}"
    );
    // A pod without a mounted token. kube itself reads KUBERNETES_SERVICE_HOST, which is not set in the test process.
    let message = chain(
        &connect(None, |key| {
            (key == "KUBERNETES_SERVICE_HOST").then(|| "h".to_owned())
        })
        .await
        .unwrap_err(),
    );
    assert!(message.contains("service account"), "{message}");
}

#[cfg(feature = "portforward")]
#[tokio::test]
async fn a_person_uses_the_file_in_the_home_folder_and_a_context() {
    use pinfold::cluster::connect::connect_user;

    let fake = FakeApi::start().await;
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".kube")).unwrap();
    let path = home.path().join(".kube/config");
    std::fs::write(&path, fake.kubeconfig(ADMIN)).unwrap();
    let environment = |key: &str| (key == "HOME").then(|| home.path().display().to_string());
    for context in [None, Some("fake")] {
        let connection = connect_user(None, context, environment).await.unwrap();
        assert!(connection.server.contains(&fake.address().to_string()));
        assert_eq!(connection.origin, path.display().to_string());
    }
    let error = connect_user(None, Some("other"), environment).await;
    let message = chain(&error.unwrap_err());
    assert!(
        message.contains(".kube/config") && message.contains("other"),
        "{message}"
    );
    let error = connect_user(None, None, |_| None).await.unwrap_err();
    assert!(chain(&error).contains("--kubeconfig"));
}
