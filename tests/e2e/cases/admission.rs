//! The rights of an agent and the limits of the admission policies, by dry runs with a token of the agent's pod.

use anyhow::{Context, Result, anyhow, bail, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::agent;
use crate::cluster::{self, name_of, text};
use crate::report::Verdict;
use crate::site::Site;

/// The API version of Leases.
const LEASES: &str = "coordination.k8s.io/v1";

/// The API version of Events.
const EVENTS: &str = "events.k8s.io/v1";

/// A client with the rights of the node's agent. A token that is not bound belongs to no pod and no
/// node.
async fn agent_client(site: &Site<'_>, bound: bool) -> Result<Client> {
    let pod = agent::agent(site.cluster, site.node).await?;
    let mut spec = json!({"audiences": [], "expirationSeconds": 600});
    if bound {
        spec["boundObjectRef"] = json!({
            "apiVersion": "v1", "kind": "Pod", "name": name_of(&pod), "uid": pod["metadata"]["uid"],
        });
    }
    let request: TokenRequest = serde_json::from_value(json!({"spec": spec}))?;
    let namespace = &site.cluster.settings.namespace;
    let accounts: Api<ServiceAccount> = Api::namespaced(site.cluster.client.clone(), namespace);
    let account = text(&pod["spec"]["serviceAccountName"]);
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .with_context(|| format!("the server gives no token of the account {account}"))?;
    let token = answer.status.and_then(|status| status.token);
    let token = token.context("the answer has no token")?;
    site.cluster.with_token(&token)
}

fn dry() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

fn object(value: Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(value)?)
}

/// Requires that the server allows a request.
fn allowed<T>(what: &str, answer: Result<T, kube::Error>) -> Result<()> {
    answer
        .map(drop)
        .with_context(|| format!("the server refuses: {what}"))
}

/// Requires that the server refuses a request, and that the message contains `part`.
fn refused<T>(what: &str, answer: Result<T, kube::Error>, part: &str) -> Result<()> {
    match answer {
        Ok(_) => bail!("the server allows: {what}"),
        Err(kube::Error::Api(status)) => {
            ensure!(
                matches!(status.code, 403 | 422) && status.message.contains(part),
                "{what}: the answer is {} ({}), and \"{part}\" is expected",
                status.code,
                status.message
            );
            Ok(())
        }
        Err(error) => Err(anyhow!(error).context(format!("no answer: {what}"))),
    }
}

/// The agent's role allows reads of pods, and refuses everything that it does not need.
pub(super) async fn rights(site: &Site<'_>) -> Result<Verdict> {
    let client = agent_client(site, true).await?;
    let of =
        |version: &str, kind: &str, namespace| cluster::objects(&client, version, kind, namespace);
    let one = ListParams::default().limit(1);
    let own = Some(&*site.cluster.settings.namespace);
    let here = Some(&*site.namespace);
    allowed("a list of pods", of("v1", "Pod", None).list(&one).await)?;
    allowed(
        "a read of the Node",
        of("v1", "Node", None).get(site.node).await,
    )?;
    allowed(
        "a list of plans",
        of(crate::scene::PLANS, "ScenePlan", None).list(&one).await,
    )?;
    let part = "cannot";
    refused(
        "a list of Secrets",
        of("v1", "Secret", own).list(&one).await,
        part,
    )?;
    refused(
        "a list of ConfigMaps",
        of("v1", "ConfigMap", here).list(&one).await,
        part,
    )?;
    let dry_delete = DeleteParams::default().dry_run();
    let node = of("v1", "Node", None).delete(site.node, &dry_delete).await;
    refused("the deletion of the Node", node, part)?;
    let pod = of("v1", "Pod", here).delete("any", &dry_delete).await;
    refused("the deletion of a pod", pod, part)?;
    let new =
        object(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "pinfold-e2e"}}))?;
    let created = of("v1", "Node", None).create(&dry(), &new).await;
    refused("a new Node", created, part)?;
    let plan = object(crate::scene::plan(site, None, "wait"))?;
    let created = of(crate::scene::PLANS, "ScenePlan", None)
        .create(&dry(), &plan)
        .await;
    refused("a new plan", created, part)?;
    Ok(Verdict::Passed("3 requests allowed, 6 refused".to_owned()))
}

