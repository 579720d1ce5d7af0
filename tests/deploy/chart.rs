//! The chart renders the same objects as kustomize, for each value.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use pinfold::scene::STARTUP_TAINT;

use crate::evaluate::{Policy, Request, Verdict};
use crate::kubectl::serve;
use crate::manifests::{faults, patched};
use crate::tools::{find, here, kustomize, output, parse, program, succeed};

pub(crate) fn command(helm: &Path) -> Command {
    let mut command = Command::new(helm);
    let home = std::env::temp_dir();
    for variable in [
        "HELM_CACHE_HOME",
        "HELM_CONFIG_HOME",
        "HELM_DATA_HOME",
        "HOME",
    ] {
        command.env(variable, &home);
    }
    command
}

pub(crate) fn template(helm: &Path, values: &[&str]) -> Vec<Value> {
    let mut command = command(helm);
    command
        .arg("template")
        .args(["pinfold", "--namespace", "pinfold", "--include-crds"]);
    for value in values {
        command.args(["--set", value]);
    }
    parse(
        &succeed(command.arg(here("deploy/helm/pinfold"))),
        "helm template",
    )
}

/// Objects by kind and name. Lists whose entries have names are sorted by name.
fn ordered(objects: Vec<Value>) -> BTreeMap<String, Value> {
    fn sort(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.values_mut().for_each(sort);
            }
            Value::Array(list) => {
                list.iter_mut().for_each(sort);
                if list.iter().all(|entry| entry["name"].is_string()) {
                    list.sort_by_key(|entry| entry["name"].to_string());
                }
            }
            // Helm and kustomize print 10000.0 differently: as 10000.0 and as 10000.
            Value::Number(number) => *value = json!(number.as_f64()),
            _ => {}
        }
    }
    let by_name = objects.into_iter().map(|mut object| {
        sort(&mut object);
        (
            format!("{} {}", object["kind"], object["metadata"]["name"]),
            object,
        )
    });
    by_name.collect()
}

fn assert_equal(helm: Vec<Value>, kustomize: Vec<Value>, what: &str) {
    let (helm, kustomize) = (ordered(helm), ordered(kustomize));
    assert_eq!(
        helm.keys().collect::<Vec<_>>(),
        kustomize.keys().collect::<Vec<_>>(),
        "{what}"
    );
    for (name, object) in &helm {
        assert_eq!(object, &kustomize[name], "{what}: {name}");
    }
}

/// The chart is the source of the kustomize files and of the page of values.
#[test]
fn the_generated_files_are_current() {
    let Some(helm) = program("helm") else { return };
    let mut generate = Command::new(here("deploy/generate"));
    let result = output(generate.arg("--check").env("HELM", &helm));
    assert!(
        result.status.success(),
        "{}{}",
        String::from_utf8_lossy(&result.stdout),
        String::from_utf8_lossy(&result.stderr)
    );
}

