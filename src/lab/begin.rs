//! [`begin`]: what must hold before an experiment starts, and what it is going to do.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::core::params::ListParams;
use serde_json::Value;

use super::EXPERIMENT_LABEL;
use super::order::order;
use super::pages::AgentPages;
use super::rights::{Intent, missing_rights, needed};
use super::settings::{Before, Limits, Settings};
use super::switch::rivals;
use crate::cluster::agents::Agents;
use crate::cluster::patient::PatientApi;
use crate::cluster::{ErrorKind, scenes};
use crate::experiment::results::{
    CaseFacts, ClusterFacts, Experiment, FORM, JobFacts, NodeFacts, SceneFacts, StepSource,
};
use crate::experiment::statistics::{Condition, Design, DesignOptions, Way};
use crate::experiment::{
    AMOUNTS, RenderRequest, RunTag, Slice, TrainingJob, WorkloadFormat, claimed, render, roles,
    settle, simulate,
};
use crate::scene::{Node, OnBusy, ScenePlan, assign, candidates, slots};
use crate::text::counted;
use crate::text::exposition;

/// The most nodes whose agents are asked how many CPUs they can give.
const MOST_ASKED: usize = 64;

/// The family that tells what kind of machine a node is.
const MACHINE: &str = "pinfold_machine_info";

/// The longest id and the letters of an id.
const ID: (usize, &[u8]) = (6, b"abcdefghijkmnpqrstuvwxyz23456789");

/// What the user asks for.
#[derive(Debug, Clone)]
pub struct Request {
    pub plan: ScenePlan,
    /// Whether the plan is the cluster's.
    pub use_plan: bool,
    pub job: TrainingJob,
    pub format: WorkloadFormat,
    /// The scenes, by name; empty for all of the plan.
    pub scenes: Vec<String>,
    /// The cases, by name; empty for all of the scenes.
    pub cases: Vec<String>,
    pub ways: Vec<Way>,
    pub options: DesignOptions,
    pub seed: u64,
    pub steps: StepSource,
    pub agent_namespace: String,
    pub retries: u32,
    pub limits: Limits,
    /// Whether a Prometheus tells of usage, so that the agents are not asked during the runs.
    pub has_prometheus: bool,
}

/// An experiment that may begin.
#[derive(Debug)]
pub struct Beginning {
    pub experiment: Experiment,
    pub settings: Settings,
    /// What it is going to do, line by line.
    pub preview: Vec<String>,
    pub warnings: Vec<String>,
}

/// What is known of the cluster before the start.
struct Surroundings {
    nodes: Vec<Node>,
    facts: ClusterFacts,
    /// The CPUs that the node's agent can give, by node.
    givable: BTreeMap<String, u32>,
}

/// Checks everything that can be known before the start, and makes the experiment. Only reads the cluster.
///
/// # Errors
/// The reason why the experiment can't work, with the remedy.
pub async fn begin(
    api: &PatientApi,
    agents: &Agents,
    server: &str,
    request: Request,
) -> anyhow::Result<Beginning> {
    let scenes = scene_facts(&request)?;
    let id = id();
    let plan_name = request.plan.metadata.name.clone().unwrap_or_default();
    let namespace = request
        .job
        .namespace
        .clone()
        .unwrap_or_else(|| format!("{plan_name}-{id}"));
    let job = TrainingJob {
        namespace: Some(namespace.clone()),
        scene: None,
        case: None,
        // The lab deletes the servers itself.
        reclaim: None,
        ..request.job.clone()
    };
    let all = conditions(&scenes, &request.ways);
    let design = Design::new(all.iter().copied(), request.options)?;
    let servers = |condition: &&Condition| {
        let case = scenes
            .get(condition.scene)
            .and_then(|scene| scene.cases.get(condition.case));
        case.map_or(0, |case| case.servers)
    };
    let warm_up = all
        .iter()
        .max_by_key(servers)
        .context("no case has servers")?;
    let before = before(api, &request, &namespace).await?;
    ensure!(
        before.had_namespace || !makes_claims(&job),
        "the job asks for new PersistentVolumeClaims (size), and the namespace {namespace} would be deleted with them at the end: \
         create a namespace, and name it with --job-namespace"
    );
    check_rights(api, server, &request, &job, &before).await?;
    let around = surroundings(api, agents, server, &request.plan).await?;
    let rivals = rivals(api, &request.plan, &around.nodes).await?;
    ensure!(rivals.is_empty(), "{}", rivals.join("\n"));
    let sizes = check_cases(&request, &job, &scenes, &around)?;
    let experiment = Experiment {
        form: FORM,
        id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        began: Timestamp::now().to_string(),
        cluster: around.facts,
        plan: plan_name,
        namespace,
        job: job_facts(&request, &job, &scenes)?,
        scenes,
        steps: request.steps.clone(),
        order: order(&design, request.seed, *warm_up),
        seed: request.seed,
        design,
    };
    let preview = preview(&experiment, &request, &before, &sizes);
    Ok(Beginning {
        warnings: sizes.warnings,
        preview,
        settings: Settings {
            plan: request.plan,
            job,
            format: request.format,
            agent_namespace: request.agent_namespace,
            retries: request.retries,
            limits: request.limits,
            has_prometheus: request.has_prometheus,
            before,
        },
        experiment,
    })
}

