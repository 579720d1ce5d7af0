//! Each value of the chart reaches an object, and the chart refuses values that can't work.

use std::path::Path;

use serde_json::{Value, json};

use crate::chart::{command, template};
use crate::manifests::faults;
use crate::schema::values_of_the_schema;
use crate::tools::{find, here, output, program};

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const POD: &str = "/spec/template/spec";

/// Values, and the field of an object that shows them.
struct Case {
    values: Vec<String>,
    kind: &'static str,
    name: &'static str,
    /// The path of the field. The segment `[a]` stands for the entry with the name `a`. In a key, `~1` stands
    /// for a slash, as in a JSON pointer.
    field: String,
    expected: Value,
}

/// A case with several values, separated by spaces.
fn case(
    values: &str,
    (kind, name): (&'static str, &'static str),
    field: &str,
    expected: impl Into<Value>,
) -> Case {
    Case {
        values: values.split(' ').map(str::to_owned).collect(),
        kind,
        name,
        field: field.to_owned(),
        expected: expected.into(),
    }
}

/// A case with a field of the agents' pods.
fn pod(values: &str, field: &str, expected: impl Into<Value>) -> Case {
    let field = format!("{POD}{field}");
    case(values, ("DaemonSet", "pinfold"), &field, expected)
}

/// A case with a field of the agent's container.
fn agent(values: &str, field: &str, expected: impl Into<Value>) -> Case {
    pod(values, &format!("/containers/[agent]{field}"), expected)
}

impl Case {
    /// Whether the case sets a value, or a part of the value.
    fn sets(&self, value: &str) -> bool {
        self.values.iter().any(|assignment| {
            let key = assignment.split('=').next().unwrap_or_default();
            let rest = key.strip_prefix(value);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }
}

/// The field of an object.
fn field(object: &Value, path: &str) -> Value {
    let mut value = object;
    for segment in path.split('/').skip(1) {
        let name = segment
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        value = match (name, value) {
            (Some(name), Value::Array(list)) => list
                .iter()
                .find(|entry| entry["name"] == name)
                .unwrap_or(&Value::Null),
            (None, Value::Array(list)) => &list[segment.parse::<usize>().unwrap()],
            _ => &value[segment.replace("~1", "/")],
        };
    }
    value.clone()
}

fn image_cases() -> Vec<Case> {
    vec![
        agent(
            "image.repository=registry.example/a image.tag=v1",
            "/image",
            "registry.example/a:v1",
        ),
        agent(
            &format!("image.tag=v1 image.digest={DIGEST}"),
            "/image",
            format!("pinfold:v1@{DIGEST}"),
        ),
        agent("image.pullPolicy=Always", "/imagePullPolicy", "Always"),
        pod(
            "imagePullSecrets[0].name=pull",
            "/imagePullSecrets/0/name",
            "pull",
        ),
    ]
}

fn agent_cases() -> Vec<Case> {
    let socket = "nriSocket=/run/other/nri.sock";
    vec![
        agent(
            "runtime=crio",
            "/securityContext/seLinuxOptions/type",
            "spc_t",
        ),
        agent(
            "enforcement=cpuset",
            "/env/[PINFOLD_ENFORCEMENT]/value",
            "cpuset",
        ),
        agent(
            "placementSource=pinfold",
            "/env/[PINFOLD_PLACEMENT_SOURCE]/value",
            "pinfold",
        ),
        agent("reserved=0-1", "/env/[PINFOLD_RESERVED]/value", "0-1"),
        agent(
            "sharedMinimum=10%",
            "/env/[PINFOLD_SHARED_MINIMUM]/value",
            "10%",
        ),
        agent(
            "sharedMinimum=0",
            "/env/[PINFOLD_SHARED_MINIMUM]/value",
            "0",
        ),
        case(
            "config.maxMovesPerHour=3",
            ("ConfigMap", "pinfold"),
            "/data/pinfold.yaml",
            "maxMovesPerHour: 3\n",
        ),
        agent("log.level=debug", "/env/[PINFOLD_LOG_LEVEL]/value", "debug"),
        agent("log.format=json", "/env/[PINFOLD_LOG_FORMAT]/value", "json"),
        agent("port=9999", "/ports/[metrics]/containerPort", 9999),
        agent("port=9999", "/env/[PINFOLD_LISTEN]/value", "0.0.0.0:9999"),
        pod(socket, "/volumes/[nri]/hostPath/path", "/run/other"),
        agent(socket, "/volumeMounts/[nri]/mountPath", "/run/other"),
        agent(
            socket,
            "/env/[PINFOLD_NRI_SOCKET]/value",
            "/run/other/nri.sock",
        ),
        pod(
            "kubeletDir=/data/kubelet",
            "/volumes/[pod-resources]/hostPath/path",
            "/data/kubelet/pod-resources",
        ),
        agent(
            "resctrl=true",
            "/volumeMounts/[resctrl]/mountPath",
            "/sys/fs/resctrl",
        ),
        agent(
            "extraEnv[0].name=A extraEnv[0].value=b",
            "/env/[A]/value",
            "b",
        ),
    ]
}

fn policy_cases() -> Vec<Case> {
    let node_policy = ("ValidatingAdmissionPolicy", "pinfold-node");
    vec![
        case(
            "labelKeys={SCENE}",
            node_policy,
            "/spec/variables/[planLabels]/expression",
            "['SCENE']",
        ),
        case(
            "taintKeys={pinfold.io/a}",
            node_policy,
            "/spec/variables/[taints]/expression",
            "['pinfold.io/a']",
        ),
        case(
            "noExecute=true",
            node_policy,
            "/spec/variables/[noExecute]/expression",
            "true",
        ),
    ]
}

fn pod_cases() -> Vec<Case> {
    let daemonset = ("DaemonSet", "pinfold");
    let terms = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].\
                 matchExpressions[0]";
    vec![
        agent(
            "resources.limits.memory=1Gi",
            "/resources/limits/memory",
            "1Gi",
        ),
        pod("nodeSelector.disk=ssd", "/nodeSelector/disk", "ssd"),
        pod(
            "tolerations[0].key=a",
            "/tolerations",
            json!([{"key": "a"}, {"key": "pinfold.io/agent-not-ready", "operator": "Exists"}]),
        ),
        pod(
            &format!("affinity.{terms}.key=zone affinity.{terms}.operator=Exists"),
            "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0",
            json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}),
        ),
        pod(
            "priorityClassName=system-node-critical",
            "/priorityClassName",
            "system-node-critical",
        ),
        case(
            "updateStrategy.type=OnDelete",
            daemonset,
            "/spec/updateStrategy",
            json!({"type": "OnDelete"}),
        ),
        case(
            "updateStrategy.rollingUpdate.maxUnavailable=3",
            daemonset,
            "/spec/updateStrategy/rollingUpdate/maxUnavailable",
            3,
        ),
        case(
            "podLabels.team=a",
            daemonset,
            "/spec/template/metadata/labels/team",
            "a",
        ),
        case(
            "podAnnotations.note=a",
            daemonset,
            "/spec/template/metadata/annotations/note",
            "a",
        ),
    ]
}

