//! `pinfold place`, as people and programs use it.

use std::fs;
use std::path::Path;
use std::process::Output;

use tempfile::TempDir;

/// Eight CPUs: four cores of two threads (`n` and `n + 4`), two NUMA nodes, each a socket with one LLC.
fn machine() -> TempDir {
    let folder = TempDir::new().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join("sys/devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    write("cpu/online", "0-7");
    write("cpu/present", "0-7");
    for cpu in 0..8 {
        let near = ["0-1,4-5", "2-3,6-7"][cpu % 4 / 2];
        write(
            &format!("cpu/cpu{cpu}/topology/core_cpus_list"),
            &format!("{},{}", cpu % 4, cpu % 4 + 4),
        );
        write(&format!("cpu/cpu{cpu}/topology/package_cpus_list"), near);
        write(&format!("cpu/cpu{cpu}/cache/index3/level"), "3");
        write(&format!("cpu/cpu{cpu}/cache/index3/type"), "Unified");
        write(&format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), near);
    }
    write("node/node0/cpulist", "0-1,4-5");
    write("node/node1/cpulist", "2-3,6-7");
    folder
}

fn place(root: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let mut command = assert_cmd::Command::cargo_bin("pinfold").unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .arg("place")
        .args(args)
        .arg("--root-dir")
        .arg(root)
        .output()
        .unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn prints_the_placement_for_programs() {
    let root = machine();
    let (code, out, error) = place(root.path(), &["4", "--free", "1-7", "-o", "json"]);
    let expected = r#"{"cpus":"2-3,6-7","cost":{"splitCores":0,"numa":1,"sockets":1,"llcs":1}}"#;
    assert_eq!(
        (code, out.as_str(), error.as_str()),
        (Some(0), format!("{expected}\n").as_str(), "")
    );
}

#[test]
fn prints_the_placement_for_people() {
    let root = machine();
    let (code, out, error) = place(root.path(), &["5"]);
    let expected = "0-2,4-5\n2 NUMA nodes, 2 sockets, 2 LLCs; 1 core shared with others\n";
    assert_eq!(
        (code, out.as_str(), error.as_str()),
        (Some(0), expected, "")
    );
    let (code, out, _) = place(root.path(), &["0"]);
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "0 CPUs requested, no CPUs chosen\n")
    );
}

#[test]
fn too_few_free_cpus_have_their_own_exit_code() {
    let root = machine();
    let sentence = "too few free CPUs: 9 wanted, 8 free";
    let (code, out, error) = place(root.path(), &["9", "-o", "json"]);
    assert_eq!(
        (code, out, error),
        (
            Some(1),
            format!("{{\"error\":\"{sentence}\"}}\n"),
            String::new()
        )
    );
    let (code, out, error) = place(root.path(), &["9"]);
    assert_eq!(
        (code, out, error),
        (Some(1), String::new(), format!("pinfold: {sentence}\n"))
    );
}

#[test]
fn a_split_over_numa_nodes_is_refused_with_numa_fewest() {
    let root = machine();
    let free = ["4", "--free", "0-2,4,6"];
    let (code, out, _) = place(root.path(), &free);
    assert_eq!((code, out.lines().next()), (Some(0), Some("0,2,4,6")));
    let (code, out, error) = place(root.path(), &[&free[..], &["--numa", "fewest"]].concat());
    let sentence =
        "4 CPUs need 1 NUMA node, and no NUMA node has more than 3 free CPUs: 3 on 0, 2 on 1";
    assert_eq!(
        (code, out, error),
        (Some(1), String::new(), format!("pinfold: {sentence}\n"))
    );
    let (code, _, error) = place(root.path(), &["4", "--numa", "one"]);
    assert!(code == Some(2) && error.contains("fewest"), "{error}");
}

