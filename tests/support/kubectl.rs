//! kubectl without a cluster.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::tools::succeed;

/// Answers discovery for the kinds of these objects, as an API server; nothing else.
fn discovery(objects: &[Value]) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let kinds: Vec<(String, String)> = objects
        .iter()
        .map(|one| (one["apiVersion"].as_str().unwrap().to_owned(), one["kind"].as_str().unwrap().to_owned()))
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
        if path == "/api" {
            return Some(
                json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
            );
        }
        let mut versions: Vec<&str> =
            kinds.iter().map(|(version, _)| version.as_str()).filter(|version| *version != "v1").collect();
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
        let version = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
        let mut names: Vec<&String> =
            kinds.iter().filter(|(other, _)| other == version).map(|(_, kind)| kind).collect();
        names.dedup();
        let resources: Vec<Value> = names
            .iter()
            .map(|kind| {
                let plural = kind.to_lowercase();
                let plural = if plural.ends_with('y') {
                    format!("{}ies", plural.trim_end_matches('y'))
                } else if plural.ends_with('s') {
                    format!("{plural}es")
                } else {
                    format!("{plural}s")
                };
                json!({"name": plural, "singularName": "", "namespaced": !cluster(kind), "kind": kind, "verbs": ["create", "get"]})
            })
            .collect();
        (!resources.is_empty()).then(|| {
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
        })
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let Some(first) = lines.next() else { continue };
            while lines.next().is_some_and(|line| !line.is_empty()) {}
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

/// What kubectl makes of a text of YAML or JSON: the objects, as it would send them. `objects` are their kinds.
pub(crate) fn dry_run(kubectl: &Path, text: &str, objects: &[Value]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, text).unwrap();
    let server = format!("http://{}", discovery(objects));
    let printed = succeed(
        Command::new(kubectl)
            .env("HOME", folder.path())
            .env_remove("KUBECONFIG")
            .args(["create", "--dry-run=client", "--validate=false", "-s", &server, "-o", "json", "-f"])
            .arg(file),
    );
    // One object comes alone; several come one behind the other, or in a List.
    let read = serde_json::Deserializer::from_str(&printed).into_iter::<Value>().map(Result::unwrap);
    read.flat_map(|one| match one["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![one],
    })
    .collect()
}
