//! [`PlanSwitch`]: the experiment's hold on its ScenePlan, and the change of the active case.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kube::core::params::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::EXPERIMENT_LABEL;
use super::settings::Before;
use crate::cluster::patient::{Creation, PatientApi};
use crate::cluster::{ErrorKind, scenes};
use crate::scene::{
    ActiveCase, Holding, LEAVING_LABEL, Node, ScenePlan, ScenePlanSpec, Slot, Slots, is_candidate,
    slots,
};

const PLANS: &str = "/apis/pinfold.io/v1alpha1/sceneplans";

/// The shortest time between two looks at the nodes. With many nodes it is longer.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Nodes that a second of looking may read.
const NODES_PER_SECOND: usize = 500;

/// How often a change that meets another is tried.
const TRIES: usize = 5;

/// The most names in a message.
const MOST_NAMED: usize = 5;

/// A ScenePlan in the cluster that an experiment has for itself. The annotation [`EXPERIMENT_LABEL`] with the experiment's id is the
/// lock: whoever finds another id there leaves the plan alone.
#[derive(Debug, Clone)]
pub(super) struct PlanSwitch {
    api: PatientApi,
    plan: ScenePlan,
    experiment: String,
}

/// A node's name and labels.
#[derive(Debug, Deserialize)]
struct LabelledNode {
    metadata: NodeMetadata,
}

#[derive(Debug, Deserialize)]
struct NodeMetadata {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

// === impl PlanSwitch ===

impl PlanSwitch {
    /// A switch of the plan, without a request.
    pub(super) fn new(api: PatientApi, plan: ScenePlan, experiment: &str) -> Self {
        Self {
            api,
            plan,
            experiment: experiment.to_owned(),
        }
    }

    pub(super) fn plan(&self) -> &ScenePlan {
        &self.plan
    }

    fn name(&self) -> &str {
        self.plan.metadata.name.as_deref().unwrap_or_default()
    }

    fn path(&self) -> String {
        format!("{PLANS}/{}", self.name())
    }

    /// Takes the plan: creates it without an active case, or writes the experiment's id into the existing one. Returns the active
    /// case of an existing plan that nobody had, which is to be put back.
    ///
    /// # Errors
    /// Another experiment has the plan, it was changed, or a request fails.
    pub(super) async fn take(&self, before: &Before) -> anyhow::Result<Option<Option<ActiveCase>>> {
        if !before.had_plan {
            let mut spec = serde_json::to_value(&self.plan.spec).context("can't write the plan")?;
            if let Some(fields) = spec.as_object_mut() {
                fields.shift_remove("active");
            }
            let object = json!({
                "apiVersion": "pinfold.io/v1alpha1",
                "kind": "ScenePlan",
                "metadata": {"name": self.name(), "annotations": {EXPERIMENT_LABEL: self.experiment}},
                "spec": spec,
            });
            let created = self.api.create(PLANS, &object).await;
            let created =
                created.with_context(|| format!("can't create the plan {}", self.name()))?;
            if created != Creation::Exists {
                return Ok(None);
            }
        }
        let free = std::cell::Cell::new(None);
        self.change(|plan| {
            let holder = plan["metadata"]["annotations"][EXPERIMENT_LABEL].as_str();
            if let Some(other) = holder.filter(|holder| *holder != self.experiment) {
                bail!("{}", taken(self.name(), other));
            }
            ensure!(
                before.had_plan || holder.is_some(),
                "the plan {} exists: use it with --use-plan {}, or give yours another name",
                self.name(),
                self.name()
            );
            let active = serde_json::from_value(plan["spec"]["active"].clone());
            free.set(holder.is_none().then(|| active.unwrap_or_default()));
            Ok(json!({"metadata": {"annotations": {EXPERIMENT_LABEL: self.experiment}}}))
        })
        .await?;
        Ok(free.into_inner())
    }

    /// Makes a case the active one, or none.
    ///
    /// # Errors
    /// The plan is no longer this experiment's, or was changed; a request fails.
    pub(super) async fn activate(&self, active: Option<&ActiveCase>) -> anyhow::Result<()> {
        self.change(|plan| {
            self.check_hold(plan)?;
            Ok(json!({"spec": {"active": active}}))
        })
        .await
    }

