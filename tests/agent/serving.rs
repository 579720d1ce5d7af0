//! HTTP, ports, locks, and how the agent ends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use pinfold::host::cgroup::join_host;
use pinfold::metrics::{AGENT_FAMILIES, FAMILIES, Family, FamilyKind};

use crate::agent::{Agent, Manifests, Settings, best_effort, container, in_force, pinfold, worker};
use crate::http::{ask, exchange};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::kubelet::Root;

#[test]
fn a_missing_nri_socket_is_a_problem_in_every_view() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pods = Manifests::new();
    // The DaemonSet mounts the folder, and a runtime without NRI makes no socket there.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nri.sock").display().to_string();
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let agent = settings.clone().with(&["--nri-socket", &socket]).start();
    let status = agent.eventually("the missing socket is a problem", |status| {
        status["runtime"]["problem"].is_string()
    });
    let problem = status["runtime"]["problem"].as_str().unwrap();
    assert!(problem.starts_with("NRI is off: "), "{problem}");
    let ready = agent.get("/readyz");
    assert!(
        ready.status == 200 && ready.body.contains(problem),
        "{ready:?}"
    );
    assert_eq!(agent.metric("pinfold_nri_synchronized", &[]), Some(0.0));
    let address = agent.address.to_string();
    let output = pinfold().args(["status", "--node", &address]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let row = text.lines().nth(1).unwrap_or_default();
    assert!(row.ends_with(" 1") && text.contains(problem), "{text}");
    agent.stop();
    // Whoever does without NRI says so, and has no problem.
    let agent = settings.with(&["--nri=never"]).start();
    assert_eq!(agent.get("/readyz").body, "ready\n");
    agent.stop();
}

#[test]
fn answers() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pods = Manifests::new();
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    for (method, path, status, says) in [
        ("GET", "/healthz", 200, "ok"),
        ("GET", "/readyz", 200, "ready"),
        ("GET", "/", 200, "/metrics"),
        ("GET", "/metrics", 200, "# TYPE pinfold_node_cpus gauge"),
        (
            "GET",
            "/metrics?name=x",
            200,
            "# TYPE pinfold_node_cpus gauge",
        ),
        ("GET", "/status", 200, "\"enforcement\": \"cpuset\""),
        ("GET", "/nothing", 404, "/metrics"),
        ("POST", "/metrics", 405, "only GET and HEAD"),
        ("DELETE", "/nothing", 405, "only GET and HEAD"),
        ("HEAD", "/metrics", 200, ""),
        ("HEAD", "/nothing", 404, ""),
    ] {
        let answer = ask(agent.address, method, path).unwrap();
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert!(answer.body.contains(says), "{method} {path}: {answer:?}");
        assert_eq!(
            method == "HEAD",
            answer.body.is_empty(),
            "{method} {path}: {answer:?}"
        );
        assert_eq!(
            status == 405,
            answer.head.contains("\r\nallow: get, head"),
            "{answer:?}"
        );
    }
    let metrics = ask(agent.address, "HEAD", "/metrics").unwrap();
    assert!(
        metrics
            .head
            .contains("content-type: text/plain; version=0.0.4"),
        "{metrics:?}"
    );
    let status = ask(agent.address, "GET", "/status").unwrap();
    assert!(
        status.head.contains("content-type: application/json"),
        "{status:?}"
    );

    // A request that is not HTTP is refused without an effect on further clients.
    let mut stream = TcpStream::connect(agent.address).unwrap();
    stream.write_all(b"\x16\x03\x01hello\r\n\r\n").unwrap();
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    assert!(
        text.is_empty() || text.starts_with(b"HTTP/1.1 400"),
        "{:?}",
        String::from_utf8_lossy(&text)
    );
    assert_eq!(agent.get("/healthz").status, 200);
    agent.stop();
}