#[test]
fn bad_lists_are_bad_input() {
    let root = machine();
    let (code, out, error) = place(root.path(), &["2", "--free", "3-1", "-o", "json"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(error.contains("--free") && error.contains("3-1"), "{error}");
    let (code, out, error) = place(root.path(), &["2", "--free", "0-3,9,12-13"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(error.contains("9,12-13"), "{error}");
}

/// The machine of [`machine`] with further files below `sys/devices`, and pods `a`, `b`… with as many CPUs as given.
fn plan(files: &[(&str, &str)], pods: &[u32], args: &[&str]) -> serde_json::Value {
    let root = machine();
    for (path, text) in files {
        let path = root.path().join("sys/devices").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    let manifest: String = pods
        .iter()
        .zip('a'..)
        .map(|(cpus, name)| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: lab, annotations: {{pinfold.io/cpus: \
                 exclusive}}}}\nspec: {{containers: [{{name: main, image: i, resources: {{limits: {{cpu: '{cpus}', memory: \
                 64Mi}}}}}}]}}\n---\n"
            )
        })
        .collect();
    let path = root.path().join("pods.yaml");
    fs::write(&path, manifest).unwrap();
    let mut command = assert_cmd::Command::cargo_bin("pinfold").unwrap();
    let output = command
        .args(["plan", "-o", "json", "--pods"])
        .arg(&path)
        .arg("--root-dir")
        .arg(root.path())
        .args(args)
        .output()
        .unwrap();
    // 1 says that a container stays shared for lack of CPUs.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A field of each container.
fn of_each(plan: &serde_json::Value, field: &str) -> Vec<String> {
    let containers = plan["containers"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("null").to_owned();
    containers.iter().map(|one| text(&one[field])).collect()
}

const MEMORY: &str = "Node 0 MemTotal: 8388608 kB";
const NO_MEMORY: &str = "Node 1 MemTotal: 0 kB";

#[test]
fn a_plan_binds_memory_only_where_memory_is() {
    // NUMA node 1 has only CPUs, and NUMA node 2 has only memory.
    let files = [
        ("system/node/node0/meminfo", MEMORY),
        ("system/node/node1/meminfo", NO_MEMORY),
        ("system/node/node2/meminfo", MEMORY),
        ("system/node/node2/cpulist", ""),
        ("system/node/has_memory", "0,2"),
    ];
    let wide = plan(&files, &[6], &[]);
    assert_eq!(of_each(&wide, "numa"), ["0-1"]);
    assert_eq!(of_each(&wide, "mems"), ["0,2"]);
    let apart = plan(&files, &[4, 2], &[]);
    assert_eq!(of_each(&apart, "cpus"), ["2-3,6-7", "1,5"]);
    assert_eq!(of_each(&apart, "mems"), ["null", "0,2"]);
    // The kernel's list counts, also against the size that it reports.
    let mut files = files;
    files[1].1 = MEMORY;
    assert_eq!(of_each(&plan(&files, &[6], &[]), "mems"), ["0,2"]);
}

#[test]
fn a_plan_leaves_a_balanced_core_to_the_others() {
    for (isolated, reserved, cpus) in [
        ("0-1,4-5", "2,6", "3,7"),
        ("0,4", "1,5", "2-3,6-7"),
        ("0-2,4-7", "3", "1-2,5-6"),
    ] {
        let pods = [cpus.parse::<pinfold::cpu::CpuSet>().unwrap().len()];
        let pods = pods.map(|count| u32::try_from(count).unwrap());
        let plan = plan(&[("system/cpu/isolated", isolated)], &pods, &[]);
        assert_eq!(plan["reserved"], reserved, "{isolated}");
        if isolated != "0-2,4-7" {
            assert_eq!(of_each(&plan, "cpus"), [cpus], "{isolated}");
        }
    }
    // Isolated CPUs reserved by the administrator do not count as balanced.
    let all = plan(
        &[("system/cpu/isolated", "0-1,4-5")],
        &[6],
        &["--reserved", "0,4"],
    );
    assert_eq!(of_each(&all, "exclusive").len(), 1);
    assert!(
        all["containers"][0]["note"]
            .as_str()
            .unwrap()
            .contains("6 wanted, 5 free"),
        "{all:#}"
    );
}

#[test]
fn a_plan_keeps_to_one_kind_of_core_unless_switched_off() {
    let files = [("cpu_core/cpus", "0-1,4-5"), ("cpu_atom/cpus", "2-3,6-7")];
    let same = plan(&files, &[1, 3], &["--reserved", "0"]);
    assert_eq!(of_each(&same, "cpus"), ["4", "2-3,6"]);
    let free = ["--free", "1-3,5-7"];
    let root = machine();
    for (path, text) in files {
        let path = root.path().join("sys/devices").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let place = |more: &[&str]| {
        let args = [&["3"][..], &free[..], &["--near", "0"], more].concat();
        let (code, out, error) = place(root.path(), &args);
        assert_eq!(code, Some(0), "{error}");
        out.lines().next().unwrap().to_owned()
    };
    assert_eq!(place(&[]), "2-3,6", "three of one kind");
    assert_eq!(place(&["--core-kinds", "any"]), "1-2,5", "near comes first");
}
