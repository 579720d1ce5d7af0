//! Errors of similar programs: each case on files like the kernel's.

use std::collections::BTreeSet;

use super::*;

/// A scrape as text.
fn scrape(sources: &Sources, containers: &[ContainerState]) -> String {
    sources
        .collect(&snapshot(containers.to_vec()))
        .text(Format::Text)
}

/// The labels and values of a family's series.
fn series<'a>(text: &'a str, family: &str) -> Vec<(&'a str, &'a str)> {
    let of = |line: &'a str| {
        line.strip_prefix(family)?
            .strip_prefix('{')?
            .split_once("} ")
    };
    text.lines().filter_map(of).collect()
}

/// The value of the only series with these words in its labels.
fn only<'a>(text: &'a str, family: &str, words: &[&str]) -> &'a str {
    let mut all = series(text, family);
    all.retain(|(labels, _)| words.iter().all(|word| labels.contains(word)));
    let [(_, value)] = all.as_slice() else {
        panic!("{family} {words:?}: {all:?}")
    };
    value
}

fn unsupported<'a>(text: &'a str, collector: &str) -> Option<&'a str> {
    let start = format!("collector=\"{collector}\",reason=\"");
    let all = series(text, "pinfold_collector_unsupported");
    all.into_iter()
        .find_map(|(labels, _)| labels.strip_prefix(start.as_str())?.strip_suffix('"'))
}

fn success<'a>(text: &'a str, collector: &str) -> &'a str {
    only(
        text,
        "pinfold_collector_success",
        &[&format!("collector=\"{collector}\"")],
    )
}

const SWITCHES: &str = "pinfold_container_context_switches_total";
const RECEIVED: &str = "pinfold_pod_network_receive_bytes_total";
const SCOPE: &str = "pinfold_pod_network_scope";
const SEGMENTS: &str = "pinfold_pod_tcp_sent_segments_total";

#[test]
fn a_reused_process_id_does_not_decrease_a_counter() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (sources, pod) = (sources(root), [container(root, 1)]);
    let voluntary = |text: &str| only(text, SWITCHES, &["\"voluntary\""]).to_owned();
    // The first scrape only says from where to count.
    assert_eq!(voluntary(&scrape(&sources, &pod)), "0");
    let status = "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t1\n";
    write(&root.join("proc/101/task/101/status"), status);
    assert_eq!(voluntary(&scrape(&sources, &pod)), "5");
    // The counts of a process stay with the pod after the process moves to another one.
    let pods = [pod[0].clone(), container(root, 2)];
    write(
        &root.join("sys/fs/cgroup/kubepods/pod1/c1/cgroup.procs"),
        "",
    );
    write(
        &root.join("sys/fs/cgroup/kubepods/pod2/c1/cgroup.procs"),
        "101\n",
    );
    let text = scrape(&sources, &pods);
    for (name, count) in [("pod=\"pod-1\"", "5"), ("pod=\"pod-2\"", "5")] {
        assert_eq!(
            only(&text, SWITCHES, &["\"voluntary\"", name]),
            count,
            "{name}"
        );
    }
}

#[test]
fn a_shared_network_has_no_owner() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let pods: Vec<ContainerState> = (1..=3).map(|number| container(root, number)).collect();
    let network = root.join("proc/102/ns/net");
    fs::remove_file(&network).unwrap();
    symlink("net:[4026532001]", &network).unwrap();
    let text = scrape(&sources, &pods);
    for (pod, scope) in [("pod-1", "unknown"), ("pod-2", "unknown"), ("pod-3", "pod")] {
        let labels = [&format!("pod=\"{pod}\""), &format!("scope=\"{scope}\"")];
        assert_eq!(only(&text, SCOPE, &labels.map(String::as_str)), "1");
    }
    for family in [RECEIVED, SEGMENTS] {
        assert_eq!(series(&text, family).len(), 1, "{family}");
        assert!(series(&text, family)[0].0.contains("pod-3"), "{family}");
    }
    // A network that is no longer shared belongs to its pod.
    let text = scrape(&sources, &pods[1..]);
    assert_eq!(series(&text, RECEIVED).len(), 2);
}

