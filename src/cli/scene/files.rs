//! Plans and nodes from files, and objects as YAML.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};

use crate::scene::{Document, Node, read, read_nodes};
use crate::text::parse_errors;

/// Whether the standard input was read.
static STDIN: AtomicBool = AtomicBool::new(false);

/// The text of a file, or of the standard input.
pub(super) fn text(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        // The second reader would find the standard input empty.
        ensure!(
            !STDIN.swap(true, Ordering::Relaxed),
            "the standard input (-) stands for two files: name one of the files"
        );
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .map_err(parse_errors::reading)
            .context("can't read the standard input")?;
        return Ok(text);
    }
    fs::read_to_string(path)
        .map_err(parse_errors::reading)
        .with_context(|| format!("can't read {}", path.display()))
}

/// The plans in a file.
pub(super) fn documents(path: &Path) -> anyhow::Result<Vec<Document>> {
    Ok(read(&text(path)?, &path.display().to_string())?)
}

pub(super) fn nodes(path: &Path) -> anyhow::Result<Vec<Node>> {
    Ok(read_nodes(&text(path)?, &path.display().to_string())?)
}

pub(super) fn yaml(object: &impl serde::Serialize) -> anyhow::Result<String> {
    serde_saphyr::to_string(object).context("can't write YAML")
}