/// A dry run of a patch to a Node.
async fn patch_node(
    client: &Client,
    node: &str,
    patch: Value,
) -> Result<DynamicObject, kube::Error> {
    let params = PatchParams::default().dry_run();
    cluster::objects(client, "v1", "Node", None)
        .patch(node, &params, &Patch::Merge(patch))
        .await
}

/// The Node's taints and a further taint.
fn with_taint(node: &Value, key: &str, effect: &str) -> Value {
    let mut taints = node["spec"]["taints"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    taints.push(json!({"key": key, "value": "e2e", "effect": effect}));
    json!({"spec": {"taints": taints}})
}

/// An agent changes only the labels and taints of scenes, and only on its own Node.
pub(super) async fn node(site: &Site<'_>) -> Result<Verdict> {
    let client = agent_client(site, true).await?;
    let node = site.node().await?;
    let own =
        json!({"metadata": {"labels": {"SCENCE": "e2e", "CASE": "1", "INDEX": "0", "TYPE": "w"}}});
    allowed(
        "labels of a slot",
        patch_node(&client, site.node, own.clone()).await,
    )?;
    let taint = with_taint(&node, "pinfold.io/scene", "NoSchedule");
    allowed(
        "the taint of a slot",
        patch_node(&client, site.node, taint).await,
    )?;
    let mistakes = [
        (
            "a foreign label",
            json!({"metadata": {"labels": {"pinfold-e2e-foreign": "1"}}}),
            "may set the labels",
        ),
        (
            "a foreign taint",
            with_taint(&node, "pinfold-e2e-foreign", "NoSchedule"),
            "may set the taints",
        ),
        (
            "a taint that evicts pods",
            with_taint(&node, "pinfold.io/scene", "NoExecute"),
            "NoExecute",
        ),
        (
            "a cordon",
            json!({"spec": {"unschedulable": true}}),
            "except for its own taints",
        ),
        (
            "an annotation",
            json!({"metadata": {"annotations": {"pinfold-e2e": "1"}}}),
            "other metadata",
        ),
    ];
    for (what, patch, part) in mistakes {
        refused(what, patch_node(&client, site.node, patch).await, part)?;
    }
    let unbound = agent_client(site, false).await?;
    let answer = patch_node(&unbound, site.node, own.clone()).await;
    refused("a token that is bound to no node", answer, "no node")?;
    let nodes = site
        .cluster
        .list("v1", "Node", None, &ListParams::default())
        .await?;
    let other = nodes.iter().map(name_of).find(|name| *name != site.node);
    let Some(other) = other else {
        return Ok(Verdict::Passed(
            "2 changes allowed, 6 refused; no second Node".to_owned(),
        ));
    };
    let answer = patch_node(&client, other, own).await;
    refused("a label of another Node", answer, "may not change node")?;
    Ok(Verdict::Passed("2 changes allowed, 7 refused".to_owned()))
}

/// The name of a slot that no plan has.
fn claim_name(site: &Site<'_>) -> String {
    format!("scene.{}.1.1.0", site.namespace)
}

/// The Lease with which a node claims its slot.
fn claim(site: &Site<'_>, uid: &Value) -> Value {
    json!({
        "apiVersion": LEASES, "kind": "Lease",
        "metadata": {
            "name": claim_name(site), "namespace": site.cluster.settings.namespace,
            "labels": {"app.kubernetes.io/managed-by": "pinfold", "pinfold.io/node-uid": uid},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": site.node, "uid": uid}],
        },
        "spec": {"holderIdentity": site.node},
    })
}

/// An agent makes and deletes claims of its own node only.
pub(super) async fn claims(site: &Site<'_>) -> Result<Verdict> {
    let client = agent_client(site, true).await?;
    let namespace = &site.cluster.settings.namespace;
    let leases = cluster::objects(&client, LEASES, "Lease", Some(namespace));
    let uid = site.node().await?["metadata"]["uid"].clone();
    let good = claim(site, &uid);
    allowed(
        "a claim of the own node",
        leases.create(&dry(), &object(good.clone())?).await,
    )?;
    let changed = |pointer: &str, value: Value| {
        let mut changed = good.clone();
        match changed.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => bail!("the claim has no {pointer}"),
        }
        object(changed)
    };
    let mistakes = [
        (
            "a claim of another node",
            changed(
                "/metadata/ownerReferences/0/name",
                json!("pinfold-e2e-other"),
            )?,
            "claims of its own node only",
        ),
        (
            "a claim with another holder",
            changed("/spec/holderIdentity", json!("pinfold-e2e-other"))?,
            "a claim's holder",
        ),
        (
            "a claim with a wrong uid in its label",
            changed("/metadata/labels", json!({"pinfold.io/node-uid": "wrong"}))?,
            "pinfold.io/node-uid",
        ),
        (
            "a claim that no reader lists",
            changed("/metadata/labels", json!({"pinfold.io/node-uid": uid}))?,
            "app.kubernetes.io/managed-by",
        ),
        (
            "a Lease with another name than a slot",
            changed("/metadata/name", json!("pinfold-reclaim-e2e"))?,
            "name of a slot",
        ),
        (
            "a claim without an owner",
            changed("/metadata/ownerReferences", json!([]))?,
            "claims of its own node only",
        ),
    ];
    for (what, mistake, part) in mistakes {
        refused(what, leases.create(&dry(), &mistake).await, part)?;
    }
    // A Lease that no Node owns, made by the administrator.
    let mut foreign = good.clone();
    foreign["metadata"]["ownerReferences"] = json!([]);
    // Without the label, no agent takes the Lease for its own claim.
    foreign["metadata"]["labels"] = json!({});
    site.cluster.apply(&foreign).await?;
    let delete = leases
        .delete(&claim_name(site), &DeleteParams::default().dry_run())
        .await;
    let patch = Patch::Merge(json!({"spec": {"holderIdentity": "pinfold-e2e-other"}}));
    let update = leases
        .patch(&claim_name(site), &PatchParams::default().dry_run(), &patch)
        .await;
    site.cluster
        .delete(LEASES, "Lease", Some(namespace), &claim_name(site))
        .await?;
    refused(
        "the deletion of a foreign Lease",
        delete,
        "claims of its own node only",
    )?;
    refused("the change of a Lease", update, "cannot patch")?;
    Ok(Verdict::Passed("1 request allowed, 8 refused".to_owned()))
}