/// The scope of each pod, in order.
fn scopes(text: &str, pods: &[ContainerState]) -> Vec<String> {
    let of = |pod: &ContainerState| {
        let pod = format!("pod=\"{}\"", pod.pod);
        let mut all = series(text, SCOPE);
        all.retain(|(labels, value)| labels.contains(&pod) && *value == "1");
        let scope = all
            .first()
            .and_then(|(labels, _)| labels.split("scope=\"").nth(1));
        scope.unwrap_or_default().trim_end_matches('"').to_owned()
    };
    pods.iter().map(of).collect()
}

#[test]
fn an_unreadable_pod_leaves_the_networks_of_others_known() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let pods: Vec<ContainerState> = (1..=4).map(|number| container(root, number)).collect();
    // The namespace of a pod is unreadable, and so are the processes of another pod.
    fs::remove_file(root.join("proc/102/ns/net")).unwrap();
    let processes = root.join("sys/fs/cgroup/kubepods/pod4/c1/cgroup.procs");
    fs::remove_file(&processes).unwrap();
    fs::create_dir(&processes).unwrap();
    let text = scrape(&sources, &pods);
    assert_eq!(scopes(&text, &pods), ["pod", "unknown", "pod", ""]);
    for family in [RECEIVED, SEGMENTS] {
        assert_eq!(series(&text, family).len(), 2, "{family}");
    }
    assert_eq!(success(&text, "network"), "0");
}

#[test]
fn pods_read_before_the_deadline_have_a_scope() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let snapshot = snapshot((1..=3).map(|number| container(root, number)).collect());
    let mut pages = sources.pages.lock();
    let Collectors { state, .. } = &mut pages.collectors;
    let namespaces = BTreeSet::new();
    let (mut scrape, _) = Scrape::new(
        &snapshot,
        &sources.host,
        state,
        &namespaces,
        Deadline(in_time()),
    );
    for (container, pid) in scrape.containers.iter_mut().zip(101..) {
        container.processes = Some(vec![pid]);
    }
    let checks = std::cell::Cell::new(0);
    let is_late = || checks.replace(checks.get() + 1) >= 2;
    let handles = &mut scrape.state.netns_handles;
    let networks =
        pod_networks::PodNetworks::find(&scrape.containers, &sources.host.proc, handles, is_late);
    let scopes: Vec<&str> = networks.pods.iter().map(|pod| pod.scope.name()).collect();
    assert_eq!(
        (scopes.as_slice(), networks.complete),
        (["pod", "pod", "unknown"].as_slice(), false)
    );
}

#[test]
fn the_network_of_the_first_process_is_the_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let pods: Vec<ContainerState> = (1..=2).map(|number| container(root, number)).collect();
    fs::create_dir_all(root.join("proc/1/ns")).unwrap();
    symlink("net:[4026532002]", root.join("proc/1/ns/net")).unwrap();
    // The agent itself runs in a pod with a network of its own.
    let own = root.join(format!("proc/{}/ns", std::process::id()));
    fs::create_dir_all(&own).unwrap();
    symlink("net:[4026532001]", own.join("net")).unwrap();
    let text = scrape(&sources, &pods);
    assert_eq!(scopes(&text, &pods), ["pod", "host"]);
}

#[test]
fn only_exclusive_cpus_are_a_label() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let info = "pinfold_container_cpuset_info";
    let mut pods = vec![owner(root, 1, 3), container(root, 2)];
    let text = scrape(&sources, &pods);
    let [(labels, "1")] = series(&text, info)[..] else {
        panic!("{text}")
    };
    assert!(
        labels.contains("pod=\"pod-1\"") && labels.contains("cpus=\"3\""),
        "{labels}"
    );
    assert!(!labels.contains("policy"), "{labels}");
    // An owner that may also run on shared CPUs has no such label.
    pods[0].effective = Some("0-3".parse().unwrap());
    assert_eq!(series(&scrape(&sources, &pods), info), []);
}

