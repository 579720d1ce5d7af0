//! The manifests: the API knows every field, kubectl accepts the objects, and the rights are those
//! that are documented.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, EnvVar, Namespace, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::kubectl::{apply_again, dry_run};
use crate::strict::strictly;
use crate::tools::{documents, find, here, kustomize, program, succeed};

/// The files of the component reclaim.
const RECLAIM: [&str; 4] = ["rbac", "policy", "networkpolicy", "deployment"];

/// The faults of an object, checked with the Rust type of its kind.
pub(crate) fn faults(object: &Value) -> Vec<String> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    match (version, object["kind"].as_str().unwrap_or_default()) {
        ("v1", "Namespace") => strictly::<Namespace>(object),
        ("v1", "ServiceAccount") => strictly::<ServiceAccount>(object),
        ("v1", "ConfigMap") => strictly::<ConfigMap>(object),
        ("apps/v1", "DaemonSet") => strictly::<DaemonSet>(object),
        ("apps/v1", "Deployment") => strictly::<Deployment>(object),
        ("rbac.authorization.k8s.io/v1", "Role") => strictly::<Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => strictly::<RoleBinding>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => strictly::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            strictly::<ClusterRoleBinding>(object)
        }
        ("networking.k8s.io/v1", "NetworkPolicy") => strictly::<NetworkPolicy>(object),
        ("node.k8s.io/v1", "RuntimeClass") => strictly::<RuntimeClass>(object),
        ("scheduling.k8s.io/v1", "PriorityClass") => strictly::<PriorityClass>(object),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            strictly::<CustomResourceDefinition>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            strictly::<ValidatingAdmissionPolicy>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            strictly::<ValidatingAdmissionPolicyBinding>(object)
        }
        ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy") => {
            strictly::<MutatingAdmissionPolicy>(object)
        }
        ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding") => {
            strictly::<MutatingAdmissionPolicyBinding>(object)
        }
        // The Prometheus operator's kinds have no Rust type here. Only kubectl checks these objects.
        ("monitoring.coreos.com/v1", "PodMonitor" | "PrometheusRule") => Vec::new(),
        (version, kind) => vec![format!("{version} {kind} is not expected here")],
    }
}

fn check(objects: &[Value], what: &str) {
    for object in objects {
        let faults = faults(object);
        assert!(
            faults.is_empty(),
            "{what}, {} {}: {faults:?}",
            object["kind"],
            object["metadata"]["name"]
        );
    }
}

#[test]
fn the_api_knows_every_field() {
    let mut checked = 0;
    let policies = [
        "node-policy",
        "claim-policy",
        "event-policy",
        "installation-policy",
    ];
    let files = [
        &[
            "namespace",
            "crd",
            "rbac",
            "priority",
            "networkpolicy",
            "daemonset",
        ][..],
        &policies,
    ]
    .concat();
    for file in files {
        let objects = documents(&format!("deploy/base/{file}.yaml"));
        checked += objects.len();
        check(&objects, file);
    }
    assert_eq!(checked, 20, "all objects of the base");
    for policy in ["threads", "required-class"] {
        check(
            &documents(&format!("deploy/policies/{policy}.yaml")),
            policy,
        );
    }
    for file in ["required/class", "required-install/daemonset"] {
        check(&documents(&format!("deploy/components/{file}.yaml")), file);
    }
    for kind in ["podmonitor", "prometheusrule"] {
        check(
            &documents(&format!("deploy/components/{kind}/{kind}.yaml")),
            kind,
        );
    }
    for file in RECLAIM {
        check(
            &documents(&format!("deploy/components/reclaim/{file}.yaml")),
            file,
        );
    }
    // The check itself finds an unknown field, a wrong type and an unknown kind.
    let mut wrong = documents("deploy/base/daemonset.yaml").remove(0);
    wrong["spec"]["template"]["spec"]["hostPid"] = json!(true);
    assert_eq!(
        faults(&wrong),
        [".spec.template.spec.hostPid: no such field"]
    );
    wrong["spec"]["minReadySeconds"] = json!("ten");
    assert_eq!(faults(&wrong).len(), 1);
    assert_eq!(
        faults(&json!({"apiVersion": "v1", "kind": "Secret"})).len(),
        1
    );
}

