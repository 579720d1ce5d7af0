//! Every rendered pod keeps the Pod Security Standard `restricted`, rule by rule, unless the job asks for more.

use serde_json::{Value, json};

use super::render::{CASES, FORMATS, full, job, pods, rendered};
use pinfold::experiment::WorkloadFormat;

/// The pod templates of all objects, wherever a format has them.
fn templates(value: &Value) -> Vec<&Value> {
    let inner = value.as_object().into_iter().flat_map(|all| all.values());
    let inner = inner.chain(value.as_array().into_iter().flatten());
    if value["spec"]["containers"].is_array() {
        return vec![value];
    }
    inner.flat_map(templates).collect()
}

fn listed<'a>(value: &'a Value, keys: &[&str]) -> Vec<&'a Value> {
    let lists = keys.iter().filter_map(|key| value[*key].as_array());
    lists.flatten().collect()
}

/// The rules of `restricted` (which has those of `baseline`) that a pod breaks, as
/// <https://kubernetes.io/docs/concepts/security/pod-security-standards/> lists them for Kubernetes 1.36.
fn broken_rules(template: &Value) -> Vec<&'static str> {
    let spec = &template["spec"];
    let of_pod = &spec["securityContext"];
    let containers = listed(
        spec,
        &["containers", "initContainers", "ephemeralContainers"],
    );
    assert!(!containers.is_empty());
    let any = |rule: &dyn Fn(&Value) -> bool| containers.iter().any(|one| rule(one));
    // A field of a container's security context, or the pod's where the container says nothing.
    let effective = |container: &Value, pointer: &str| {
        let own = container["securityContext"].pointer(pointer);
        own.or_else(|| of_pod.pointer(pointer))
            .cloned()
            .unwrap_or_default()
    };
    let no_text = |value: &Value, allowed: &[&str]| {
        !value.is_null() && !allowed.contains(&value.as_str().unwrap_or("?"))
    };
    let hosts = ["hostNetwork", "hostPID", "hostIPC"];
    let volumes = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let safe = [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
    ];
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
    let handler_host = |one: &Value| {
        let probes = probes.iter().map(|probe| &one[*probe]);
        let hooks = ["postStart", "preStop"]
            .iter()
            .map(|hook| &one["lifecycle"][*hook]);
        probes.chain(hooks).any(|one| {
            ["httpGet", "tcpSocket"]
                .iter()
                .any(|kind| !one[*kind]["host"].is_null())
        })
    };
    let annotations = template["metadata"]["annotations"].as_object();
    let app_armor_annotation = annotations.into_iter().flatten().any(|(key, value)| {
        key.starts_with("container.apparmor.security.beta.kubernetes.io/")
            && !value
                .as_str()
                .is_some_and(|text| text == "runtime/default" || text.starts_with("localhost/"))
    });
    let rules = [
        (
            "host namespaces",
            hosts.iter().any(|key| spec[*key] == true),
        ),
        (
            "HostProcess",
            effective(&json!({}), "/windowsOptions/hostProcess") == true
                || any(&|one| effective(one, "/windowsOptions/hostProcess") == true),
        ),
        (
            "privileged",
            any(&|one| effective(one, "/privileged") == true),
        ),
        (
            "capabilities",
            any(&|one| {
                let own = &one["securityContext"]["capabilities"];
                let has = |list: &str, name: &str| {
                    own[list]
                        .as_array()
                        .is_some_and(|all| all.contains(&json!(name)))
                };
                let added = own["add"].as_array().into_iter().flatten();
                !has("drop", "ALL") || added.into_iter().any(|name| name != "NET_BIND_SERVICE")
            }),
        ),
        (
            "volumes",
            listed(spec, &["volumes"]).iter().any(|one| {
                let kinds = one.as_object().unwrap().keys().filter(|key| *key != "name");
                kinds.clone().count() != 1
                    || kinds
                        .into_iter()
                        .any(|kind| !volumes.contains(&kind.as_str()))
            }),
        ),
        (
            "host ports",
            any(&|one| {
                listed(one, &["ports"])
                    .iter()
                    .any(|port| !port["hostPort"].is_null())
            }),
        ),
        ("hosts of probes and hooks", any(&handler_host)),
        (
            "AppArmor",
            app_armor_annotation
                || any(&|one| {
                    no_text(
                        &effective(one, "/appArmorProfile/type"),
                        &["RuntimeDefault", "Localhost"],
                    )
                }),
        ),
        (
            "SELinux",
            any(&|one| {
                let options = effective(one, "/seLinuxOptions");
                no_text(
                    &options["type"],
                    &[
                        "",
                        "container_t",
                        "container_init_t",
                        "container_kvm_t",
                        "container_engine_t",
                    ],
                ) || no_text(&options["user"], &[""])
                    || no_text(&options["role"], &[""])
            }),
        ),
        (
            "/proc mount type",
            any(&|one| no_text(&effective(one, "/procMount"), &["Default"])),
        ),
        (
            "seccomp",
            any(&|one| {
                let kind = effective(one, "/seccompProfile/type");
                kind.is_null() || no_text(&kind, &["RuntimeDefault", "Localhost"])
            }),
        ),
        (
            "sysctls",
            listed(of_pod, &["sysctls"])
                .iter()
                .any(|one| no_text(&one["name"], &safe)),
        ),
        (
            "privilege escalation",
            any(&|one| one["securityContext"]["allowPrivilegeEscalation"] != false),
        ),
        (
            "running as non-root",
            any(&|one| effective(one, "/runAsNonRoot") != true),
        ),
        (
            "non-root user",
            of_pod["runAsUser"] == 0 || any(&|one| effective(one, "/runAsUser") == 0),
        ),
    ];
    let broken = rules.into_iter().filter(|(_, broken)| *broken);
    broken.map(|(rule, _)| rule).collect()
}