#[test]
fn chart_and_overlays_render_the_same_objects() {
    let (Some(helm), Some(kubectl)) = (program("helm"), program("kubectl")) else {
        return;
    };
    let overlay = |name: &str| kustomize(&kubectl, &here("deploy").join(name));
    let namespace = "namespace.create=true";
    assert_equal(
        template(&helm, &[namespace, "runtime=none"]),
        overlay("base"),
        "base",
    );
    assert_equal(
        template(&helm, &[namespace]),
        overlay("overlays/containerd"),
        "containerd",
    );
    assert_equal(
        template(&helm, &[namespace, "runtime=crio"]),
        overlay("overlays/crio"),
        "crio",
    );
    let observe = [namespace, "runtime=none", "enforcement=observe"];
    assert_equal(
        template(&helm, &observe),
        overlay("overlays/observe-only"),
        "observe-only",
    );

    let folder = tempfile::tempdir_in(here("deploy")).unwrap();
    let text = "resources: [../base]\ncomponents: [../components/podmonitor, ../components/prometheusrule, ../components/reclaim]\n";
    std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
    let monitored = kustomize(&kubectl, folder.path());
    let values = [
        namespace,
        "runtime=none",
        "podMonitor.enabled=true",
        "prometheusRule.enabled=true",
        "reclaim.enabled=true",
    ];
    assert_equal(
        template(&helm, &values),
        monitored,
        "podmonitor, prometheusrule and reclaim",
    );

    let folder = tempfile::tempdir_in(here("deploy")).unwrap();
    let text = "resources: [../overlays/containerd]\ncomponents: [../components/resctrl]\n";
    std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
    let controlled = kustomize(&kubectl, folder.path());
    let daemon = find(&controlled, "DaemonSet", "pinfold").to_string();
    assert!(
        daemon.contains("\"mountPath\":\"/sys/fs/resctrl\""),
        "{daemon}"
    );
    assert_equal(
        template(&helm, &[namespace, "resctrl=true"]),
        controlled,
        "resctrl",
    );

    let folder = tempfile::tempdir_in(here("deploy")).unwrap();
    let text = "resources: [../overlays/containerd]\ncomponents: [../components/required, ../components/required-install]\n";
    std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
    assert_equal(
        template(
            &helm,
            &[namespace, "required.class=true", "required.wrapper=install"],
        ),
        kustomize(&kubectl, folder.path()),
        "required and required-install",
    );

    let folder = tempfile::tempdir_in(here("deploy")).unwrap();
    let text = "resources: [../overlays/containerd]\ncomponents: [../components/reclaim]\n";
    std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
    let reclaiming = kustomize(&kubectl, folder.path());
    let reclaimer = &find(&reclaiming, "Deployment", "pinfold-reclaim")["spec"];
    assert_eq!(
        (&reclaimer["replicas"], &reclaimer["strategy"]),
        (&json!(1), &json!({"type": "Recreate"}))
    );
    assert_equal(
        template(&helm, &[namespace, "reclaim.enabled=true"]),
        reclaiming,
        "reclaim",
    );
}

