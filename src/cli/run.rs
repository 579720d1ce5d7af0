//! `pinfold run`: the agent.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::agent::config::{Config, EnforcementChoice, Log, LogFormat, Overrides};

/// Run the agent.
///
/// The agent pins the containers of the pods in a folder or on this node of a cluster, follows changes, and serves metrics.
/// After SIGTERM, every assignment stays. A restarted agent moves no container.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold run --manifest-dir ./pods                   pin the pods of the manifests in a folder
  pinfold run --manifest-dir ./pods --reserved 0-1    reserve two CPUs for the system
  pinfold run --kubeconfig FILE                       pin this node's pods, as the API server lists them
  pinfold run                                         the same inside a pod, with its service account
  curl http://127.0.0.1:9470/metrics                  read the metrics; also /status, /healthz, /readyz

The log goes to stderr. --log-level debug shows every write.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    overrides: Overrides,
}

impl RunArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::load(self.overrides)?;
        start_log(&config.log)?;
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
    match crate::host::cgroup::join_host(&config.root_dir) {
        Ok(true) => tracing::info!("the agent joined the host's cgroup namespace"),
        Ok(false) => {}
        Err(error) => match advice(config.enforcement, &error) {
            Some(advice) => tracing::warn!("{advice}"),
            None => tracing::debug!("the agent stays in the container's cgroup namespace: {error}"),
        },
    }
}

/// The advice for an agent that can't leave the cgroup namespace. An agent that only observes moves no process, and the
/// manifests for observing leave the capability out.
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
    let filter = log_filter(&log.level).with_context(|| {
        format!(
            "the log level (log.level, --log-level, PINFOLD_LOG_LEVEL) is {:?}: write error, warn, info, debug, trace, or a \
             filter like info,pinfold::nri=debug",
            log.level
        )
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false);
    let filtered = tracing_subscriber::registry().with(filter);
    match log.format {
        LogFormat::Text => filtered
            .with(lines.with_ansi(std::io::stderr().is_terminal()))
            .init(),
        LogFormat::Json => filtered.with(lines.json()).init(),
    }
    Ok(())
}

/// The filter of a log level and of levels by module, for example `info,pinfold::nri=debug`. `None`: a level is unknown, or a
/// module or a level is missing.
fn log_filter(levels: &str) -> Option<Targets> {
    // The Kubernetes client logs each failed request as an error, and the agent logs the failure again.
    let mut filter = Targets::new()
        .with_default(LevelFilter::ERROR)
        .with_target("kube_client", LevelFilter::OFF);
    for word in levels
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        filter = match word.split_once('=') {
            Some(("", _) | (_, "")) => return None,
            Some((module, level)) => filter.with_target(module, level.parse::<LevelFilter>().ok()?),
            None => filter.with_default(word.parse::<LevelFilter>().ok()?),
        };
    }
    Some(filter)
}

/// The log of a command for people: errors only, if the user sets no level.
///
/// # Errors
/// As for [`start_log`].
#[cfg(any(feature = "demo", feature = "bench"))]
pub(super) fn start_error_log() -> anyhow::Result<()> {
    let level = std::env::var("PINFOLD_LOG_LEVEL").unwrap_or_else(|_| "error".to_owned());
    start_log(&Log {
        level,
        format: LogFormat::Text,
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_log_filter_is_made_of_known_levels() {
        for levels in ["inof", "info,debgu", "pinfold=loud", "pinfold=", "=,="] {
            assert!(log_filter(levels).is_none(), "{levels}");
        }
        for (levels, agent, nri) in [
            ("", Level::ERROR, Level::ERROR),
            ("WARN", Level::WARN, Level::WARN),
            ("info,", Level::INFO, Level::INFO),
            ("info, pinfold::nri=debug", Level::INFO, Level::DEBUG),
            ("pinfold::nri=trace", Level::ERROR, Level::TRACE),
        ] {
            let filter = log_filter(levels).unwrap();
            let lowest = |module: &str| {
                let all = [
                    Level::TRACE,
                    Level::DEBUG,
                    Level::INFO,
                    Level::WARN,
                    Level::ERROR,
                ];
                all.into_iter()
                    .find(|level| filter.would_enable(module, level))
            };
            assert_eq!(lowest("pinfold::agent"), Some(agent), "{levels}");
            assert_eq!(lowest("pinfold::nri::session"), Some(nri), "{levels}");
            assert_eq!(lowest("kube_client::client"), None, "{levels}");
        }
    }

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