/// Refuses an account that lacks rights, and names them.
async fn check_rights(
    api: &PatientApi,
    server: &str,
    request: &Request,
    job: &TrainingJob,
    before: &Before,
) -> anyhow::Result<()> {
    let intent = Intent {
        namespace: job.namespace.as_deref().unwrap_or_default(),
        agent_namespace: &request.agent_namespace,
        format: request.format,
        has_gang: job.gang.is_some(),
        creates_plan: !before.had_plan,
        creates_namespace: !before.had_namespace,
        has_claims: makes_claims(job),
        asks_agents: true,
    };
    let missing = missing_rights(api, &needed(intent)).await?;
    ensure!(
        missing.is_empty(),
        "your account at {server} lacks rights: {}; ask an administrator for a Role with them",
        missing.join(", ")
    );
    Ok(())
}

/// The scenes and cases that run. A case is compared with the case of the same name in the other scenes.
fn scene_facts(request: &Request) -> anyhow::Result<Vec<SceneFacts>> {
    let spec = &request.plan.spec;
    let known: Vec<&str> = spec
        .scenes
        .iter()
        .map(|scene| scene.scene.as_str())
        .collect();
    for name in &request.scenes {
        ensure!(
            known.contains(&name.as_str()),
            "the plan has no scene {name}: choose among {}",
            known.join(", ")
        );
    }
    let scenes = spec
        .scenes
        .iter()
        .filter(|scene| request.scenes.is_empty() || request.scenes.contains(&scene.scene));
    let mut names: Vec<&str> = Vec::new();
    for case in scenes.clone().flat_map(|scene| &scene.cases) {
        if !names.contains(&case.case.as_str()) {
            names.push(&case.case);
        }
    }
    for name in &request.cases {
        ensure!(
            names.contains(&name.as_str()),
            "the plan has no case {name}: choose among {}",
            names.join(", ")
        );
    }
    names.retain(|name| request.cases.is_empty() || request.cases.iter().any(|case| case == name));
    let mut facts = Vec::new();
    for scene in scenes {
        let mut cases = Vec::new();
        for name in &names {
            let tasks = match spec.case(&scene.scene, name) {
                Some(_) => roles(&request.plan, &scene.scene, name)?,
                None => Vec::new(),
            };
            let servers = scene.cases.iter().find(|case| case.case == *name);
            let servers = servers.map_or(0, |case| case.nodes.values().sum());
            cases.push(CaseFacts {
                case: (*name).to_owned(),
                servers,
                tasks: tasks
                    .iter()
                    .map(|role| (role.role.clone(), role.count()))
                    .collect(),
            });
        }
        facts.push(SceneFacts {
            scene: scene.scene.clone(),
            cases,
        });
    }
    Ok(facts)
}

/// What runs in each block: every case that a scene has, in every way.
fn conditions(scenes: &[SceneFacts], ways: &[Way]) -> Vec<Condition> {
    let mut all = Vec::new();
    for (scene, facts) in scenes.iter().enumerate() {
        for (case, facts) in facts.cases.iter().enumerate() {
            if facts.servers > 0 {
                all.extend(ways.iter().map(|&way| Condition { scene, case, way }));
            }
        }
    }
    all
}