#[test]
fn every_pod_of_every_case_in_every_format_keeps_restricted() {
    let jobs = [
        full(),
        job("{name: a, image: i, script: s, log: {}}"),
        job("{name: a, image: i, script: s, runAsUser: 30000, data: {claim: d}, log: {size: 1Gi}}"),
    ];
    for (scene, case, _, workers, _, servers) in CASES {
        for (format, job) in FORMATS
            .iter()
            .flat_map(|format| jobs.iter().map(move |job| (*format, job)))
        {
            let rendered = rendered(job, scene, case, format);
            let all = json!(rendered.objects);
            let found = templates(&all);
            let expected = if format == WorkloadFormat::Tfjob {
                2
            } else {
                workers + servers
            };
            assert_eq!(found.len(), expected as usize, "{format:?}");
            for template in found {
                assert_eq!(
                    broken_rules(template),
                    Vec::<&str>::new(),
                    "{format:?} {scene}/{case}"
                );
                let spec = &template["spec"];
                let token = &spec["automountServiceAccountToken"];
                assert_eq!(
                    *token,
                    if job.service_account.is_some() {
                        json!(null)
                    } else {
                        json!(false)
                    }
                );
            }
            assert!(
                !rendered
                    .warnings
                    .iter()
                    .any(|one| one.contains("restricted")),
                "{:?}",
                rendered.warnings
            );
        }
    }
}

/// The check above finds each kind of violation.
#[test]
fn a_pod_that_breaks_a_rule_is_found() {
    let objects = rendered(
        &job("{name: a, image: i, script: s}"),
        "1",
        "1",
        WorkloadFormat::Native,
    )
    .objects;
    let good = pods(&objects).remove(0).template;
    assert_eq!(broken_rules(&good), Vec::<&str>::new());
    let container = "/spec/containers/0";
    for (place, key, value, rule) in [
        ("/spec", "hostPID", json!(true), "host namespaces"),
        (
            "/spec/securityContext",
            "windowsOptions",
            json!({"hostProcess": true}),
            "HostProcess",
        ),
        (
            "/spec/containers/0/securityContext",
            "privileged",
            json!(true),
            "privileged",
        ),
        (
            "/spec/containers/0/securityContext/capabilities",
            "drop",
            json!(["NET_RAW"]),
            "capabilities",
        ),
        (
            "/spec/containers/0/securityContext/capabilities",
            "add",
            json!(["SYS_ADMIN"]),
            "capabilities",
        ),
        (
            "/spec",
            "volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}]),
            "volumes",
        ),
        (
            container,
            "ports",
            json!([{"containerPort": 1, "hostPort": 1}]),
            "host ports",
        ),
        (
            container,
            "livenessProbe",
            json!({"httpGet": {"host": "a"}}),
            "hosts of probes and hooks",
        ),
        (
            "/spec/securityContext",
            "appArmorProfile",
            json!({"type": "Unconfined"}),
            "AppArmor",
        ),
        (
            "/spec/securityContext",
            "seLinuxOptions",
            json!({"user": "u"}),
            "SELinux",
        ),
        (
            "/spec/containers/0/securityContext",
            "procMount",
            json!("Unmasked"),
            "/proc mount type",
        ),
        (
            "/spec/securityContext",
            "seccompProfile",
            json!({"type": "Unconfined"}),
            "seccomp",
        ),
        (
            "/spec/securityContext",
            "sysctls",
            json!([{"name": "kernel.msgmax"}]),
            "sysctls",
        ),
        (
            "/spec/containers/0/securityContext",
            "allowPrivilegeEscalation",
            json!(null),
            "privilege escalation",
        ),
        (
            "/spec/securityContext",
            "runAsNonRoot",
            json!(null),
            "running as non-root",
        ),
        (
            "/spec/containers/0/securityContext",
            "runAsUser",
            json!(0),
            "non-root user",
        ),
    ] {
        let mut bad = good.clone();
        bad.pointer_mut(place).unwrap()[key] = value;
        assert_eq!(broken_rules(&bad), [rule], "{place} {key}");
    }
}

