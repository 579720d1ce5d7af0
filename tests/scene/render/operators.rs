//! The kinds of operators, as strict types: their own fields by their sources (training-operator release-1.9, Volcano 1.14,
//! JobSet 0.11), Kubernetes' types where they hold them.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::JobTemplateSpec;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pinfold::experiment::{Slice, SuccessPolicy as JobsPolicy, WorkloadFormat, render};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::render::{CASES, full, rendered, request, wanted};

macro_rules! strict {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            #[derive(Debug, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase", deny_unknown_fields)]
            pub(crate) struct $name {
                $(
                    #[serde(default, skip_serializing_if = "Option::is_none")]
                    $field: Option<$type>,
                )*
            }
        )*
    };
}

strict! {
    TfJob { api_version: String, kind: String, metadata: ObjectMeta, spec: TfJobSpec, }
    TfJobSpec {
        run_policy: RunPolicy, success_policy: String, enable_dynamic_worker: bool,
        tf_replica_specs: BTreeMap<String, ReplicaSpec>,
    }
    RunPolicy {
        clean_pod_policy: String, ttl_seconds_after_finished: i32, active_deadline_seconds: i64, backoff_limit: i32,
        scheduling_policy: SchedulingPolicy, suspend: bool, managed_by: String,
    }
    SchedulingPolicy {
        min_available: i32, queue: String, min_resources: BTreeMap<String, String>, priority_class: String,
        schedule_timeout_seconds: i32,
    }
    ReplicaSpec { replicas: i32, template: PodTemplateSpec, restart_policy: String, }

    Volcano { api_version: String, kind: String, metadata: ObjectMeta, spec: VolcanoSpec, }
    VolcanoSpec {
        scheduler_name: String, min_available: i32, plugins: BTreeMap<String, Vec<String>>, queue: String, max_retry: i32,
        ttl_seconds_after_finished: i32, priority_class_name: String, min_success: i32, tasks: Vec<VolcanoTask>,
        policies: Vec<LifecyclePolicy>,
    }
    VolcanoTask {
        name: String, replicas: i32, min_available: i32, template: PodTemplateSpec, max_retry: i32,
        policies: Vec<LifecyclePolicy>,
    }
    LifecyclePolicy { action: String, event: String, events: Vec<String>, exit_code: i32, timeout: String, }

    PodGroup { api_version: String, kind: String, metadata: ObjectMeta, spec: PodGroupSpec, }
    PodGroupSpec {
        min_member: i32, min_task_member: BTreeMap<String, i32>, queue: String, priority_class_name: String,
        min_resources: BTreeMap<String, String>,
    }

    JobSet { api_version: String, kind: String, metadata: ObjectMeta, spec: JobSetSpec, }
    JobSetSpec {
        replicated_jobs: Vec<ReplicatedJob>, network: Network, success_policy: SuccessPolicy, suspend: bool,
        managed_by: String, ttl_seconds_after_finished: i32,
    }
    ReplicatedJob { name: String, group_name: String, template: JobTemplateSpec, replicas: i32, }
    SuccessPolicy { operator: String, target_replicated_jobs: Vec<String>, }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Network {
    #[serde(rename = "enableDNSHostnames")]
    enable_dns_hostnames: bool,
    subdomain: String,
    publish_not_ready_addresses: bool,
}

#[test]
fn a_tfjob_gives_every_server_its_share() {
    for (scene, case, for_workers, workers, for_ps, servers) in CASES {
        let rendered = rendered(&full(), scene, case, WorkloadFormat::Tfjob);
        assert!(
            rendered
                .warnings
                .iter()
                .any(|one| one.contains("cleanPodPolicy: Running")),
            "reclaim is the operator's"
        );
        let spec = &rendered.objects.last().unwrap()["spec"];
        let policy = json!({
            "cleanPodPolicy": "Running", "backoffLimit": 3,
            "schedulingPolicy": {"minAvailable": workers + servers, "queue": "research"},
        });
        assert_eq!(spec["runPolicy"], policy);
        assert_eq!(spec["successPolicy"], "AllWorkers");
        let roles = spec["tfReplicaSpecs"].as_object().unwrap();
        assert_eq!(roles.len(), 2);
        for (name, kind, count, nodes) in [
            ("PS", "ps", servers, for_ps),
            ("Worker", "worker", workers, for_workers),
        ] {
            let template = &roles[name]["template"];
            assert_eq!(roles[name]["replicas"], count);
            let mut labels = vec![("SCENCE", scene), ("CASE", case)];
            labels.extend((scene == "2").then_some(("TYPE", kind)));
            assert_eq!(wanted(template), super::pairs(&labels));
            let constraint = &template["spec"]["topologySpreadConstraints"][0];
            let name = format!("wide-deep-s{scene}-c{case}");
            let own = json!({"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": kind});
            assert_eq!(constraint["labelSelector"]["matchLabels"], own);
            assert_eq!(
                (
                    &constraint["topologyKey"],
                    &constraint["maxSkew"],
                    &constraint["minDomains"],
                    &constraint["whenUnsatisfiable"]
                ),
                (
                    &json!("INDEX"),
                    &json!(1),
                    &json!(nodes),
                    &json!("DoNotSchedule")
                )
            );
            // With a skew of at most one, shares are whole only if they divide.
            assert_eq!(count % nodes, 0);
            let container = &template["spec"]["containers"][0];
            assert_eq!(
                (&container["name"], &container["ports"][0]["name"]),
                (&json!("tensorflow"), &json!("tfjob-port"))
            );
            let env = container["env"].as_array().unwrap();
            assert!(
                env.iter().all(|one| one["name"] != "TF_CONFIG"),
                "the operator sets it"
            );
            let index = env.iter().find(|one| one["name"] == "TASK_INDEX").unwrap();
            let path = "metadata.labels['training.kubeflow.org/replica-index']";
            assert_eq!(index["valueFrom"]["fieldRef"]["fieldPath"], path);
            let config = rendered
                .objects
                .iter()
                .find(|one| one["kind"] == "ConfigMap");
            let config = config.unwrap();
            let from = &env
                .iter()
                .find(|one| one["name"] == "WORKER_HOSTS")
                .unwrap()["valueFrom"];
            assert_eq!(from["configMapKeyRef"]["name"], config["metadata"]["name"]);
            let hosts = config["data"]["worker"].as_str().unwrap();
            assert_eq!(hosts.split(',').count(), workers as usize);
            assert!(
                hosts.starts_with(&format!("{name}-worker-0:2222")),
                "the operator's own Services"
            );
            assert_eq!(
                template["spec"].get("restartPolicy"),
                None,
                "the operator warns of one in the template"
            );
        }
    }
}

#[test]
fn volcano_and_jobset_end_the_parameter_servers_when_all_workers_have_succeeded() {
    let job = rendered(&full(), "2", "4", WorkloadFormat::Volcano)
        .objects
        .pop()
        .unwrap();
    let spec = &job["spec"];
    assert_eq!(
        (&spec["minAvailable"], &spec["minSuccess"]),
        (&json!(220), &json!(200))
    );
    for task in spec["tasks"].as_array().unwrap() {
        let ps = task["name"].as_str().unwrap().starts_with("ps-");
        // A parameter server that ends would count as a success.
        assert_eq!(
            task["template"]["spec"]["restartPolicy"],
            if ps { "Always" } else { "OnFailure" }
        );
    }
    // The end of a single worker does not end the job with 200 workers.
    assert!(!job.to_string().contains("TaskCompleted"));
    let set = rendered(&full(), "2", "4", WorkloadFormat::Jobset)
        .objects
        .pop()
        .unwrap();
    let policy = &set["spec"]["successPolicy"];
    let targets = policy["targetReplicatedJobs"].as_array().unwrap();
    assert_eq!((&policy["operator"], targets.len()), (&json!("All"), 200));
    assert!(
        targets
            .iter()
            .all(|one| one.as_str().unwrap().starts_with("worker-"))
    );
    // No warning for objects that kubectl apply accepts.
    let (small, large) = (
        rendered(&full(), "1", "1", WorkloadFormat::Jobset),
        rendered(&full(), "1", "4", WorkloadFormat::Jobset),
    );
    let suggests_server_side = |one: &pinfold::experiment::Rendered| {
        one.warnings.iter().any(|one| one.contains("--server-side"))
    };
    assert_eq!(
        (suggests_server_side(&small), suggests_server_side(&large)),
        (false, true)
    );
}

/// A plan whose only case has a chief, 2 workers, an evaluator and 2 parameter servers.
const WITH_CHIEF: &str = "
apiVersion: pinfold.io/v1alpha1
kind: ScenePlan
metadata: {name: chief}
spec:
  nodes: {names: [a, b, c]}
  roles:
    ps: {requests: {cpu: 1, memory: 1Gi}}
    chief: {requests: {cpu: 1, memory: 1Gi}}
    worker: {requests: {cpu: 1, memory: 1Gi}}
    evaluator: {requests: {cpu: 1, memory: 1Gi}}
  scenes:
  - scene: '1'
    groups:
    - {name: first, type: first, perNode: {chief: 1, evaluator: 1}}
    - {name: rest, type: rest, perNode: {ps: 1, worker: 1}}
    cases:
    - {case: '1', nodes: {first: 1, rest: 2}}
";

/// The cluster of a case, with an optional success policy.
fn with_chief(policy: Option<JobsPolicy>, format: WorkloadFormat) -> pinfold::experiment::Rendered {
    let job = pinfold::experiment::TrainingJob {
        success_policy: policy,
        ..full()
    };
    render(&request(
        &super::plan(WITH_CHIEF),
        ("1", "1"),
        &job,
        format,
        &Slice::default(),
    ))
    .unwrap()
}

#[test]
fn a_chiefs_success_ends_the_job_in_every_format() {
    let last = |policy, format| with_chief(policy, format).objects.pop().unwrap()["spec"].clone();
    let all_workers = Some(JobsPolicy::AllWorkers);
    let tfjob = last(None, WorkloadFormat::Tfjob);
    assert_eq!(tfjob.get("successPolicy"), None, "the operator's default");
    let roles: Vec<(&String, &serde_json::Value)> = tfjob["tfReplicaSpecs"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, role)| (name, &role["replicas"]))
        .collect();
    let expected = [("Chief", 1), ("Evaluator", 1), ("PS", 2), ("Worker", 2)];
    assert!(
        roles
            .iter()
            .map(|(name, count)| (name.as_str(), count.as_u64().unwrap()))
            .eq(expected)
    );

    let policies = |spec: &serde_json::Value, task: &str| {
        let tasks = spec["tasks"].as_array().unwrap().iter();
        tasks
            .clone()
            .find(|one| one["name"] == task)
            .unwrap()
            .clone()
    };
    let volcano = last(None, WorkloadFormat::Volcano);
    assert_eq!(
        volcano.get("minSuccess"),
        None,
        "workers that end do not count"
    );
    let ends = json!({"event": "TaskCompleted", "action": "CompleteJob"});
    let breaks = json!({"event": "TaskFailed", "action": "TerminateJob"});
    assert_eq!(
        policies(&volcano, "chief-0")["policies"],
        json!([ends, breaks])
    );
    assert_eq!(policies(&volcano, "worker-1")["policies"], json!([breaks]));
    let evaluator = policies(&volcano, "evaluator-0");
    assert_eq!(
        (evaluator.get("policies"), evaluator.get("maxRetry")),
        (None, None),
        "an evaluator that fails ends no job"
    );
    assert_eq!(
        policies(&volcano, "evaluator-0")["template"]["spec"]["restartPolicy"],
        "OnFailure"
    );

    let jobset = last(None, WorkloadFormat::Jobset);
    assert_eq!(
        jobset["successPolicy"],
        json!({"operator": "All", "targetReplicatedJobs": ["chief-0"]})
    );

    // The rule of jobs without a chief, where the job asks for it.
    let rendered = with_chief(all_workers, WorkloadFormat::Tfjob);
    assert_eq!(
        rendered.objects.last().unwrap()["spec"]["successPolicy"],
        "AllWorkers"
    );
    let mentions_chief = |one: &String| one.contains("ends a TFJob when its chief has succeeded");
    assert!(
        rendered.warnings.iter().any(mentions_chief)
            && !with_chief(None, WorkloadFormat::Tfjob)
                .warnings
                .iter()
                .any(mentions_chief)
    );
    let volcano = last(all_workers, WorkloadFormat::Volcano);
    assert_eq!(volcano["minSuccess"], 3);
    assert!(!volcano.to_string().contains("TaskCompleted"));
    // The success would count as a worker's.
    assert_eq!(
        policies(&volcano, "evaluator-0")["template"]["spec"]["restartPolicy"],
        "Always"
    );
    let targets = json!(["chief-0", "worker-0", "worker-1"]);
    assert_eq!(
        last(all_workers, WorkloadFormat::Jobset)["successPolicy"]["targetReplicatedJobs"],
        targets
    );
}

