//! Which agents are asked: from flags and from a file.

use std::path::Path;

use anyhow::Context;

use super::super::agent::Endpoint;

/// More than this are a mistake rather than a cluster to look at in one table.
const MOST: usize = 5000;

/// An agent, and what it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) name: String,
    /// Whether a person has called it so.
    pub(super) given: bool,
    pub(super) endpoint: Endpoint,
}

/// An agent by `URL` or `NAME=URL`.
fn asked(text: &str) -> anyhow::Result<Asked> {
    let named = text.split_once('=').filter(|(name, _)| !name.contains(['/', ':']));
    let (name, url) = named.map_or((None, text), |(name, url)| (Some(name.trim()), url.trim()));
    let endpoint: Endpoint = url.parse()?;
    Ok(Asked { name: name.map_or_else(|| endpoint.name(), str::to_owned), given: name.is_some(), endpoint })
}

/// The agents of a file: one in each line, empty lines and what follows a # left out.
fn listed(text: &str, file: &Path) -> anyhow::Result<Vec<Asked>> {
    let mut all = Vec::new();
    for (line, number) in text.lines().zip(1u32..) {
        let text = line.split('#').next().unwrap_or_default().trim();
        if !text.is_empty() {
            all.push(asked(text).with_context(|| format!("{}:{number}", file.display()))?);
        }
    }
    anyhow::ensure!(!all.is_empty(), "{} names no node: write one URL or NAME=URL in a line", file.display());
    Ok(all)
}

/// All that are named by flags and in a file with this text.
///
/// # Errors
/// What names no agent, and an agent or a name that is there twice.
pub(super) fn all(flags: &[String], file: Option<(&Path, &str)>) -> anyhow::Result<Vec<Asked>> {
    let mut all = Vec::new();
    for flag in flags {
        all.push(asked(flag).context("--node")?);
    }
    if let Some((path, text)) = file {
        all.extend(listed(text, path)?);
    }
    anyhow::ensure!(all.len() <= MOST, "{} nodes, more than {MOST}: name fewer", all.len());
    let mut seen = std::collections::HashSet::new();
    for one in &all {
        anyhow::ensure!(
            seen.insert(one.endpoint.to_string()),
            "{} is named twice: name each node once",
            one.endpoint
        );
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_come_from_flags_and_files() {
        let flags = ["node-1".to_owned(), "ps=http://10.0.0.2:9471".to_owned()];
        let text = "# all of them\n\nworker = node-3   # the third\nhttp://proxy:8001/a=b/proxy\n";
        let all = all(&flags, Some((Path::new("nodes"), text))).unwrap();
        let told: Vec<String> =
            all.iter().map(|one| format!("{} {} {}", one.name, one.given, one.endpoint)).collect();
        assert_eq!(
            told,
            [
                "node-1 false http://node-1:9470",
                "ps true http://10.0.0.2:9471",
                "worker true http://node-3:9470",
                "a=b false http://proxy:8001/a=b/proxy",
            ]
        );
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let file = |text| {
            all(&[], Some((Path::new("nodes"), text))).map(|_| ()).map_err(|error| format!("{error:#}"))
        };
        assert!(file("a\nb c\n").unwrap_err().starts_with("nodes:2: \"b c\" names no agent"));
        assert!(file("a\nhttps://b\n").unwrap_err().contains("nodes:2: \"https://b\" is not http"));
        assert!(file("# none\n").unwrap_err().contains("names no node"));
        assert!(file("a\nhttp://a:9470/status\n").unwrap_err().contains("named twice"));
        assert!(format!("{:#}", all(&["=".to_owned()], None).unwrap_err()).starts_with("--node: "));
    }
}
