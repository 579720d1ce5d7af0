//! The program as people and scripts use it: answers, errors, exit codes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

#[path = "support/machine.rs"]
mod machine;
#[path = "support/program_copy.rs"]
mod program_copy;

/// A machine of two sockets, 32 CPUs and two threads a core.
const MACHINE: &str = "32amd64-4s2n4c-cgroup";

const PODS: &str = "apiVersion: v1
kind: Pod
metadata:
  name: worker-0
  namespace: train
  labels: {training.kubeflow.org/job-name: job, training.kubeflow.org/replica-type: worker}
spec:
  containers:
  - name: main
    image: tf
    resources: {limits: {cpu: 4, memory: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  containers:
  - {name: main, image: web}
";

fn pinfold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PINFOLD_") {
            command.env_remove(name);
        }
    }
    for name in [
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "NODE_NAME",
        "POD_NAMESPACE",
    ] {
        command.env_remove(name);
    }
    command
}

fn finish(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    finish(pinfold().args(args))
}

/// Runs, requires success and silence on the side, and reads the answer.
fn json(args: &[&str]) -> Value {
    let (code, out, error) = run(args);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{args:?}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}\n{out}"))
}

/// A file in a separate folder.
fn file(name: &str, text: &str) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn topology_for_programs() {
    let machine = machine::unpack(MACHINE);
    let topology = json(&["topology", "--root-dir", text(machine.path()), "-o", "json"]);
    let cpus = topology["cpus"].as_array().unwrap();
    let online: pinfold::cpu::CpuSet = topology["online"].as_str().unwrap().parse().unwrap();
    assert!(!online.is_empty());
    for key in ["id", "core", "socket", "numa", "llc"] {
        assert!(
            cpus.iter().all(|cpu| cpu.get(key).is_some()),
            "{key}: {}",
            cpus[0]
        );
    }
    let (code, out, error) = run(&["topology", "--root-dir", text(machine.path())]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(out.lines().count() > 4, "{out}");
}

#[test]
fn place_answers_and_refuses() {
    let machine = machine::unpack(MACHINE);
    let root = text(machine.path());
    let topology = json(&["topology", "--root-dir", root, "-o", "json"]);
    let online = topology["online"].as_str().unwrap();
    let placed = json(&[
        "place",
        "2",
        "--root-dir",
        root,
        "--free",
        online,
        "-o",
        "json",
    ]);
    let cpus: pinfold::cpu::CpuSet = placed["cpus"].as_str().unwrap().parse().unwrap();
    assert_eq!(cpus.len(), 2);
    assert_eq!(placed["cost"]["numa"], 1);
    let (code, out, error) = run(&["place", "4000", "--root-dir", root, "-o", "json"]);
    let refused: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, error.as_str()), (Some(1), ""));
    assert!(
        refused["error"].as_str().unwrap().contains("4000 wanted"),
        "{refused}"
    );
}

#[test]
fn plan_for_programs() {
    let machine = machine::unpack(MACHINE);
    let (_folder, pods) = file("pods.yaml", PODS);
    let plan = json(&[
        "plan",
        "--root-dir",
        text(machine.path()),
        "--pods",
        &pods,
        "-o",
        "json",
    ]);
    let containers = plan["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2);
    for key in [
        "namespace",
        "pod",
        "container",
        "role",
        "qos",
        "entitlement",
        "cpus",
        "mems",
        "env",
    ] {
        assert!(
            containers.iter().all(|one| one.get(key).is_some()),
            "{key}: {plan:#}"
        );
    }
    let [worker, web] = [&containers[0], &containers[1]];
    assert_eq!(
        [
            &worker["namespace"],
            &worker["pod"],
            &worker["container"],
            &worker["role"],
            &worker["qos"]
        ],
        ["train", "worker-0", "main", "worker", "Guaranteed"]
    );
    assert_eq!(worker["entitlement"]["kind"], "exclusive");
    assert_eq!(worker["entitlement"]["cpus"], 4);
    assert!(
        worker["entitlement"]["reason"]
            .as_str()
            .unwrap()
            .contains("Guaranteed")
    );
    let cpus: pinfold::cpu::CpuSet = worker["cpus"].as_str().unwrap().parse().unwrap();
    assert_eq!(cpus.len(), 4);
    assert_eq!(worker["env"]["TF_NUM_INTRAOP_THREADS"], "4");
    assert_eq!(
        (&web["role"], &web["qos"]),
        (&"other".into(), &"BestEffort".into())
    );
    assert_eq!(web["entitlement"]["kind"], "shared");
    assert_eq!(web["entitlement"].get("cpus"), None);
    let shared: pinfold::cpu::CpuSet = web["cpus"].as_str().unwrap().parse().unwrap();
    assert!(shared.is_disjoint(&cpus));
    assert_eq!(plan["shared"], web["cpus"]);
}

/// Pods of 4 CPUs that train, with more annotations.
fn workers(count: usize, cpus: usize, annotations: &str) -> String {
    let worker = |number: usize| {
        format!(
            "apiVersion: v1
kind: Pod
metadata:
  name: worker-{number}
  namespace: train
  annotations: {{pinfold.io/cpus: exclusive{annotations}}}
spec:
  containers:
  - name: main
    image: tf
    resources: {{limits: {{cpu: {cpus}, memory: 1Gi}}}}
"
        )
    };
    (0..count).map(worker).collect::<Vec<_>>().join("---\n")
}

/// The trap of a new user: ten pods of 4 CPUs fit 40 CPUs by count, and one core is reserved.
#[test]
fn a_plan_fails_if_an_entitled_container_gets_too_little() {
    let machine = machine::unpack("40intel64-2g2n4c+pci");
    let root = text(machine.path());
    let (_folder, ten) = file("ten.yaml", &workers(10, 4, ""));
    let plan = ["plan", "--pods", &ten, "--root-dir", root];
    let (code, out, error) = run(&plan);
    assert_eq!((code, error.as_str()), (Some(1), ""), "{out}");
    let last = out.lines().last().unwrap();
    assert_eq!(
        last,
        "too few CPUs: container main of train/worker-9 is entitled to 4 CPUs and stays in the shared pool: 4 CPUs would leave 0 to \
         everybody else, and at least 2 must stay shared (sharedMinimum is 5%); a container of 2 CPUs would fit"
    );
    assert!(
        out.contains("are unknown here and should be less than 39"),
        "{out}"
    );
    let (code, out, _) = run(&[&plan[..], &["-o", "json"]].concat());
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(1));
    assert_eq!(answer["tooFew"].as_array().unwrap().len(), 1, "{answer:#}");
    assert_eq!(answer["tooFew"][0]["pod"], "worker-9");
    assert_eq!(answer["capacity"]["assignable"], 38);
    assert_eq!(answer["finding"]["promisesTooMuch"], Value::Null);
    // Nine fit, although the scheduler's number is a warning.
    let (_folder, nine) = file("nine.yaml", &workers(9, 4, ""));
    let plan = ["plan", "--pods", &nine, "--root-dir", root, "--allocatable"];
    let (code, out, _) = run(&[&plan[..], &["40"]].concat());
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("→ let the kubelet reserve 2 CPUs instead of 0: either systemReserved: {cpu: \"1500m\"}, with"),
        "{out}"
    );
    let (code, out, _) = run(&[&plan[..], &["38"]].concat());
    assert!(code == Some(0) && !out.contains('→'), "{out}");
    let (code, _, error) = run(&[&plan[..], &["many"]].concat());
    assert!(
        code == Some(2) && error.contains("--allocatable") && error.contains("like 40 or 39500m"),
        "{error}"
    );
    // Ten pods are more than the scheduler counts, so it would keep one back.
    let plan = ["plan", "--pods", &ten, "--root-dir", root, "--allocatable"];
    let (code, out, _) = run(&[&plan[..], &["38"]].concat());
    assert!(
        code == Some(1) && out.contains("note: these pods together are entitled to 40 CPUs, more"),
        "{out}"
    );
    let (_, out, _) = run(&[&plan[..], &["40"]].concat());
    assert!(!out.contains("note: "), "{out}");
}

