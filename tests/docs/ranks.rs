//! The wrapper in the guide to torchrun and MPI, under a shell and under PyTorch's torchrun.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::gate;
use crate::markdown::DocumentPage;

/// The documented script, with another path for the folder of live files, which is absent.
fn wrapper(folder: &TempDir) -> PathBuf {
    let page = DocumentPage::read("docs/guides/torchrun-and-mpi.md");
    let mut blocks = page
        .blocks
        .iter()
        .filter(|block| block.text.starts_with("#!/bin/sh\nrank="));
    let (script, more) = (blocks.next().unwrap(), blocks.next());
    assert!(more.is_none() && script.text.trim_end().lines().count() == 5);
    let live = folder.path().join("live");
    assert!(script.text.contains("/run/pinfold/rank-cpus"));
    let text = script.text.replace("/run/pinfold", live.to_str().unwrap());
    let path = folder.path().join("rank.sh");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Two CPUs of this process, if it has as many.
fn two_cpus() -> Option<(String, String)> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    let allowed: pinfold::cpu::CpuSet = allowed.parse().unwrap();
    let mut cpus = allowed.iter().map(|cpu| cpu.to_string());
    Some((cpus.next()?, cpus.next()?))
}

/// The CPUs of a program behind the wrapper.
fn allowed(wrapper: &PathBuf, env: &[(&str, &str)]) -> String {
    let mut command = Command::new(wrapper);
    for name in [
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "SLURM_LOCALID",
    ] {
        command.env_remove(name);
    }
    let ran = command
        .args(["grep", "Cpus_allowed_list", "/proc/self/status"])
        .envs(env.iter().copied())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{env:?}: {ran:?}");
    let text = String::from_utf8(ran.stdout).unwrap();
    text.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn the_wrapper_takes_the_slice_of_its_local_rank() {
    let Some((first, second)) = two_cpus() else {
        gate::leave("a larger machine", "two CPUs");
        return;
    };
    let folder = TempDir::new().unwrap();
    let wrapper = wrapper(&folder);
    let all = allowed(&wrapper, &[]);
    let slices = format!("{first};{second}");
    let with = |name, rank| {
        allowed(
            &wrapper,
            &[(name, rank), ("PINFOLD_RANK_CPUS", slices.as_str())],
        )
    };
    for name in [
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "SLURM_LOCALID",
    ] {
        assert_eq!(
            (with(name, "0"), with(name, "1")),
            (first.clone(), second.clone()),
            "{name}"
        );
        // There are two slices.
        assert_eq!(with(name, "2"), all, "{name}");
        assert_eq!(
            allowed(&wrapper, &[(name, "0")]),
            all,
            "{name} without slices"
        );
    }
    assert_eq!(with("OTHER", "0"), all);
    // The live file is newer than the variable.
    let live = folder.path().join("live");
    fs::create_dir(&live).unwrap();
    let slices = live.join("rank-cpus");
    fs::write(&slices, format!("{second}\n{first}\n")).unwrap();
    assert_eq!(
        (with("LOCAL_RANK", "0"), with("LOCAL_RANK", "1")),
        (second, first)
    );
    // After a shrink to fewer CPUs than processes, the file is gone, and the variable names CPUs that the container has not.
    fs::remove_file(&slices).unwrap();
    assert_eq!(with("LOCAL_RANK", "1"), all);
}

/// `PINFOLD_PYTORCH` names a Python with PyTorch.
#[test]
fn the_wrapper_works_under_torchrun_of_pytorch() {
    let Some(python) = std::env::var_os("PINFOLD_PYTORCH") else {
        gate::leave(
            "tests/run",
            "PINFOLD_PYTORCH, a Python with PyTorch: Debian's package python3-torch",
        );
        return;
    };
    let Some((first, second)) = two_cpus() else {
        gate::leave("a larger machine", "two CPUs");
        return;
    };
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out").display().to_string();
    // Older versions have no `--no-python`.
    let ran = Command::new(python)
        .args([
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--no_python",
            "--nproc_per_node=2",
            "--redirects=2",
            "--tee=2",
        ])
        .arg(wrapper(&folder))
        .args([
            "sh",
            "-c",
            &format!("grep Cpus_allowed_list /proc/self/status >{out}$LOCAL_RANK"),
        ])
        .env("PINFOLD_RANK_CPUS", format!("{first};{second}"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    for (rank, cpu) in [(0, first), (1, second)] {
        let text = fs::read_to_string(format!("{out}{rank}")).unwrap();
        assert_eq!(
            text.split_whitespace().nth(1),
            Some(cpu.as_str()),
            "rank {rank}"
        );
    }
}