#[test]
fn explains_the_pods_of_its_node() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let agent = Settings::new(&tree.path, &pods, &kernel.all_but_one()).start();
    let explain = |args: &[&str]| {
        let address = agent.address.to_string();
        let output = pinfold()
            .arg("explain")
            .args(args)
            .args(["--agent", &address])
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, out, error) = explain(&["worker-0"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(
        error,
        "pinfold: no pod worker-0 on this node: the list of pods is empty\n"
    );
    pods.put("worker-0.yaml", &worker("worker-0", "explained", 1));
    agent.eventually("the pod is known", |status| {
        container(status, "worker-0", "main").is_some()
    });
    let (code, out, _) = explain(&["worker-0"]);
    assert!(
        code == Some(0) && out.contains("  CPUs     none yet\n"),
        "{out}"
    );
    pods.put("web.yaml", &best_effort("web", "explained-too"));
    let pod = tree.pod("", "explained");
    let main = tree.container(&pod, "main");
    tree.start(&main);
    agent.eventually("the worker owns a CPU", |status| {
        in_force(status, "worker-0")
    });
    let (code, out, error) = explain(&["train/worker-0"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let own = format!("  CPUs     {}, exclusive", kernel.last());
    assert!(
        out.starts_with("Pod train/worker-0 is Guaranteed. Role worker") && out.contains(&own),
        "{out}"
    );
    assert!(
        out.contains("the container runtime sends no requests")
            && out.contains("TF_NUM_INTRAOP_THREADS=1"),
        "{out}"
    );
    // Variables that nobody added size no pools.
    let finding = "as expected: 1 thread; with the computed variables, its pools would have 2; the computed variables are not in \
                   the program's environment";
    assert!(out.contains(finding), "{out}");
    let (code, out, _) = explain(&["worker-0", "-o", "json"]);
    let explanation: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, explanation[0]["assigned"].as_str()),
        (Some(0), Some(kernel.last().to_string().as_str()))
    );
    assert_eq!(
        explanation[0]["observed"]["verdict"]["finding"], "as_expected",
        "{out}"
    );
    let (code, _, error) = explain(&["ps-0"]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("the pods are: ") && error.contains("train/web"),
        "{error}"
    );
    agent.stop();
}

#[test]
fn slow_clients_delay_no_request() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pods = Manifests::new();
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let slow = |count: usize, text: &str| -> Vec<TcpStream> {
        let connect = |_| {
            let mut stream = TcpStream::connect(agent.address).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream
        };
        (0..count).map(connect).collect()
    };
    // An answer that waits for a slow client would take the five seconds after which the agent ends the client.
    let at_once = |path: &str, what: &str| {
        let start = Instant::now();
        assert_eq!(agent.get(path).status, 200);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(4), "{what:?} {path}: {took:?}");
    };
    let few = slow(10, "GET /metrics HTTP/1.1\r\nHost: slow");
    at_once("/metrics", "few");
    // More clients than are served at once: clients that send half a request, nothing, or never read an answer.
    for text in [
        "GET /metrics HTTP/1.1\r\nHost: slow",
        "",
        "GET /metrics HTTP/1.1\r\nHost: slow\r\n\r\n",
    ] {
        let many = slow(40, text);
        for path in ["/metrics", "/healthz", "/readyz"] {
            at_once(path, text);
        }
        drop(many);
    }
    drop(few);
    agent.stop();
}

#[test]
fn a_reconciler_that_hangs_is_unhealthy_and_named() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let agent = settings
        .with(&["--root-dir", root.path(), "--reconcile-interval", "1s"])
        .start();
    assert_eq!(agent.get("/healthz").status, 200);
    let _pipe = root.hang();
    let deadline = Instant::now() + Duration::from_secs(60);
    let answer = loop {
        let answer = agent.get("/healthz");
        if answer.status != 200 {
            break answer;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(
        answer.body.starts_with("stuck: ") && answer.body.contains("read the CPU topology"),
        "{answer:?}"
    );
    agent.kill();
}

#[test]
fn is_not_ready_before_it_has_read_the_manifests() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    // The number of pods is large, so that the agent reads for a while. If the agent is ready before the last question on a
    // busy machine, a larger number decides.
    let early = [20_000, 40_000, 80_000, 160_000]
        .into_iter()
        .any(|count| is_early(&kernel, &tree, count));
    assert!(early, "the agent is ready before it has read the manifests");
}

