//! The API server's knowledge about each kind: path, defaults and validation.

use serde_json::{Value, json};

use super::status::Mistake;

/// A kind of object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObjectKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    /// Whether the watch cache serves lists. Continue tokens of the watch cache start with a slash.
    pub(crate) cached: bool,
    /// The schema of a custom resource.
    pub(crate) schema: Option<Value>,
}

// === impl ObjectKind ===

impl ObjectKind {
    /// The built-in kinds.
    pub(crate) fn built_in() -> Vec<Self> {
        let kind =
            |group: &str, version: &str, plural: &str, kind: &str, namespaced, cached| Self {
                group: group.to_owned(),
                version: version.to_owned(),
                plural: plural.to_owned(),
                kind: kind.to_owned(),
                namespaced,
                cached,
                schema: None,
            };
        vec![
            kind("", "v1", "namespaces", "Namespace", false, true),
            kind("", "v1", "nodes", "Node", false, true),
            kind("", "v1", "pods", "Pod", true, true),
            kind("", "v1", "events", "Event", true, false),
            kind("", "v1", "configmaps", "ConfigMap", true, true),
            kind("", "v1", "services", "Service", true, true),
            kind(
                "",
                "v1",
                "persistentvolumeclaims",
                "PersistentVolumeClaim",
                true,
                true,
            ),
            kind("apps", "v1", "deployments", "Deployment", true, true),
            kind("batch", "v1", "jobs", "Job", true, true),
            kind("events.k8s.io", "v1", "events", "Event", true, false),
            kind("coordination.k8s.io", "v1", "leases", "Lease", true, true),
            kind(
                "apiextensions.k8s.io",
                "v1",
                "customresourcedefinitions",
                "CustomResourceDefinition",
                false,
                true,
            ),
        ]
    }

    /// The kinds defined by a `CustomResourceDefinition`, one per served version.
    pub(crate) fn of_definition(definition: &Value) -> Vec<Self> {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let versions = spec["versions"].as_array().cloned().unwrap_or_default();
        versions
            .iter()
            .filter(|version| version["served"] == true)
            .map(|version| Self {
                group: text(&spec["group"]),
                version: text(&version["name"]),
                plural: text(&spec["names"]["plural"]),
                kind: text(&spec["names"]["kind"]),
                namespaced: spec["scope"] == "Namespaced",
                cached: true,
                schema: Some(version["schema"]["openAPIV3Schema"].clone()),
            })
            .collect()
    }

    /// The apiVersion: `v1`, `coordination.k8s.io/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The plural with the group: `nodes`, `leases.coordination.k8s.io`.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    pub(crate) fn custom(&self) -> bool {
        self.schema.is_some()
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    /// Whether the kind has a status subresource. A write to the main resource then keeps the status.
    pub(crate) fn has_status(&self) -> bool {
        self.custom()
            || matches!(
                self.kind.as_str(),
                "Pod" | "Node" | "Namespace" | "CustomResourceDefinition" | "Deployment" | "Job"
            )
    }

