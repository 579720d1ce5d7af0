//! `pinfold train`: the processes of the job in the demo's containers. The command is hidden,
//! because people do not need it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::sandbox::train::progress::{ProcessRole, Progress};
use crate::sandbox::train::ps::Rates;
use crate::sandbox::train::{Geometry, neighbor, ps, threads, worker};
use crate::text::values::whole;

/// More parameters than this are a typing error, not a demo: 1 GiB of floats.
const MAX_PARAMETERS: u64 = 1 << 28;

/// Run a process of a small training job with parameter servers.
#[derive(Debug, Args)]
pub(crate) struct Train {
    #[command(subcommand)]
    process: TrainProcess,
}

#[derive(Debug, Subcommand)]
enum TrainProcess {
    /// A parameter server.
    Ps {
        /// Where to listen.
        #[arg(long, default_value = "0.0.0.0:2222", value_parser = host_port)]
        listen: String,
        /// Step size for the dense layers.
        #[arg(long, default_value_t = Rates::default().dense)]
        learning_rate: f32,
        /// Step size for the embeddings.
        #[arg(long, default_value_t = Rates::default().embedding)]
        embedding_rate: f32,
        #[command(flatten)]
        job: JobArgs,
    },
    /// A worker.
    Worker {
        /// Examples of a step.
        #[arg(long, default_value_t = 256, value_parser = whole::<u32>(1..=65_536))]
        batch: u32,
        /// The number of steps after which the worker stops.
        #[arg(long)]
        steps: Option<u64>,
        /// Print every step's time, four times a second.
        #[arg(long)]
        each_step: bool,
        /// Keep the parameters in this process, without parameter servers.
        #[arg(long, conflicts_with = "ps_hosts")]
        own_parameters: bool,
        #[command(flatten)]
        job: JobArgs,
    },
    /// Another pod of the node, which keeps CPUs and caches busy.
    Neighbor {
        /// Busy threads [default: the host's CPUs plus 1]
        #[arg(long, value_parser = whole::<u16>(1..=1024))]
        threads: Option<u16>,
        /// The share of a CPU's time that each thread uses, in percent [default: unlimited]
        #[arg(long, value_name = "PERCENT", value_parser = whole::<u8>(1..=100))]
        busy: Option<u8>,
        /// The index of this neighbor.
        #[arg(long, alias = "task_index", default_value_t = 0)]
        task_index: u32,
    },
    /// Wait for the end of standard input, then remove the remains of a killed bench.
    #[cfg(feature = "bench")]
    Sweep {
        /// Folder where the cgroup hierarchies are mounted.
        #[arg(long)]
        cgroup_dir: PathBuf,
    },
}

/// The parameters that all processes of a job share.
#[derive(Debug, Args)]
struct JobArgs {
    /// The parameter servers, in the order of indices, separated by commas.
    #[arg(long, alias = "ps_hosts", value_delimiter = ',', value_parser = host_port, default_value = "127.0.0.1:2222")]
    ps_hosts: Vec<String>,
    /// The index of this process within the role, from 0.
    #[arg(long, alias = "task_index", default_value_t = 0)]
    task_index: u32,
    /// Categorical features of an example.
    #[arg(long, default_value_t = Geometry::default().features, value_parser = whole::<u32>(1..=256))]
    features: u32,
    /// The number of values of a feature.
    #[arg(long, default_value_t = Geometry::default().vocabulary, value_parser = whole::<u32>(1..=1_000_000))]
    vocabulary: u32,
    /// Length of an embedding.
    #[arg(long, default_value_t = Geometry::default().dim, value_parser = whole::<u32>(1..=256))]
    dim: u32,
    /// Units of the two hidden layers.
    #[arg(long, value_delimiter = ',', value_name = "FIRST,SECOND",
          default_values_t = Geometry::default().hidden, value_parser = whole::<u32>(1..=4096))]
    hidden: Vec<u32>,
    /// Where the data and the starting parameters come from.
    #[arg(long, default_value_t = Geometry::default().seed)]
    seed: u64,
}

// === impl Train ===