#[test]
fn a_page_without_time_reports_late_collectors() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let pods = std::sync::Arc::new(snapshot(vec![container(root, 1)]));
    let text = sources
        .collect_shared(&pods, Instant::now())
        .unwrap()
        .text(Format::Text);
    let outcomes = series(&text, "pinfold_collector_success");
    assert!(
        outcomes.len() > 10 && outcomes.iter().all(|(_, value)| *value == "0"),
        "{text}"
    );
    assert_eq!(
        series(&text, "pinfold_collector_duration_seconds").len(),
        outcomes.len()
    );
    assert_eq!(series(&text, RECEIVED), []);
    // A scraper with more time gets a complete page.
    let text = sources
        .collect_shared(&pods, in_time())
        .unwrap()
        .text(Format::Text);
    assert_eq!(
        (success(&text, "network"), series(&text, RECEIVED).len()),
        ("1", 1)
    );
}

#[test]
fn a_scraper_waits_for_another_page_until_its_own_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = std::sync::Arc::new(sources(root));
    let pods = std::sync::Arc::new(snapshot(vec![container(root, 1)]));
    // The lock stands for a page in progress.
    let in_progress = sources.pages.lock();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (shared_sources, shared_pods) = (
        std::sync::Arc::clone(&sources),
        std::sync::Arc::clone(&pods),
    );
    std::thread::spawn(move || {
        let page =
            shared_sources.collect_shared(&shared_pods, Instant::now() + Duration::from_millis(50));
        sender.send(page.is_some()).unwrap();
    });
    assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(false));
    drop(in_progress);
    assert!(sources.collect_shared(&pods, in_time()).is_some());
}

#[test]
fn a_new_interface_has_its_own_counters() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (sources, pods) = (sources(root), [container(root, 1), container(root, 2)]);
    let received = |text: &str, labels: &[&str]| only(text, RECEIVED, labels).to_owned();
    assert_eq!(
        received(&scrape(&sources, &pods), &["pod-1", "\"eth0\""]),
        "1"
    );
    // A new interface of the same name counts from zero.
    let file = root.join("proc/101/net/dev");
    write(&file, "one\ntwo\neth0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
    let text = scrape(&sources, &pods);
    assert_eq!(received(&text, &["pod-1"]), "0");
    assert_eq!(received(&text, &["pod-2"]), "1");
    write(&file, "one\ntwo\nnet1: 8 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
    assert_eq!(received(&scrape(&sources, &pods), &["pod-1"]), "8");
}

#[test]
fn a_restarted_container_has_a_single_series() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (sources, before) = (sources(root), container(root, 1));
    scrape(&sources, std::slice::from_ref(&before));
    let again = root.join("sys/fs/cgroup/kubepods/pod1/c2");
    for (file, text) in [
        ("cgroup.procs", "101\n"),
        ("cpu.stat", "usage_usec 250000\n"),
        ("memory.numa_stat", "anon N0=4096\nfile N0=0\n"),
    ] {
        write(&again.join(file), text);
    }
    let after = ContainerState {
        cgroup: Some("kubepods/pod1/c2".to_owned()),
        ..before.clone()
    };
    let ended = ContainerState {
        running: false,
        ..before.clone()
    };
    let usage = |pods: &[ContainerState]| {
        only(
            &scrape(&sources, pods),
            "pinfold_container_cpu_usage_seconds_total",
            &["pod-1"],
        )
        .to_owned()
    };
    // Until the runtime removes the old container, in either order.
    for pods in [[ended.clone(), after.clone()], [after.clone(), ended]] {
        assert_eq!(usage(&pods), "0.25");
    }
    assert_eq!(usage(&[after]), "0.25");
}

