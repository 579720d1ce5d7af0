//! Who may read `/status` in full and `/metrics`: callers on this host, and callers whom the API server authorizes.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::agent::{Agent, Manifests, Settings};
#[cfg(feature = "portforward")]
use crate::agent::{in_force, pinfold};
use crate::api::{Cluster, NODE, long, pod};
use crate::fakeapi::{Fault, FaultScope};
use crate::http::exchange;
use crate::kernel::{Kernel, Tree, kernel_tests};

/// A header that makes a request on the loopback address count as a request from another host.
const REMOTE: &str = "X-Forwarded-For: 192.0.2.7\r\n";

/// The head and the body of an answer to a caller on another host.
fn remote(agent: &Agent, path: &str, token: Option<&str>) -> (String, String) {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    remote_with(agent, path, &authorization.unwrap_or_default())
}

/// As [`remote`], with further headers.
fn remote_with(agent: &Agent, path: &str, headers: &str) -> (String, String) {
    let headers = format!("{REMOTE}{headers}");
    let (head, body) = exchange(agent.address, "GET", path, &headers).unwrap();
    let (_, head) = head.split_once(' ').unwrap();
    (head.to_ascii_lowercase(), String::from_utf8(body).unwrap())
}

/// An agent with `metrics.auth: kubernetes` that knows the pod `worker-0`, and the folder of the agent's configuration. The
/// API server permits the caller with the token `scraper-token` to read `/metrics`.
fn reviewing_agent(cluster: &Cluster, tree: &Tree<'_>, kernel: &Kernel) -> (Agent, TempDir) {
    agent_with("auth: kubernetes", cluster, tree, kernel)
}

/// As [`reviewing_agent`], with other settings of `metrics`.
fn agent_with(
    metrics: &str,
    cluster: &Cluster,
    tree: &Tree<'_>,
    kernel: &Kernel,
) -> (Agent, TempDir) {
    cluster.fake.user("scraper-token", "scraper");
    cluster.fake.allow_path("scraper", "/metrics");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pinfold.yaml");
    std::fs::write(&config, format!("metrics: {{{metrics}}}\n")).unwrap();
    let agent = cluster
        .settings(tree, kernel)
        .with(&["--config", config.to_str().unwrap()])
        .start();
    cluster.put(&pod("worker-0", NODE));
    agent.eventually("the agent knows the pod", |status| {
        status["containers"][0]["pod"] == "worker-0"
    });
    (agent, folder)
}

#[test]
fn only_authorized_callers_read_names_of_pods() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    let fake = &cluster.fake;
    fake.user("reader-token", "reader");
    fake.allow_path("reader", "/status");
    let (agent, _folder) = reviewing_agent(&cluster, &tree, &kernel);

    for (path, token, code, words) in [
        (
            "/status",
            Some("reader-token"),
            "200",
            "\"pod\": \"worker-0\"",
        ),
        ("/status", None, "200", "no bearer token"),
        (
            "/status",
            Some("scraper-token"),
            "200",
            "may not get /status",
        ),
        (
            "/status",
            Some("nonsense"),
            "200",
            "not valid in this cluster",
        ),
        (
            "/metrics",
            Some("scraper-token"),
            "200",
            "pinfold_build_info",
        ),
        ("/metrics", None, "401", "no bearer token"),
        (
            "/metrics",
            Some("nonsense"),
            "401",
            "not valid in this cluster",
        ),
        (
            "/metrics",
            Some("reader-token"),
            "403",
            "nonResourceURL /metrics",
        ),
        ("/healthz", None, "200", "ok"),
        ("/readyz", None, "200", "ready"),
    ] {
        let (head, body) = remote(&agent, path, token);
        assert!(head.starts_with(code), "{path} {token:?}: {head}\n{body}");
        assert!(body.contains(words), "{path} {token:?}: {body}");
        assert_eq!(
            code == "401",
            head.contains("\r\nwww-authenticate: bearer"),
            "{head}"
        );
    }
    let (_, short) = remote(&agent, "/status", None);
    assert!(!short.contains("worker-0"), "{short}");
    let short: Value = serde_json::from_str(&short).unwrap();
    assert_eq!(short["ready"], true);
    assert_eq!(short["enforcement"], agent.status().unwrap()["enforcement"]);
    assert!(short["exclusiveContainers"].is_u64(), "{short}");

    // Callers on this host need no token, and cause no review.
    let reviews = fake.count("create", "tokenreviews");
    assert_eq!(agent.get("/metrics").status, 200);
    assert_eq!(agent.status().unwrap()["containers"][0]["pod"], "worker-0");
    assert_eq!(fake.count("create", "tokenreviews"), reviews);

    // The sentences about problems stay on the host.
    let server = fake.address().to_string();
    fake.go_away();
    agent.within(long(), "the outage is reported", |status| {
        status["cluster"]["connected"] == false
    });
    let problem = "the watch on this node's pods fails";
    let local = agent.get("/readyz");
    assert!(local.body.contains(problem), "{local:?}");
    let (_, body) = remote(&agent, "/readyz", None);
    assert!(
        body.starts_with("ready, with errors: ") && !body.contains(problem),
        "{body}"
    );
    agent.stop();

    // So does the reason why an agent waits for the API server. It names the server.
    let agent = cluster.settings(&tree, &kernel).start();
    agent.within(long(), "the agent waits", |status| {
        status["cluster"]["connected"] == false
    });
    let local = agent.get("/readyz");
    assert!(
        local.status == 503 && local.body.contains(&server),
        "{local:?}"
    );
    let (head, body) = remote(&agent, "/readyz", None);
    assert!(head.starts_with("503"), "{head}\n{body}");
    assert!(
        body.contains("waits for the API server") && !body.contains(&server),
        "{body}"
    );
    agent.stop();
}