/// The runtime refuses these, so no such pod would run.
#[test]
fn a_plan_fails_if_a_pod_would_be_refused() {
    let machine = machine::unpack("40intel64-2g2n4c+pci");
    let root = text(machine.path());
    let planned = |cpus: &str, limit: &str| {
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{pinfold.io/cpus: {cpus}}}}}\nspec:\n  containers:\n  \
             - name: main\n    image: i\n    resources: {{limits: {{cpu: {limit}}}}}\n"
        );
        let (_folder, pods) = file("pods.yaml", &pod);
        let (code, out, error) = run(&["plan", "--pods", &pods, "--root-dir", root]);
        assert_eq!(error, "");
        (code, out)
    };
    // Without a memory limit, the pod is Burstable.
    let (code, out) = planned("required", "2");
    let line = "too few CPUs: container main of default/a would be refused: the pod is annotated pinfold.io/cpus=required";
    assert!(
        code == Some(1) && out.contains(line) && out.contains("not Guaranteed"),
        "{out}"
    );
    for (cpus, limit) in [("exclusive", "2"), ("required", "2, memory: 1Gi")] {
        assert_eq!(planned(cpus, limit).0, Some(0), "{cpus} {limit}");
    }
    // All are entitled, and the last finds no room.
    let (_folder, ten) = file(
        "ten.yaml",
        &workers(10, 4, "").replace("cpus: exclusive", "cpus: required"),
    );
    let (code, out, _) = run(&["plan", "--pods", &ten, "--root-dir", root]);
    assert!(
        code == Some(1)
            && out.contains("worker-9 is entitled to 4 CPUs and would be refused: ")
            && !out.contains("and stays in the shared pool"),
        "{out}"
    );
    // Nobody in the pod is entitled.
    let (code, out) = planned("required", "1500m, memory: 1Gi");
    assert!(code == Some(1) && out.contains("would be refused"), "{out}");
}

/// The kubelet gives these 39 CPUs, although Pinfold would keep two shared.
#[test]
fn a_plan_counts_nothing_where_the_kubelet_chooses() {
    let machine = machine::unpack("40intel64-2g2n4c+pci");
    configure_kubelet(
        &machine,
        "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"",
    );
    let pods = workers(9, 4, "") + "---\n" + &workers(1, 3, "").replace("worker-0", "last");
    let (_folder, pods) = file("pods.yaml", &pods);
    let root = text_of(&machine);
    let plan = ["plan", "--pods", &pods, "--root-dir", root];
    let (code, out, error) = run(&plan);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
    assert!(
        out.contains("note: the kubelet chooses")
            && !out.contains("capacity:")
            && !out.contains("too few CPUs:"),
        "{out}"
    );
    let answer = json(&[&plan[..], &["-o", "json"]].concat());
    for key in ["capacity", "finding"] {
        assert_eq!(answer[key], Value::Null, "{answer:#}");
    }
    let (_folder, pinfold) = file("config.yaml", "placement: {source: pinfold}\n");
    let (code, out, _) = run(&[&plan[..], &["--config", &pinfold]].concat());
    assert!(code == Some(1) && out.contains("capacity:"), "{out}");
}

/// The machine's kubelet tells what it reserves, in the file of kubeadm.
#[test]
fn a_plan_reads_the_configuration_of_the_machines_kubelet() {
    let machine = machine::unpack("fakecpuid1f-64intel64-2p4d2n2c2t");
    let (_folder, pods) = file("pods.yaml", &workers(1, 4, ""));
    let planned = |keys: &str| {
        configure_kubelet(&machine, keys);
        json(&[
            "plan",
            "--pods",
            &pods,
            "--root-dir",
            text_of(&machine),
            "-o",
            "json",
        ])
    };
    let found = planned("systemReserved: {cpu: 500m}");
    assert_eq!(found["finding"]["kubeletReserve"], 3, "{found:#}");
    let found = planned("reservedSystemCPUs: 0-1\nsystemReserved: {cpu: \"9\"}");
    let remedy = found["finding"]["remedy"].as_str().unwrap();
    assert!(
        remedy.contains("3 CPUs instead of 2: reservedSystemCPUs: \"0-3\""),
        "{remedy}"
    );
    let found = planned("reservedSystemCPUs: 0-3");
    assert_eq!(found["finding"]["promisesTooMuch"], false, "{found:#}");
    assert_eq!(found["note"], Value::Null, "{found:#}");
    // Pinfold can't know the CPUs that the kubelet would choose, and says so.
    let found = planned("cpuManagerPolicy: static\nreservedSystemCPUs: 0-3");
    let note = found["note"].as_str().unwrap();
    assert!(
        note.contains("config.yaml has cpuManagerPolicy static"),
        "{note}"
    );
}

/// Writes the configuration file of a machine's kubelet, at the path that kubeadm uses.
fn configure_kubelet(machine: &TempDir, keys: &str) {
    let folder = machine.path().join("var/lib/kubelet");
    fs::create_dir_all(&folder).unwrap();
    let text = format!("kind: KubeletConfiguration\n{keys}\n");
    fs::write(folder.join("config.yaml"), text).unwrap();
}

fn text_of(folder: &TempDir) -> &str {
    text(folder.path())
}

/// 31 pods on as many cores would leave two CPUs to everybody else.
#[test]
fn idle_siblings_leave_the_shared_minimum() {
    let machine = machine::unpack("fakecpuid1f-64intel64-2p4d2n2c2t");
    let root = text(machine.path());
    let (_folder, pods) = file("pods.yaml", &workers(31, 1, ", pinfold.io/cores: single"));
    let planned = |more: &[&str]| {
        let plan = ["plan", "--pods", &pods, "--root-dir", root, "-o", "json"];
        let (code, out, error) = run(&[&plan[..], more].concat());
        assert_eq!(error, "");
        let answer: Value = serde_json::from_str(&out).unwrap();
        let shared: pinfold::cpu::CpuSet = answer["shared"].as_str().unwrap().parse().unwrap();
        let too_few = answer["tooFew"].as_array().unwrap().clone();
        (code, shared.len(), too_few)
    };
    assert_eq!(planned(&["--shared-minimum", "0"]), (Some(0), 2, vec![]));
    let (code, shared, too_few) = planned(&[]);
    assert_eq!((code, shared, too_few.len()), (Some(1), 4, 1));
    let (_, shared, too_few) = planned(&["--shared-minimum", "25%"]);
    assert_eq!((shared, too_few.len()), (16, 7));
    let why = too_few[0]["why"].as_str().unwrap();
    assert!(
        why.contains("1 CPU and an idle sibling would leave 14"),
        "{why}"
    );
    let (_folder, forbidding) = file("config.yaml", "policy: {singleCores: false}\n");
    let (code, shared, too_few) = planned(&["--config", &forbidding]);
    assert_eq!((code, shared, too_few.len()), (Some(1), 64, 31));
    let why = too_few[0]["why"].as_str().unwrap();
    assert!(why.contains("policy.singleCores is false"), "{why}");
}

