//! Tables of launchers and of programs that only start another program.

/// How a launcher tells the number of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Torchrun,
    Accelerate,
    Deepspeed,
    Horovod,
    Mpi,
}

/// A launcher's options, without dashes at the start and with `-` for `_`.
pub(super) struct Launcher {
    pub(super) kind: Kind,
    /// Programs and Python modules.
    pub(super) names: &'static [&'static str],
    /// The word that must follow the name, as in `accelerate launch`; empty if there is none.
    pub(super) subcommand: &'static str,
    /// Options without a value.
    pub(super) flags: &'static [&'static str],
    pub(super) values: &'static [&'static str],
    /// Whether an option in neither list has a value.
    pub(super) others_have_values: bool,
}

pub(super) const TORCHRUN: Launcher = Launcher {
    kind: Kind::Torchrun,
    names: &[
        "torchrun",
        "torch.distributed.run",
        "torch.distributed.launch",
    ],
    subcommand: "",
    flags: &[
        "standalone",
        "m",
        "module",
        "no-python",
        "run-path",
        "use-env",
        "h",
        "help",
    ],
    values: &[
        "nnodes",
        "nproc-per-node",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "max-restarts",
        "monitor-interval",
        "start-method",
        "event-log-handler",
        "role",
        "log-dir",
        "r",
        "redirects",
        "t",
        "tee",
        "local-ranks-filter",
        "node-rank",
        "master-addr",
        "master-port",
        "local-addr",
        "logs-specs",
        "numa-binding",
        "signals-to-handle",
    ],
    others_have_values: true,
};

const ACCELERATE: Launcher = Launcher {
    kind: Kind::Accelerate,
    names: &[
        "accelerate",
        "accelerate.commands.launch",
        "accelerate-launch",
    ],
    subcommand: "launch",
    flags: &[
        "h",
        "help",
        "q",
        "quiet",
        "cpu",
        "multi-gpu",
        "tpu",
        "enable-cpu-affinity",
        "dynamo-use-fullgraph",
        "dynamo-use-dynamic",
        "dynamo-use-regional-compilation",
        "use-deepspeed",
        "use-fsdp",
        "use-parallelism-config",
        "use-megatron-lm",
        "same-network",
        "m",
        "module",
        "no-python",
        "tpu-cluster",
        "no-tpu-cluster",
        "tpu-use-sudo",
        "debug",
        "main-training-function",
        "megatron-lm-use-rotary-position-embeddings",
    ],
    values: &[
        "num-processes",
        "num-machines",
        "config-file",
        "mixed-precision",
        "num-cpu-threads-per-process",
    ],
    others_have_values: true,
};

const DEEPSPEED: Launcher = Launcher {
    kind: Kind::Deepspeed,
    names: &["deepspeed", "deepspeed.launcher.runner", "ds"],
    subcommand: "",
    flags: &[
        "h",
        "help",
        "module",
        "no-python",
        "no-local-rank",
        "no-ssh-check",
        "no-ssh",
        "force-multi",
        "save-pid",
        "elastic-training",
        "bind-cores-to-rank",
    ],
    values: &[
        "H",
        "hostfile",
        "i",
        "include",
        "e",
        "exclude",
        "num-nodes",
        "num-gpus",
        "num-accelerators",
        "master-port",
        "master-addr",
        "launcher",
        "launcher-args",
        "node-rank",
        "bind-core-list",
        "ssh-port",
    ],
    others_have_values: true,
};

const HOROVOD: Launcher = Launcher {
    kind: Kind::Horovod,
    names: &["horovodrun", "horovod.runner", "horovod.runner.launch"],
    subcommand: "",
    flags: &[
        "h",
        "help",
        "v",
        "version",
        "verbose",
        "disable-cache",
        "check-build",
        "gloo",
        "mpi",
        "jsrun",
        "tcp",
        "mpi-threads-disable",
        "no-mpi-threads-disable",
        "autotune",
        "no-autotune",
        "hierarchical-allreduce",
        "no-hierarchical-allreduce",
        "hierarchical-allgather",
        "no-hierarchical-allgather",
        "timeline-mark-cycles",
        "no-timeline-mark-cycles",
        "stall-check",
        "no-stall-check",
        "log-with-timestamp",
        "log-hide-timestamp",
        "prefix-output-with-timestamp",
    ],
    values: &[
        "np", "num-proc", "H", "hosts", "hostfile", "p", "ssh-port", "min-np", "max-np",
    ],
    others_have_values: true,
};

