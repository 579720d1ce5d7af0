//! [`begin`]: what must hold before an experiment starts, and what it is going to do.

use anyhow::{Context, bail, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::cluster_state::look_at_cluster;
use super::fit::check_cases;
use super::order::order;
use super::preview::{job_facts, preview};
use super::request::Request;
use super::rights::{Intent, missing_rights, needed};
use super::settings::{Before, Settings};
use super::switch::rivals;
use super::{EXPERIMENT_LABEL, ID_LENGTH};
use crate::cluster::agents::Agents;
use crate::cluster::patient::PatientApi;
use crate::experiment::results::{CaseFacts, Experiment, FORM, GroupFacts, SceneFacts};
use crate::experiment::statistics::{Condition, Design, Way};
use crate::experiment::{TrainingJob, roles};
use crate::scene::{Case, OnBusy, Scene, ScenePlan};

/// The letters of an id. Those that look alike are left out.
const ID_LETTERS: &[u8] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// An experiment that may begin.
#[derive(Debug)]
pub struct PreparedExperiment {
    pub experiment: Experiment,
    pub settings: Settings,
    /// What it is going to do, line by line.
    pub preview: Vec<String>,
    pub warnings: Vec<String>,
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
) -> anyhow::Result<PreparedExperiment> {
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
    let warm_up = largest(&scenes, &all).context("no case has servers")?;
    let before = before(api, &request, &namespace).await?;
    ensure!(
        before.had_namespace || !makes_claims(&job),
        "the job asks for new PersistentVolumeClaims (size), and the namespace {namespace} would be deleted with them at the end: \
         create a namespace, and name it with --job-namespace"
    );
    check_rights(api, server, &request, &job, &before).await?;
    let state = look_at_cluster(api, agents, server, &request.plan).await?;
    let rivals = rivals(api, &request.plan, &state.nodes).await?;
    ensure!(rivals.is_empty(), "{}", rivals.join("\n"));
    let sizes = check_cases(&request, &job, &scenes, &state)?;
    let experiment = Experiment {
        form: FORM,
        id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        began: Timestamp::now().to_string(),
        cluster: state.facts,
        plan: plan_name,
        namespace,
        job: job_facts(&request, &job, &scenes)?,
        scenes,
        steps: request.steps.clone(),
        order: order(&design, request.seed, warm_up),
        seed: request.seed,
        design,
    };
    let preview = preview(&experiment, &request, &before, &sizes);
    Ok(PreparedExperiment {
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
            let case = scene.cases.iter().find(|case| case.case == *name);
            cases.push(CaseFacts {
                case: (*name).to_owned(),
                servers: case.map_or(0, |case| case.nodes.values().sum()),
                groups: case.map_or_else(Vec::new, |case| groups(scene, case)),
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

/// The groups of a case, with their nodes and what is on each.
fn groups(scene: &Scene, case: &Case) -> Vec<GroupFacts> {
    let groups = scene.groups.iter().map(|group| GroupFacts {
        kind: group.kind.clone(),
        servers: case.nodes.get(&group.name).copied().unwrap_or_default(),
        per_node: group.per_node.clone(),
    });
    groups.collect()
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

/// The condition with the most servers, and of these the last, which has exclusive CPUs.
fn largest(scenes: &[SceneFacts], conditions: &[Condition]) -> Option<Condition> {
    let servers = |condition: &Condition| {
        let scene = scenes.get(condition.scene);
        let case = scene.and_then(|scene| scene.cases.get(condition.case));
        case.map_or(0, |case| case.servers)
    };
    conditions.iter().copied().max_by_key(servers)
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

/// Whether a job makes claims of its own.
fn makes_claims(job: &TrainingJob) -> bool {
    let folders = [&job.data, &job.log].into_iter().flatten();
    folders.into_iter().any(|folder| folder.size.is_some())
}

/// A random id.
fn id() -> String {
    let mut random = fastrand::Rng::new();
    (0..ID_LENGTH)
        .filter_map(|_| random.choice(ID_LETTERS.iter()))
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