fn name_cases() -> Vec<Case> {
    let policy = ("NetworkPolicy", "pinfold");
    vec![
        pod(
            "serviceAccount.create=false serviceAccount.name=own",
            "/serviceAccountName",
            "own",
        ),
        case(
            "serviceAccount.name=own",
            ("ClusterRoleBinding", "pinfold"),
            "/subjects/0/name",
            "own",
        ),
        case(
            "serviceAccount.name=own serviceAccount.annotations.note=a",
            ("ServiceAccount", "own"),
            "/metadata/annotations/note",
            "a",
        ),
        case(
            "nameOverride=agent",
            ("DaemonSet", "agent"),
            "/spec/selector/matchLabels",
            json!({"app.kubernetes.io/name": "agent"}),
        ),
        // The labels by which commands with --cluster find the agents.
        case(
            "nameOverride=agent",
            ("DaemonSet", "agent"),
            "/spec/template/metadata/labels",
            json!({"app.kubernetes.io/name": "agent", "app.kubernetes.io/instance": "pinfold",
                "app.kubernetes.io/part-of": "pinfold", "app.kubernetes.io/component": "agent"}),
        ),
        case(
            "fullnameOverride=ours",
            ("DaemonSet", "ours"),
            "/spec/selector/matchLabels",
            json!({"app.kubernetes.io/name": "pinfold"}),
        ),
        case(
            "namespace.create=true",
            ("Namespace", "pinfold"),
            "/metadata/labels/pod-security.kubernetes.io~1enforce",
            "privileged",
        ),
        case(
            "networkPolicy.enabled=true port=9999",
            policy,
            "/spec/ingress",
            json!([{"ports": [{"port": 9999, "protocol": "TCP"}]}]),
        ),
        case(
            "networkPolicy.from[0].podSelector.matchLabels.app=prometheus",
            policy,
            "/spec/ingress/0/from",
            json!([{"podSelector": {"matchLabels": {"app": "prometheus"}}}]),
        ),
    ]
}