/// The CPUs of each process, with the variables, and the thread counts of the command line.
#[test]
fn explain_divides_the_cpus_among_processes() {
    let machine = machine::unpack(MACHINE);
    let root = text(machine.path());
    let job = |command: &str, cpus: u32| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: ddp, annotations: {{pinfold.io/cpus: exclusive}}}}\nspec:\n  \
             containers:\n  - name: main\n    image: i\n    command: [sh, -c, {command:?}]\n    resources: \
             {{limits: {{cpu: {cpus}, memory: 1Gi}}}}\n"
        )
    };
    let explained = |command: &str, cpus: u32| {
        let (_folder, pods) = file("pods.yaml", &job(command, cpus));
        let (code, out, error) = run(&["explain", "ddp", "--pods", &pods, "--root-dir", root]);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
        out
    };
    let out = explained("OMP_NUM_THREADS=4 torchrun --nproc_per_node=2 t.py", 4);
    let after = |out: &str, begin: &str| {
        let line = out
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(begin));
        line.map(str::to_owned)
    };
    let own = "set by the command, which is stronger than the variables: ";
    assert_eq!(
        after(&out, own).as_deref(),
        Some("OMP_NUM_THREADS=4 (more than 2 CPUs)"),
        "{out}"
    );
    let heading = "2 processes (--nproc_per_node=2): each has CPUs of its own";
    assert_eq!(after(&out, "ranks    ").as_deref(), Some(heading), "{out}");
    let slices = after(&out, "PINFOLD_RANK_CPUS=").unwrap();
    let slices: Vec<pinfold::cpu::CpuSet> = slices
        .split(';')
        .map(|slice| slice.parse().unwrap())
        .collect();
    let workers = after(&out, "CCL_WORKER_AFFINITY=").unwrap();
    let workers: Vec<u32> = workers.split(',').map(|cpu| cpu.parse().unwrap()).collect();
    assert_eq!((slices.len(), workers.len()), (2, 2), "{out}");
    for (slice, worker) in slices.iter().zip(workers) {
        assert!(slice.len() == 2 && slice.contains(worker), "{out}");
    }
    let out = explained("mpirun -np 2 ./t", 4);
    assert!(
        out.contains("I_MPI_PIN_DOMAIN=[0x") && !out.contains("CCL_WORKER"),
        "{out}"
    );
    let out = explained("python t.py", 4);
    assert!(!out.contains("ranks") && !out.contains(own), "{out}");
}