/// What the cluster has before the experiment. A plan of the file's name must not be there yet.
async fn before(api: &PatientApi, request: &Request, namespace: &str) -> anyhow::Result<Before> {
    let found: Option<Value> = api.get(&format!("/api/v1/namespaces/{namespace}")).await?;
    let had_namespace = found.is_some();
    let other = found
        .as_ref()
        .and_then(|found| found["metadata"]["labels"][EXPERIMENT_LABEL].as_str());
    ensure!(
        other.is_none(),
        "the namespace {namespace} is that of experiment {}, which deletes it at its end: choose another one with --job-namespace",
        other.unwrap_or_default()
    );
    let name = request.plan.metadata.name.as_deref().unwrap_or_default();
    let path = format!("/apis/pinfold.io/v1alpha1/sceneplans/{name}");
    let plan: Option<Value> = api.get(&path).await?;
    let holder = plan
        .as_ref()
        .and_then(|plan| plan["metadata"]["annotations"][EXPERIMENT_LABEL].as_str());
    if let Some(holder) = holder {
        bail!("{}", super::switch::taken(name, holder));
    }
    ensure!(
        plan.is_none() || request.use_plan,
        "the cluster has a plan {name}: use it with --use-plan {name} instead of the file, or give the file's plan another name"
    );
    Ok(Before {
        had_plan: request.use_plan,
        active: request
            .use_plan
            .then(|| request.plan.spec.active.clone())
            .flatten(),
        had_namespace,
    })
}

async fn surroundings(
    api: &PatientApi,
    agents: &Agents,
    server: &str,
    plan: &ScenePlan,
) -> anyhow::Result<Surroundings> {
    let nodes = scenes::nodes(api.api()).await.context("can't list nodes")?;
    let names: BTreeSet<String> = candidates(plan, &nodes)
        .into_iter()
        .map(|node| node.name.clone())
        .collect();
    ensure!(
        !names.is_empty(),
        "no node of {server} is a candidate of the plan: look at its spec.nodes, and at kubectl get nodes --show-labels"
    );
    let pages = AgentPages::find(agents, |node| names.contains(node)).await;
    let pages = pages.context("can't list the agents' pods")?;
    let without: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !pages.nodes().contains(name))
        .collect();
    ensure!(
        without.len() < names.len(),
        "no candidate node has a running agent: install Pinfold, or name the agents' namespace with --agent-namespace"
    );
    let read = if names.len() <= MOST_ASKED {
        pages.read().await
    } else {
        BTreeMap::new()
    };
    let mut facts = ClusterFacts {
        server: server.to_owned(),
        id: cluster_id(api).await?,
        kubernetes: version(api).await,
        nodes: Vec::new(),
    };
    let details = node_details(api).await?;
    let mut givable = BTreeMap::new();
    for name in &names {
        let page = read.get(name).map(String::as_str).unwrap_or_default();
        givable.extend(given_by(page).map(|cpus| (name.clone(), cpus)));
        let detail = details.get(name);
        facts.nodes.push(NodeFacts {
            name: name.clone(),
            kernel: detail.and_then(|detail| text_at(detail, "/status/nodeInfo/kernelVersion")),
            allocatable_millicpus: detail
                .and_then(|detail| text_at(detail, "/status/allocatable/cpu"))
                .and_then(|cpus| (AMOUNTS.read)("cpu", &cpus).ok()),
            enforcement: label_of(page, "pinfold_enforcement_info", "enforcement"),
            cpu_model: label_of(page, MACHINE, "cpu_model"),
            emulated: label_of(page, MACHINE, "emulated").map(|emulated| emulated == "true"),
        });
    }
    Ok(Surroundings {
        nodes: nodes
            .into_iter()
            .filter(|node| !without.contains(&node.name.as_str()))
            .collect(),
        facts,
        givable,
    })
}

/// The uid of the namespace kube-system, by which people tell clusters apart; `None` if the user may not read it.
///
/// # Errors
/// A request fails.
pub(super) async fn cluster_id(api: &PatientApi) -> anyhow::Result<Option<String>> {
    match api.get::<Value>("/api/v1/namespaces/kube-system").await {
        Ok(found) => Ok(found.and_then(|found| text_at(&found, "/metadata/uid"))),
        Err(failure) if failure.kind() == ErrorKind::Forbidden => Ok(None),
        Err(failure) => Err(failure).context("can't read the namespace kube-system"),
    }
}