#[test]
fn overlays_change_only_the_daemonset() {
    let Some(kubectl) = program("kubectl") else {
        return;
    };
    let base = kustomize(&kubectl, &here("deploy/base"));
    let pod = |objects: &[Value]| {
        find(objects, "DaemonSet", "pinfold")["spec"]["template"]["spec"].clone()
    };
    let paths = |pod: &Value| -> Vec<String> {
        let volumes = pod["volumes"].as_array().unwrap().iter();
        let mut paths: Vec<_> = volumes
            .map(|volume| volume["hostPath"]["path"].as_str().unwrap().to_owned())
            .collect();
        paths.sort();
        paths
    };
    let observed = ["/sys/fs/cgroup", "/var/lib/kubelet/pod-resources"];
    let written = [
        "/run/pinfold",
        "/sys/devices/virtual/workqueue",
        "/var/run/nri",
    ];
    let systemd = ["/run/dbus"];
    let sorted = |mut paths: Vec<&'static str>| {
        paths.sort_unstable();
        paths
    };
    let base_paths = sorted([&observed[..], &written].concat());
    assert_eq!(paths(&pod(&base)), base_paths);
    for name in ["containerd", "crio", "observe-only"] {
        let objects = kustomize(&kubectl, &here("deploy/overlays").join(name));
        check(&objects, name);
        // All objects except the DaemonSet equal the base.
        for (object, base_object) in objects.iter().zip(&base) {
            assert!(
                object["kind"] == "DaemonSet" || object == base_object,
                "{name}: {}",
                object["kind"]
            );
        }
        let pod = pod(&objects);
        let agent = &pod["containers"][0];
        let (security, adds) = (
            &agent["securityContext"],
            &agent["securityContext"]["capabilities"]["add"],
        );
        assert_eq!(
            (&security["readOnlyRootFilesystem"], &security["privileged"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
        // The container runtime's default AppArmor profile blocks D-Bus calls to systemd.
        assert_eq!(security["appArmorProfile"], json!({"type": "Unconfined"}));
        let cgroup = agent["volumeMounts"]
            .as_array()
            .unwrap()
            .iter()
            .find(|mount| mount["name"] == "cgroup")
            .unwrap();
        if name == "observe-only" {
            assert_eq!(
                (adds, &cgroup["readOnly"]),
                (&json!(["SYS_PTRACE"]), &json!(true))
            );
            // Submounts are read-only too: with cgroup v1 each controller is a mount.
            let recursive = (&cgroup["recursiveReadOnly"], &cgroup["mountPropagation"]);
            assert_eq!(recursive, (&json!("IfPossible"), &Value::Null));
            assert_eq!(paths(&pod), observed);
            assert_eq!(
                agent["volumeMounts"].as_array().unwrap().len(),
                observed.len()
            );
        } else {
            assert_eq!(
                (adds, &cgroup["readOnly"]),
                (
                    &json!(["SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN"]),
                    &Value::Null
                )
            );
            assert_eq!(
                paths(&pod),
                sorted([&observed[..], &written, &systemd].concat())
            );
        }
        assert_eq!(
            security["seLinuxOptions"]["type"] == "spc_t",
            name == "crio"
        );
    }
}

/// An object after `kubectl patch`.
pub(crate) fn patched<A: AsRef<OsStr>>(kubectl: &Path, object: &Value, patch: [A; 2]) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), object.to_string()).unwrap();
    let mut command = Command::new(kubectl);
    command
        .args(["patch", "--local", "-o", "json", "-f"])
        .arg(file.path())
        .args(patch);
    serde_json::from_str(&succeed(&mut command)).unwrap()
}