impl Train {
    /// Runs the process. Status 0 after a signal or the last step, 1 after an error.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let done = match self.process {
            TrainProcess::Ps {
                listen,
                learning_rate,
                embedding_rate,
                job,
            } => {
                let geometry = job.geometry()?;
                let shards = u32::try_from(job.ps_hosts.len())?;
                if job.task_index >= shards {
                    anyhow::bail!(
                        "--task-index {} is too large for the {shards} hosts of --ps-hosts: indexes start at 0",
                        job.task_index
                    );
                }
                run_ps(|threads| ps::ServerOptions {
                    listen,
                    geometry,
                    shard: job.task_index,
                    shards,
                    threads,
                    rates: Rates {
                        dense: learning_rate,
                        embedding: embedding_rate,
                    },
                })
            }
            TrainProcess::Worker {
                batch,
                steps,
                each_step,
                own_parameters,
                job,
            } => {
                let geometry = job.geometry()?;
                run_worker(each_step, |threads| worker::WorkerOptions {
                    ps_hosts: if own_parameters {
                        Vec::new()
                    } else {
                        job.ps_hosts
                    },
                    index: job.task_index,
                    geometry,
                    batch: batch as usize,
                    threads,
                    steps,
                    patience: worker::PATIENCE,
                    rates: Rates::default(),
                })
            }
            TrainProcess::Neighbor {
                threads,
                busy,
                task_index,
            } => run_neighbor(threads, busy, task_index),
            #[cfg(feature = "bench")]
            TrainProcess::Sweep { cgroup_dir } => crate::sandbox::bench::sweep(&cgroup_dir),
        };
        if let Err(error) = done {
            super::complain(format_args!("train: {error:#}"));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl JobArgs {
    fn geometry(&self) -> anyhow::Result<Geometry> {
        let hidden = self
            .hidden
            .as_slice()
            .try_into()
            .context("--hidden needs two numbers, like 128,64")?;
        let Self {
            features,
            vocabulary,
            dim,
            seed,
            ..
        } = *self;
        let parameters = u64::from(features) * u64::from(vocabulary) * u64::from(dim);
        if parameters > MAX_PARAMETERS {
            anyhow::bail!(
                "{parameters} embedding parameters are too many: the limit is {MAX_PARAMETERS}"
            );
        }
        Ok(Geometry {
            features,
            vocabulary,
            dim,
            hidden,
            seed,
        })
    }
}

fn run_ps(options: impl FnOnce(usize) -> ps::ServerOptions) -> anyhow::Result<()> {
    let options = options(count(&["TF_NUM_INTEROP_THREADS"])?);
    let progress = Progress::new(ProcessRole::Ps, options.shard, options.threads);
    progress.attend()?;
    ps::Server::bind(&options, progress)?.run()?;
    Ok(())
}

fn run_worker(
    each_step: bool,
    options: impl FnOnce(usize) -> worker::WorkerOptions,
) -> anyhow::Result<()> {
    let options = options(count(&["TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"])?);
    let progress = Progress::telling(
        ProcessRole::Worker,
        options.index,
        options.threads,
        each_step,
    );
    progress.attend()?;
    worker::train(&options, &progress)?;
    progress.report()?;
    Ok(())
}

fn run_neighbor(threads: Option<u16>, busy: Option<u8>, index: u32) -> anyhow::Result<()> {
    let threads = match threads {
        Some(threads) => usize::from(threads),
        None => count(&[])? + 1,
    };
    let progress = Progress::new(ProcessRole::Neighbor, index, threads);
    progress.attend()?;
    neighbor::start(threads, busy, &progress)?;
    loop {
        std::thread::park();
    }
}

/// How many threads to use. If the environment doesn't say, as many as the host has CPUs.
fn count(names: &[&str]) -> anyhow::Result<usize> {
    Ok(threads(
        names,
        |name| std::env::var(name).ok(),
        Path::new("/sys"),
    )?)
}

/// Checks that an address has the form `host:port`; a wrong host is noticed later.
fn host_port(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("write host:port, like 10.77.0.2:2222".to_owned()),
    }
}