const MPI: Launcher = Launcher {
    kind: Kind::Mpi,
    names: &[
        "mpirun",
        "mpiexec",
        "mpiexec.hydra",
        "mpirun.openmpi",
        "mpiexec.openmpi",
        "mpirun.mpich",
        "mpiexec.mpich",
        "orterun",
        "prterun",
    ],
    subcommand: "",
    flags: &[],
    values: &[
        "np",
        "n",
        "c",
        "N",
        "npernode",
        "ppn",
        "perhost",
        "grr",
        "npersocket",
        "H",
        "host",
        "hosts",
        "hostfile",
        "machinefile",
        "machine",
        "f",
        "default-hostfile",
        "x",
        "wdir",
        "wd",
        "dir",
        "bind-to",
        "map-by",
        "rank-by",
        "rankfile",
        "rf",
        "output-filename",
        "output",
        "prefix",
        "path",
        "personality",
        "am",
        "timeout",
        "stdin",
        "display",
        "xterm",
        "preload-files",
        "launcher",
        "launcher-exec",
        "bootstrap",
        "bootstrap-exec",
        "iface",
        "genvlist",
        "envlist",
        "rmk",
        "umask",
        "outfile-pattern",
        "errfile-pattern",
        "configfile",
        "app",
        "cpus-per-proc",
        "cpus-per-rank",
        "cpu-set",
        "cpu-list",
        "slot-list",
        "localhost",
        "topolib",
        "usize",
        "dvm-uri",
        "max-restarts",
    ],
    others_have_values: false,
};

/// Options of MPI with two values: a parameter or a variable, and its value.
pub(super) const MPI_PAIRS: [&str; 7] =
    ["mca", "gmca", "omca", "pmixmca", "prtemca", "env", "genv"];

/// Programs that start an unknown number of processes.
pub(super) const OPAQUE: [(&str, &str); 8] = [
    ("ray", "start"),
    ("srun", ""),
    ("dask", "worker"),
    ("dask-worker", ""),
    ("parallel", ""),
    ("jsrun", ""),
    ("aprun", ""),
    ("bpslaunch", ""),
];

pub(super) const LAUNCHERS: [&Launcher; 5] = [&TORCHRUN, &ACCELERATE, &DEEPSPEED, &HOROVOD, &MPI];

/// A program that starts another program with the same environment and takes no further part.
pub(super) struct Wrapper {
    pub(super) names: &'static [&'static str],
    /// The word that must follow the name, as in `conda run`; empty if there is none.
    pub(super) subcommand: &'static str,
    /// Options with a value, without dashes.
    pub(super) values: &'static [&'static str],
    /// The number of words between the options and the program, such as the time of `timeout`.
    pub(super) words: usize,
}

const fn wrapper(
    names: &'static [&'static str],
    values: &'static [&'static str],
    words: usize,
) -> Wrapper {
    Wrapper {
        names,
        subcommand: "",
        values,
        words,
    }
}

const fn runner(
    names: &'static [&'static str],
    subcommand: &'static str,
    values: &'static [&'static str],
) -> Wrapper {
    Wrapper {
        names,
        subcommand,
        values,
        words: 0,
    }
}

pub(super) const WRAPPERS: [Wrapper; 19] = [
    wrapper(
        &[
            "nohup",
            "setsid",
            "catatonit",
            "unbuffer",
            "catchsegv",
            "xvfb-run",
            "builtin",
            "eatmydata",
        ],
        &[],
        0,
    ),
    wrapper(&["exec"], &["a"], 0),
    wrapper(&["env"], &["u", "unset", "C", "chdir"], 0),
    wrapper(&["time"], &["f", "format", "o", "output"], 0),
    wrapper(&["nice"], &["n", "adjustment"], 0),
    wrapper(&["ionice"], &["c", "class", "n", "classdata"], 0),
    wrapper(&["chrt"], &["T", "P", "D"], 1),
    wrapper(&["taskset"], &[], 1),
    wrapper(
        &["numactl"],
        &[
            "m",
            "membind",
            "C",
            "physcpubind",
            "N",
            "cpunodebind",
            "i",
            "interleave",
            "p",
            "preferred",
            "P",
            "preferred-many",
            "w",
            "weighted-interleave",
        ],
        0,
    ),
    wrapper(&["timeout"], &["k", "kill-after", "s", "signal"], 1),
    wrapper(&["stdbuf"], &["i", "input", "o", "output", "e", "error"], 0),
    wrapper(
        &["sudo"],
        &["u", "user", "g", "group", "D", "chdir", "p", "prompt"],
        0,
    ),
    wrapper(&["gosu", "su-exec", "chroot"], &[], 1),
    wrapper(
        &["setpriv"],
        &[
            "reuid", "regid", "ruid", "rgid", "euid", "egid", "groups", "inh-caps",
        ],
        0,
    ),
    wrapper(
        &["tini", "dumb-init", "docker-init"],
        &["p", "e", "r", "rewrite"],
        0,
    ),
    wrapper(&["strace"], &["e", "o", "s", "u", "I"], 0),
    runner(
        &["conda", "mamba", "micromamba", "uv", "poetry", "pipenv"],
        "run",
        &[
            "n",
            "name",
            "p",
            "prefix",
            "cwd",
            "python",
            "with",
            "project",
            "directory",
            "extra",
            "group",
            "env-file",
        ],
    ),
    runner(
        &["nsys"],
        "profile",
        &[
            "o",
            "output",
            "t",
            "trace",
            "s",
            "sample",
            "f",
            "force-overwrite",
            "y",
            "delay",
            "d",
        ],
    ),
    runner(&["perf"], "stat", &["e", "o", "I", "C", "r"]),
];