#[test]
fn explain_knows_its_pods() {
    let machine = machine::unpack(MACHINE);
    let (_folder, pods) = file("pods.yaml", PODS);
    let root = text(machine.path());
    let (code, out, error) = run(&[
        "explain",
        "train/worker-0",
        "--pods",
        &pods,
        "--root-dir",
        root,
    ]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(
        out.contains("Role worker") && out.contains("TF_NUM_INTRAOP_THREADS=4"),
        "{out}"
    );
    let (code, out, error) = run(&["explain", "worker-9", "--pods", &pods, "--root-dir", root]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(
        error,
        "pinfold: no pod worker-9 in these manifests; the pods are: train/worker-0, shop/web\n"
    );
    let twins = PODS.replace("name: web,", "name: worker-0,");
    let (_folder, pods) = file("pods.yaml", &twins);
    let (code, _, error) = run(&["explain", "worker-0", "--pods", &pods, "--root-dir", root]);
    assert!(
        code == Some(2) && error.contains("NAMESPACE/NAME"),
        "{error}"
    );
    // Without manifests, the command asks the agent; no server listens on this port.
    let (code, out, error) = run(&["explain", "worker-0", "--agent", "127.0.0.1:1"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(
        error.contains("http://127.0.0.1:1/status") && error.contains("pinfold run"),
        "{error}"
    );
    let (code, _, error) = run(&["explain", "worker-0", "--live"]);
    assert!(code == Some(2) && error.contains("--pods"), "{error}");
}

/// Annotations, limits and variables without effect are named, whatever else the pod gets.
#[test]
fn explain_tells_what_has_no_effect() {
    let machine = machine::unpack(MACHINE);
    let explain = |pods: &str| {
        let (_folder, pods) = file("pods.yaml", pods);
        let root = text(machine.path());
        let (code, out, error) = run(&["explain", "worker-0", "--pods", &pods, "--root-dir", root]);
        assert_eq!((code, error.as_str()), (Some(0), ""));
        out
    };
    let pods = PODS.replace(
        "  labels: {training",
        "  annotations: {pinfold.io/cores: three, pinfold.io/numa: tight}\n  labels: {training",
    );
    let out = explain(&pods);
    assert!(
        out.contains("exclusive: ") && out.contains("OMP_NUM_THREADS=4"),
        "{out}"
    );
    for annotation in [
        "pinfold.io/cores=\"three\" is ignored",
        "pinfold.io/numa=\"tight\" is ignored",
    ] {
        assert!(out.contains(annotation), "{out}");
    }

    let sessions = PODS.replace("image: tf", "command: [/usr/sbin/sshd, -De]");
    let out = explain(&sessions);
    assert!(
        out.contains("is unknown (sshd starts what a launcher elsewhere asks for)")
            && !out.contains("_THREADS="),
        "{out}"
    );
    let annotated = "  annotations: {pinfold.io/processes: '1'}\n  labels: {training";
    let out = explain(&sessions.replace("  labels: {training", annotated));
    assert!(
        out.contains("OMP_NUM_THREADS=4") && out.contains("mpirun -x NAME=VALUE"),
        "{out}"
    );

    let out = explain(&PODS.replace(
        "image: tf",
        "command: [mpirun, -np, '2', python, t.py, -n, '2000']",
    ));
    assert!(
        out.contains("shared by 2 processes (mpirun -np 2)") && out.contains("OMP_NUM_THREADS=2"),
        "{out}"
    );
    let out = explain(&PODS.replace("image: tf", "command: [deepspeed, t.py]"));
    assert!(
        out.contains("annotate the pod with pinfold.io/processes") && !out.contains("_THREADS="),
        "{out}"
    );

    let out = explain(&PODS.replace("cpu: 4", "cpu: '1e400'"));
    assert!(
        out.contains("more than the 8192 CPUs that Linux can have")
            && !out.contains("922337203685477"),
        "{out}"
    );

    let broken = PODS
        .replace("  labels: {training.kubeflow.org/job-name: job, training.kubeflow.org/replica-type: worker}\n", "")
        .replace("image: tf", "env: [{name: TF_CONFIG, value: '{task:'}]");
    let out = explain(&broken);
    assert!(
        out.contains("a TF_CONFIG in container main that is no valid JSON"),
        "{out}"
    );
    assert!(!out.contains("no TF_CONFIG"), "{out}");
}

#[test]
fn mistakes_are_named() {
    let machine = machine::unpack(MACHINE);
    let root = text(machine.path());
    let (_one, good) = file("pods.yaml", PODS);
    let (_two, broken) = file("broken.yaml", "kind: Pod\nmetadata: [\n");
    let (_three, deployment) = file("deployment.yaml", "apiVersion: apps/v1\nkind: Deployment\n");
    let (_four, unknown_key) = file("pinfold.yaml", "reconcileSecond: 3\n");
    let (_five, wrong_value) = file("pinfold.yaml", "reserved: 3-1\n");
    let (_six, no_utf8) = file("x.yaml", "");
    fs::write(&no_utf8, b"kind: \xff\xfe").unwrap();
    let cases: [(&[&str], &[&str]); 20] = [
        (
            &["place", "2", "--root-dir", root, "--free", "3-1"],
            &["--free", "3-1"],
        ),
        (
            &["place", "2", "--root-dir", root, "--free", "0,x"],
            &["--free", "x"],
        ),
        (&["place", "many", "--root-dir", root], &["many"]),
        (&["place", "2", "--root-dir", "/nowhere"], &["/nowhere"]),
        (&["topology", "--root-dir", "/nowhere"], &["/nowhere"]),
        (
            &["plan", "--pods", &good, "--root-dir", "/nowhere"],
            &["/nowhere"],
        ),
        (
            &["plan", "--pods", "/nowhere.yaml", "--root-dir", root],
            &["/nowhere.yaml", "No such file"],
        ),
        (
            &["plan", "--pods", &broken, "--root-dir", root],
            &["broken.yaml", "document 1"],
        ),
        (
            &["plan", "--pods", &deployment, "--root-dir", root],
            &["deployment.yaml", "Deployment"],
        ),
        (
            &["plan", "--pods", &no_utf8, "--root-dir", root],
            &["x.yaml", "save it as UTF-8"],
        ),
        (
            &[
                "plan",
                "--pods",
                &good,
                "--root-dir",
                root,
                "--reserved",
                "4000",
            ],
            &["reserved", "4000"],
        ),
        (&["plan", "--root-dir", root], &["--pods"]),
        (&["config", "--config", "/nowhere.yaml"], &["/nowhere.yaml"]),
        (
            &["config", "--config", &unknown_key],
            &["pinfold.yaml", "reconcileSecond"],
        ),
        (
            &["config", "--config", &wrong_value],
            &["pinfold.yaml", "3-1"],
        ),
        (&["config", "--reserved", "3-1"], &["--reserved", "3-1"]),
        (&["config", "--pod-cgroup", "../x"], &["../x"]),
        (&["config", "--colour"], &["--colour"]),
        (&["config", "-o", "xml"], &["xml", "json"]),
        (&["sing"], &["sing"]),
    ];
    for (args, named) in cases {
        let (code, out, error) = run(args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {error}");
        for name in named {
            assert!(
                error.contains(name),
                "{args:?} doesn't name {name}: {error}"
            );
        }
        assert!(
            !error.contains("panicked") && !error.contains("Error {"),
            "{args:?}: {error}"
        );
    }
}

/// A command line with `--cluster` and a contradicting or useless option is refused, and the message names the option.
#[cfg(feature = "portforward")]
#[test]
fn mistakes_about_a_cluster_are_named() {
    let (_folder, pods) = file("pods.yaml", PODS);
    let cases: [(&[&str], &str); 11] = [
        (&["status", "--context", "a"], "--context"),
        (&["doctor", "--context", "a"], "--context"),
        (&["status", "--token-file", "/nowhere"], "--node"),
        (&["top", "--once", "--token-file", "/nowhere"], "--node"),
        (&["top", "--once", "--cluster", "--node", "a"], "--cluster"),
        (&["status", "--cluster", "--node", "a"], "--cluster"),
        (
            &["explain", "web", "--pods", &pods, "--cluster"],
            "--cluster",
        ),
        (
            &["explain", "web", "--pods", &pods, "-n", "shop"],
            "--namespace",
        ),
        (&["explain", "web", "-n", "a/b"], "lower-case letters"),
        (
            &["doctor", "--cluster", "--agent-namespace", ".."],
            "lower-case letters",
        ),
        (
            &["status", "--cluster", "--kubeconfig", "/nowhere"],
            "/nowhere",
        ),
    ];
    for (args, named) in cases {
        let (code, out, error) = run(args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {error}");
        assert!(error.contains(named), "{args:?}: {error}");
    }
}

/// A failed connection is told with the server, then the cause, then the remedy.
#[cfg(feature = "portforward")]
#[test]
fn a_connection_that_fails_is_told_in_words() {
    let kubeconfig = |server: &str, more: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {{server: '{server}'{more}}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
        )
    };
    let closing = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}", closing.local_addr().unwrap());
    std::thread::spawn(move || closing.incoming().for_each(drop));
    for (text, words) in [
        (
            kubeconfig("https://127.0.0.1:1", ""),
            "can't list the agents' pods at https://127.0.0.1:1/: the API server can't be reached: the connection was refused, \
             so no server listens there; check that the API server runs there, and that this machine reaches it\n",
        ),
        (
            kubeconfig("https://no-such-host.invalid", ""),
            "the API server can't be reached: the host's name can't be resolved; check",
        ),
        (
            kubeconfig(&closed, ""),
            "the API server can't be reached: the ",
        ),
        (
            kubeconfig("https://a", ", certificate-authority: /nowhere.pem"),
            "named by --kubeconfig: certificate-authority can't be loaded: /nowhere.pem: No such file",
        ),
        (
            kubeconfig("no url", ""),
            "named by --kubeconfig: the cluster's server is no URL: write it like https://10.0.0.1:6443\n",
        ),
        (
            "kind: Config\ncurrent-context: away\n".to_owned(),
            "named by --kubeconfig: it has no context away\n",
        ),
        (
            "kind: Config\nclusters: 5\n".to_owned(),
            "named by --kubeconfig: line 2: write a list here, like [a, b]\n",
        ),
    ] {
        let (_folder, path) = file("kubeconfig", &text);
        let (code, out, error) = run(&["status", "--cluster", "--kubeconfig", &path]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(words), "{error}");
        has_no_library_words(&error);
    }
}

#[cfg(feature = "portforward")]
#[test]
fn a_status_without_an_agent_says_what_to_do() {
    let (code, out, _) = run(&["status", "--node", "127.0.0.1:1"]);
    assert_eq!(code, Some(1));
    assert!(
        out.contains("127.0.0.1:1: no response: the connection was refused"),
        "{out}"
    );
    assert!(
        out.ends_with("\ncheck the address, and that the agent (pinfold run) runs there\n"),
        "{out}"
    );
    if TcpListener::bind("127.0.0.1:9470").is_err() {
        return writeln!(
            std::io::stderr(),
            "an agent runs here, so the rest is left out"
        )
        .unwrap();
    }
    let (code, out, _) = run(&["status"]);
    let remedy = "\nstart the agent (pinfold run), name another with --node, or ask those of the cluster with --cluster\n";
    assert!(code == Some(1) && out.ends_with(remedy), "{out}");
}

#[test]
fn mistakes_in_the_environment_are_named() {
    for (name, value) in [
        ("PINFOLD_RESERVED", "3-1"),
        ("PINFOLD_RECONCILE_INTERVAL", "0s"),
        ("PINFOLD_RECONCILE_INTERVAL", "soon"),
        ("PINFOLD_LISTEN", "everywhere"),
        ("PINFOLD_ENFORCEMENT", "maybe"),
        ("PINFOLD_POD_CGROUPS", "a/../b"),
        ("PINFOLD_CONFIG", "/nowhere.yaml"),
        ("PINFOLD_TREES", "PINFOLD_POD_CGROUPS"),
        ("PINFOLD_LOG", "PINFOLD_LOG_LEVEL"),
        ("PINFOLD_LOG_LEVEL", "inof"),
    ] {
        let (code, out, error) = finish(pinfold().arg("config").env(name, value));
        assert_eq!(
            (code, out.as_str()),
            (Some(2), ""),
            "{name}={value}: {error}"
        );
        assert!(error.contains(value), "{name}={value}: {error}");
    }
}

/// Words of libraries about their types, parsers and layers, which help nobody to correct anything.
const LIBRARY_WORDS: [&str; 22] = [
    "invalid digit",
    "target type",
    "socket address syntax",
    "float literal",
    "..=",
    "scalar",
    "sequence",
    "mapping",
    "invalid type",
    "unknown field",
    "unknown variant",
    "friendly",
    "designator",
    "u64",
    "u32",
    "<input>",
    "\\n",
    "client error",
    "connect error",
    "dns error",
    "os error 111",
    "peer certificate",
];

fn has_no_library_words(error: &str) {
    for word in LIBRARY_WORDS {
        assert!(!error.contains(word), "{word:?} in {error}");
    }
}

#[test]
fn a_mistake_in_the_configuration_file_has_a_line_a_cause_and_a_remedy() {
    for (text, ends) in [
        (
            "cgroupDir: /x\nreservd: 0\n",
            "is invalid: line 2 (reservd: 0): the key reservd is unknown: did you mean reserved?\n",
        ),
        (
            "metrics:\n  socket: true\n",
            "line 2 (socket: true): the key socket is unknown: did you mean sockets?\n",
        ),
        (
            "cluster: {colour: red}\n",
            "line 1 (cluster: {colour: red}): the key colour is unknown: remove it, or write one of api, kubeconfig, nodeName, \
             namespace, scenes\n",
        ),
        (
            "reconcileInterval: 10\n",
            "line 1 (reconcileInterval: 10): write a duration with a unit, like 30s, 500ms or 5m\n",
        ),
        (
            "podCgroups: kubepods\n",
            "line 1 (podCgroups: kubepods): write a list here, like [a, b]\n",
        ),
        (
            "reserved: [0, 1]\n",
            "line 1 (reserved: [0, 1]): write a single value here, not a list or a map\n",
        ),
        (
            "metrics: 5\n",
            "line 1 (metrics: 5): write keys with values here, like {key: value}\n",
        ),
        (
            "metrics: {maxPeers: x}\n",
            "line 1 (metrics: {maxPeers: x}): write a whole number, 0 or more\n",
        ),
        (
            "runtime: {index: 300}\n",
            "line 1 (runtime: {index: 300}): write a whole number from 0 to 255\n",
        ),
        (
            "listen: localhost:9470\n",
            "line 1 (listen: localhost:9470): write an IP address and a port, like 127.0.0.1:9470, 0.0.0.0:9470 or [::]:9470\n",
        ),
        (
            "enforcement: partitions\n",
            "line 1 (enforcement: partitions): partitions is unknown: did you mean partition?\n",
        ),
        (
            "enforcement: hard\n",
            "line 1 (enforcement: hard): hard is unknown: write auto, partition, cpuset or observe\n",
        ),
        (
            "enforcement: [auto]\n",
            "line 1 (enforcement: [auto]): write a single word here\n",
        ),
        (
            "rootDir: \"/a\n",
            "is invalid: line 2: a quote is not closed\n",
        ),
        (
            "log: {level: info\n",
            "line 1 (log: {level: info): unclosed bracket '{'\n",
        ),
        (
            "reserved: '0'\nreserved: '1'\n",
            "line 2 (reserved: '1'): the key reserved stands here twice: remove one of them\n",
        ),
    ] {
        let (_folder, path) = file("pinfold.yaml", text);
        let (code, out, error) = run(&["config", "--config", &path]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{text}: {error}");
        assert!(error.ends_with(ends), "{text}: {error}");
        has_no_library_words(&error);
    }
}

#[test]
fn a_mistake_in_a_manifest_has_no_words_of_a_parser() {
    let machine = machine::unpack(MACHINE);
    for (name, text, named) in [
        (
            "a.yaml",
            PODS.replace("cpu: 4", "cpu: [4]"),
            "line 11, can't be read: a list stands here: write an amount",
        ),
        (
            "a.yaml",
            PODS.replace("name: worker-0", "name: 7"),
            "line 4, can't be read: 7 is not a text without quotes: write \"7\"",
        ),
        (
            "a.yaml",
            "- a\n- b\n".to_owned(),
            "line 1, can't be read: write keys with values here",
        ),
        (
            "a.json",
            r#"{"kind": "Pod", "metadata": {"name": 7}}"#.to_owned(),
            "line 1, can't be read: the number 7 stands here: write a text",
        ),
        (
            "a.json",
            r#"{"kind": "Pod","#.to_owned(),
            "the text ends too early",
        ),
    ] {
        let (_folder, path) = file(name, &text);
        let (code, _, error) = run(&[
            "plan",
            "--pods",
            &path,
            "--root-dir",
            self::text(machine.path()),
        ]);
        assert!(code == Some(2) && error.contains(named), "{text}: {error}");
        has_no_library_words(&error);
    }
    let (_folder, path) = file("a.yaml", "");
    fs::write(&path, b"kind: \xff").unwrap();
    let (_, _, error) = run(&["plan", "--pods", &path]);
    assert!(error.ends_with("it is not text in UTF-8\n"), "{error}");
}

/// Gives each option a wrong value, and returns the errors about values.
fn value_errors(command: &clap::Command, path: &[&str], errors: &mut Vec<String>) {
    for argument in command.get_arguments() {
        for wrong in ["?", "-1", "1.5", "99999999999999999999999"] {
            let mut line: Vec<String> = path.iter().map(|&word| word.to_owned()).collect();
            match argument.get_long() {
                Some(long) if argument.get_action().takes_values() => {
                    line.push(format!("--{long}={wrong}"));
                }
                None if argument.is_positional() => line.push(wrong.to_owned()),
                _ => continue,
            }
            let parsed = pinfold::cli::command().try_get_matches_from(&line);
            let error = parsed.err();
            let of_value = |kind| {
                matches!(
                    kind,
                    clap::error::ErrorKind::ValueValidation | clap::error::ErrorKind::InvalidValue
                )
            };
            errors.extend(
                error
                    .filter(|error| of_value(error.kind()))
                    .map(|error| error.to_string()),
            );
        }
    }
    for subcommand in command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        let mut path = path.to_vec();
        path.push(subcommand.get_name());
        value_errors(subcommand, &path, errors);
    }
}

#[test]
fn an_error_about_an_option_says_what_to_write() {
    let mut errors = Vec::new();
    value_errors(&pinfold::cli::command(), &["pinfold"], &mut errors);
    assert!(errors.len() > 200, "{}", errors.len());
    for error in errors {
        has_no_library_words(&error);
        assert!(
            ["write ", "possible values:", "not a regular", "larger than"]
                .iter()
                .any(|remedy| error.contains(remedy)),
            "{error}"
        );
    }
}

#[test]
fn an_error_names_the_variable_that_holds_a_wrong_value() {
    let (_folder, folder) = file("a", "");
    for (name, value, begins) in [
        (
            "PINFOLD_RECONCILE_INTERVAL",
            "soon",
            "error: invalid value 'soon' for 'PINFOLD_RECONCILE_INTERVAL': write a duration",
        ),
        (
            "PINFOLD_LISTEN",
            "x",
            "error: invalid value 'x' for 'PINFOLD_LISTEN': write an IP address",
        ),
        (
            "PINFOLD_RECONCILE_INTERVAL",
            "0s",
            "pinfold: reconcileInterval is 0s: use 1s to 1h (PINFOLD_RECONCILE_INTERVAL=0s is",
        ),
        (
            "PINFOLD_CONFIG",
            "/nowhere.yaml",
            "pinfold: can't read the configuration file /nowhere.yaml: No such file",
        ),
        ("PINFOLD_CONFIG", folder.as_str(), ""),
    ] {
        let (code, _, error) = finish(pinfold().arg("config").env(name, value));
        if begins.is_empty() {
            assert_eq!((code, error.as_str()), (Some(0), ""));
            continue;
        }
        assert!(code == Some(2) && error.starts_with(begins), "{error}");
        assert!(error.contains(name), "{error}");
    }
    // The option on the command line wins, and is named.
    let mut command = pinfold();
    command
        .args(["config", "--listen", "y"])
        .env("PINFOLD_LISTEN", "x");
    let (_, _, error) = finish(&mut command);
    assert!(
        error.starts_with("error: invalid value 'y' for '--listen <ADDRESS>'"),
        "{error}"
    );
}

#[test]
fn a_variable_that_no_option_has_is_a_warning() {
    let mut command = pinfold();
    command.args(["config", "-o", "json"]);
    command
        .env("PINFOLD_RESERVE", "0")
        .env("PINFOLD_KERNEL_TESTS", "1");
    command.env("PINFOLD_PORT_9470_TCP_ADDR", "10.0.0.1");
    let (code, out, error) = finish(&mut command);
    assert_eq!(code, Some(0));
    assert!(serde_json::from_str::<Value>(&out).is_ok(), "{out}");
    assert_eq!(
        error,
        "pinfold: warning: the environment variable PINFOLD_RESERVE has no effect: did you mean PINFOLD_RESERVED?\n"
    );
    let mut command = pinfold();
    command
        .args(["completions", "bash"])
        .env("PINFOLD_RESERVE", "0");
    assert_eq!(finish(&mut command).2, "");
}

/// No variable that this repository reads causes a warning.
#[test]
fn the_variables_of_builds_and_tests_are_known() {
    let mut known: Vec<String> = Vec::new();
    let mut folders = vec![machine::repository::here("")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let is_source = !name.starts_with('.')
                    && !matches!(&*name, "target" | "data" | "corpus" | "artifacts");
                folders.extend(is_source.then_some(path));
                continue;
            }
            // The names in the tests of this rule, and in the list of renamed ones, are wrong on purpose.
            if matches!(&*name, "environment.rs" | "command.rs" | "renamed_keys.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            known.extend(text.match_indices("PINFOLD_").map(|(at, _)| {
                let is_part = |letter: &char| {
                    letter.is_ascii_uppercase() || letter.is_ascii_digit() || *letter == '_'
                };
                text[at..].chars().take_while(is_part).collect()
            }));
        }
    }
    known.sort_unstable();
    known.dedup();
    known.retain(|name| !name.ends_with('_'));
    assert!(known.len() > 60, "{known:?}");
    let mut command = pinfold();
    command.args(["place", "1", "--root-dir", "/nowhere"]);
    // This command has no option with a variable, so their values don't matter.
    for name in known {
        command.env(name, "");
    }
    let (_, _, error) = finish(&mut command);
    assert!(!error.contains("warning"), "{error}");
}