/// An agent writes Events as the reporter of its own node, about Pods and its own Node.
pub(super) async fn events(site: &Site<'_>) -> Result<Verdict> {
    let client = agent_client(site, true).await?;
    let events = cluster::objects(&client, EVENTS, "Event", Some(&site.namespace));
    let on_node = cluster::objects(&client, EVENTS, "Event", Some("default"));
    let event = |namespace: &str, reporter: &str, kind: &str, name: &str| {
        let about = match kind {
            "Node" => json!({"apiVersion": "v1", "kind": kind, "name": name}),
            _ => json!({"apiVersion": "v1", "kind": kind, "name": name, "namespace": namespace}),
        };
        object(json!({
            "apiVersion": EVENTS, "kind": "Event", "metadata": {"name": site.namespace, "namespace": namespace},
            "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Pin", "reason": "Pinned", "type": "Normal",
            "regarding": about, "reportingController": "pinfold.io/agent", "reportingInstance": reporter,
        }))
    };
    let here = &*site.namespace;
    let about_pod = event(here, site.node, "Pod", "any")?;
    allowed(
        "an Event about a pod",
        events.create(&dry(), &about_pod).await,
    )?;
    let about_node = event("default", site.node, "Node", site.node)?;
    allowed(
        "an Event about the Node",
        on_node.create(&dry(), &about_node).await,
    )?;
    let other_reporter = event(here, "pinfold-e2e-other", "Pod", "any")?;
    refused(
        "an Event as the reporter of another node",
        events.create(&dry(), &other_reporter).await,
        "as reportingInstance",
    )?;
    let other_node = event("default", site.node, "Node", "pinfold-e2e-other")?;
    refused(
        "an Event about another Node",
        on_node.create(&dry(), &other_node).await,
        "its own Node only",
    )?;
    let secret = event(here, site.node, "Secret", "any")?;
    refused(
        "an Event about a Secret",
        events.create(&dry(), &secret).await,
        "its own Node only",
    )?;
    Ok(Verdict::Passed("2 Events allowed, 3 refused".to_owned()))
}