#[test]
fn callers_without_a_review_get_an_error_or_the_short_status() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    let fake = &cluster.fake;
    let (agent, _folder) = reviewing_agent(&cluster, &tree, &kernel);
    let works = |token: &str| {
        let (head, body) = remote(&agent, "/metrics", Some(token));
        assert!(head.starts_with("200"), "{head}\n{body}");
        assert!(body.contains("pinfold_build_info"), "{body}");
    };
    let short = |token: &str, reason: &str| {
        let (head, body) = remote(&agent, "/status", Some(token));
        assert!(head.starts_with("200") && body.contains(reason), "{body}");
        assert!(!body.contains("worker-0"), "{body}");
    };
    works("scraper-token");

    // Requests with two tokens, in one header or in two, and requests with an unreadable token are refused.
    let valid = "Authorization: bearer scraper-token\r\n";
    let (head, _) = remote_with(&agent, "/metrics", valid);
    assert!(head.starts_with("200"), "{head}");
    for headers in [
        format!("{valid}{valid}"),
        "Authorization: Bearer schlüssel\r\n".to_owned(),
        "Authorization: Bearer scraper-token scraper-token\r\n".to_owned(),
    ] {
        let (head, body) = remote_with(&agent, "/metrics", &headers);
        assert!(head.starts_with("401"), "{headers}: {head}");
        assert!(body.contains("a single header"), "{headers}: {body}");
    }

    // The API server is away.
    fake.go_away();
    let (head, body) = remote(&agent, "/metrics", Some("late-token"));
    assert!(head.starts_with("503"), "{head}");
    assert!(body.contains("try again"), "{body}");
    short("late-token", "did not review the caller");
    works("scraper-token");
    fake.come_back();

    // The tokens exceed the limit of two windows, because a window may end during the flood.
    let limited = (0..80)
        .filter(|number| {
            let token = format!("guess-{number}");
            let (head, _) = remote(&agent, "/metrics", Some(&token));
            assert!(head.starts_with("401") || head.starts_with("429") || head.starts_with("503"));
            head.starts_with("429")
        })
        .count();
    assert!(limited >= 10, "{limited}");
    short("another-token", "too many unknown tokens");
    works("scraper-token");
    assert_eq!(agent.get("/metrics").status, 200);
    assert_eq!(agent.status().unwrap()["containers"][0]["pod"], "worker-0");
    agent.stop();
}

#[test]
fn agents_with_audiences_take_no_full_credential() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    let fake = &cluster.fake;
    fake.user_for("own-token", "scraper", "pinfold");
    fake.allow_path("scraper", "/status");
    let metrics = "auth: kubernetes, audiences: [pinfold]";
    let (agent, _folder) = agent_with(metrics, &cluster, &tree, &kernel);
    let (head, body) = remote(&agent, "/metrics", Some("own-token"));
    assert!(head.starts_with("200"), "{head}\n{body}");
    let (_, body) = remote(&agent, "/status", Some("own-token"));
    assert!(body.contains("worker-0"), "{body}");
    // This token is also good for the API server.
    let (head, body) = remote(&agent, "/metrics", Some("scraper-token"));
    assert!(head.starts_with("401"), "{head}");
    assert!(body.contains("metrics.audiences"), "{body}");
    let (_, body) = remote(&agent, "/status", Some("scraper-token"));
    assert!(
        body.contains("metrics.audiences") && !body.contains("worker-0"),
        "{body}"
    );
    agent.stop();
}