/// A namespace or prefix of kustomize must not free the reclaimer's account from the policy.
#[test]
fn the_policy_restricts_a_moved_or_renamed_reclaimer() {
    let Some(kubectl) = program("kubectl") else {
        return;
    };
    for kustomization in [
        "",
        "namespace: tools\n",
        "namespace: tools\nnamePrefix: our\nnameSuffix: -two\n",
    ] {
        let folder = tempfile::tempdir_in(here("deploy")).unwrap();
        let text = format!("{kustomization}components: [../components/reclaim]\n");
        std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
        let objects = kustomize(&kubectl, folder.path());
        let of_kind = |kind: &str| {
            objects
                .iter()
                .find(|object| object["kind"] == kind)
                .unwrap()
        };
        let subject = &of_kind("ClusterRoleBinding")["subjects"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let account = format!(
            "system:serviceaccount:{}:{}",
            text(&subject["namespace"]),
            text(&subject["name"])
        );
        assert_eq!(
            account.contains(":tools:"),
            !kustomization.is_empty(),
            "{account}"
        );
        assert_eq!(
            of_kind("ServiceAccount")["metadata"]["name"],
            subject["name"]
        );
        let policy = of_kind("ValidatingAdmissionPolicy");
        let binding = &of_kind("ValidatingAdmissionPolicyBinding")["spec"];
        assert_eq!(binding["policyName"], policy["metadata"]["name"]);
        let policy = Policy::new(policy);
        let delete = |user: &str, labels: Value| {
            policy.validate(&Request {
                object: Value::Null,
                old: json!({"metadata": {"name": "a", "labels": labels}}),
                request: json!({
                    "operation": "DELETE", "userInfo": {"username": user},
                    "resource": {"group": "batch", "version": "v1", "resource": "jobs"},
                }),
            })
        };
        let server = || json!({"pinfold.io/reclaim": "ps", "job": "ps"});
        assert_eq!(delete(&account, server()), Verdict::Allowed, "{account}");
        assert!(
            matches!(delete(&account, json!({"job": "ps"})), Verdict::Denied(..)),
            "{account}"
        );
        for other_user in [
            "system:serviceaccount:tools:admin",
            "pinfold-reclaim",
            "system:admin",
        ] {
            assert_eq!(
                delete(other_user, json!({})),
                Verdict::NotMatched,
                "{other_user}"
            );
        }
    }
}

/// An operator's own namespace or name must not free the agents' account from the policies.
#[test]
fn the_policies_restrict_moved_or_renamed_agents() {
    let Some(kubectl) = program("kubectl") else {
        return;
    };
    let renamed = "patches: [{target: {kind: ServiceAccount}, \
                   patch: '[{\"op\": \"replace\", \"path\": \"/metadata/name\", \"value\": \"agent\"}]'}]\n";
    for (kustomization, account) in [
        ("", "system:serviceaccount:pinfold:pinfold"),
        ("namespace: tools\n", "system:serviceaccount:tools:pinfold"),
        (
            "namespace: tools\nnamePrefix: our-\nnameSuffix: -two\n",
            "system:serviceaccount:tools:our-pinfold-two",
        ),
        (renamed, "system:serviceaccount:pinfold:agent"),
    ] {
        let folder = tempfile::tempdir_in(here("deploy")).unwrap();
        let text = format!("{kustomization}resources: [../base]\n");
        std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
        let objects = kustomize(&kubectl, folder.path());
        let of_kind = |kind: &str| -> Vec<&Value> {
            objects
                .iter()
                .filter(|object| object["kind"] == kind)
                .collect()
        };
        let subject = &of_kind("ClusterRoleBinding")[0]["subjects"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let rendered_account = format!(
            "system:serviceaccount:{}:{}",
            text(&subject["namespace"]),
            text(&subject["name"])
        );
        assert_eq!(rendered_account, account);
        let pod = &of_kind("DaemonSet")[0]["spec"]["template"]["spec"];
        assert_eq!(pod["serviceAccountName"], subject["name"]);
        let policies = of_kind("ValidatingAdmissionPolicy");
        assert_eq!(policies.len(), 4);
        for policy in policies
            .into_iter()
            .filter(|policy| !policy["spec"]["matchConditions"].is_null())
        {
            let bindings = of_kind("ValidatingAdmissionPolicyBinding");
            assert!(
                bindings
                    .iter()
                    .any(|binding| binding["spec"]["policyName"] == policy["metadata"]["name"])
            );
            let policy = Policy::new(policy).beside(&objects);
            let create = |user: &str| {
                let metadata = json!({"metadata": {"name": "node-b"}, "spec": {}});
                policy.validate(&Request {
                    object: metadata,
                    old: Value::Null,
                    request: json!({"operation": "CREATE", "name": "node-b", "userInfo": {"username": user}}),
                })
            };
            assert!(
                matches!(create(account), Verdict::Denied(..)),
                "{account}: {:?}",
                create(account)
            );
            for other_user in [
                "system:serviceaccount:tools:admin",
                "system:serviceaccount:pinfold:pinfold-reclaim",
                "system:serviceaccount:pinfold-two:pinfold",
                "pinfold",
            ] {
                assert_eq!(create(other_user), Verdict::NotMatched, "{other_user}");
            }
        }
    }
}

/// The chart's notes contain all steps of an uninstallation, because a chart from a registry comes without this
/// repository.
#[test]
fn the_chart_notes_describe_a_complete_uninstallation() {
    let (Some(helm), Some(kubectl)) = (program("helm"), program("kubectl")) else {
        return;
    };
    let mut install = command(&helm);
    install.args([
        "install",
        "ours",
        "--namespace",
        "tools",
        "--dry-run=client",
    ]);
    let text = succeed(install.arg(here("deploy/helm/pinfold")));
    let notes = text.split_once("NOTES:\n").unwrap().1;
    assert!(!notes.contains("deploy/"), "{notes}");
    assert!(
        notes.contains("kubectl -n tools patch daemonset pinfold --patch '{"),
        "{notes}"
    );
    assert!(notes.contains("helm -n tools uninstall ours\n"), "{notes}");
    // Helm keeps the namespace, even one that it has created.
    assert!(
        notes.contains("kubectl delete namespace tools\n"),
        "{notes}"
    );
    // A command without its namespace acts in the namespace of the reader's context.
    let objects_of_namespaces = |line: &&str| {
        let is_command = line.starts_with("  ");
        let of_cluster = ["label namespace tools", "delete crd", "show crds"];
        is_command && !of_cluster.iter().any(|words| line.contains(words))
    };
    for line in notes.lines().filter(objects_of_namespaces) {
        assert!(line.contains(" -n tools "), "{line}");
    }
    let patch = notes
        .split_once("--patch '")
        .unwrap()
        .1
        .split('\'')
        .next()
        .unwrap();
    let file = here("deploy/uninstall.yaml");
    for values in [
        &["runtime=crio"][..],
        &["enforcement=observe"],
        &["updateStrategy.type=OnDelete"],
    ] {
        let objects = template(&helm, values);
        let daemon = find(&objects, "DaemonSet", "pinfold");
        let by_file = patched(&kubectl, daemon, ["--patch-file", file.to_str().unwrap()]);
        assert_eq!(
            patched(&kubectl, daemon, ["--patch", patch]),
            by_file,
            "{values:?}"
        );
        let agent = &by_file["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(agent["args"], json!(["release", "--cluster", "--stay"]));
        // With OnDelete, the DaemonSet would keep the agents' pods.
        let strategy = &by_file["spec"]["updateStrategy"];
        assert_eq!(strategy["type"], "RollingUpdate", "{values:?}");
    }
}

/// A comment of the rendered DaemonSet also holds with narrower tolerations.
#[test]
fn no_comment_promises_an_agent_on_every_tainted_node() {
    let Some(helm) = program("helm") else { return };
    let mut render = command(&helm);
    render.args(["template", "ours", "--set", "tolerations[0].key=a"]);
    let text = succeed(render.arg(here("deploy/helm/pinfold")));
    let before = text.split_once("      tolerations:\n").unwrap().0;
    let comment = before.lines().last().unwrap();
    assert!(comment.contains("The tolerations decide"), "{comment}");
    assert!(!text.contains("whatever the taints"), "{comment}");
}

/// A node keeps the startup taint until its agent runs, so an agent that does not tolerate it would never come.
#[test]
fn agents_tolerate_the_startup_taint_whatever_the_values_say() {
    let Some(helm) = program("helm") else { return };
    let startup = json!({"key": STARTUP_TAINT, "operator": "Exists"});
    let narrow = json!({"key": "dedicated", "value": "train", "effect": "NoSchedule"});
    let every = json!({"operator": "Exists"});
    for (tolerations, rendered) in [
        (json!([]), json!([startup])),
        (json!([narrow]), json!([narrow, startup])),
        (json!([startup, narrow]), json!([startup, narrow])),
        (json!([every]), json!([every])),
    ] {
        let mut render = command(&helm);
        render.args(["template", "pinfold", "--set-json"]);
        render.arg(format!("tolerations={tolerations}"));
        let text = succeed(render.arg(here("deploy/helm/pinfold")));
        let objects = parse(&text, "helm template");
        let spec = &find(&objects, "DaemonSet", "pinfold")["spec"];
        let found = &spec["template"]["spec"]["tolerations"];
        assert_eq!(*found, rendered, "{tolerations}");
    }
}

#[test]
fn chart_values_reach_the_objects() {
    let Some(helm) = program("helm") else { return };
    let objects = template(
        &helm,
        &[
            "image.repository=registry.example/pinfold",
            "image.tag=1.2.3",
            "imagePullSecrets[0].name=pull",
            "reserved=0-1\\,32",
            "config.maxMovesPerHour=3",
            "labelKeys={SCENE,CASE}",
            "taintKeys={pinfold.io/a,pinfold.io/b}",
            "noExecute=true",
            "updateStrategy.rollingUpdate.maxUnavailable=3",
            "kubeletDir=/data/kubelet",
            "config.runtime.liveDir=/data/live",
        ],
    );
    for object in &objects {
        assert_eq!(faults(object), Vec::<String>::new(), "{}", object["kind"]);
    }
    assert!(
        !objects.iter().any(|object| object["kind"] == "Namespace"),
        "the Namespace of `helm install` exists already"
    );
    let spec = &find(&objects, "DaemonSet", "pinfold")["spec"];
    assert_eq!(spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"], 3);
    let pod = &spec["template"]["spec"];
    let agent = &pod["containers"][0];
    assert_eq!(agent["image"], "registry.example/pinfold:1.2.3");
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "pull"}]));
    let value = |name: &str| {
        let variables = agent["env"].as_array().unwrap();
        variables
            .iter()
            .find(|variable| variable["name"] == name)
            .map(|variable| variable["value"].clone())
    };
    assert_eq!(value("PINFOLD_RESERVED"), Some(json!("0-1,32")));
    let path = value("PINFOLD_CONFIG").unwrap();
    let mount = agent["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|mount| mount["name"] == "config")
        .unwrap();
    let file = path
        .as_str()
        .unwrap()
        .strip_prefix(mount["mountPath"].as_str().unwrap())
        .unwrap();
    let text = &find(&objects, "ConfigMap", "pinfold")["data"][file.trim_start_matches('/')];
    // The ConfigMap contains a valid configuration.
    let config = pinfold::agent::config::Config::parse(text.as_str().unwrap()).unwrap();
    assert_eq!(config.max_moves_per_hour, 3);
    let policy = find(&objects, "ValidatingAdmissionPolicy", "pinfold-node");
    let variables = policy["spec"]["variables"].as_array().unwrap().iter();
    let expressions: Vec<&str> = variables
        .map(|variable| variable["expression"].as_str().unwrap())
        .collect();
    assert_eq!(
        expressions[..3],
        [
            "['SCENE', 'CASE']",
            "['pinfold.io/a', 'pinfold.io/b']",
            "true"
        ]
    );
    let policy = Policy::new(policy).beside(&objects);
    let update = |taints: Value| {
        let node = |taints: Value| json!({"metadata": {"name": "n"}, "spec": {"taints": taints}});
        let extra = json!({"authentication.kubernetes.io/node-name": ["n"]});
        let user = json!({"username": "system:serviceaccount:pinfold:pinfold", "extra": extra});
        let request = json!({"operation": "UPDATE", "name": "n", "userInfo": user});
        policy.validate(&Request {
            object: node(taints),
            old: node(json!([])),
            request,
        })
    };
    assert_eq!(
        update(json!([{"key": "pinfold.io/b", "effect": "NoExecute"}])),
        Verdict::Allowed
    );
    assert!(matches!(
        update(json!([{"key": "pinfold.io/scene", "effect": "NoSchedule"}])),
        Verdict::Denied(..)
    ));
    let spec = spec.to_string();
    assert!(spec.contains("/data/kubelet/pod-resources"));
    // The runtime mounts a live folder by its path on the node, so the agent needs the same path.
    for mount in [r#""mountPath":"/data/live""#, r#""path":"/data/live""#] {
        assert!(spec.contains(mount), "{mount}");
    }
}

#[test]
fn the_chart_passes_lint_and_the_schema_refuses_invalid_values() {
    let Some(helm) = program("helm") else { return };
    succeed(
        command(&helm)
            .args(["lint", "--strict"])
            .arg(here("deploy/helm/pinfold")),
    );
    for (value, invalid_key) in [
        ("runtime=docker", "/runtime"),
        ("enforcement=maybe", "/enforcement"),
        ("reserved=all", "/reserved"),
        ("sharedMinimum=101%", "/sharedMinimum"),
        ("enforcment=auto", "enforcment"),
        ("labelKeys={a'b}", "/labelKeys/0"),
        ("taintKeys={gpu}", "/taintKeys/0"),
        ("noExecute=maybe", "/noExecute"),
        ("kubeletDir=var", "/kubeletDir"),
        (
            "updateStrategy.rollingUpdate.maxUnavailable=0",
            "/updateStrategy/rollingUpdate/maxUnavailable",
        ),
        ("reclaim.after=30", "/reclaim/after"),
        (
            "reclaim.enabled=true,reclaim.replicas=2",
            "the reclaimer runs as one pod. Remove the value",
        ),
        ("image.digest=sha256:1", "/image/digest"),
        ("log.format=xml", "/log/format"),
        ("port=0", "/port"),
        ("nriSocket=nri.sock", "/nriSocket"),
        // Two agents on a node would compete for the CPUs.
        (
            "updateStrategy.rollingUpdate.maxSurge=1",
            "/updateStrategy/rollingUpdate",
        ),
        ("fullnameOverride=Ours", "/fullnameOverride"),
        (
            "prometheusRule.runbookUrl=docs",
            "/prometheusRule/runbookUrl",
        ),
        // The selector's label and the chart's annotation.
        (
            "podLabels.app\\.kubernetes\\.io/name=a",
            "'app.kubernetes.io/name'",
        ),
        ("podAnnotations.checksum/config=a", "'checksum/config'"),
    ] {
        let mut template = command(&helm);
        template
            .args(["template", "pinfold", "--set", value])
            .arg(here("deploy/helm/pinfold"));
        let result = output(&mut template);
        let stderr = String::from_utf8_lossy(&result.stderr);
        assert!(
            !result.status.success() && stderr.contains(invalid_key),
            "{value}: {stderr}"
        );
    }
}

/// What Helm prints for the release `ours` in a cluster whose policy has these annotations.
fn install_beside(helm: &Path, annotations: &Value) -> String {
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "pinfold-installation", "annotations": annotations}});
    let address = serve(std::slice::from_ref(&policy), vec![policy.clone()]);
    let mut install = command(helm);
    install
        .env_remove("KUBECONFIG")
        .args(["install", "ours", "--namespace", "tools"])
        .args(["--dry-run=server", "--set", "fullnameOverride=ours"])
        .args(["--kube-apiserver", &format!("http://{address}")]);
    let result = output(install.arg(here("deploy/helm/pinfold")));
    String::from_utf8(result.stderr).unwrap()
}

/// Different names don't make two installations possible: agents of both would compete for the CPUs of a node.
#[test]
fn a_second_release_is_refused() {
    let Some(helm) = program("helm") else { return };
    let release = |name: &str, namespace: &str| json!({"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace});
    for (name, namespace) in [
        ("first", "pinfold"),
        ("ours", "pinfold"),
        ("first", "tools"),
    ] {
        let said = install_beside(&helm, &release(name, namespace));
        let sentence = format!(
            "this cluster has the release {name} in namespace {namespace}, and a cluster has one installation of \
             Pinfold. Upgrade that release, or uninstall it first"
        );
        assert!(said.contains(&sentence), "{said}");
    }
    for annotations in [json!({}), Value::Null] {
        let said = install_beside(&helm, &annotations);
        assert!(
            said.contains("this cluster has an installation of Pinfold without Helm"),
            "{said}"
        );
    }
    // The release itself may be upgraded. The test's server then lacks the rest of an API.
    let said = install_beside(&helm, &release("ours", "tools"));
    assert!(!said.contains("this cluster has"), "{said}");
    assert!(said.contains("openapi"), "{said}");
}