/// Asks an agent that reads many manifests. Returns `false` if the agent is ready before the last question.
fn is_early(kernel: &Kernel, tree: &Tree<'_>, count: usize) -> bool {
    let pods = Manifests::new();
    let many: String = (0..count)
        .map(|number| {
            format!(
                "---\n{}",
                best_effort(&format!("p{number}"), &format!("u{number}"))
            )
        })
        .collect();
    pods.put("many.yaml", &many);
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start_early();
    let answers = ["/metrics", "/status", "/readyz", "/healthz"].map(|path| agent.get(path));
    // The agent ends at once during every activity.
    agent.stop();
    if answers.iter().any(|answer| answer.status == 200) {
        return false;
    }
    let [others @ .., health] = answers;
    for answer in others {
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains("not ready"), "{answer:?}");
    }
    // The startup probe limits the duration.
    assert!(
        health.status == 503 && health.body.starts_with("starting: "),
        "{health:?}"
    );
    true
}

#[test]
fn ends_at_once_in_the_middle_of_a_burst() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    for number in 0..40 {
        let uid = format!("uid{number}");
        pods.put(&format!("{uid}.yaml"), &worker(&uid, &uid, 1));
        let pod = tree.pod(if number % 2 == 0 { "" } else { "burstable" }, &uid);
        let main = tree.container(&pod, &format!("c{number}"));
        if number < 5 {
            tree.start(&main);
        }
    }
    let (status, took, log) = agent.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    // The manifests allow ten seconds.
    assert!(took < Duration::from_secs(10), "{took:?}\n{log}");
    assert!(log.contains("SIGTERM"), "{log}");
}

#[test]
fn leaves_a_containers_cgroup_namespace() {
    let Some(_kernel) = kernel_tests() else {
        return;
    };
    // The view of /proc in a thread whose first process is the test.
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("proc")).unwrap();
    for (name, target) in [
        ("1", format!("/proc/{}", std::process::id())),
        ("self", "/proc/thread-self".to_owned()),
    ] {
        std::os::unix::fs::symlink(target, root.path().join("proc").join(name)).unwrap();
    }
    let namespace = || std::fs::read_link("/proc/thread-self/ns/cgroup").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let before = namespace();
            assert!(
                !join_host(root.path()).unwrap(),
                "the thread is in the namespace already"
            );
            // A runtime makes a cgroup namespace for a container in the same way.
            unshare(CloneFlags::CLONE_NEWCGROUP).unwrap();
            assert_ne!(namespace(), before);
            assert!(join_host(root.path()).unwrap());
            assert_eq!(namespace(), before);
        });
    });
    let nowhere = tempfile::tempdir().unwrap();
    assert!(
        !join_host(nowhere.path()).unwrap(),
        "no process exists to join"
    );
}

#[test]
fn one_agent_on_a_node() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pods = Manifests::new();
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let agent = settings.start();
    let Output { status, stderr, .. } = settings.command().output().unwrap();
    let error = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{error}");
    assert!(
        error.contains("another pinfold owns the cgroups"),
        "{error}"
    );
    assert_eq!(agent.get("/healthz").status, 200);
    agent.stop();
}

#[test]
fn a_port_that_is_taken() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pods = Manifests::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let mut command = settings.command();
    // A second flag would be an error, so the setting comes from a place without a flag.
    let args: Vec<_> = command.get_args().skip(3).map(ToOwned::to_owned).collect();
    command = pinfold();
    command
        .arg("run")
        .args(args)
        .env("PINFOLD_LISTEN", &address);
    let Output { status, stderr, .. } = command.output().unwrap();
    let error = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{error}");
    let last = error.lines().last().unwrap();
    assert!(
        last.starts_with("pinfold: ") && last.contains(&address) && last.contains("--listen"),
        "{error}"
    );
}

/// An agent with a pinned worker and a second pod: every family has a series.
fn busy(check: impl FnOnce(&Agent, &str)) {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    for (class, uid) in [("", "worker-uid"), ("besteffort", "web-uid")] {
        let pod = tree.pod(class, uid);
        let main = tree.container(&pod, &format!("{uid}-1"));
        tree.start(&main);
    }
    agent.eventually("all is settled", |status| {
        in_force(status, "worker-0")
            && status["containers"]
                .as_array()
                .unwrap()
                .iter()
                .all(|container| container["running"] == true)
    });
    check(&agent, &agent.get("/metrics").body);
    agent.stop();
}

/// Requires that promtool reports no problem.
pub(crate) fn promtool(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool is in Debian's package prometheus: {error}"));
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = promtool.wait_with_output().unwrap();
    let says = format!(
        "{}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    assert!(
        status.success() && says.is_empty(),
        "{status}: {says}\n{text}"
    );
}