/// Whether a job makes claims of its own.
fn makes_claims(job: &TrainingJob) -> bool {
    let folders = [&job.data, &job.log].into_iter().flatten();
    folders.into_iter().any(|folder| folder.size.is_some())
}

async fn version(api: &PatientApi) -> Option<String> {
    let version: Option<Value> = api.get("/version").await.ok()?;
    version?["gitVersion"].as_str().map(str::to_owned)
}

/// All Nodes by name.
async fn node_details(api: &PatientApi) -> anyhow::Result<BTreeMap<String, Value>> {
    let nodes: Vec<Value> = api
        .list("/api/v1/nodes", "NodeList", ListParams::default())
        .await
        .context("can't list nodes")?;
    let named = nodes
        .into_iter()
        .filter_map(|node| Some((text_at(&node, "/metadata/name")?, node)));
    Ok(named.collect())
}

fn text_at(object: &Value, path: &str) -> Option<String> {
    object.pointer(path)?.as_str().map(str::to_owned)
}

/// A label of a family that has one series.
fn label_of(page: &str, family: &str, label: &str) -> Option<String> {
    let mut series = exposition::series(page, |name| name == family);
    series.find_map(|series| series.label(label).map(str::to_owned))
}

/// The CPUs that an agent can give: those online that it doesn't reserve.
fn given_by(page: &str) -> Option<u32> {
    let mut cpus: BTreeMap<String, f64> = BTreeMap::new();
    for series in exposition::series(page, |name| name == "pinfold_node_cpus") {
        cpus.extend(
            series
                .label("state")
                .map(|state| (state.to_owned(), series.value)),
        );
    }
    let left = cpus.get("online")? - cpus.get("reserved")?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of CPUs"
    )]
    Some(left.clamp(0.0, 1e6) as u32)
}

/// What the cases need.
struct Sizes {
    /// A line for each scene and case.
    lines: Vec<String>,
    /// The objects of the largest run.
    objects: usize,
    /// The pods of the largest run.
    pods: u32,
    warnings: Vec<String>,
}

/// Checks that each case can be rendered, has enough nodes, and fits on them.
fn check_cases(
    request: &Request,
    job: &TrainingJob,
    scenes: &[SceneFacts],
    around: &Surroundings,
) -> anyhow::Result<Sizes> {
    let mut sizes = Sizes {
        lines: Vec::new(),
        objects: 0,
        pods: 0,
        warnings: Vec::new(),
    };
    for scene in scenes {
        for case in scene.cases.iter().filter(|case| case.servers > 0) {
            let name = format!("scene {} case {}", scene.scene, case.case);
            let named = (scene.scene.as_str(), case.case.as_str());
            for &way in &request.ways {
                let tag = RunTag {
                    experiment: "x".repeat(ID.0),
                    way,
                    run: 9999,
                };
                let rendered = render(&RenderRequest {
                    plan: &request.plan,
                    scene: named.0,
                    case: named.1,
                    job,
                    format: request.format,
                    slice: &Slice::default(),
                    run: Some(&tag),
                    amounts: AMOUNTS,
                });
                let rendered = rendered.with_context(|| format!("{name} can't be rendered"))?;
                sizes.objects = sizes.objects.max(rendered.objects.len());
                sizes.warnings.extend(rendered.warnings);
            }
            let pods: u32 = case.tasks.values().sum();
            sizes.pods = sizes.pods.max(pods);
            fits(request, job, named, around).with_context(|| format!("{name} does not fit"))?;
            let needs = exclusive_need(request, job, named)?;
            check_givable(&request.plan, named, &needs, around)
                .with_context(|| format!("{name} does not fit"))?;
            let most = needs.values().copied().max().unwrap_or_default();
            sizes.lines.push(format!(
                "{name}: {} on {}, up to {} on a node{}",
                counted(pods, "pod"),
                counted(case.servers, "node"),
                counted(most, "exclusive CPU"),
                can_give(around)
            ));
        }
    }
    sizes.warnings.sort();
    sizes.warnings.dedup();
    Ok(sizes)
}

/// How many CPUs the candidates can give, as the end of a sentence.
fn can_give(around: &Surroundings) -> String {
    let given = || around.givable.values();
    match (given().min(), given().max()) {
        (Some(least), Some(most)) if least == most => format!(", which can give {most}"),
        (Some(least), Some(most)) => format!(", which can give {least} to {most}"),
        _ => String::new(),
    }
}

