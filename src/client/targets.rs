//! [`Target`]: the agents that `top` watches, from flags and from a file.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use hyper::header::HeaderValue;

use super::endpoint::Endpoint;
use crate::text::parse_errors;

/// The most agents of one table.
pub(crate) const MAX_TARGETS: usize = 5000;

/// The longest accepted file, in bytes: enough for the most agents, with long names.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The longest token, in bytes.
const MAX_TOKEN_BYTES: u64 = 8 << 10;

/// An agent to watch.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// Whether the name is the user's, and not the endpoint's.
    pub(crate) named_by_user: bool,
    pub(crate) endpoint: Endpoint,
}

// === impl Target ===

impl Target {
    /// Sends the header `Authorization` with each request that leaves this host.
    pub(crate) fn with_authorization(self, authorization: Option<HeaderValue>) -> Self {
        Self {
            endpoint: self.endpoint.with_authorization(authorization),
            ..self
        }
    }
}

/// Reads a file with a bearer token, and returns the value of the header `Authorization`.
///
/// # Errors
/// The file can't be read, is empty or too long, or has a character that no token has.
pub(crate) fn read_token(file: &Path) -> anyhow::Result<HeaderValue> {
    let mut text = String::new();
    let read =
        File::open(file).and_then(|open| open.take(MAX_TOKEN_BYTES + 1).read_to_string(&mut text));
    read.map_err(parse_errors::reading)
        .with_context(|| format!("can't read the token in {}", file.display()))?;
    let token = text.trim();
    let is_token = !token.is_empty()
        && text.len() as u64 <= MAX_TOKEN_BYTES
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    anyhow::ensure!(
        is_token,
        "{} has no bearer token of at most {MAX_TOKEN_BYTES} bytes: write only the token into the file, for example the \
         output of kubectl create token",
        file.display()
    );
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
    // The value stays out of debug output.
    value.set_sensitive(true);
    Ok(value)
}

/// Parses `URL` or `NAME=URL`.
fn parse(text: &str) -> anyhow::Result<Target> {
    let named = text
        .split_once('=')
        .filter(|(name, _)| !name.contains(['/', ':']));
    let (name, url) = named.map_or((None, text), |(name, url)| (Some(name.trim()), url.trim()));
    anyhow::ensure!(
        name != Some(""),
        "{text:?} has no name before the =: write NAME=URL or URL"
    );
    let endpoint: Endpoint = url.parse()?;
    Ok(Target {
        name: name.map_or_else(|| endpoint.name(), str::to_owned),
        named_by_user: name.is_some(),
        endpoint,
    })
}

/// Reads a file that lists nodes.
///
/// # Errors
/// The file can't be read, is no text, or is too long.
pub(crate) fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read =
        File::open(file).and_then(|open| open.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    read.map_err(parse_errors::reading)
        .with_context(|| format!("can't read {}", file.display()))?;
    anyhow::ensure!(
        text.len() as u64 <= MAX_FILE_BYTES,
        "{} is longer than {MAX_FILE_BYTES} bytes: each line has a URL or NAME=URL, and nothing else",
        file.display()
    );
    Ok(text)
}

/// The agents in a file's text. Each line names an agent; empty lines and comments after `#` are skipped.
fn parse_file(text: &str, file: &Path) -> anyhow::Result<Vec<Target>> {
    let mut all = Vec::new();
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, number) in text.lines().zip(1u32..) {
        let text = line.split('#').next().unwrap_or_default().trim();
        if !text.is_empty() {
            all.push(parse(text).with_context(|| format!("{}:{number}", file.display()))?);
        }
    }
    anyhow::ensure!(
        !all.is_empty(),
        "{} names no node: write a URL or NAME=URL in each line",
        file.display()
    );
    Ok(all)
}

/// The agents of the flags and of a file with this text.
///
/// # Errors
/// A text that is no agent address; an agent or a name that appears twice.
pub(crate) fn all(flags: &[String], file: Option<(&Path, &str)>) -> anyhow::Result<Vec<Target>> {
    let mut all = Vec::new();
    for flag in flags {
        all.push(parse(flag).context("--node")?);
    }
    if let Some((path, text)) = file {
        all.extend(parse_file(text, path)?);
    }
    anyhow::ensure!(
        all.len() <= MAX_TARGETS,
        "{} nodes, more than {MAX_TARGETS}: name fewer",
        all.len()
    );
    let (mut endpoints, mut names) = (HashSet::new(), HashSet::new());
    for target in &all {
        anyhow::ensure!(
            endpoints.insert(target.endpoint.to_string()),
            "{} is listed twice: list each node once",
            target.endpoint
        );
        anyhow::ensure!(
            !target.named_by_user || names.insert(&target.name),
            "two nodes have the name {:?}: give each node a different name",
            target.name
        );
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_come_from_flags_and_files() {
        let flags = ["node-1".to_owned(), "ps=http://10.0.0.2:9471".to_owned()];
        let text = "# all of them\n\nworker = node-3   # the third\nhttp://proxy:8001/a=b/proxy\n";
        let all = all(&flags, Some((Path::new("nodes"), text))).unwrap();
        let names: Vec<String> = all
            .iter()
            .map(|target| {
                format!(
                    "{} {} {}",
                    target.name, target.named_by_user, target.endpoint
                )
            })
            .collect();
        assert_eq!(
            names,
            [
                "node-1 false http://node-1:9470",
                "ps true http://10.0.0.2:9471",
                "worker true http://node-3:9470",
                "a=b false http://proxy:8001/a=b/proxy",
            ]
        );
    }

    #[test]
    fn an_error_names_the_line() {
        let file = |text| {
            all(&[], Some((Path::new("nodes"), text)))
                .map(|_| ())
                .map_err(|error| format!("{error:#}"))
        };
        assert!(
            file("a\nb c\n")
                .unwrap_err()
                .starts_with("nodes:2: \"b c\" is not the address of an agent")
        );
        assert!(
            file("a\nhttps://b\n")
                .unwrap_err()
                .contains("nodes:2: the scheme of \"https://b\" is not http")
        );
        assert!(file("# none\n").unwrap_err().contains("names no node"));
        assert!(
            file("a\nhttp://a:9470/status\n")
                .unwrap_err()
                .contains("is listed twice")
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
                .contains("two nodes have the name \"x\"")
        );
        assert!(
            file("x=\n")
                .unwrap_err()
                .starts_with("nodes:1: \"\" is not the address of an agent")
        );
    }

    #[test]
    fn a_token_is_one_word() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let written = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            read_token(&file)
        };
        let value = written(b"abc.def-_\n").unwrap();
        assert_eq!(value, "Bearer abc.def-_");
        assert!(!format!("{value:?}").contains("abc"));
        for wrong in [&b""[..], b"\n", b"a b", b"a\nb", b"\xff", &[b'a'; 9000]] {
            assert!(written(wrong).is_err(), "{wrong:?}");
        }
        assert!(read_token(&folder.path().join("none")).is_err());
    }

    #[test]
    fn a_file_is_text_of_bounded_length() {
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
        // Reading stops after the accepted length, as for /dev/zero.
        assert!(
            written(&vec![b'\n'; 3 << 20])
                .unwrap_err()
                .contains("longer than 1048576 bytes")
        );
        assert!(format!("{:#}", read(Path::new("/dev/zero")).unwrap_err()).contains("longer"));
        assert!(format!("{:#}", read(folder.path()).unwrap_err()).contains("can't read"));
    }
}
