//! Cgroups of type `threaded`, which a container with its own cgroup namespace can make.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use pinfold::host::cgroup::Cgroups;

use crate::kernel::kernel_tests;

#[test]
fn processes_are_found_where_a_cgroup_below_is_threaded() {
    let Some(_kernel) = kernel_tests() else {
        return;
    };
    // The hierarchy of cgroup v2, alone or beside the hierarchies of cgroup v1.
    let v2 = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let v2 = v2
        .into_iter()
        .find(|dir| dir.join("cgroup.controllers").exists())
        .expect("cgroup v2 is mounted");
    let domain = v2.join(format!("pinfold-threaded-{}", std::process::id()));
    let threaded = domain.join("threads");
    fs::create_dir_all(&threaded).unwrap();
    fs::write(threaded.join("cgroup.type"), "threaded").unwrap();
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(domain.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
    fs::write(threaded.join("cgroup.threads"), sleeper.id().to_string()).unwrap();

    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("cgroup.controllers"), "cpuset\n").unwrap();
    symlink(&domain, root.path().join("container")).unwrap();
    let found = Cgroups::detect(root.path()).unwrap().processes("container");

    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    fs::remove_dir(&threaded).unwrap();
    fs::remove_dir(&domain).unwrap();
    assert_eq!(found.unwrap(), [i32::try_from(sleeper.id()).unwrap()]);
}