/// Checks that the scheduler would find a node for every task.
fn fits(
    request: &Request,
    job: &TrainingJob,
    (scene, case): (&str, &str),
    around: &Surroundings,
) -> anyhow::Result<()> {
    let slots = slots(&request.plan, scene, case)?;
    let bare: Vec<Node> = around
        .nodes
        .iter()
        .map(|node| {
            let owned = request.plan.spec.labels.owned();
            let mut node = node.clone();
            node.labels.retain(|key, _| !owned.contains(key.as_str()));
            node
        })
        .collect();
    let labelled = claimed(&request.plan, &slots, &bare);
    let pinned = TrainingJob {
        pin: Some(true),
        ..job.clone()
    };
    let requested = settle(&request.plan, (scene, case), &pinned, AMOUNTS)?;
    let simulation = simulate(&request.plan, (scene, case), &requested, &labelled, AMOUNTS)?;
    if let Some((task, why)) = simulation.pending.first() {
        bail!(
            "{} of its tasks have no node, for example {task}: {why}",
            simulation.pending.len()
        );
    }
    Ok(())
}

/// The whole CPUs that a server of each group needs, by the group's name.
fn exclusive_need(
    request: &Request,
    job: &TrainingJob,
    (scene, case): (&str, &str),
) -> anyhow::Result<BTreeMap<String, u32>> {
    let pinned = TrainingJob {
        pin: Some(true),
        ..job.clone()
    };
    let requested = settle(&request.plan, (scene, case), &pinned, AMOUNTS)?;
    let Some((scene, _)) = request.plan.spec.case(scene, case) else {
        return Ok(BTreeMap::new());
    };
    let mut needs = BTreeMap::new();
    for group in &scene.groups {
        let mut cpus = 0_u64;
        for (role, count) in &group.per_node {
            let Some(resources) = requested.get(role) else {
                continue;
            };
            let limit = resources.limits.get("cpu");
            let millis = limit.map_or(Ok(0), |amount| (AMOUNTS.read)("cpu", &amount.0));
            let millis = millis.map_err(anyhow::Error::msg)?;
            if resources.pin != Some(false) {
                cpus = cpus.saturating_add(millis / 1000 * u64::from(*count));
            }
        }
        needs.insert(group.name.clone(), u32::try_from(cpus).unwrap_or(u32::MAX));
    }
    Ok(needs)
}

/// Checks that the agents can give the CPUs. With a list of names, the plan tells which node has which slot. With a selector, the
/// agents choose, so every candidate must be large enough for every slot.
fn check_givable(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    needs: &BTreeMap<String, u32>,
    around: &Surroundings,
) -> anyhow::Result<()> {
    let slots = slots(plan, scene, case)?;
    let need_at = |place: usize| {
        let group = slots.group(place)?;
        needs.get(group).copied()
    };
    let mut wanted: BTreeMap<&str, u32> = BTreeMap::new();
    if plan.spec.nodes.names.is_some() {
        for (place, (_, node)) in assign(plan, &slots, &around.nodes).given.iter().enumerate() {
            let node = node
                .as_deref()
                .and_then(|node| around.givable.get_key_value(node));
            wanted.extend(node.and_then(|(node, _)| Some((node.as_str(), need_at(place)?))));
        }
    } else {
        let most = (0..slots.len())
            .filter_map(need_at)
            .max()
            .unwrap_or_default();
        wanted.extend(around.givable.keys().map(|node| (node.as_str(), most)));
    }
    let small: Vec<String> = wanted
        .iter()
        .filter_map(|(node, cpus)| {
            let given = around.givable.get(*node)?;
            (given < cpus).then(|| {
                format!(
                    "{node} is to give {} and has {given}",
                    counted(*cpus, "exclusive CPU")
                )
            })
        })
        .collect();
    ensure!(
        small.is_empty(),
        "{}: reserve fewer CPUs there, ask for fewer, or take the node out of the plan's candidates",
        small.join(", ")
    );
    Ok(())
}