    /// Gives an existing plan back, with its earlier active case.
    ///
    /// # Errors
    /// A request fails.
    pub(super) async fn give_back(&self, before: &Before) -> anyhow::Result<()> {
        if self.api.get::<Value>(&self.path()).await?.is_none() {
            return Ok(());
        }
        self.change(|plan| {
            if plan["metadata"]["annotations"][EXPERIMENT_LABEL] != json!(self.experiment) {
                // Somebody has taken the plan over, or it was given back before.
                return Ok(Value::Null);
            }
            Ok(json!({
                "metadata": {"annotations": {EXPERIMENT_LABEL: null}},
                "spec": {"active": before.active},
            }))
        })
        .await
    }

    /// Removes the plan that this experiment has created: no case is active, the nodes give up their labels, and then the plan
    /// goes. A plan that is gone already needs nothing.
    ///
    /// # Errors
    /// A request fails, or nodes keep their labels.
    pub(super) async fn remove(&self, limit: Duration) -> anyhow::Result<()> {
        let Some(plan) = self.api.get::<Value>(&self.path()).await? else {
            return Ok(());
        };
        if plan["metadata"]["annotations"][EXPERIMENT_LABEL] != json!(self.experiment) {
            return Ok(());
        }
        // Whatever somebody has changed in the plan meanwhile, it was made for this experiment.
        self.change(|plan| {
            self.check_holder(plan)?;
            Ok(json!({"spec": {"active": null}}))
        })
        .await?;
        self.wait_until_unlabelled(limit).await?;
        let deleted = self.api.delete(&self.path()).await;
        deleted.with_context(|| format!("can't delete the plan {}", self.name()))
    }

    /// Checks that the plan is this experiment's and that nobody changed anything but the active case.
    fn check_hold(&self, plan: &Value) -> anyhow::Result<()> {
        self.check_holder(plan)?;
        let there: Result<ScenePlanSpec, _> = serde_json::from_value(plan["spec"].clone());
        let is_same = there.is_ok_and(|mut there| {
            let mut ours = self.plan.spec.clone();
            (there.active, ours.active) = (None, None);
            there == ours
        });
        ensure!(
            is_same,
            "somebody changed the plan {} during the experiment: its runs can't be compared any more",
            self.name()
        );
        Ok(())
    }

    /// Checks that the plan is this experiment's.
    fn check_holder(&self, plan: &Value) -> anyhow::Result<()> {
        match plan["metadata"]["annotations"][EXPERIMENT_LABEL].as_str() {
            Some(holder) if holder == self.experiment => Ok(()),
            Some(other) => bail!("{}", taken(self.name(), other)),
            None => bail!(
                "the plan {} no longer has the annotation {EXPERIMENT_LABEL}: somebody removed it",
                self.name()
            ),
        }
    }

