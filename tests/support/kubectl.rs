//! kubectl and Helm without a cluster.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::tools::succeed;

/// The name of a kind in paths.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(start) => format!("{start}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    }
}

/// Answers as an API server: discovery for the kinds of the objects, and requests for the `live`
/// objects. Every other request fails.
pub(crate) fn serve(objects: &[Value], live: Vec<Value>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let kinds: Vec<(String, String)> = objects
        .iter()
        .map(|object| {
            (
                object["apiVersion"].as_str().unwrap().to_owned(),
                object["kind"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    let cluster = |kind: &str| {
        matches!(
            kind,
            "Namespace"
                | "ClusterRole"
                | "ClusterRoleBinding"
                | "PriorityClass"
                | "CustomResourceDefinition"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
        )
    };
    let answer = move |path: &str| -> Option<Value> {
        if path == "/version" {
            return Some(json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"}));
        }
        if path == "/api" {
            return Some(
                json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
            );
        }
        let mut versions: Vec<&str> = kinds
            .iter()
            .map(|(version, _)| version.as_str())
            .filter(|version| *version != "v1")
            .collect();
        versions.sort_unstable();
        versions.dedup();
        if path == "/apis" {
            let groups = versions.iter().map(|version| {
                let (group, number) = version.split_once('/').unwrap();
                let version = json!({"groupVersion": version, "version": number});
                json!({"name": group, "versions": [version], "preferredVersion": version})
            });
            let groups: Vec<Value> = groups.collect();
            return Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}));
        }
        let named = live.iter().find(|object| {
            let (kind, name) = (
                object["kind"].as_str().unwrap(),
                object["metadata"]["name"].as_str().unwrap(),
            );
            path.ends_with(&format!("/{}/{name}", plural(kind)))
        });
        if named.is_some() {
            return named.cloned();
        }
        let version = path
            .strip_prefix("/apis/")
            .or_else(|| path.strip_prefix("/api/"))?;
        let mut names: Vec<&String> = kinds
            .iter()
            .filter(|(other, _)| other == version)
            .map(|(_, kind)| kind)
            .collect();
        names.dedup();
        let resources: Vec<Value> = names
            .iter()
            .map(|kind| {
                json!({"name": plural(kind), "singularName": "", "namespaced": !cluster(kind), "kind": kind,
                    "verbs": ["create", "get", "patch"]})
            })
            .collect();
        (!resources.is_empty()).then(|| {
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
        })
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut lines = reader.by_ref().lines().map_while(Result::ok);
            let Some(first) = lines.next() else { continue };
            let mut length = 0;
            while let Some(line) = lines.next().filter(|line| !line.is_empty()) {
                if let Some(number) = line.to_lowercase().strip_prefix("content-length:") {
                    length = number.trim().parse().unwrap();
                }
            }
            let _ = std::io::copy(&mut reader.take(length), &mut std::io::sink());
            let path = first.split(' ').nth(1).unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            let (status, body) = match answer(path) {
                Some(body) => ("200 OK", body.to_string()),
                None => ("404 Not Found", String::new()),
            };
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    address
}

/// The lines that kubectl prints when it applies objects again.
pub(crate) fn apply_again(kubectl: &Path, objects: &[Value]) -> Vec<String> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let live: Vec<Value> = create(kubectl, &list, objects, &["--save-config"])
        .into_iter()
        .map(kept)
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    std::fs::write(&file, list).unwrap();
    let server = format!("http://{}", serve(objects, live));
    let mut apply = Command::new(kubectl);
    apply.env("HOME", folder.path()).env_remove("KUBECONFIG");
    let said = succeed(
        apply
            .args(["apply", "--validate=false", "-s", &server, "-f"])
            .arg(file),
    );
    said.lines().map(str::to_owned).collect()
}

/// An object as the API server stores it: without a dropped `false`, and with the default scope of
/// admission rules.
///
/// The scope matters because the list of rules is replaced as a whole. All other fields with a
/// default stay as they are when kubectl applies.
fn kept(mut object: Value) -> Value {
    for (holder, field) in [
        ("", "globalDefault"),
        ("/spec/template/spec", "hostNetwork"),
    ] {
        let holder = object.pointer_mut(holder).and_then(Value::as_object_mut);
        if let Some(holder) = holder.filter(|holder| holder.get(field) == Some(&json!(false))) {
            holder.remove(field);
        }
    }
    let rules = object
        .pointer_mut("/spec/matchConstraints/resourceRules")
        .and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        rule.as_object_mut()
            .unwrap()
            .entry("scope")
            .or_insert(json!("*"));
    }
    object
}

/// The objects that kubectl would send for a text of YAML or JSON. `objects` lists their kinds.
pub(crate) fn dry_run(kubectl: &Path, text: &str, objects: &[Value]) -> Vec<Value> {
    create(kubectl, text, objects, &[])
}

fn create(kubectl: &Path, text: &str, objects: &[Value], more: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, text).unwrap();
    let server = format!("http://{}", serve(objects, Vec::new()));
    let printed = succeed(
        Command::new(kubectl)
            .env("HOME", folder.path())
            .env_remove("KUBECONFIG")
            .args(["create", "--dry-run=client", "--validate=false"])
            .args(more)
            .args(["-s", &server, "-o", "json", "-f"])
            .arg(file),
    );
    // A single object comes alone; several objects come in sequence or in a List.
    let read = serde_json::Deserializer::from_str(&printed)
        .into_iter::<Value>()
        .map(Result::unwrap);
    read.flat_map(|object| match object["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![object],
    })
    .collect()
}