#[test]
fn evaluators_are_rendered_and_stand_in_no_cluster_specification() {
    for format in super::render::FORMATS {
        for object in &with_chief(None, format).objects {
            assert_eq!(
                super::render::faults(object),
                Vec::<String>::new(),
                "{format:?} {}",
                object["kind"]
            );
        }
    }
    for format in [
        WorkloadFormat::Native,
        WorkloadFormat::Volcano,
        WorkloadFormat::Jobset,
    ] {
        let objects = with_chief(None, format).objects;
        let pods = super::render::pods(&objects);
        assert_eq!(pods.len(), 6);
        let is_evaluator = |pod: &&super::render::RenderedPod| {
            pod.template["metadata"]["labels"]["job"] == "evaluator"
        };
        let evaluator = pods.iter().find(is_evaluator).unwrap();
        assert_eq!(evaluator.kind, "Job", "{format:?}");
        for pod in &pods {
            let (env, _) = super::render::started(&objects, &pod.template);
            let config: serde_json::Value = serde_json::from_str(&env["TF_CONFIG"]).unwrap();
            let roles: Vec<&String> = config["cluster"].as_object().unwrap().keys().collect();
            assert_eq!(roles, ["ps", "chief", "worker"], "{format:?}");
            assert_eq!(
                config["task"]["type"],
                pod.template["metadata"]["labels"]["job"]
            );
        }
        let workers = objects
            .iter()
            .filter(|object| object["kind"] == "Job" && format == WorkloadFormat::Native);
        for job in workers {
            let annotations = &job["metadata"]["annotations"];
            assert_eq!(
                annotations["pinfold.io/workers"], "3",
                "an evaluator is no worker"
            );
            assert_eq!(annotations.get("pinfold.io/success-policy"), None);
        }
    }
    let all_workers = with_chief(Some(JobsPolicy::AllWorkers), WorkloadFormat::Native);
    let asking =
        |object: &&serde_json::Value| object["metadata"]["labels"]["pinfold.io/reclaim"] == "ps";
    for object in all_workers.objects.iter().filter(asking) {
        assert_eq!(
            object["metadata"]["annotations"]["pinfold.io/success-policy"],
            "AllWorkers"
        );
    }
}

