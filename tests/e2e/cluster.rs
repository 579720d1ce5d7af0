//! [`Cluster`]: the API server under test, writes with the suite's field manager, and waits with a deadline.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::settings::{KUBECONFIG, Settings};

/// The field manager of the suite's writes.
pub(crate) const MANAGER: &str = "pinfold-e2e";

/// The longest time of a single check of a state.
const CHECK_LIMIT: Duration = Duration::from_secs(40);

/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(500);

/// The hook's exit code for an action that the cluster can't run.
const UNSUPPORTED: i32 = 3;

/// The API server under test, and the nodes of the tests.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    config: Config,
    pub(crate) settings: Settings,
    /// The names of the test nodes.
    pub(crate) nodes: Vec<String>,
    /// A random text in the names of this run's objects, so that they differ from those of other
    /// runs.
    pub(crate) run: String,
}

// === impl Cluster ===

impl Cluster {
    /// Connects with the kubeconfig, and finds the test nodes.
    pub(crate) async fn connect(settings: Settings) -> Result<Self> {
        let path = settings.kubeconfig.display().to_string();
        let unusable = || format!("{KUBECONFIG}={path} can't be used: name a valid kubeconfig");
        let file = Kubeconfig::read_from(&settings.kubeconfig).with_context(unusable)?;
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(file, &options)
            .await
            .with_context(unusable)?;
        config.connect_timeout = Some(Duration::from_secs(10));
        config.read_timeout = Some(Duration::from_secs(30));
        let client = Client::try_from(config.clone()).with_context(unusable)?;
        let mut cluster = Self {
            client,
            config,
            settings,
            nodes: Vec::new(),
            run: format!("{:06x}", fastrand::u32(..0x0100_0000)),
        };
        cluster.nodes = cluster.find_nodes().await?;
        Ok(cluster)
    }

    async fn find_nodes(&self) -> Result<Vec<String>> {
        let params = match &self.settings.node_label {
            Some(selector) => ListParams::default().labels(selector),
            None => ListParams::default(),
        };
        let existing: Vec<String> = self
            .list("v1", "Node", None, &params)
            .await
            .context(
                "the nodes can't be listed: check the server and the rights of the kubeconfig",
            )?
            .iter()
            .map(|node| name_of(node).to_owned())
            .collect();
        if let Some(selector) = &self.settings.node_label {
            ensure!(
                !existing.is_empty(),
                "no node has the label {selector} of PINFOLD_E2E_NODE_LABEL: label a node"
            );
            return Ok(existing);
        }
        for name in &self.settings.nodes {
            ensure!(
                existing.contains(name),
                "the cluster has no node {name}, which PINFOLD_E2E_NODES names: the nodes are {}",
                existing.join(", ")
            );
        }
        Ok(self.settings.nodes.clone())
    }

    /// A client with a bearer token instead of the kubeconfig's credentials.
    pub(crate) fn with_token(&self, token: &str) -> Result<Client> {
        let mut config = self.config.clone();
        config.auth_info = serde_json::from_value(json!({"token": token}))?;
        Ok(Client::try_from(config)?)
    }

    /// Objects of a kind.
    pub(crate) fn objects(
        &self,
        version: &str,
        kind: &str,
        namespace: Option<&str>,
    ) -> Api<DynamicObject> {
        objects(&self.client, version, kind, namespace)
    }

    pub(crate) async fn apply(&self, object: &Value) -> Result<Value> {
        self.apply_as(MANAGER, object).await
    }

    /// Creates or changes an object by server-side apply with a field manager.
    pub(crate) async fn apply_as(&self, manager: &str, object: &Value) -> Result<Value> {
        let (kind, name) = (text(&object["kind"]), name_of(object));
        let api = self.objects(
            text(&object["apiVersion"]),
            kind,
            object["metadata"]["namespace"].as_str(),
        );
        let params = PatchParams::apply(manager).force().validation_strict();
        let applied = api.patch(name, &params, &Patch::Apply(object)).await;
        let applied = applied.with_context(|| format!("can't apply {kind} {name}"))?;
        Ok(serde_json::to_value(applied)?)
    }

    /// An object; `None` if the object is missing.
    pub(crate) async fn get(
        &self,
        version: &str,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>> {
        let found = self.objects(version, kind, namespace).get_opt(name).await;
        let found = found.with_context(|| format!("can't read {kind} {name}"))?;
        Ok(found.map(serde_json::to_value).transpose()?)
    }

    /// An object that must exist.
    pub(crate) async fn existing(
        &self,
        version: &str,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        let found = self.get(version, kind, namespace, name).await?;
        found.with_context(|| format!("{kind} {name} does not exist"))
    }

    /// All objects of a kind; empty if the server does not know the kind.
    pub(crate) async fn list(
        &self,
        version: &str,
        kind: &str,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<Vec<Value>> {
        match self.objects(version, kind, namespace).list(params).await {
            Ok(list) => {
                let items = list.items.into_iter().map(serde_json::to_value);
                Ok(items.collect::<Result<_, serde_json::Error>>()?)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(anyhow!(error).context(format!("can't list {kind} objects"))),
        }
    }

    /// Deletes an object, and waits until it is gone. A missing one is no error.
    pub(crate) async fn delete(
        &self,
        version: &str,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<()> {
        let api = self.objects(version, kind, namespace);
        self.wait(&format!("{kind} {name} is gone"), async || {
            match api.delete(name, &DeleteParams::background()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                Err(error) => Err(error.into()),
                Ok(_) => bail!("the object still exists"),
            }
        })
        .await
    }

    /// Waits until a check succeeds. `state` names what is awaited, and a failure has the error of
    /// the last check.
    pub(crate) async fn wait<T>(
        &self,
        state: &str,
        mut check: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let deadline = self.settings.deadline;
        let start = Instant::now();
        loop {
            let error = match tokio::time::timeout(CHECK_LIMIT, check()).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(error)) => error,
                Err(_) => anyhow!("no answer within {} s", CHECK_LIMIT.as_secs()),
            };
            ensure!(
                start.elapsed() < deadline,
                "not within {} s: {state}; the last check found: {error:#}",
                deadline.as_secs()
            );
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Requires that each check succeeds for some time. `state` names the state that must last.
    pub(crate) async fn hold(
        &self,
        state: &str,
        time: Duration,
        mut check: impl AsyncFnMut() -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            check().await.with_context(|| {
                format!("{state} ended after {:.0} s", start.elapsed().as_secs_f64())
            })?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Runs the hook with an action and a node. The answer is the reason why the hook can't run the action, if any.
    pub(crate) async fn hook(&self, action: &str, node: &str) -> Result<Option<String>> {
        let Some(hook) = self.settings.hook.clone() else {
            return Ok(Some(format!(
                "PINFOLD_E2E_HOOK is not set, and `{action}` needs a command of the cluster"
            )));
        };
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{hook} \"$@\""), "hook", action, node])
            .stdin(std::process::Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output())
            .await?
            .context("sh can't be started")?;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let said = said.trim();
        match output.status.code() {
            Some(0) => Ok(None),
            Some(UNSUPPORTED) => Ok(Some(format!("the hook can't run `{action}`: {said}"))),
            _ => bail!(
                "the hook failed in `{action} {node}` ({}): {said}",
                output.status
            ),
        }
    }
}

/// Objects of a kind, as a client sees them.
pub(crate) fn objects(
    client: &Client,
    version: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// The name of an object; empty without a name.
pub(crate) fn name_of(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

/// A text in an object; empty if the value is no text.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
