//! Which agents are asked: from flags and from a file.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;

use super::super::agent::Endpoint;

/// More than this are a mistake rather than a cluster to look at in one table.
const MOST: usize = 5000;

/// A file that names so many has long names; one that goes on is another file.
const LONGEST: u64 = 1 << 20;

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
    let named = text
        .split_once('=')
        .filter(|(name, _)| !name.contains(['/', ':']));
    let (name, url) = named.map_or((None, text), |(name, url)| (Some(name.trim()), url.trim()));
    anyhow::ensure!(
        name != Some(""),
        "{text:?} has no name before its =: write NAME=URL, or URL alone"
    );
    let endpoint: Endpoint = url.parse()?;
    Ok(Asked {
        name: name.map_or_else(|| endpoint.name(), str::to_owned),
        given: name.is_some(),
        endpoint,
    })
}

/// A file's text.
///
/// # Errors
/// What can't be read, is no text, or is too long to be a list of nodes.
pub(super) fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = File::open(file).and_then(|open| open.take(LONGEST + 1).read_to_string(&mut text));
    read.with_context(|| format!("can't read {}", file.display()))?;
    anyhow::ensure!(
        text.len() as u64 <= LONGEST,
        "{} is longer than {LONGEST} bytes: write one URL or NAME=URL in a line, and nothing else",
        file.display()
    );
    Ok(text)
}

/// The agents of a file: one in each line, empty lines and what follows a # left out.
fn listed(text: &str, file: &Path) -> anyhow::Result<Vec<Asked>> {
    let mut all = Vec::new();
    // Some editors begin a text with a mark of its encoding.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, number) in text.lines().zip(1u32..) {
        let text = line.split('#').next().unwrap_or_default().trim();
        if !text.is_empty() {
            all.push(asked(text).with_context(|| format!("{}:{number}", file.display()))?);
        }
    }
    anyhow::ensure!(
        !all.is_empty(),
        "{} names no node: write one URL or NAME=URL in a line",
        file.display()
    );
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
    anyhow::ensure!(
        all.len() <= MOST,
        "{} nodes, more than {MOST}: name fewer",
        all.len()
    );
    let (mut seen, mut names) = (HashSet::new(), HashSet::new());
    for one in &all {
        anyhow::ensure!(
            seen.insert(one.endpoint.to_string()),
            "{} is named twice: name each node once",
            one.endpoint
        );
        anyhow::ensure!(
            !one.given || names.insert(&one.name),
            "two nodes are called {:?}: give each a name of its own",
            one.name
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
        let told: Vec<String> = all
            .iter()
            .map(|one| format!("{} {} {}", one.name, one.given, one.endpoint))
            .collect();
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
            all(&[], Some((Path::new("nodes"), text)))
                .map(|_| ())
                .map_err(|error| format!("{error:#}"))
        };
        assert!(
            file("a\nb c\n")
                .unwrap_err()
                .starts_with("nodes:2: \"b c\" names no agent")
        );
        assert!(
            file("a\nhttps://b\n")
                .unwrap_err()
                .contains("nodes:2: \"https://b\" is not http")
        );
        assert!(file("# none\n").unwrap_err().contains("names no node"));
        assert!(
            file("a\nhttp://a:9470/status\n")
                .unwrap_err()
                .contains("named twice")
        );
        assert!(format!("{:#}", all(&["=".to_owned()], None).unwrap_err()).starts_with("--node: "));
        assert!(
            file("a\n = b\n")
                .unwrap_err()
                .starts_with("nodes:2: \"= b\" has no name")
        );
        assert!(
            file("x=a\nx = b\n")
                .unwrap_err()
                .contains("two nodes are called \"x\"")
        );
        assert!(
            file("x=\n")
                .unwrap_err()
                .starts_with("nodes:1: \"\" names no agent")
        );
    }

    #[test]
    fn files_are_texts_of_a_certain_length() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes");
        let written = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            read(&file).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(
            written("\u{feff}a\r\nb\r\n".as_bytes()).unwrap(),
            "\u{feff}a\r\nb\r\n"
        );
        assert_eq!(
            all(&[], Some((Path::new("nodes"), "\u{feff}a\r\nb\r\n")))
                .unwrap()
                .len(),
            2
        );
        assert!(written(&[0xff, 0xfe]).unwrap_err().contains("can't read"));
        // As of /dev/zero, no more is read than tells that it is too much.
        assert!(
            written(&vec![b'\n'; 3 << 20])
                .unwrap_err()
                .contains("longer than 1048576 bytes")
        );
        assert!(format!("{:#}", read(Path::new("/dev/zero")).unwrap_err()).contains("longer"));
        assert!(format!("{:#}", read(folder.path()).unwrap_err()).contains("can't read"));
    }
}
