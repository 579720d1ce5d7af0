//! `pinfold place`, as people and programs use the command.

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