#[test]
fn the_uninstall_patch_applies_to_every_overlay() {
    let Some(kubectl) = program("kubectl") else {
        return;
    };
    for name in [
        "base",
        "overlays/containerd",
        "overlays/crio",
        "overlays/observe-only",
    ] {
        let objects = kustomize(&kubectl, &here("deploy").join(name));
        let file = here("deploy/uninstall.yaml");
        let patch = [OsStr::new("--patch-file"), file.as_os_str()];
        let patched = patched(&kubectl, find(&objects, "DaemonSet", "pinfold"), patch);
        check(std::slice::from_ref(&patched), name);
        let agent = &patched["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(agent["args"], json!(["release", "--cluster", "--stay"]));
        // `release` serves no HTTP, and an HTTP probe would kill the container too early.
        assert_eq!(
            (&agent["livenessProbe"], &agent["startupProbe"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(agent["readinessProbe"]["tcpSocket"]["port"], "metrics");
        assert_eq!(agent["readinessProbe"]["httpGet"], Value::Null);
        // The patched container can write to the cgroups and to the assignment records, whatever the overlay permitted.
        let mounts = agent["volumeMounts"].as_array().unwrap();
        let cgroup: Vec<&Value> = mounts
            .iter()
            .filter(|mount| mount["name"] == "cgroup")
            .collect();
        assert_eq!(
            cgroup,
            [&json!({"name": "cgroup", "mountPath": "/host/cgroup"})],
            "{name}"
        );
        assert!(mounts.len() >= 2, "{name}");
        let capabilities =
            json!({"drop": ["ALL"], "add": ["SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN"]});
        assert_eq!(
            agent["securityContext"]["capabilities"], capabilities,
            "{name}"
        );
    }
}

#[test]
fn kubectl_accepts_all_objects() {
    let Some(kubectl) = program("kubectl") else {
        return;
    };
    let mut objects = kustomize(&kubectl, &here("deploy/overlays/containerd"));
    objects.extend(documents("deploy/policies/threads.yaml"));
    for kind in ["podmonitor", "prometheusrule"] {
        objects.extend(documents(&format!("deploy/components/{kind}/{kind}.yaml")));
    }
    for file in RECLAIM {
        objects.extend(documents(&format!("deploy/components/reclaim/{file}.yaml")));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let accepted = dry_run(&kubectl, &list.to_string(), &objects);
    assert_eq!(accepted.len(), objects.len());
    assert_eq!(
        find(&accepted, "DaemonSet", "pinfold")["apiVersion"],
        "apps/v1"
    );
}

/// `kubectl apply` reports no change for unchanged objects.
#[test]
fn a_second_apply_changes_nothing() {
    let Some(kubectl) = program("kubectl") else {
        return;
    };
    let mut objects = kustomize(&kubectl, &here("deploy/overlays/containerd"));
    objects.extend(documents("deploy/policies/threads.yaml"));
    for file in RECLAIM {
        objects.extend(documents(&format!("deploy/components/reclaim/{file}.yaml")));
    }
    let said = apply_again(&kubectl, &objects);
    assert_eq!(said.len(), objects.len());
    let changed: Vec<&String> = said
        .iter()
        .filter(|line| !line.ends_with(" unchanged"))
        .collect();
    assert!(changed.is_empty(), "{changed:#?}");
}

#[test]
fn the_snippet_is_a_valid_list_of_variables() {
    let snippet = documents("deploy/policies/threads-snippet.yaml").remove(0);
    let variables = snippet["env"].as_array().unwrap();
    let names: Vec<&str> = variables
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    // As the profile `limit` of the agent, and the policy of deploy/policies/threads.yaml.
    assert_eq!(
        names,
        [
            "TF_NUM_INTRAOP_THREADS",
            "TF_NUM_INTEROP_THREADS",
            "OMP_NUM_THREADS",
            "NUMBA_NUM_THREADS"
        ]
    );
    for variable in variables {
        assert_eq!(strictly::<EnvVar>(variable), Vec::<String>::new());
    }
}

#[test]
fn the_agent_has_only_the_listed_rights() {
    let objects = documents("deploy/base/rbac.yaml");
    let rules = |kind: &str| {
        find(&objects, kind, "pinfold")["rules"]
            .as_array()
            .unwrap()
            .clone()
    };
    let allowed = |kind: &str| -> Vec<String> {
        let words = |value: &Value| -> Vec<String> {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|word| word.as_str().unwrap().to_owned())
                .collect()
        };
        let rules = rules(kind);
        let each = rules.iter().map(|rule| {
            format!(
                "{} {}",
                words(&rule["resources"]).join(","),
                words(&rule["verbs"]).join(",")
            )
        });
        each.collect()
    };
    // The rights match the requests of the module `cluster`. A change of the rights needs a decision.
    assert_eq!(
        allowed("ClusterRole"),
        [
            "nodes get,patch",
            "pods list,watch",
            "events create,patch",
            "sceneplans list,watch",
            "tokenreviews create",
            "subjectaccessreviews create",
            "agents restrict"
        ]
    );
    assert_eq!(allowed("Role"), ["leases create,delete,get,list,watch"]);
    let pod = &documents("deploy/base/daemonset.yaml")[0]["spec"]["template"]["spec"];
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        let binding = find(&objects, kind, "pinfold");
        assert_eq!(binding["subjects"][0]["name"], pod["serviceAccountName"]);
        assert_eq!(binding["subjects"].as_array().unwrap().len(), 1);
    }
    // The roles for people and scrapers have no binding, so that the administrator decides.
    for binding in objects
        .iter()
        .filter(|object| object["roleRef"].is_object())
    {
        assert_eq!(binding["roleRef"]["name"], "pinfold");
    }
    let reader = find(&objects, "ClusterRole", "pinfold-reader");
    assert_eq!(
        reader["rules"],
        json!([{"nonResourceURLs": ["/metrics", "/status"], "verbs": ["get"]}])
    );
    let forward = find(&objects, "Role", "pinfold-portforward");
    assert_eq!(
        forward["rules"],
        json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create", "get"]},
        ])
    );
}

/// Whether the labels of a selector are in the labels of a pod.
fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().unwrap();
    selector.iter().all(|(key, value)| labels[key] == *value)
}

