//! The settings of the agent's log.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Log {
    /// The lowest level of the lines: `off`, `error`, `warn`, `info`, `debug` or `trace`; or a filter by module, like
    /// `info,pinfold::nri=debug`.
    pub level: String,
    pub format: LogFormat,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Plain text, in color on a terminal.
    #[default]
    Text,
    /// A JSON object on each line.
    Json,
}

// === impl Log ===

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::default(),
        }
    }
}

impl Log {
    /// The filter for log lines. A module that the text does not name gets the level without a module, or `error` if there is
    /// none. The Kubernetes client logs only if the text names `kube_client`.
    ///
    /// # Errors
    /// The text is empty, a level is missing or unknown, or a name can't be a module.
    pub fn filter(&self) -> anyhow::Result<Targets> {
        parse_filter(&self.level).with_context(|| {
            format!(
                "the log level (log.level, --log-level, PINFOLD_LOG_LEVEL) is {:?}: write off, error, warn, info, debug, \
                 trace, or a filter like info,pinfold::nri=debug",
                self.level
            )
        })
    }
}

/// Reads a level, or levels by module. Returns `None` if the text is invalid.
fn parse_filter(text: &str) -> Option<Targets> {
    // The Kubernetes client logs each failed request as an error, and the agent logs the failure,
    // too.
    let mut filter = Targets::new()
        .with_default(LevelFilter::ERROR)
        .with_target("kube_client", LevelFilter::OFF);
    let mut parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .peekable();
    parts.peek()?;
    for part in parts {
        filter = match part.split_once('=') {
            Some((module, level)) => filter.with_target(module_name(module)?, level_named(level)?),
            None => filter.with_default(level_named(part)?),
        };
    }
    Some(filter)
}

/// The level with this name. The library's parser also takes numbers, and an empty text as the level `error`.
fn level_named(text: &str) -> Option<LevelFilter> {
    let name = text.trim();
    let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_word.then(|| name.parse().ok()).flatten()
}

/// The text as the name of a module, like `pinfold::nri`.
fn module_name(text: &str) -> Option<&str> {
    let name = text.trim();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.split("::")
        .all(|part| !part.is_empty() && part.bytes().all(is_plain))
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_filter_has_known_levels_and_plain_modules() {
        for text in [
            "",
            ",",
            "inof",
            "3",
            "info,debgu",
            "pinfold",
            "pinfold=loud",
            "pinfold=",
            "=debug",
            "=,=",
            "pinfold[run]=debug",
            "pinfold:nri=debug",
            "pinfold::=debug",
        ] {
            assert!(parse_filter(text).is_none(), "{text}");
        }
        for (text, agent, nri) in [
            ("WARN", Some(Level::WARN), Some(Level::WARN)),
            ("off", None, None),
            ("info,", Some(Level::INFO), Some(Level::INFO)),
            (
                "info, pinfold::nri = debug",
                Some(Level::INFO),
                Some(Level::DEBUG),
            ),
            ("pinfold::nri=trace", Some(Level::ERROR), Some(Level::TRACE)),
        ] {
            let filter = parse_filter(text).unwrap();
            let most_verbose = |module: &str| {
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
            assert_eq!(most_verbose("pinfold::agent"), agent, "{text}");
            assert_eq!(most_verbose("pinfold::nri::session"), nri, "{text}");
            assert_eq!(most_verbose("kube_client::client"), None, "{text}");
        }
    }
}