/// The admission policy for thread counts adds the counts to new pods with the label, and to no other pods.
pub(super) async fn threads(site: &Site<'_>) -> Result<Verdict> {
    const GROUP: &str = "admissionregistration.k8s.io/v1";
    const KIND: &str = "MutatingAdmissionPolicy";
    let resources = site
        .cluster
        .client
        .list_api_group_resources(GROUP)
        .await?
        .resources;
    if !resources.iter().any(|of| of.kind == KIND) {
        return Ok(Verdict::Skipped(format!(
            "the server has no {KIND} in {GROUP}"
        )));
    }
    let existing = site
        .cluster
        .get(GROUP, KIND, None, "pinfold-threads")
        .await?;
    let documents = super::installation::documents("deploy/policies/threads.yaml")?;
    let mut result = Ok(());
    if existing.is_none() {
        for document in &documents {
            result = site.cluster.apply(document).await.map(drop);
            if result.is_err() {
                break;
            }
        }
    }
    let result = match result {
        Ok(()) => thread_counts(site).await,
        Err(error) => Err(error),
    };
    if existing.is_none() {
        for document in documents.iter().rev() {
            let (version, kind) = (text(&document["apiVersion"]), text(&document["kind"]));
            site.cluster
                .delete(version, kind, None, name_of(document))
                .await?;
        }
    }
    result
}

/// The value of a variable of a pod's first container after a dry run.
async fn admitted(site: &Site<'_>, pod: &Value, variable: &str) -> Result<Option<String>> {
    let pods = site.cluster.objects("v1", "Pod", Some(&site.namespace));
    let created = pods.create(&dry(), &object(pod.clone())?).await?;
    let env = created.data["spec"]["containers"][0]["env"]
        .as_array()
        .cloned();
    let found = env.into_iter().flatten().find(|of| of["name"] == variable);
    Ok(found.map(|of| text(&of["value"]).to_owned()))
}

async fn thread_counts(site: &Site<'_>) -> Result<Verdict> {
    const NAME: &str = "OMP_NUM_THREADS";
    const INTER: &str = "TF_NUM_INTEROP_THREADS";
    let plain = site.pod("train", &[site.container("main", "2")]);
    let mut marked = plain.clone();
    marked["metadata"]["labels"] = json!({"pinfold.io/threads": "admit"});
    site.cluster
        .wait("the policy is in force", async || {
            let value = admitted(site, &marked, NAME).await?;
            ensure!(
                value.as_deref() == Some("2"),
                "{NAME} is {value:?}, and the limit is 2"
            );
            Ok(())
        })
        .await?;
    let mut own = marked.clone();
    own["spec"]["containers"][0]["env"] = json!([{"name": NAME, "value": "7"}]);
    let mut off = marked.clone();
    off["metadata"]["annotations"] = json!({"pinfold.io/threads": "off"});
    let mut ps = marked.clone();
    ps["metadata"]["annotations"] = json!({"pinfold.io/threads": "ps"});
    let mut processes = marked.clone();
    processes["metadata"]["annotations"] = json!({"pinfold.io/processes": "2"});
    let pods = [
        ("a pod without the label", plain, None),
        ("a pod with its own value", own, Some("7")),
        ("a pod with the profile off", off, None),
        ("a pod with the profile ps", ps, Some("1")),
        ("a pod with two processes", processes.clone(), Some("1")),
    ];
    for (what, pod, wanted) in pods {
        let value = admitted(site, &pod, NAME).await?;
        ensure!(
            value.as_deref() == wanted,
            "{what}: {NAME} is {value:?}, and {wanted:?} is expected"
        );
    }
    // Each of the two processes has one CPU. No inter-op pool is smaller than two threads.
    let inter = admitted(site, &processes, INTER).await?;
    ensure!(
        inter.as_deref() == Some("2"),
        "{INTER} is {inter:?} for one CPU, and 2 is expected"
    );
    Ok(Verdict::Passed("6 pods".to_owned()))
}