#[test]
fn yaml_holds_the_same_as_json() {
    let machine = machine::unpack(MACHINE);
    let root = text(machine.path());
    let (_folder, pods) = file("pods.yaml", PODS);
    for args in [
        &["config"][..],
        &["version"],
        &["topology", "--root-dir", root],
        &["place", "3", "--root-dir", root],
        &["plan", "--pods", &pods, "--root-dir", root],
        &["explain", "web", "--pods", &pods, "--root-dir", root],
    ] {
        let (code, yaml, error) = run(&[args, &["-o", "yaml"]].concat());
        assert_eq!((code, error.as_str()), (Some(0), ""), "{args:?}");
        let from_yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(
            from_yaml,
            json(&[args, &["-o", "json"]].concat()),
            "{args:?}"
        );
    }
}

#[test]
fn the_manual_page_of_a_command_is_printed_or_written() {
    let (code, page, error) = run(&["man", "scene", "render"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(
        page.contains(".TH pinfold-scene-render 1") && page.contains(".SH NOTES"),
        "{page}"
    );
    let (code, _, error) = run(&["man", "scene", "rendr"]);
    assert!(
        code == Some(2)
            && error.contains("pinfold-scene has no command rendr: its commands are check, labels"),
        "{error}"
    );
    let folder = TempDir::new().unwrap();
    let (code, out, _) = run(&["man", "--dir", text(folder.path())]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
    assert!(folder.path().join("pinfold-plan.1").is_file());
}

/// A folder that resembles cgroup v2 with cpuset, and a machine, so that an agent can start on them
/// without any rights.
fn node() -> (TempDir, [String; 4]) {
    let machine = machine::unpack(MACHINE);
    let cgroups = machine.path().join("cgroup");
    fs::create_dir(&cgroups).unwrap();
    fs::write(cgroups.join("cgroup.controllers"), "cpuset cpu\n").unwrap();
    fs::write(cgroups.join("cgroup.subtree_control"), "cpuset cpu\n").unwrap();
    let args = [
        "--root-dir",
        text(machine.path()),
        "--cgroup-dir",
        text(&cgroups),
    ]
    .map(str::to_owned);
    (machine, args)
}

#[test]
fn run_says_why_it_cannot() {
    let (machine, args) = node();
    let start = |more: &[&str]| finish(pinfold().arg("run").args(&args).args(more));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (_folder, file) = file(
        "kubeconfig",
        "apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n",
    );
    let pods = text(machine.path());
    let (code, _, error) = start(&["--listen", &address, "--manifest-dir", pods]);
    assert!(
        code == Some(2) && error.contains(&address) && error.contains("--listen"),
        "{error}"
    );
    let (code, _, error) = start(&["--listen", "127.0.0.1:0", "--manifest-dir", "/nowhere"]);
    assert!(
        code == Some(2) && error.contains("/nowhere") && error.contains("--manifest-dir"),
        "{error}"
    );
    let (code, _, error) = start(&["--reserved", "4000", "--manifest-dir", pods]);
    assert!(code == Some(2) && error.contains("4000"), "{error}");
    let nothing = text(machine.path()).to_owned() + "/sys";
    let (code, _, error) = finish(pinfold().args([
        "run",
        "--cgroup-dir",
        &nothing,
        "--listen",
        "127.0.0.1:0",
        "--manifest-dir",
        pods,
    ]));
    assert!(
        code == Some(2) && error.contains(&nothing) && error.contains("--cgroup-dir"),
        "{error}"
    );

    // The kubeconfig, or a missing kubeconfig.
    let cases: [(&[&str], &[&str]); 8] = [
        (
            &[],
            &["--manifest-dir", "--kubeconfig", "KUBERNETES_SERVICE_HOST"],
        ),
        (&["--api", "never"], &["--manifest-dir", "--api"]),
        (
            &["--api", "always", "--manifest-dir", pods],
            &["--kubeconfig", "KUBERNETES_SERVICE_HOST"],
        ),
        (&["--kubeconfig", "/nowhere"], &["/nowhere", "--kubeconfig"]),
        (
            &["--kubeconfig", &file, "--manifest-dir", pods],
            &[&file, "nowhere"],
        ),
        (&["--node-name", "Node_1"], &["Node_1", "--node-name"]),
        (&["--agent-namespace", "a/b"], &["a/b", "--agent-namespace"]),
        (&["--api", "perhaps"], &["perhaps", "always"]),
    ];
    for (args, says) in cases {
        let (code, _, error) = start(args);
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(
            says.iter().all(|word| error.contains(word)),
            "{args:?}: {error}"
        );
    }
}

#[test]
fn piped_output_is_plain() {
    let (_machine, node) = node();
    let root = node[1].as_str();
    let (_folder, pods) = file("pods.yaml", PODS);
    let doctor: Vec<&str> = ["doctor"]
        .into_iter()
        .chain(node.iter().map(String::as_str))
        .collect();
    let cases: [&[&str]; 8] = [
        &["topology", "--root-dir", root],
        &["place", "3", "--root-dir", root],
        &["plan", "--pods", &pods, "--root-dir", root],
        &["explain", "web", "--pods", &pods, "--root-dir", root],
        &["config"],
        &["--help"],
        &["plan", "--help"],
        &doctor,
    ];
    for args in cases {
        let (code, out, error) = run(args);
        assert!(matches!(code, Some(0 | 1)), "{args:?}: {error}");
        assert!(
            !out.is_empty() && !out.contains('\x1b') && !error.contains('\x1b'),
            "{args:?}: {out:?}"
        );
    }
}

#[test]
fn a_reader_that_has_seen_enough() {
    let machine = machine::unpack(MACHINE);
    let root = text(machine.path());
    let (_folder, pods) = file("pods.yaml", PODS);
    let cases: [&[&str]; 5] = [
        &["topology", "--root-dir", root],
        &["topology", "--root-dir", root, "-o", "json"],
        &["plan", "--pods", &pods, "--root-dir", root],
        &["completions", "bash"],
        &["config"],
    ];
    for args in cases {
        let mut child = pinfold()
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The reader is gone before anything is written.
        drop(child.stdout.take());
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        assert_eq!(
            (status.code(), String::from_utf8(stderr).unwrap().as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

#[test]
fn every_command_explains_itself() {
    let (code, help, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .collect();
    assert!(commands.len() >= 9, "{commands:?}");
    for command in commands {
        let (code, long, error) = run(&[command, "--help"]);
        assert_eq!((code, error.as_str()), (Some(0), ""));
        let explained = ["Example:", "Examples:", "Exit codes:"]
            .iter()
            .any(|word| long.contains(word));
        assert!(explained, "{command} --help shows no example: {long}");
        let (_, short, _) = run(&[command, "-h"]);
        assert!(short.contains("Usage: pinfold "), "{short}");
    }
}

#[test]
fn the_version_has_the_commit_and_the_features() {
    let first = format!("pinfold {}", env!("CARGO_PKG_VERSION"));
    let (code, short, _) = run(&["-V"]);
    assert_eq!((code, short), (Some(0), format!("{first}\n")));
    let (code, long, _) = run(&["--version"]);
    assert_eq!(code, Some(0));
    assert_eq!(run(&["version"]).1, long);
    let for_programs = json(&["version", "-o", "json"]);
    assert_eq!(for_programs["version"], env!("CARGO_PKG_VERSION"));
    let named = for_programs["features"].as_array().unwrap();
    assert!(named.contains(&"top".into()), "{for_programs}");
    let lines: Vec<&str> = long.lines().collect();
    let [version, commit, features] = lines[..] else {
        panic!("three lines are expected: {long}");
    };
    assert_eq!(version, first);
    let commit = commit.strip_prefix("commit: ").unwrap();
    assert!(!commit.is_empty(), "{long}");
    // Cargo.toml builds this test program only with these features.
    let features = features.strip_prefix("features: ").unwrap();
    for feature in ["bench", "demo", "top"] {
        assert!(features.split(',').any(|name| name == feature), "{long}");
    }
}

#[test]
fn completions_are_scripts() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run(&["completions", shell]);
        assert_eq!(code, Some(0));
        assert!(
            script.contains("topology") && script.contains("reserved"),
            "{shell}: {script}"
        );
        assert!(
            !script.contains("ps-hosts"),
            "what is hidden is not offered"
        );
        let check = Command::new(shell)
            .arg("-n")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut check = match check {
            Ok(check) => check,
            // A machine that builds the program has bash; the test checks the remaining shells if installed.
            Err(error) if shell != "bash" => {
                writeln!(
                    std::io::stderr(),
                    "completions_are_scripts: no {shell} here to read its script: {error}"
                )
                .unwrap();
                continue;
            }
            Err(error) => panic!("bash: {error}"),
        };
        check
            .stdin
            .take()
            .unwrap()
            .write_all(script.as_bytes())
            .unwrap();
        let Output { status, stderr, .. } = check.wait_with_output().unwrap();
        assert!(
            status.success(),
            "{shell}: {}",
            String::from_utf8_lossy(&stderr)
        );
    }
    let (code, _, error) = run(&["completions", "cmd.exe"]);
    assert!(code == Some(2) && error.contains("bash"), "{error}");
}

#[test]
fn the_output_of_config_is_a_valid_configuration() {
    let (_folder, first) = file(
        "first.yaml",
        "reserved: 0-1\npolicy:\n  selector: 'team in (ml, hpc)'\npodCgroups: [a, b/c]\n",
    );
    let (code, out, error) = run(&["config", "--config", &first]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let (_folder, second) = file("second.yaml", &out);
    assert_eq!(run(&["config", "--config", &second]).1, out);
    assert_eq!(
        json(&["config", "--config", &second, "-o", "json"])["podCgroups"],
        serde_json::json!(["a", "b/c"])
    );
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let (_folder, config) = file(
        "pinfold.yaml",
        "reconcileInterval: 20s\nreserved: '2'\nlisten: 127.0.0.1:1\n",
    );
    let (code, out, error) = finish(
        pinfold()
            .args([
                "config",
                "--config",
                &config,
                "-o",
                "json",
                "--reconcile-interval",
                "40s",
            ])
            .env("PINFOLD_RECONCILE_INTERVAL", "30s")
            .env("PINFOLD_RESERVED", "3"),
    );
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let config: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (
            &config["reconcileInterval"],
            &config["reserved"],
            &config["listen"]
        ),
        (&"40s".into(), &"3".into(), &"127.0.0.1:1".into())
    );
}

/// All that a pod's author can write comes out as one line without control characters, from the parsers' errors as well.
#[test]
fn a_pod_cannot_act_on_a_terminal() {
    let odd = r#""4\e]0;title\a\e[2J\e[31mred\nContainer other\n  entitled by magic\x9b1m\u202e""#;
    let pod = |metadata: &str, container: &str| {
        format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{name: esc, namespace: lab, annotations: {{pinfold.io/cpus: exclusive{metadata}}}}}\n\
             spec: {{containers: [{{name: main, image: i, resources: {{limits: {{cpu: '4', memory: 1Gi}}}}{container}}}]}}\n"
        )
    };
    let machine = machine::unpack(MACHINE);
    for manifest in [
        pod(&format!(", pinfold.io/processes: {odd}"), ""),
        pod(
            &format!(", pinfold.io/cores: {odd}, pinfold.io/placement: {odd}"),
            "",
        ),
        pod(
            "",
            &format!(", command: [torchrun, {odd}, \"--nproc_per_node=\\e[2J\\nfake\"]"),
        ),
        pod("", &format!(", command: [mpirun, -np, {odd}, x]")),
        pod("", ", command: [\"/o\\e[2Jpt/mpirun\", -np, two]"),
        pod("", &format!(", env: [{{name: {odd}, value: {odd}}}]")),
        pod("", &format!(", restartPolicy: {odd}")),
        pod("", "").replace("kind: Pod", &format!("kind: {odd}")),
        pod("", "").replace("cpu: '4'", &format!("cpu: {odd}")),
        "kind: Pod\nspec: {\"a\\e[2Jb\\n\": [}\n".to_owned(),
    ] {
        let (_folder, path) = file("pod.yaml", &manifest);
        let root = text(machine.path());
        for args in [
            &["explain", "lab/esc", "--pods", &path, "--root-dir", root][..],
            &["plan", "--pods", &path, "--root-dir", root],
            &[
                "explain",
                "lab/esc",
                "--pods",
                &path,
                "--root-dir",
                root,
                "-o",
                "json",
            ],
        ] {
            let (_, out, error) = run(args);
            let all = format!("{out}{error}");
            assert!(!all.is_empty());
            let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!all.contains(acts), "{all:?}");
            let forged = |line: &str| {
                line.starts_with("Container other") || line.starts_with("  entitled by")
            };
            assert!(!all.lines().any(forged), "{all}");
        }
    }
}

#[test]
fn a_numa_node_that_the_machine_lacks_is_an_error() {
    let machine = machine::unpack(MACHINE);
    let root = text(machine.path());
    for near in ["8", "0,9-10"] {
        let (code, out, error) = run(&["place", "2", "--near", near, "--root-dir", root]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{near}");
        assert!(
            error.contains("does not have") && error.contains("it has 0-"),
            "{error}"
        );
    }
    assert_eq!(
        run(&["place", "2", "--near", "1", "--root-dir", root]).0,
        Some(0)
    );
}

#[test]
fn files_without_pods_and_names_that_repeat_are_errors() {
    let (_folder, empty) = file("empty.yaml", "# nothing\n---\n");
    let folder = TempDir::new().unwrap();
    for path in [&*empty, text(folder.path()), "/dev/null", "-"] {
        for args in [
            &["plan", "--pods", path][..],
            &["explain", "w", "--pods", path],
        ] {
            let (code, out, error) = run(args);
            assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}");
            assert!(error.contains("holds no pods"), "{error}");
        }
    }
    let (_folder, pods) = file("pods.yaml", PODS);
    let (code, _, error) = run(&["plan", "--pods", &pods, "--pods", &pods]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("train/worker-0") && error.contains("its own name"),
        "{error}"
    );
    let (_folder, twice) = file("twice.yaml", &format!("{PODS}---\n{PODS}"));
    let (code, _, error) = run(&["plan", "--pods", &twice]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("a second Pod has the name train/worker-0"),
        "{error}"
    );
}

/// A Deployment of training pods, and a Service.
const DEPLOYMENT: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: serve, namespace: train}
spec:
  replicas: 2
  template:
    metadata: {annotations: {pinfold.io/cpus: exclusive}}
    spec:
      containers:
      - {name: main, image: tf, resources: {limits: {cpu: 4, memory: 1Gi}}}
---
apiVersion: v1
kind: Service
metadata: {name: serve, namespace: train}
";

#[test]
fn workloads_stand_for_their_pods() {
    let machine = machine::unpack(MACHINE);
    let root = text(machine.path());
    let (_folder, path) = file("deployment.yaml", DEPLOYMENT);
    let plan = json(&["plan", "--pods", &path, "--root-dir", root, "-o", "json"]);
    let of = |key: &str| -> Vec<&str> {
        let containers = plan["containers"].as_array().unwrap();
        containers
            .iter()
            .map(|one| one[key].as_str().unwrap())
            .collect()
    };
    assert_eq!(of("pod"), ["serve-0", "serve-1"]);
    let cpus = of("cpus");
    assert!(cpus[0] != cpus[1], "{cpus:?}");
    // The same from a pipe.
    let mut child = pinfold()
        .args(["explain", "serve-1", "--pods", "-", "--root-dir", root])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(DEPLOYMENT.as_bytes()).unwrap();
    drop(input);
    let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(
        out.starts_with("Pod train/serve-1 is Guaranteed.") && out.contains(cpus[1]),
        "{out}"
    );
    for (before, after, named) in [
        (
            "replicas: 2",
            "replicas: 0",
            "hold no pods: their objects create none",
        ),
        (
            "replicas: 2",
            "replicas: -1",
            "spec.replicas is -1: write 0 or more",
        ),
        (
            "replicas: 2",
            "replicas: 1000000000",
            "makes 1000000000 pods",
        ),
        (
            "kind: Service",
            "kind: Widget",
            "document 2 is a Widget (v1): supported are Pods",
        ),
        (
            "kind: Deployment",
            "kind: TrainJob",
            "is a TrainJob (apps/v1): supported are",
        ),
    ] {
        let (_folder, path) = file("deployment.yaml", &DEPLOYMENT.replace(before, after));
        let (code, out, error) = run(&["plan", "--pods", &path, "--root-dir", root]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(named), "{error}");
    }
    let (code, _, error) = run(&["explain", "serve", "--pods", &path, "--root-dir", root]);
    assert_eq!(
        (code, error.as_str()),
        (
            Some(2),
            "pinfold: no pod serve in these manifests; the pods are: train/serve-0, train/serve-1\n"
        )
    );
    let (_folder, path) = file(
        "many.yaml",
        &DEPLOYMENT.replace("replicas: 2", "replicas: 500"),
    );
    let (_, _, error) = run(&["explain", "serve", "--pods", &path, "--root-dir", root]);
    assert!(
        error.contains("train/serve-19, and 480 more") && !error.contains("serve-20"),
        "{error}"
    );
}

/// An option of an earlier version is refused, and the message names the new one.
#[test]
fn renamed_options_are_named() {
    let cases: [(&[&str], &str); 14] = [
        (&["run", "--namespace", "a"], "--agent-namespace"),
        (&["doctor", "--namespace=a"], "--agent-namespace"),
        (&["release", "--namespace", "a"], "--agent-namespace"),
        (&["config", "--namespace", "a"], "--agent-namespace"),
        (
            &["scene", "check", "p", "--live", "--namespace", "a"],
            "--agent-namespace",
        ),
        (
            &["scene", "labels", "p", "--namespace", "a"],
            "--agent-namespace",
        ),
        (
            &["scene", "status", "p", "--namespace", "a"],
            "--agent-namespace",
        ),
        (
            &["scene", "import", "--namespace", "a"],
            "--agent-namespace",
        ),
        (
            &["scene", "render", "p", "--namespace", "a"],
            "--agent-namespace",
        ),
        (&["scene", "render", "p", "--into", "a"], "--job-namespace"),
        (
            &["scene", "simulate", "p", "--namespace", "a"],
            "--agent-namespace",
        ),
        (&["scene", "reclaim", "--namespace", "a"], "--job-namespace"),
        (&["scene", "reclaim", "-n", "a"], "--job-namespace"),
        (
            &["scene", "report", "--prometheus", "http://a", "-n", "a"],
            "--job-namespace",
        ),
    ];
    for (args, named) in cases {
        let (code, out, error) = run(args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {error}");
        assert!(
            error.contains(named) && error.contains("now names the namespace"),
            "{args:?}: {error}"
        );
        let (_, help, _) = run(&[args[0], "--help"]);
        assert!(!help.contains("  --namespace"), "{help}");
    }
    let (code, _, error) = run(&[
        "scene",
        "report",
        "--prometheus",
        "http://127.0.0.1:1",
        "--run",
        "name=a,namespace=b",
    ]);
    assert!(
        code == Some(2) && error.contains("write job-namespace"),
        "{error}"
    );
}

/// Without rights, the agent could neither write nor see an assignment, so it says so and ends.
#[test]
fn an_agent_without_rights_refuses_to_enforce() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    // Nobody may have no way to the folder of the build.
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("pinfold");
    program_copy::copy_program(env!("CARGO_BIN_EXE_pinfold"), &program);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let manifests = folder.path().join("pods");
    fs::create_dir(&manifests).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).env_clear();
        if nix::unistd::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        finish(&mut command)
    };
    for enforcement in ["auto", "cpuset"] {
        let (code, _, error) = as_nobody(&[
            "run",
            "--enforcement",
            enforcement,
            "--manifest-dir",
            text(&manifests),
        ]);
        assert_eq!(code, Some(2), "{error}");
        assert!(
            error.contains(
                "pinfold run needs root to read assignment records and to write to cgroups"
            ) && error.contains("--enforcement observe"),
            "{error}"
        );
        assert!(!error.contains("serving"), "{error}");
    }
    let (_folder, pods) = file("pods.yaml", PODS);
    fs::set_permissions(
        Path::new(&pods).parent().unwrap(),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    let (code, out, error) = as_nobody(&["plan", "--live", "--pods", &pods]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(error.contains("pinfold plan --live needs root"), "{error}");
}