fn job_facts(
    request: &Request,
    job: &TrainingJob,
    scenes: &[SceneFacts],
) -> anyhow::Result<JobFacts> {
    let first = scenes.iter().find_map(|scene| {
        let case = scene.cases.iter().find(|case| case.servers > 0)?;
        Some((scene.scene.as_str(), case.case.as_str()))
    });
    let requested = match first {
        Some(named) => settle(&request.plan, named, job, AMOUNTS)?,
        None => BTreeMap::new(),
    };
    let cpus = requested.iter().filter_map(|(role, resources)| {
        let amounts = resources.requested();
        Some((role.clone(), amounts.get("cpu")?.0.clone()))
    });
    let command = job
        .roles
        .get("worker")
        .and_then(|own| own.command.clone())
        .unwrap_or_else(|| job.command.clone());
    Ok(JobFacts {
        name: job.name.clone().unwrap_or_default(),
        image: job.image.clone().unwrap_or_default(),
        command,
        cpus: cpus.collect(),
        format: request.format.name().to_owned(),
    })
}

/// What the experiment is going to do.
fn preview(
    experiment: &Experiment,
    request: &Request,
    before: &Before,
    sizes: &Sizes,
) -> Vec<String> {
    let nodes = experiment.cluster.nodes.len();
    let ways: Vec<&str> = request.ways.iter().map(|way| way.name()).collect();
    let runs = experiment.order.len();
    let mut lines = vec![
        format!(
            "experiment {} on {}, {}",
            experiment.id,
            experiment.cluster.server,
            counted(nodes, "candidate node")
        ),
        format!(
            "plan {} ({}), namespace {} ({})",
            experiment.plan,
            if before.had_plan {
                "the cluster's, put back at the end"
            } else {
                "created, deleted at the end"
            },
            experiment.namespace,
            if before.had_namespace {
                "kept"
            } else {
                "created, deleted at the end"
            },
        ),
    ];
    lines.extend(sizes.lines.iter().cloned());
    lines.push(format!(
        "ways: {}; {} of {}, and a warm-up: {} in random order (seed {})",
        ways.join(", "),
        counted(request.options.repeats, "repeat"),
        counted(experiment.design.conditions().count(), "condition"),
        counted(runs, "run"),
        experiment.seed
    ));
    lines.push(format!(
        "API requests: about {} a run, and {} a minute while it runs",
        requests_of_a_run(sizes),
        requests_of_a_minute(experiment, sizes, request.has_prometheus)
    ));
    lines.push(format!(
        "time: the job's own, and about a minute for each change; at most {} min a run",
        ((request.limits.switch * 2 + request.limits.start + request.limits.run)
            * u64::from(request.retries + 1))
        .div_ceil(60)
    ));
    lines
}

/// Requests of a run: the switch, the creation of each object, the logs, the deletion by kind, and the lists around them.
fn requests_of_a_run(sizes: &Sizes) -> usize {
    let pods = usize::try_from(sizes.pods).unwrap_or(usize::MAX);
    sizes.objects.saturating_add(pods).saturating_add(60)
}

/// Requests of a minute of training: the list of the pods, and the port-forwards to the agents.
fn requests_of_a_minute(experiment: &Experiment, sizes: &Sizes, has_prometheus: bool) -> usize {
    let servers = experiment.scenes.iter().flat_map(|scene| &scene.cases);
    let servers = servers.map(|case| case.servers).max().unwrap_or_default() as usize;
    let look = super::run::pause(sizes.pods as usize).as_secs().max(1);
    let pages = if has_prometheus {
        0
    } else {
        servers * super::run::readings_a_minute(servers)
    };
    60 / usize::try_from(look).unwrap_or(60) + pages
}

/// A random id.
fn id() -> String {
    let (length, letters) = ID;
    let mut random = fastrand::Rng::new();
    (0..length)
        .filter_map(|_| random.choice(letters.iter()))
        .map(|letter| char::from(*letter))
        .collect()
}

/// Whether the plan can be used for experiments.
///
/// # Errors
/// The plan refuses changes while pods run, or changes labels under them.
pub fn check_plan(plan: &ScenePlan) -> anyhow::Result<()> {
    match plan.spec.on_busy {
        OnBusy::Wait | OnBusy::Force => Ok(()),
        OnBusy::Refuse => bail!(
            "the plan has onBusy: refuse, so a node whose pods are still ending would refuse the next case: write onBusy: wait"
        ),
    }
}