    /// An empty object, as the server's Go types serialize it.
    pub(crate) fn empty(&self) -> Value {
        match self.kind.as_str() {
            _ if self.custom() => json!({"metadata": {}}),
            "Pod" => json!({"metadata": {}, "spec": {"containers": null}, "status": {}}),
            "Node" => json!({"metadata": {}, "spec": {}, "status": {
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
                "nodeInfo": {
                    "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                    "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
                    "operatingSystem": "", "architecture": "",
                },
            }}),
            "Lease" => json!({"metadata": {}, "spec": {}}),
            "Event" if self.group.is_empty() => {
                json!({"metadata": {}, "involvedObject": {}, "source": {}, "eventTime": null,
                    "firstTimestamp": null, "lastTimestamp": null,
                    "reportingComponent": "", "reportingInstance": ""})
            }
            "Event" => {
                json!({"metadata": {}, "eventTime": null, "regarding": {}, "deprecatedSource": {},
                "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null})
            }
            "CustomResourceDefinition" => json!({"metadata": {},
                "spec": {"group": "", "names": {"plural": "", "kind": ""}, "scope": "", "versions": null},
                "status": {"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null}}),
            "Namespace" => json!({"metadata": {}, "spec": {}, "status": {}}),
            _ => json!({"metadata": {}}),
        }
    }

    /// Sets the defaults that the server sets before it computes `managedFields`.
    pub(crate) fn default(&self, object: &mut Value) {
        match self.kind.as_str() {
            "Pod" => default_pod(object),
            "CustomResourceDefinition" => {
                let spec = &mut object["spec"];
                let kind = spec["names"]["kind"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                fill(&mut spec["names"], "listKind", json!(format!("{kind}List")));
                fill(&mut spec["names"], "singular", json!(kind.to_lowercase()));
                fill(spec, "conversion", json!({"strategy": "None"}));
            }
            _ => {}
        }
    }

    /// Sets the fields that admission and the create strategy add.
    pub(crate) fn admit(&self, object: &mut Value, suffix: &str) {
        match self.kind.as_str() {
            "Pod" => admit_pod(object, suffix),
            "Node" => {
                merge_missing(object, &self.empty());
                let tainted = object["spec"]["taints"].as_array().is_some_and(|taints| {
                    taints
                        .iter()
                        .any(|taint| taint["key"] == "node.kubernetes.io/not-ready")
                });
                if !tainted {
                    let taint =
                        json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
                    let taints = object["spec"]
                        .as_object_mut()
                        .unwrap()
                        .entry("taints")
                        .or_insert(json!([]));
                    taints.as_array_mut().unwrap().push(taint);
                }
            }
            "Event" if self.group == "events.k8s.io" => {
                fill(object, "deprecatedSource", json!({}));
                fill(object, "deprecatedFirstTimestamp", Value::Null);
                fill(object, "deprecatedLastTimestamp", Value::Null);
            }
            "CustomResourceDefinition" => {
                let versions = object["spec"]["versions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let stored: Vec<&Value> = versions
                    .iter()
                    .filter(|version| version["storage"] == true)
                    .map(|v| &v["name"])
                    .collect();
                object["status"] = json!({
                    "conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored,
                });
            }
            "Namespace" => {
                fill(object, "spec", json!({"finalizers": ["kubernetes"]}));
                fill(object, "status", json!({"phase": "Active"}));
            }
            _ => {}
        }
        // The generation counts changes of the spec. Only these kinds start with generation 1.
        if self.custom() || matches!(self.kind.as_str(), "Pod" | "CustomResourceDefinition") {
            object["metadata"]["generation"] = json!(1);
        }
    }

    /// The error text of server-side apply for the first field of a wrong type: path, expected type and value.
    pub(crate) fn type_mistake(&self, config: &Value) -> Option<String> {
        let expected = |path: &str, type_name: &str, value: &Value| {
            format!("{path}: expected {type_name}, got &value.valueUnstructured{{Value:{value}}}")
        };
        for map in ["labels", "annotations"] {
            for (key, value) in config["metadata"][map].as_object().into_iter().flatten() {
                if !value.is_string() {
                    return Some(expected(&format!(".metadata.{map}.{key}"), "string", value));
                }
            }
        }
        let schema = self.schema.as_ref()?;
        let mut open = vec![(String::new(), config, schema)];
        while let Some((path, value, schema)) = open.pop() {
            let expected_type = match schema["type"].as_str() {
                Some("string") if !value.is_string() => Some("string"),
                Some("integer") if !value.is_i64() => Some("integer"),
                Some("boolean") if !value.is_boolean() => Some("boolean"),
                _ => None,
            };
            if let Some(type_name) = expected_type {
                return Some(expected(&path, type_name, value));
            }
            for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(value) = value.get(key) {
                    open.push((format!("{path}.{key}"), value, schema));
                }
            }
        }
        None
    }

    /// The validation errors of an object. `old` is the stored object, if any.
    pub(crate) fn mistakes(&self, old: Option<&Value>, new: &Value) -> Vec<Mistake> {
        let mut found = Vec::new();
        for value in new["metadata"]["labels"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, value)| value)
        {
            let value = value.as_str().unwrap_or_default();
            if !label_value(value) {
                let mistake = Mistake {
                    field: "metadata.labels",
                    reason: "FieldValueInvalid",
                    words: format!(
                        "Invalid value: {value:?}: a valid label must be an empty string or consist of \
                         alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                         character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
                         '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                    ),
                };
                // An update of a Node validates labels four times and reports each error four times.
                let times = if self.kind == "Node" && old.is_some() {
                    4
                } else {
                    1
                };
                found.extend(std::iter::repeat_n(mistake, times));
            }
        }
        if old.is_some_and(|old| old["metadata"]["uid"] != new["metadata"]["uid"]) {
            found.push(Mistake {
                field: "metadata.uid",
                reason: "FieldValueInvalid",
                words: format!(
                    "Invalid value: {}: field is immutable",
                    new["metadata"]["uid"]
                ),
            });
        }
        if self.kind == "Event" && self.group == "events.k8s.io" {
            found.extend(event_mistakes(old, new));
        }
        if self.kind == "Lease" {
            let seconds = &new["spec"]["leaseDurationSeconds"];
            if seconds.as_i64().is_some_and(|seconds| seconds <= 0) {
                found.push(Mistake {
                    field: "spec.leaseDurationSeconds",
                    reason: "FieldValueInvalid",
                    words: format!("Invalid value: {seconds}: must be greater than 0"),
                });
            }
        }
        found
    }
}

pub(crate) fn label_value(value: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    value.len() <= 63
        && value
            .chars()
            .all(|c| plain(c) || matches!(c, '-' | '_' | '.'))
        && value.chars().next().is_none_or(plain)
        && value.chars().next_back().is_none_or(plain)
}

fn event_mistakes(old: Option<&Value>, new: &Value) -> Vec<Mistake> {
    let mut found = Vec::new();
    let mut report = |field, reason, words: &str| {
        found.push(Mistake {
            field,
            reason,
            words: words.to_owned(),
        });
    };
    let text = |key: &str| new[key].as_str().unwrap_or_default();
    if text("reportingController").is_empty() {
        report(
            "reportingController",
            "FieldValueRequired",
            "Required value",
        );
        report(
            "reportingController",
            "FieldValueInvalid",
            "Invalid value: \"\": name part must be non-empty",
        );
        report(
            "reportingController",
            "FieldValueInvalid",
            "Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex \
             used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        );
    }
    for field in ["reportingInstance", "action", "reason", "eventTime"] {
        if new[field].as_str().is_none_or(str::is_empty) {
            let field = match field {
                "reportingInstance" => "reportingInstance",
                "action" => "action",
                "reason" => "reason",
                _ => "eventTime",
            };
            report(field, "FieldValueRequired", "Required value");
        }
    }
    if text("note").len() > 1024 {
        report(
            "message",
            "FieldValueInvalid",
            "Invalid value: \"\": can have at most 1024 characters",
        );
    }
    if let Some(count) = new["series"]["count"].as_i64().filter(|count| *count < 2) {
        report(
            "series.count",
            "FieldValueInvalid",
            &format!("Invalid value: {count}: should be at least 2"),
        );
    }
    if let Some(old) = old {
        for field in [
            "reason",
            "note",
            "regarding",
            "reportingController",
            "reportingInstance",
            "action",
            "type",
        ] {
            if old[field] != new[field] {
                report(
                    "",
                    "FieldValueInvalid",
                    &format!("Invalid value: {field}: field is immutable"),
                );
            }
        }
    }
    found
}

fn fill(object: &mut Value, key: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        map.entry(key).or_insert(value);
    }
}

/// Adds the keys missing in `into` from `from`.
fn merge_missing(into: &mut Value, from: &Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        for (key, value) in from {
            match into.get_mut(key) {
                Some(slot) => merge_missing(slot, value),
                None => {
                    into.insert(key.clone(), value.clone());
                }
            }
        }
    }
}

fn default_pod(object: &mut Value) {
    let spec = &mut object["spec"];
    for (key, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("securityContext", json!({})),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
    ] {
        fill(spec, key, value);
    }
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            for (key, value) in [
                ("resources", json!({})),
                ("terminationMessagePath", json!("/dev/termination-log")),
                ("terminationMessagePolicy", json!("File")),
                ("imagePullPolicy", json!("IfNotPresent")),
            ] {
                fill(container, key, value);
            }
            let limits = container["resources"]["limits"].clone();
            if limits.is_object() {
                fill(&mut container["resources"], "requests", json!({}));
                merge_missing(&mut container["resources"]["requests"], &limits);
            }
        }
        if spec[list].is_null() {
            spec.as_object_mut().unwrap().shift_remove(list);
        }
    }
}

fn admit_pod(object: &mut Value, suffix: &str) {
    let class = qos(object);
    let spec = &mut object["spec"];
    let volume = format!("kube-api-access-{suffix}");
    let mount = json!({"name": volume, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            fill(container, "volumeMounts", json!([]));
            container["volumeMounts"]
                .as_array_mut()
                .unwrap()
                .push(mount.clone());
        }
        if spec[list].is_null() {
            spec.as_object_mut().unwrap().shift_remove(list);
        }
    }
    fill(spec, "volumes", json!([]));
    spec["volumes"].as_array_mut().unwrap().push(json!({"name": volume, "projected": {"sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ], "defaultMode": 420}}));
    let tolerate = |key: &str| json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    for (key, value) in [
        ("serviceAccountName", json!("default")),
        ("serviceAccount", json!("default")),
        (
            "tolerations",
            json!([tolerate("not-ready"), tolerate("unreachable")]),
        ),
        ("priority", json!(0)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
    ] {
        fill(spec, key, value);
    }
    object["status"] = json!({"phase": "Pending", "qosClass": class});
}

/// The QoS class that the server writes into a new pod's status.
pub(crate) fn qos(pod: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
    let (mut any, mut guaranteed) = (false, true);
    for container in containers {
        let resources = &container["resources"];
        for name in ["cpu", "memory"] {
            let (limit, request) = (&resources["limits"][name], &resources["requests"][name]);
            any |= !limit.is_null() || !request.is_null();
            guaranteed &= !limit.is_null() && (request.is_null() || request == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