#[test]
fn promtool_reports_no_problem() {
    busy(|_, text| promtool(text));
}

/// The series of a page, without the series that differ in every scrape.
fn series(text: &str) -> Vec<&str> {
    let varies = [
        "pinfold_collector_",
        "pinfold_nri_",
        "process_",
        "pinfold_reconcile",
    ];
    let lasts =
        |line: &&str| !line.starts_with('#') && !varies.iter().any(|name| line.starts_with(name));
    text.lines()
        .filter(lasts)
        .filter_map(|line| Some(line.rsplit_once(' ')?.0))
        .collect()
}

#[test]
fn metrics_come_in_the_format_that_the_client_prefers() {
    busy(|agent, text| {
        let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3\r\n";
        let (head, body) = exchange(agent.address, "GET", "/metrics", accept).unwrap();
        assert!(
            head.contains("content-type: application/openmetrics-text; version=1.0.0"),
            "{head}"
        );
        let open = String::from_utf8(body).unwrap();
        assert!(
            open.ends_with("\n# EOF\n") && open.contains("\n# TYPE pinfold_pod info\n"),
            "{open}"
        );
        assert!(
            open.contains("\n# TYPE pinfold_container_cpu_usage_seconds counter\n"),
            "{open}"
        );
        // OpenMetrics shows the bounds of a histogram as floats.
        assert!(
            open.contains("pinfold_container_unpinned_seconds_bucket{le=\"1.0\"} "),
            "{open}"
        );
        let as_text = |open: &str| {
            open.replace("le=\"1.0\"", "le=\"1\"")
                .replace("le=\"10.0\"", "le=\"10\"")
        };
        assert_eq!(series(&as_text(&open)), series(text));
        let headers = format!("{accept}Accept-Encoding: gzip\r\n");
        let (head, body) = exchange(agent.address, "GET", "/metrics", &headers).unwrap();
        assert!(head.contains("content-encoding: gzip"), "{head}");
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(body.as_slice())
            .read_to_string(&mut unpacked)
            .unwrap();
        assert_eq!(series(&as_text(&unpacked)), series(text));
        assert!(
            body.len() * 3 < unpacked.len(),
            "{} of {} bytes",
            body.len(),
            unpacked.len()
        );
    });
}

/// Two scrapers cost as much as one: the agent does not collect again within a second.
#[test]
fn scrapes_within_a_second_share_what_was_collected() {
    busy(|agent, _| {
        let cost = |text: &str| {
            let of = |line: &str| {
                line.strip_prefix("pinfold_collector_cpu_seconds_total{")
                    .map(str::to_owned)
            };
            text.lines().filter_map(of).collect::<Vec<_>>()
        };
        let scrape = || cost(&agent.get("/metrics").body);
        // A look at the cgroups in between would be a new state.
        let shared = (0..20).any(|_| scrape() == scrape());
        assert!(shared, "each scrape collects anew");
        let before = scrape();
        std::thread::sleep(Duration::from_millis(1100));
        assert_ne!(scrape(), before);
        assert!(before.len() > 5, "{before:?}");
    });
}

/// A scraper with a short timeout gets a page in time, and the page names the missing families.
#[test]
fn a_page_keeps_to_the_scrapers_timeout() {
    busy(|agent, _| {
        // The page of the first scrape is shared for a second.
        std::thread::sleep(Duration::from_millis(1100));
        let header = "X-Prometheus-Scrape-Timeout-Seconds: 0.000001\r\n";
        let (head, body) = exchange(agent.address, "GET", "/metrics", header).unwrap();
        let text = String::from_utf8(body).unwrap();
        assert!(head.contains("200 OK"), "{head}");
        assert!(
            text.contains("pinfold_collector_success{collector=\"network\"} 0\n"),
            "{text}"
        );
        agent.eventually("a complete page", |_| {
            let text = agent.get("/metrics").body;
            text.contains("pinfold_collector_success{collector=\"network\"} 1\n")
        });
    });
}