    /// Reads the plan, and applies the patch that `patch` makes of it, unless the plan changes in between. A null patch changes
    /// nothing.
    async fn change(&self, patch: impl Fn(&Value) -> anyhow::Result<Value>) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            let plan: Option<Value> = self.api.get(&self.path()).await?;
            let plan = plan.with_context(|| format!("the plan {} is gone", self.name()))?;
            let mut changes = patch(&plan)?;
            if changes.is_null() {
                return Ok(());
            }
            changes["metadata"]["resourceVersion"] = plan["metadata"]["resourceVersion"].clone();
            match self.api.merge(&self.path(), &changes).await {
                Ok(_) => return Ok(()),
                Err(failure) if failure.kind() == ErrorKind::Conflict => {}
                Err(failure) => {
                    return Err(failure)
                        .with_context(|| format!("can't change the plan {}", self.name()));
                }
            }
        }
        bail!(
            "the plan {} was changed by somebody else {TRIES} times in a row: find out who writes it",
            self.name()
        )
    }

    /// The nodes with labels.
    async fn nodes(&self) -> anyhow::Result<Vec<LabelledNode>> {
        let nodes = self
            .api
            .list_metadata("/api/v1/nodes", ListParams::default())
            .await;
        nodes.context("can't list nodes")
    }

    /// Waits until every slot of a case has exactly one node, and returns the nodes.
    ///
    /// # Errors
    /// Slots lack a node after the time limit; what holds them up is named.
    pub(super) async fn wait_for_labels(
        &self,
        case: &ActiveCase,
        limit: Duration,
    ) -> anyhow::Result<BTreeSet<String>> {
        let wanted = slots(&self.plan, &case.scene, &case.case)?;
        let until = Instant::now() + limit;
        loop {
            let nodes = self.nodes().await?;
            let holders = self.holders(&wanted, &nodes);
            if holders.len() == wanted.len() && holders.values().all(|nodes| nodes.len() == 1) {
                return Ok(holders.into_values().flatten().collect());
            }
            if Instant::now() > until {
                let busy = self
                    .busy(&nodes, |slot| wanted.position(slot).is_none())
                    .await;
                bail!(
                    "{} of {} slots of scene {} case {} have no node, or several, {} s after the change{}",
                    wanted.len() - holders.values().filter(|nodes| nodes.len() == 1).count(),
                    wanted.len(),
                    case.scene,
                    case.case,
                    limit.as_secs(),
                    busy
                );
            }
            tokio::time::sleep(pause(nodes.len())).await;
        }
    }

    /// The nodes of each slot, by its position.
    fn holders(&self, slots: &Slots, nodes: &[LabelledNode]) -> BTreeMap<usize, Vec<String>> {
        let mut holders: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for node in nodes {
            if let Holding::Slot(slot) = self.plan.spec.labels.read(&node.metadata.labels)
                && let Some(place) = slots.position(&slot)
            {
                holders
                    .entry(place)
                    .or_default()
                    .push(node.metadata.name.clone());
            }
        }
        holders
    }

    /// Waits until no node has labels of the plan.
    async fn wait_until_unlabelled(&self, limit: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        loop {
            let nodes = self.nodes().await?;
            let left = nodes.iter().any(|node| self.is_of_plan(node));
            if !left {
                return Ok(());
            }
            if Instant::now() > until {
                let busy = self.busy(&nodes, |_| true).await;
                bail!(
                    "nodes still have labels of the plan {} {} s after its end{busy}",
                    self.name(),
                    limit.as_secs()
                );
            }
            tokio::time::sleep(pause(nodes.len())).await;
        }
    }

    /// Whether a node has labels of this plan. Nodes that the plan can't label don't count, whatever labels they have.
    fn is_of_plan(&self, node: &LabelledNode) -> bool {
        let candidate = Node {
            name: node.metadata.name.clone(),
            labels: node.metadata.labels.clone(),
            ..Node::default()
        };
        let leaving = node.metadata.labels.get(LEAVING_LABEL);
        leaving.is_some_and(|plan| plan == self.name())
            || is_candidate(&self.plan, &candidate)
                && self.slot(node).is_some_and(|slot| self.has(&slot))
    }

    fn slot(&self, node: &LabelledNode) -> Option<Slot> {
        match self.plan.spec.labels.read(&node.metadata.labels) {
            Holding::Slot(slot) => Some(slot),
            Holding::Nothing | Holding::Broken { .. } => None,
        }
    }

    /// Whether a slot is one of the plan's.
    fn has(&self, slot: &Slot) -> bool {
        slots(&self.plan, &slot.scene, &slot.case).is_ok_and(|slots| slots.position(slot).is_some())
    }

    /// The nodes that keep a slot that they should give up, with the pods that may be the reason, as the end of a sentence.
    async fn busy(&self, nodes: &[LabelledNode], should_go: impl Fn(&Slot) -> bool) -> String {
        let keeps = |node: &&LabelledNode| {
            self.slot(node)
                .is_some_and(|slot| self.has(&slot) && should_go(&slot))
        };
        let mut parts = Vec::new();
        for node in nodes.iter().filter(keeps).take(MOST_NAMED) {
            let name = &node.metadata.name;
            let pods = self.pods_on(name).await;
            let pods = if pods.is_empty() {
                "no pods of a job are on it: is its agent running?".to_owned()
            } else {
                format!("its pods are {}", pods.join(", "))
            };
            parts.push(format!("{name} keeps its old labels, and {pods}"));
        }
        if parts.is_empty() {
            return "; look at pinfold scene status --live".to_owned();
        }
        format!(": {}", parts.join("; "))
    }

    /// The pods of jobs that run on a node. Failures say nothing, because this is for a message only.
    async fn pods_on(&self, node: &str) -> Vec<String> {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods: Vec<Value> = self
            .api
            .list("/api/v1/pods", "PodList", params)
            .await
            .unwrap_or_default();
        let runs = |pod: &&Value| {
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            let owner = pod["metadata"]["ownerReferences"][0]["kind"].as_str();
            !matches!(phase, "Succeeded" | "Failed") && !matches!(owner, Some("DaemonSet" | "Node"))
        };
        let name = |pod: &Value| {
            let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
            format!("{}/{}", text("namespace"), text("name"))
        };
        pods.iter()
            .filter(runs)
            .take(MOST_NAMED)
            .map(name)
            .collect()
    }
}