fn monitoring_cases() -> Vec<Case> {
    let monitor = ("PodMonitor", "pinfold");
    let rule = ("PrometheusRule", "pinfold");
    let endpoint = "/spec/podMetricsEndpoints/0";
    vec![
        case(
            "podMonitor.enabled=true podMonitor.labels.release=prometheus",
            monitor,
            "/metadata/labels/release",
            "prometheus",
        ),
        case(
            "podMonitor.enabled=true podMonitor.interval=15s",
            monitor,
            &format!("{endpoint}/interval"),
            "15s",
        ),
        case(
            "podMonitor.enabled=true podMonitor.scrapeTimeout=5s",
            monitor,
            &format!("{endpoint}/scrapeTimeout"),
            "5s",
        ),
        case(
            "podMonitor.enabled=true podMonitor.authorization.credentials.name=token",
            monitor,
            &format!("{endpoint}/authorization/credentials/name"),
            "token",
        ),
        // The label `node` stays: the dashboard needs the label.
        case(
            "podMonitor.enabled=true podMonitor.relabelings[0].action=labeldrop",
            monitor,
            &format!("{endpoint}/relabelings"),
            json!([
                {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"},
                {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
                {"regex": "pod|container", "action": "labeldrop"},
                {"action": "labeldrop"},
            ]),
        ),
        case(
            "prometheusRule.enabled=true prometheusRule.labels.release=prometheus",
            rule,
            "/metadata/labels/release",
            "prometheus",
        ),
        case(
            "prometheusRule.enabled=true prometheusRule.runbookUrl=https://docs.example/t.html",
            rule,
            "/spec/groups/[pinfold.agent]/rules/0/annotations/runbook_url",
            "https://docs.example/t.html#pinfoldagentdown",
        ),
    ]
}

fn dashboard_cases() -> Vec<Case> {
    let dashboard = ("ConfigMap", "pinfold-dashboard");
    let text = std::fs::read_to_string(here("deploy/dashboards/pinfold.json")).unwrap();
    vec![
        case(
            "dashboard.enabled=true dashboard.labels.team=a",
            dashboard,
            "/metadata/labels",
            json!({"app.kubernetes.io/name": "pinfold", "app.kubernetes.io/instance": "pinfold",
                "grafana_dashboard": "1", "team": "a"}),
        ),
        case(
            "dashboard.enabled=true dashboard.annotations.folder=Training",
            dashboard,
            "/metadata/annotations/folder",
            "Training",
        ),
        case(
            "dashboard.enabled=true",
            dashboard,
            "/data/pinfold.json",
            text,
        ),
    ]
}

fn reclaim_cases() -> Vec<Case> {
    let reclaimer = |values: &str, field: &str, expected: Value| {
        let values = format!("reclaim.enabled=true {values}");
        case(
            values.trim(),
            ("Deployment", "pinfold-reclaim"),
            field,
            expected,
        )
    };
    let container = format!("{POD}/containers/[reclaim]");
    vec![
        reclaimer(
            "image.toolsRepository=registry.example/tools image.tag=v1",
            &format!("{container}/image"),
            json!("registry.example/tools:v1"),
        ),
        reclaimer(
            &format!("image.tag=v1 image.toolsDigest={DIGEST}"),
            &format!("{container}/image"),
            json!(format!("pinfold-tools:v1@{DIGEST}")),
        ),
        reclaimer(
            "reclaim.after=5m",
            &format!("{container}/args"),
            json!([
                "scene",
                "reclaim",
                "--watch",
                "--after=5m",
                "--plan-status",
                "--listen=0.0.0.0:9471"
            ]),
        ),
        reclaimer(
            "reclaim.port=9999",
            &format!("{container}/args/5"),
            json!("--listen=0.0.0.0:9999"),
        ),
        reclaimer(
            "reclaim.port=9999",
            &format!("{container}/ports/0/containerPort"),
            json!(9999),
        ),
        // An upgrade with --reuse-values still has the default of an older chart.
        reclaimer("reclaim.replicas=1", "/spec/replicas", json!(1)),
        reclaimer(
            "reclaim.resources.limits.memory=1Gi",
            &format!("{container}/resources/limits/memory"),
            json!("1Gi"),
        ),
        reclaimer(
            "reclaim.nodeSelector.disk=ssd",
            &format!("{POD}/nodeSelector"),
            json!({"disk": "ssd", "kubernetes.io/os": "linux"}),
        ),
        reclaimer(
            "reclaim.tolerations[0].operator=Exists",
            &format!("{POD}/tolerations"),
            json!([{"operator": "Exists"}]),
        ),
    ]
}

fn required_cases() -> Vec<Case> {
    let installer = |values: &str, field: &str, expected: &str| {
        let field = format!("{POD}{field}");
        case(
            &format!("required.wrapper=install {values}"),
            ("DaemonSet", "pinfold-runtime"),
            &field,
            expected,
        )
    };
    let argument = |values: &str, at: usize, expected: &str| {
        installer(values, &format!("/containers/0/args/{at}"), expected)
    };
    vec![
        argument(
            "required.folder=/usr/local/pinfold",
            5,
            "--folder=/usr/local/pinfold",
        ),
        argument("required.config=/etc/k/c.toml", 4, "--config=/etc/k/c.toml"),
        installer(
            "required.config=/etc/k/c.toml",
            "/volumes/[config]/hostPath/path",
            "/etc/k",
        ),
        // A new folder would hold a file that no runtime reads.
        installer(
            "required.config=/etc/k/c.toml",
            "/volumes/[config]/hostPath/type",
            "Directory",
        ),
        argument(
            "runtime=crio",
            4,
            "--config=/etc/crio/crio.conf.d/99-pinfold-required.conf",
        ),
        argument(
            "required.realRuntime=/usr/bin/crun",
            6,
            "--real=/usr/bin/crun",
        ),
        argument("required.wrapper=uninstall", 0, "uninstall"),
        case(
            "required.class=true required.nodeSelector.disk=ssd",
            ("RuntimeClass", "pinfold-required"),
            "/scheduling/nodeSelector/disk",
            "ssd",
        ),
    ]
}

fn rendered(helm: &Path, values: &[String]) -> Vec<Value> {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    template(helm, &values)
}

#[test]
fn every_value_reaches_an_object() {
    let Some(helm) = program("helm") else { return };
    let groups = [
        image_cases(),
        agent_cases(),
        policy_cases(),
        pod_cases(),
        name_cases(),
        monitoring_cases(),
        dashboard_cases(),
        reclaim_cases(),
        required_cases(),
    ];
    let cases: Vec<Case> = groups.into_iter().flatten().collect();
    for case in &cases {
        let objects = rendered(&helm, &case.values);
        let object = find(&objects, case.kind, case.name);
        let found = field(object, &case.field);
        assert_eq!(found, case.expected, "{:?}: {}", case.values, case.field);
        assert_eq!(faults(object), Vec::<String>::new(), "{:?}", case.values);
    }
    let untested: Vec<String> = values_of_the_schema()
        .into_iter()
        .filter(|value| !cases.iter().any(|case| case.sets(value)))
        .collect();
    assert!(untested.is_empty(), "values without a case: {untested:?}");
}

/// Every object has the label of the release, but the selectors lack it, because a selector can't
/// change.
#[test]
fn every_object_names_its_release() {
    let Some(helm) = program("helm") else { return };
    let objects = template(
        &helm,
        &[
            "reclaim.enabled=true",
            "podMonitor.enabled=true",
            "prometheusRule.enabled=true",
            "dashboard.enabled=true",
            "config.maxMovesPerHour=1",
            "required.class=true",
            "required.wrapper=install",
        ],
    );
    for object in &objects {
        if object["kind"] == "CustomResourceDefinition" {
            continue;
        }
        let label = &object["metadata"]["labels"]["app.kubernetes.io/instance"];
        assert_eq!(label, "pinfold", "{}", object["kind"]);
        assert!(
            !object["spec"]["selector"].to_string().contains("instance"),
            "{object}"
        );
    }
}

/// With another name, the references between objects stay whole, and no account leaves the admission policies.
#[test]
fn renamed_objects_refer_to_each_other() {
    let Some(helm) = program("helm") else { return };
    let objects = template(
        &helm,
        &[
            "fullnameOverride=ours",
            "reclaim.enabled=true",
            "podMonitor.enabled=true",
            "prometheusRule.enabled=true",
            "config.maxMovesPerHour=1",
        ],
    );
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for object in &objects {
        let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
        // A second installation finds this policy by its name.
        let fixed = name == "pinfold-installation" || kind == "CustomResourceDefinition";
        assert_eq!(name.starts_with("ours"), !fixed, "{kind} {name}");
        match kind.as_str() {
            "ClusterRoleBinding" | "RoleBinding" => {
                find(
                    &objects,
                    &text(&object["roleRef"]["kind"]),
                    &text(&object["roleRef"]["name"]),
                );
                let subject = &object["subjects"][0];
                find(&objects, "ServiceAccount", &text(&subject["name"]));
            }
            "ValidatingAdmissionPolicyBinding" => {
                let policy = text(&object["spec"]["policyName"]);
                find(&objects, "ValidatingAdmissionPolicy", &policy);
            }
            _ => {}
        }
    }
    let pod = &find(&objects, "DaemonSet", "ours")["spec"]["template"]["spec"];
    find(
        &objects,
        "ServiceAccount",
        &text(&pod["serviceAccountName"]),
    );
    find(&objects, "PriorityClass", &text(&pod["priorityClassName"]));
    let map = field(pod, "/volumes/[config]/configMap/name");
    find(&objects, "ConfigMap", &text(&map));
    let policy = find(&objects, "ValidatingAdmissionPolicy", "ours-reclaim");
    let condition = text(&policy["spec"]["matchConditions"][0]["expression"]);
    assert!(condition.contains("ours-reclaim"), "{condition}");
    // The operator names the scrape job after the PodMonitor.
    let rule = find(&objects, "PrometheusRule", "ours");
    let alert = field(rule, "/spec/groups/[pinfold.agent]/rules/0");
    assert_eq!(alert["alert"], "PinfoldAgentDown");
    assert_eq!(alert["expr"], "up{job=~\"(.+/)?ours\"} == 0");
}

/// A cluster with its own policies switches those of the chart off.
#[test]
fn network_policies_can_be_switched_off() {
    let Some(helm) = program("helm") else { return };
    let policies = |values: &[&str]| {
        let objects = template(&helm, &[&["reclaim.enabled=true"], values].concat());
        let of_kind = objects
            .iter()
            .filter(|object| object["kind"] == "NetworkPolicy");
        of_kind.count()
    };
    assert_eq!(policies(&[]), 2);
    assert_eq!(policies(&["networkPolicy.enabled=false"]), 0);
}

#[test]
fn a_given_priority_class_or_account_is_not_made() {
    let Some(helm) = program("helm") else { return };
    let objects = template(
        &helm,
        &[
            "priorityClassName=system-node-critical",
            "serviceAccount.create=false",
            "serviceAccount.name=own",
        ],
    );
    for kind in ["PriorityClass", "ServiceAccount"] {
        assert!(
            !objects.iter().any(|object| object["kind"] == kind),
            "{kind}"
        );
    }
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        let binding = find(&objects, kind, "pinfold");
        assert_eq!(binding["subjects"][0]["name"], "own");
    }
}

/// The errors of the chart, with the sentence.
#[test]
fn the_chart_refuses_what_cannot_work() {
    let Some(helm) = program("helm") else { return };
    for (value, sentence) in [
        (
            "serviceAccount.create=false",
            "serviceAccount.create is false, so serviceAccount.name must name an existing service account",
        ),
        (
            "extraEnv[0].name=NODE_NAME",
            "extraEnv has NODE_NAME, which the chart or an earlier entry sets",
        ),
        (
            "podMonitor.enabled=true,config.metrics.auth=kubernetes",
            "config.metrics.auth is kubernetes, so podMonitor.authorization must name a Secret with a token",
        ),
    ] {
        let mut template = command(&helm);
        template
            .args(["template", "pinfold", "--set", value])
            .arg(here("deploy/helm/pinfold"));
        let result = output(&mut template);
        let stderr = String::from_utf8_lossy(&result.stderr);
        assert!(!result.status.success(), "{value}");
        assert!(stderr.contains(sentence), "{value}: {stderr}");
    }
}