#[test]
fn who_asks_for_root_or_a_folder_of_the_node_gets_it_with_a_warning() {
    let made = |more: &str| {
        let job = job(&format!("{{name: a, image: i, script: s, {more}}}"));
        let rendered = rendered(&job, "1", "1", WorkloadFormat::Native);
        let template = pods(&rendered.objects).remove(0).template;
        (template, rendered.warnings)
    };
    let (root, warnings) = made("runAsUser: 0, log: {claim: l}");
    let expected = json!({"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(root["spec"]["securityContext"], expected);
    assert_eq!(
        broken_rules(&root),
        ["capabilities", "running as non-root", "non-root user"]
    );
    assert!(
        warnings.len() == 1
            && warnings[0].contains("runAsUser: 0 is root")
            && warnings[0].contains("restricted"),
        "{warnings:?}"
    );
    let (folder, warnings) = made("log: {hostPath: /var/log/training}");
    assert_eq!(broken_rules(&folder), ["volumes"]);
    assert!(
        warnings.len() == 1
            && warnings[0].contains("log.hostPath: a namespace with the Pod Security Standards baseline or restricted refuses")
            && warnings[0].contains("user 1000 must be able to write \"/var/log/training\""),
        "{warnings:?}"
    );
    let (_, warnings) = made("data: {hostPath: /data, readOnly: true}");
    assert!(
        warnings.len() == 1 && !warnings[0].contains("write"),
        "{warnings:?}"
    );
    let (token, _) = made("serviceAccount: trainer");
    assert_eq!(token["spec"].get("automountServiceAccountToken"), None);
}

/// A user without an entry in the image's /etc/passwd has / as home. New volumes belong to root.
#[test]
fn the_user_has_a_home_and_can_write_the_jobs_folders() {
    let made = |more: &str| {
        let job = job(&format!("{{name: a, image: i, script: s, {more}}}"));
        let objects = rendered(&job, "1", "1", WorkloadFormat::Native).objects;
        pods(&objects).remove(0).template
    };
    let home = |template: &Value| {
        let env = template["spec"]["containers"][0]["env"].as_array().unwrap();
        let mut homes = env.iter().filter(|one| one["name"] == "HOME");
        let home = homes.next().map(|one| one["value"].clone());
        assert!(homes.next().is_none());
        home
    };
    assert_eq!(home(&made("port: 1")), Some(json!("/tmp")));
    assert_eq!(home(&made("env: {HOME: /work}")), Some(json!("/work")));
    assert_eq!(
        home(&made("roles: {ps: {env: {HOME: /ps}}}")),
        Some(json!("/ps"))
    );
    assert_eq!(home(&made("runAsUser: 0")), None);
    assert_eq!(home(&made("args: ['$(HOME)/x']")), Some(json!("/tmp")));

    let group = |template: &Value| template["spec"]["securityContext"]["fsGroup"].clone();
    assert_eq!(group(&made("log: {}")), json!(null));
    assert_eq!(group(&made("log: {hostPath: /l}")), json!(null));
    assert_eq!(
        group(&made("data: {claim: d, readOnly: true}, log: {}")),
        json!(null)
    );
    let claimed = made("runAsUser: 7, log: {size: 1Gi}");
    assert_eq!(group(&claimed), json!(7));
    assert_eq!(
        claimed["spec"]["securityContext"]["fsGroupChangePolicy"],
        "OnRootMismatch"
    );

    let empty = made("log: {path: /logs}");
    assert_eq!(
        empty["spec"]["volumes"],
        json!([{"name": "log", "emptyDir": {}}])
    );
    assert_eq!(
        empty["spec"]["containers"][0]["volumeMounts"],
        json!([{"name": "log", "mountPath": "/logs"}])
    );
}
