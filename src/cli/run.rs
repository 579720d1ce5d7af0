//! `pinfold run`: the agent.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tracing_subscriber::EnvFilter;

use crate::agent::config::{Config, Overrides, Wanted};

/// Run the agent.
///
/// The agent pins the containers of the pods in a folder or on this node of a cluster, follows changes, and serves metrics.
/// After SIGTERM, every assignment stays. A restarted agent moves no container.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold run --pods ./pods                     pods from manifests; see pinfold demo for real ones
  pinfold run --pods ./pods --reserved 0-1      keep two CPUs for the system
  pinfold run --kubeconfig FILE                 this node's pods from the API server; in a pod, pinfold run does
  curl http://127.0.0.1:9470/metrics            also /status, /healthz, /readyz

Log lines go to stderr; PINFOLD_LOG=debug shows every write.")]
pub(super) struct Run {
    #[command(flatten)]
    overrides: Overrides,
}

impl Run {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        // The client logs retried requests as errors. The agent logs the same events with the right level.
        log("info,kube_client=off")?;
        let config = Config::load(self.overrides)?;
        join_host(&config);
        let runtime = runtime()?;
        let done = runtime.block_on(crate::agent::run(config));
        // Manifests that are still being read are of no more use, and not waited for.
        runtime.shutdown_background();
        done?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Joins the host's cgroup namespace. The call must come before the first thread, which would stay in the old namespace.
pub(super) fn join_host(config: &Config) {
    match crate::host::cgroup::join_host(&config.root) {
        Ok(true) => tracing::info!("moved from the container's cgroup namespace to the host's"),
        Ok(false) => {}
        Err(error) => match advice(config.enforcement, &error) {
            Some(advice) => tracing::warn!("{advice}"),
            None => tracing::debug!("stays in the container's cgroup namespace: {error}"),
        },
    }
}

/// The advice for an agent that can't leave the cgroup namespace. An agent that only observes moves no process, and the
/// manifests for observing leave the capability out.
fn advice(enforcement: Wanted, error: &std::io::Error) -> Option<String> {
    (enforcement != Wanted::Observe).then(|| {
        format!(
            "the agent can't leave the container's cgroup namespace ({error}): on cgroup v2 the kernel may keep the agent from \
             moving the agent's own container; give the container CAP_SYS_ADMIN"
        )
    })
}

/// The asynchronous runtime of the command.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    crate::host::limits::keep_memory_small();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("can't start the runtime")
}

/// Sends log lines to stderr, at the level of `PINFOLD_LOG` or the given one.
pub(super) fn log(level: &str) -> anyhow::Result<()> {
    let filter = match std::env::var("PINFOLD_LOG") {
        Ok(text) => text.parse::<EnvFilter>().with_context(|| {
            format!("PINFOLD_LOG is {text:?}: write error, warn, info, debug or trace")
        })?,
        Err(_) => EnvFilter::new(level),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observing_needs_no_capability() {
        let error = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(advice(Wanted::Observe, &error()), None);
        for enforcement in [Wanted::Auto, Wanted::Partition, Wanted::Cpuset] {
            assert!(
                advice(enforcement, &error())
                    .unwrap()
                    .contains("CAP_SYS_ADMIN")
            );
        }
    }
}