/// The review takes two seconds. The clients have the scraper's address, and send nothing, or half a request.
#[test]
fn clients_without_a_request_never_push_out_a_scraper_under_review() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    let (agent, _folder) = reviewing_agent(&cluster, &tree, &kernel);
    let slow = Fault::Delay(Duration::from_secs(2));
    cluster
        .fake
        .fail(FaultScope::always().on("tokenreviews").times(1), slow);
    std::thread::scope(|scope| {
        let scrape = scope.spawn(|| remote(&agent, "/metrics", Some("scraper-token")));
        let asked = || cluster.fake.count("create", "tokenreviews") > 0;
        while !asked() {
            assert!(!scrape.is_finished());
            std::thread::sleep(Duration::from_millis(20));
        }
        let clients: Vec<TcpStream> = (0..60)
            .map(|number| {
                let mut client = TcpStream::connect(agent.address).unwrap();
                let text = ["", "GET /metrics HTTP/1.1\r\nHost: slow"][number % 2];
                client.write_all(text.as_bytes()).unwrap();
                client
            })
            .collect();
        let (head, body) = scrape.join().unwrap();
        assert!(head.starts_with("200"), "{head}");
        assert!(body.contains("pinfold_build_info"));
        drop(clients);
    });
    agent.stop();
}

#[test]
fn without_the_api_other_hosts_get_metrics_and_a_short_status() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pods = Manifests::new();
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let agent = settings.start();
    let (head, body) = remote(&agent, "/metrics", None);
    assert!(head.starts_with("200"), "{head}");
    assert!(body.contains("pinfold_build_info"));
    let (head, body) = remote(&agent, "/status", Some("some-token"));
    assert!(head.starts_with("200"), "{head}");
    assert!(body.contains("uses no Kubernetes API"), "{body}");
    agent.stop();

    // Reviews need the API.
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pinfold.yaml");
    std::fs::write(&config, "metrics: {auth: kubernetes}\n").unwrap();
    let output = settings
        .with(&["--config", config.to_str().unwrap()])
        .command()
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("metrics.auth is kubernetes"), "{said}");
}

/// The exit code, the output and the errors of a command.
#[cfg(feature = "portforward")]
fn finish(command: &mut std::process::Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[cfg(feature = "portforward")]
#[test]
fn commands_reach_agents_by_port_forwards() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    let fake = &cluster.fake;
    let agent = cluster.settings(&tree, &kernel).start();
    cluster.put(&pod("worker-0", NODE));
    let cgroup = tree.pod("", "worker-0-uid");
    for container in ["pause1", "main1"] {
        let container = tree.container(&cgroup, container);
        tree.start(&container);
    }
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    cluster.put_agent("pinfold-x7k2p", agent.address);
    fake.user("person-token", "person");
    fake.allow("person", &["get", "list"], "", "pods", &[]);
    fake.allow("person", &["create", "get"], "", "pods/portforward", &[]);
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    std::fs::write(&kubeconfig, fake.kubeconfig("person-token")).unwrap();
    let run = |args: &[&str]| finish(pinfold().args(args).arg("--kubeconfig").arg(&kubeconfig));

    let (code, out, error) = run(&["explain", "-n", "train", "worker-0", "-o", "json"]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
    let containers: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(containers[0]["pod"], "worker-0");
    let (code, _, error) = run(&["explain", "-n", "train", "worker-9"]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("train/worker-9") && error.contains("-n"),
        "{error}"
    );

    let (code, out, error) = run(&["top", "--cluster", "--once", "--interval", "1s"]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("train/worker-0"), "{out}");

    let (code, out, error) = run(&["status", "--cluster", "-o", "json"]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
    let status: Value = serde_json::from_str(&out).unwrap();
    let enforcement = &agent.status().unwrap()["enforcement"];
    assert_eq!(&status[NODE]["enforcement"], enforcement);

    let (_, out, error) = run(&["doctor", "--cluster"]);
    let enforcement = enforcement.as_str().unwrap();
    assert!(
        out.contains(&format!("{NODE}  enforcement {enforcement}")),
        "{out}{error}"
    );

    // kubectl starts the program by this name.
    let plugin = folder.path().join("kubectl-pinfold");
    std::os::unix::fs::symlink(pinfold().get_program(), &plugin).unwrap();
    let plugin = |args: &[&str]| {
        let mut command = std::process::Command::new(&plugin);
        finish(command.args(args).env("KUBECONFIG", &kubeconfig))
    };
    let (code, out, error) = plugin(&["status"]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains(NODE), "{out}");
    let (_, help, _) = plugin(&["status", "-h"]);
    assert!(help.contains("Usage: kubectl pinfold status"), "{help}");

    // RBAC on port-forwards decides.
    fake.forbid("person");
    fake.allow("person", &["get", "list"], "", "pods", &[]);
    let (code, out, error) = run(&["status", "--cluster"]);
    assert_eq!(code, Some(1), "{out}{error}");
    assert!(out.contains("pinfold-portforward"), "{out}");
    fake.forbid("person");
    let (code, _, error) = run(&["top", "--cluster", "--once"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("can't list the agents' pods"), "{error}");
    agent.stop();
}