/// A JobSet fails with the first of its Jobs that fails, unless a policy says otherwise.
#[test]
fn a_failing_server_or_evaluator_ends_no_jobset() {
    let set = with_chief(None, WorkloadFormat::Jobset)
        .objects
        .pop()
        .unwrap();
    for job in set["spec"]["replicatedJobs"].as_array().unwrap() {
        let role = job["name"].as_str().unwrap().rsplit_once('-').unwrap().0;
        let limit = match role {
            "ps" | "evaluator" => i32::MAX,
            _ => 3,
        };
        let template = &job["template"];
        assert_eq!(template["spec"]["backoffLimit"], limit, "{role}");
        assert_eq!(
            template["spec"]["template"]["spec"]["restartPolicy"],
            "OnFailure"
        );
        assert_eq!(
            template["metadata"]["labels"]["job"], role,
            "the Job is found, too"
        );
    }
    assert_eq!(set["spec"].get("failurePolicy"), None);
}

/// MultiWorkerMirroredStrategy: workers only, of which the first leads, or one chief with them.
#[test]
fn a_case_without_servers_is_a_cluster_of_workers() {
    const PLAN: &str = "
apiVersion: pinfold.io/v1alpha1
kind: ScenePlan
metadata: {name: mirrored}
spec:
  nodes: {names: [a, b, c]}
  scenes:
  - scene: plain
    groups: [{name: all, perNode: {worker: 1}}]
    cases: [{case: '1', nodes: {all: 2}}]
  - scene: led
    groups:
    - {name: first, type: first, perNode: {chief: 1, evaluator: 1}}
    - {name: rest, type: rest, perNode: {worker: 1}}
    cases:
    - {case: '1', nodes: {first: 1, rest: 2}}
    - {case: '2', nodes: {first: 2, rest: 1}}
";
    let plan = super::plan(PLAN);
    let job = super::render::job("{name: a, image: i, script: s}");
    for (scene, roles) in [("plain", &["worker"][..]), ("led", &["chief", "worker"])] {
        for format in [
            WorkloadFormat::Native,
            WorkloadFormat::Volcano,
            WorkloadFormat::Jobset,
        ] {
            let slice = Slice::default();
            let objects = render(&request(&plan, (scene, "1"), &job, format, &slice))
                .unwrap()
                .objects;
            for pod in super::render::pods(&objects) {
                let (env, _) = super::render::started(&objects, &pod.template);
                let config: serde_json::Value = serde_json::from_str(&env["TF_CONFIG"]).unwrap();
                let cluster = config["cluster"].as_object().unwrap();
                assert!(cluster.keys().eq(roles), "{format:?} {cluster:?}");
                let role = config["task"]["type"].as_str().unwrap();
                assert!(
                    role == "evaluator"
                        || cluster[role]
                            .pointer(&format!("/{}", config["task"]["index"]))
                            .unwrap()
                            == &json!(format!("{}:2222", pod.host))
                );
                assert_eq!(
                    (env["PS_COUNT"].as_str(), env["PS_HOSTS"].as_str()),
                    ("0", "")
                );
            }
        }
        let slice = Slice::default();
        let request = request(&plan, (scene, "1"), &job, WorkloadFormat::Tfjob, &slice);
        let spec = render(&request).unwrap().objects.pop().unwrap()["spec"].clone();
        let policy = spec["successPolicy"].as_str();
        // Without a chief, the operator's default would be the success of worker 0 alone.
        assert_eq!(policy, (scene == "plain").then_some("AllWorkers"));
        assert!(
            !spec["tfReplicaSpecs"]
                .as_object()
                .unwrap()
                .contains_key("PS")
        );
    }
    let slice = Slice::default();
    let two = render(&request(
        &plan,
        ("led", "2"),
        &job,
        WorkloadFormat::Native,
        &slice,
    ));
    let refused = two.unwrap_err().to_string();
    assert!(
        refused.contains("scene led case 2 has 2 chiefs"),
        "{refused}"
    );
}