#[test]
fn metric_families_match_the_documented_table() {
    busy(|_, text| {
        let mut seen = 0;
        for family in FAMILIES {
            let series: Vec<&str> = text
                .lines()
                .filter(|line| line.split(['{', ' ']).next() == Some(family.name))
                .collect();
            let network = ["pinfold_pod_network_", "pinfold_pod_tcp_"];
            let network = network.iter().any(|name| family.name.starts_with(name))
                && family.kind == FamilyKind::Counter;
            // The pods of the test use the node's network, whose counters are not the pods'. A feature that the machine
            // lacks has a reason instead.
            let reason = |collector: &str| {
                text.contains(&format!(
                    "pinfold_collector_unsupported{{collector=\"{collector}\",reason=\""
                ))
            };
            let missing = match family.name {
                "pinfold_container_pressure_seconds_total" => reason("pressure"),
                "pinfold_container_memory_numa_bytes" => reason("memory"),
                "pinfold_container_cpu_run_delay_seconds_total" => reason("threads"),
                "pinfold_container_cpu_cycles_total"
                | "pinfold_container_instructions_total"
                | "pinfold_container_perf_enabled_seconds_total"
                | "pinfold_container_perf_running_seconds_total" => reason("caches"),
                // Not every CPU with counters has these events.
                "pinfold_container_llc_misses_total" | "pinfold_container_llc_references_total" => {
                    reason("caches") || series.is_empty()
                }
                "pinfold_container_llc_occupancy_bytes"
                | "pinfold_container_memory_bandwidth_bytes_total" => reason("resctrl"),
                "pinfold_container_l2_misses_total" | "pinfold_container_l2_references_total" => {
                    reason("caches") || reason("l2")
                }
                "pinfold_container_cpu_migrations_total" => reason("tasks"),
                // An average needs two scrapes, and containers are left out only under load.
                "pinfold_collector_containers_left_out" => series.is_empty(),
                // The test's agent uses no API, so only a kubelet's file on this machine tells the number.
                "pinfold_node_allocatable_cpus" => {
                    !std::path::Path::new("/var/lib/kubelet/config.yaml").exists()
                }
                // Every pod of the test has its CPUs.
                "pinfold_pod_not_pinned" => true,
                // The setting for connection samples is off.
                "pinfold_pod_tcp_connections" | "pinfold_pod_tcp_rtt_seconds" => true,
                name if name.starts_with("pinfold_peer_") => true,
                name if name.starts_with("pinfold_node_rdma_") => {
                    reason("rdma") || series.is_empty()
                }
                name if name.starts_with("pinfold_pod_rdma_") => series.is_empty(),
                "pinfold_collector_unsupported" => {
                    !text.contains("\npinfold_collector_unsupported{")
                }
                _ => network,
            };
            assert_eq!(series.is_empty(), missing, "{}\n{text}", family.name);
            if series.is_empty() {
                continue;
            }
            seen += 1;
            let kind = match family.kind {
                FamilyKind::Counter => "counter",
                FamilyKind::Gauge | FamilyKind::Info => "gauge",
                FamilyKind::Histogram => "histogram",
            };
            assert!(
                text.contains(&format!("# TYPE {} {kind}\n", family.name)),
                "{}",
                family.name
            );
            assert!(
                text.contains(&format!("# HELP {} {}\n", family.name, family.help)),
                "{}",
                family.name
            );
            let mut wanted = family.labels.to_vec();
            wanted.sort_unstable();
            for line in series {
                let labels = line
                    .split_once('{')
                    .and_then(|(_, rest)| rest.rsplit_once('}'))
                    .map_or("", |it| it.0);
                let mut names: Vec<&str> = labels
                    .split("\",")
                    .filter_map(|label| Some(label.split_once("=\"")?.0))
                    .collect();
                names.sort_unstable();
                assert_eq!(names, wanted, "{line}");
            }
        }
        assert!(seen > 15, "{seen} families only");
        let is_series_of = |family: &Family, name: &str| match family.kind {
            FamilyKind::Histogram => name
                .strip_prefix(family.name)
                .is_some_and(|end| ["_bucket", "_sum", "_count"].contains(&end)),
            _ => name == family.name,
        };
        let tabled = |name: &str| {
            let mut all = FAMILIES.iter().chain(AGENT_FAMILIES);
            all.any(|family| is_series_of(family, name))
        };
        for line in text.lines().filter(|line| {
            line.starts_with("pinfold_container_") || line.starts_with("pinfold_pod_")
        }) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(tabled(name), "{name} is not in the table");
        }
    });
}