/// Some pods have no pause process, and some runtimes hide their processes from the node.
#[test]
fn without_a_process_a_network_has_no_series() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (sources, pods) = (sources(root), [container(root, 1), container(root, 2)]);
    write(
        &root.join("sys/fs/cgroup/kubepods/pod1/c1/cgroup.procs"),
        "",
    );
    let text = scrape(&sources, &pods);
    for (family, count) in [(SCOPE, 3), (RECEIVED, 1), (SEGMENTS, 1)] {
        assert_eq!(series(&text, family).len(), count, "{family}");
        assert!(series(&text, family)[0].0.contains("pod-2"), "{family}");
    }
    assert_eq!(
        only(
            &text,
            "pinfold_container_cpu_usage_seconds_total",
            &["pod-1"]
        ),
        "1.5"
    );
    for collector in ["network", "tcp", "threads", "cgroup"] {
        assert_eq!(success(&text, collector), "1", "{collector}");
    }
}

#[test]
fn uncounted_pressure_is_not_zero() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let pod = [container(root, 1)];
    let sources = sources(root);
    let family = "pinfold_container_pressure_seconds_total";
    let text = scrape(&sources, &pod);
    assert_eq!(
        (series(&text, family).len(), unsupported(&text, "pressure")),
        (6, None)
    );
    // Without psi=1, newer kernels lack the files, and the files of older kernels are unreadable.
    let cgroup = root.join("sys/fs/cgroup");
    for dir in [
        cgroup.clone(),
        cgroup.join("kubepods/pod1/c1"),
        cgroup.join("kubepods"),
    ] {
        for resource in ["cpu", "io", "memory"] {
            let _ = fs::remove_file(dir.join(format!("{resource}.pressure")));
        }
    }
    let text = scrape(&sources_of(root), &pod);
    assert_eq!(series(&text, family), []);
    assert_eq!(unsupported(&text, "pressure"), Some("no_pressure_counters"));
    assert_eq!(success(&text, "pressure"), "1");
}

/// The files of both cgroup versions, at the paths of both drivers.
#[test]
fn both_cgroup_versions_and_drivers_give_the_same_values() {
    let uid = "8f0d6986-3554-402b-8223-2d69f320df15";
    let slice = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f0d6986_3554_402b_8223_2d69f320df15.slice";
    for path in [
        format!("kubepods/burstable/pod{uid}/c1"),
        format!("{slice}/cri-containerd-c1.scope"),
    ] {
        for v1 in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path();
            let state = ContainerState {
                cgroup: Some(path.clone()),
                ..container(root, 1)
            };
            let cgroup = root.join("sys/fs/cgroup");
            if v1 {
                write(&cgroup.join("cpuset/cpuset.cpus"), "0\n");
                write(
                    &cgroup.join("cpuset").join(&path).join("cgroup.procs"),
                    "101\n",
                );
                let stat = "nr_periods 10\nnr_throttled 4\nthrottled_time 250000000\n";
                write(&cgroup.join("cpu").join(&path).join("cpu.stat"), stat);
                write(
                    &cgroup.join("cpuacct").join(&path).join("cpuacct.usage"),
                    "1500000000\n",
                );
                write(&cgroup.join("pids").join(&path).join("pids.current"), "1\n");
            } else {
                write(
                    &cgroup.join("cgroup.controllers"),
                    "cpuset cpu io memory pids\n",
                );
                write(&cgroup.join(&path).join("cgroup.procs"), "101\n");
                let stat =
                    "usage_usec 1500000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 250000\n";
                write(&cgroup.join(&path).join("cpu.stat"), stat);
                write(&cgroup.join(&path).join("pids.current"), "1\n");
            }
            write(&root.join("proc/self/schedstat"), "1 1 1\n");
            let text = scrape(&sources_of(root), &[state]);
            for (family, value) in [
                ("pinfold_container_cpu_usage_seconds_total", "1.5"),
                ("pinfold_container_cpu_periods_total", "10"),
                ("pinfold_container_cpu_throttled_periods_total", "4"),
                ("pinfold_container_cpu_throttled_seconds_total", "0.25"),
                ("pinfold_container_threads", "1"),
                (RECEIVED, "1"),
                (SEGMENTS, "30"),
            ] {
                assert_eq!(
                    only(&text, family, &["pod-1"]),
                    value,
                    "{family}, v1: {v1}, {path}"
                );
            }
            if v1 {
                assert_eq!(unsupported(&text, "pressure"), Some("no_pressure_counters"));
            }
        }
    }
}