/// By Volcano's controller (1.11 on): a pod that is Failed stays so without a policy, a container that fails is started again by its
/// kubelet without an end, and restarts are counted by the task, lost pods by the job. Counters end it when they reach their number.
#[test]
fn a_volcano_job_makes_lost_pods_anew_and_ends_with_a_worker_that_keeps_failing() {
    let mut job = full();
    for (retries, limit, lost) in [
        (Some(3), 4, 3 * 220 + 1),
        (Some(0), 1, 1),
        (None, 7, 6 * 220 + 1),
    ] {
        job.retries = retries;
        let spec = rendered(&job, "2", "4", WorkloadFormat::Volcano)
            .objects
            .pop()
            .unwrap()["spec"]
            .clone();
        assert_eq!(
            spec["policies"],
            json!([{"event": "PodFailed", "action": "RestartTask"}])
        );
        assert_eq!(spec["maxRetry"], lost);
        for task in spec["tasks"].as_array().unwrap() {
            let ps = task["name"].as_str().unwrap().starts_with("ps-");
            let policies = json!([{"event": "TaskFailed", "action": "TerminateJob"}]);
            let expected = if ps {
                (json!(null), json!(null))
            } else {
                (json!(limit), policies)
            };
            assert_eq!(
                (&task["maxRetry"], &task["policies"]),
                (&expected.0, &expected.1),
                "{}",
                task["name"]
            );
        }
        // The training operator has a single counter, with a warning.
        let tfjob = rendered(&job, "2", "4", WorkloadFormat::Tfjob);
        assert_eq!(
            tfjob.objects.last().unwrap()["spec"]["runPolicy"]["backoffLimit"],
            json!(retries)
        );
        let has_warning = tfjob
            .warnings
            .iter()
            .any(|one| one.contains("the restarts of all tasks together"));
        assert_eq!(has_warning, retries.is_some(), "{:?}", tfjob.warnings);
    }
}

/// Volcano's webhook appends a task's position among all tasks to the name before the length check.
#[test]
fn names_are_as_short_as_each_format_wants() {
    for (format, more) in [
        (WorkloadFormat::Native, ""),
        (WorkloadFormat::Tfjob, ""),
        // 20 parameter servers come before the 200 workers.
        (WorkloadFormat::Volcano, "-219"),
        (WorkloadFormat::Jobset, "-0-0-abcde"),
    ] {
        let longest = 63 - "-s2-c4-worker-199".len() - more.len();
        let mut job = full();
        job.name = Some("n".repeat(longest));
        assert!(!rendered(&job, "2", "4", format).objects.is_empty());
        job.name = Some("n".repeat(longest + 1));
        let plan = super::plan(&super::example());
        let refused =
            render(&request(&plan, ("2", "4"), &job, format, &Slice::default())).unwrap_err();
        for words in [
            "names of tasks, with scene and case, would have 64 characters, and the limit is 63",
            &format!("use a name of at most {longest} characters"),
        ] {
            assert!(refused.to_string().contains(words), "{format:?}: {refused}");
        }
    }
}