/// Other plans in use that this one can't run beside, as sentences: those that want some of the same nodes, and those whose cases have
/// the same labels, because the pods of one would go to the nodes of the other.
///
/// # Errors
/// The plans can't be listed.
pub(super) async fn rivals(
    api: &PatientApi,
    plan: &ScenePlan,
    nodes: &[Node],
) -> anyhow::Result<Vec<String>> {
    let plans = api.repeat(|| scenes::plans(api.api())).await.context(
        "can't list the plans of the cluster; the definition comes with pinfold scene crd | kubectl apply -f -",
    )?;
    let plans = plans
        .into_iter()
        .filter_map(|plan| serde_json::from_value::<ScenePlan>(plan).ok());
    let rivals = plans.filter_map(|other| rivalry(plan, &other, nodes));
    Ok(rivals.collect())
}

/// Why a plan can't run beside another one; `None` if it can.
fn rivalry(plan: &ScenePlan, other: &ScenePlan, nodes: &[Node]) -> Option<String> {
    let annotations = other.metadata.annotations.as_ref();
    let holder = annotations.and_then(|all| all.get(EXPERIMENT_LABEL));
    let is_used = other.spec.active.is_some() || holder.is_some();
    if other.metadata.name == plan.metadata.name || !is_used {
        return None;
    }
    let names = |plan: &ScenePlan| -> BTreeSet<String> {
        let candidates = crate::scene::candidates(plan, nodes);
        candidates
            .into_iter()
            .map(|node| node.name.clone())
            .collect()
    };
    let shared: Vec<String> = names(other).intersection(&names(plan)).cloned().collect();
    let why = match shared.first() {
        Some(first) => format!(
            "wants {} of the same nodes, for example {first}",
            shared.len()
        ),
        None => format!(
            "has a {} with the same labels, so that pods would go to its nodes: give your scenes other names",
            common_case(plan, other)?
        ),
    };
    let name = other.metadata.name.as_deref().unwrap_or_default();
    Some(match holder {
        Some(holder) => format!(
            "experiment {holder} runs with the plan {name}, which {why}; or wait for its end"
        ),
        None => format!(
            "the plan {name} is active, too, and {why}; or end its case (kubectl patch sceneplan {name} --type json -p '[{{\"op\": \
             \"remove\", \"path\": \"/spec/active\"}}]'), or use it with --use-plan {name}"
        ),
    })
}

/// A case that two plans name with the same labels.
fn common_case(plan: &ScenePlan, other: &ScenePlan) -> Option<String> {
    let keys = |plan: &ScenePlan| {
        (
            plan.spec.labels.scene.clone(),
            plan.spec.labels.case.clone(),
        )
    };
    if keys(plan) != keys(other) {
        return None;
    }
    let mut scenes = plan.spec.scenes.iter();
    scenes.find_map(|scene| {
        let mut cases = scene.cases.iter();
        let case = cases.find(|case| other.spec.case(&scene.scene, &case.case).is_some())?;
        Some(format!("scene {} case {}", scene.scene, case.case))
    })
}

pub(super) fn taken(plan: &str, other: &str) -> String {
    format!(
        "experiment {other} has the plan {plan}: wait for its end, or end it with pinfold scene run --abort FOLDER; if its folder is \
         lost, kubectl annotate sceneplan {plan} {EXPERIMENT_LABEL}- frees the plan, and kubectl delete namespace -l \
         {EXPERIMENT_LABEL}={other} deletes what the experiment has made"
    )
}

fn pause(nodes: usize) -> Duration {
    POLL_INTERVAL.max(Duration::from_secs((nodes / NODES_PER_SECOND) as u64))
}
