//! `pinfold run`: the agent.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::agent::config::{Config, EnforcementChoice, Log, LogFormat, Overrides};

/// Run the agent.
///
/// The agent pins the containers of the pods in a folder or on this node of a cluster, follows changes, and serves metrics.
/// After SIGTERM, every assignment stays, so a restarted agent moves no container.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold run --manifest-dir ./pods                   pin the pods of the manifests in a folder
  pinfold run --manifest-dir ./pods --reserved 0-1    reserve two CPUs for the system
  pinfold run --kubeconfig FILE                       pin this node's pods, from the API server
  pinfold run                                         the same in a pod, with its service account
  curl http://127.0.0.1:9470/metrics                  read metrics; also /status, /healthz, /readyz

The log goes to stderr. --log-level debug shows every write.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    overrides: Overrides,
}

/// What a user without rights can do.
const REMEDY: &str = "start it with sudo or in a container with CAP_SYS_ADMIN, or use --enforcement observe, which pins nothing";

impl RunArgs {
    /// Runs the agent, whose log begins with the warnings.
    pub(super) fn run(self, warnings: &[String]) -> anyhow::Result<ExitCode> {
        let config = Config::load(self.overrides)?;
        start_log(&config.log)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        // An agent without these rights would report that it enforces assignments, but could neither write nor see one.
        let checked = super::rights::check(
            &config,
            ("pinfold run", super::rights::READ_AND_WRITE),
            REMEDY,
        );
        if config.enforcement == EnforcementChoice::Observe {
            if checked.is_err() {
                tracing::info!(
                    "without root and CAP_SYS_ADMIN, the agent can't see assignments that an earlier agent made, and lacks some metrics"
                );
            }
        } else {
            checked?;
        }
        join_host(&config);
        let runtime = runtime()?;
        let done = runtime.block_on(crate::agent::run(config));
        // Manifests that are still being read are of no use any more, so nobody waits for them.
        runtime.shutdown_background();
        done?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Joins the host's cgroup namespace. This must come before the first thread, which would stay in
/// the old one.
pub(super) fn join_host(config: &Config) {
    match crate::host::cgroup::join_host(&config.root_dir) {
        Ok(true) => tracing::info!("the agent joined the host's cgroup namespace"),
        Ok(false) => {}
        Err(error) => match advice(config.enforcement, &error) {
            Some(advice) => tracing::warn!("{advice}"),
            None => tracing::debug!("the agent stays in the container's cgroup namespace: {error}"),
        },
    }
}

/// The advice for an agent that can't leave the cgroup namespace. An agent that only observes moves
/// no process, and the manifests for observing leave the capability out.
fn advice(enforcement: EnforcementChoice, error: &std::io::Error) -> Option<String> {
    (enforcement != EnforcementChoice::Observe).then(|| {
        format!(
            "the agent can't leave the container's cgroup namespace ({error}): on cgroup v2 the kernel may refuse to move the \
             processes of the agent's own container; give the container CAP_SYS_ADMIN"
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
        .context("can't start the asynchronous runtime")
}

/// Sends log lines to stderr, at the configured level and in the configured format.
///
/// # Errors
/// The level is neither a level nor a filter by module.
pub(super) fn start_log(log: &Log) -> anyhow::Result<()> {
    let filter = log.filter()?;
    let filtered = tracing_subscriber::registry().with(filter);
    match log.format {
        LogFormat::Text => filtered.with(super::log::text(std::io::stderr)).init(),
        LogFormat::Json => filtered.with(super::log::json(std::io::stderr)).init(),
    }
    Ok(())
}

/// Starts the log of an interactive command: errors only, unless `PINFOLD_LOG_LEVEL` is set. Returns what collects the errors.
///
/// # Errors
/// As for [`start_log`].
#[cfg(any(feature = "demo", feature = "bench"))]
pub(super) fn start_error_log() -> anyhow::Result<super::logged_errors::LoggedErrors> {
    let level = std::env::var("PINFOLD_LOG_LEVEL")
        .ok()
        .filter(|level| !level.is_empty())
        .unwrap_or_else(|| "error".to_owned());
    let log = Log {
        level,
        format: LogFormat::Text,
    };
    let errors = super::logged_errors::LoggedErrors::default();
    tracing_subscriber::registry()
        .with(log.filter()?)
        .with(super::log::text(std::io::stderr))
        .with(errors.clone())
        .init();
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observing_needs_no_capability() {
        let error = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(advice(EnforcementChoice::Observe, &error()), None);
        for enforcement in [
            EnforcementChoice::Auto,
            EnforcementChoice::Partition,
            EnforcementChoice::Cpuset,
        ] {
            assert!(
                advice(enforcement, &error())
                    .unwrap()
                    .contains("CAP_SYS_ADMIN")
            );
        }
    }
}