/// Each pod has a NetworkPolicy that admits connections to its ports and no others, and says how much it may store: what
/// checkov and kube-score ask of every workload (docs/security.md).
#[test]
fn every_pod_has_a_network_policy_and_limits_of_its_storage() {
    let (base, reclaim) = ("deploy/base", "deploy/components/reclaim");
    for (folder, workload) in [(base, "daemonset"), (reclaim, "deployment")] {
        let template =
            &documents(&format!("{folder}/{workload}.yaml"))[0]["spec"]["template"].clone();
        let policy = &documents(&format!("{folder}/networkpolicy.yaml"))[0]["spec"].clone();
        let selector = &policy["podSelector"]["matchLabels"];
        assert!(
            selects(selector, &template["metadata"]["labels"]),
            "{policy}"
        );
        // A policy has no effect on a pod in the node's network.
        assert_eq!(template["spec"]["hostNetwork"], Value::Null, "{workload}");
        let containers = template["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1, "{workload}");
        let ports: Vec<Value> = containers[0]["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| json!({"port": port["containerPort"], "protocol": "TCP"}))
            .collect();
        assert_eq!(policy["policyTypes"], json!(["Ingress"]));
        assert_eq!(policy["ingress"], json!([{"ports": ports}]), "{workload}");
        for amounts in ["requests", "limits"] {
            let storage = &containers[0]["resources"][amounts]["ephemeral-storage"];
            assert!(storage.is_string(), "{workload}: {amounts}");
        }
    }
}

#[test]
fn the_reclaimer_has_its_own_account_and_only_the_listed_rights() {
    let objects = documents("deploy/components/reclaim/rbac.yaml");
    let words = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let allowed = |kind: &str| -> Vec<String> {
        let role = find(&objects, kind, "pinfold-reclaim");
        let rules = role["rules"].as_array().unwrap().iter();
        rules
            .map(|rule| {
                format!(
                    "{} {}",
                    words(&rule["resources"]).join(","),
                    words(&rule["verbs"]).join(",")
                )
            })
            .collect()
    };
    assert_eq!(
        allowed("ClusterRole"),
        [
            "jobs list,watch,delete",
            "deployments list,watch,delete",
            "services list,watch,delete",
            "tfjobs list",
            "events create,patch",
            "sceneplans list,watch",
            "sceneplans/status patch",
            "nodes list,watch"
        ]
    );
    // The policy allows the account to delete claims, and no other Lease.
    assert_eq!(allowed("Role"), ["leases delete,list,watch"]);
    let deployment = &documents("deploy/components/reclaim/deployment.yaml")[0];
    let pod = &deployment["spec"]["template"];
    let binding = find(&objects, "ClusterRoleBinding", "pinfold-reclaim");
    assert_eq!(binding["subjects"].as_array().unwrap().len(), 1);
    assert_eq!(
        binding["subjects"][0]["name"],
        pod["spec"]["serviceAccountName"]
    );
    assert_eq!(pod["spec"]["serviceAccountName"], "pinfold-reclaim");
    let policy = &documents("deploy/components/reclaim/policy.yaml")[0];
    // The policy restricts the account in every namespace.
    let user = policy["spec"]["matchConditions"][0]["expression"]
        .as_str()
        .unwrap();
    assert!(!user.contains(":pinfold:"), "{user}");
    // Neither the DaemonSet nor the agents' PodMonitor selects the reclaimer's pod.
    let agents = &documents("deploy/base/daemonset.yaml")[0]["spec"]["selector"]["matchLabels"];
    assert!(!selects(agents, &pod["metadata"]["labels"]));
    let reclaimers = &deployment["spec"]["selector"]["matchLabels"];
    assert!(selects(reclaimers, &pod["metadata"]["labels"]));
    // The program accepts the arguments of the Deployment.
    let container = &pod["spec"]["containers"][0];
    let args = words(&container["args"]);
    let said = Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .args(&args)
        .args(["--kubeconfig", "/no/such/file"])
        .output()
        .unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("/no/such/file"), "{said}");
}
