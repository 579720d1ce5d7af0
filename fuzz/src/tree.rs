//! A tree of small files made from a fuzzer's input: /sys, /proc or the cgroups of an imaginary machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The maximum number of lines that are read of an input.
const MOST_LINES: usize = 256;

/// The node at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A folder.
    Folder,
    /// A file with the content.
    File(Vec<u8>),
}

/// The files of an input, with a file in each line: `path = content`, with `\n` for a new line in the content.
///
/// A line without ` = ` is a folder, and `./name = content` is a file in the last named folder. Lines with a path out
/// of the tree are skipped.
pub fn files(text: &str) -> BTreeMap<String, Node> {
    let mut nodes = BTreeMap::new();
    let mut folder = "";
    for line in text.lines().take(MOST_LINES) {
        let (path, node) = match line.split_once(" = ") {
            Some((path, content)) => (path, Node::File(content.replace("\\n", "\n").into_bytes())),
            None => {
                folder = line;
                (line, Node::Folder)
            }
        };
        let path = &match path.strip_prefix("./") {
            Some(name) => format!("{folder}/{name}"),
            None => path.to_owned(),
        };
        let plain = |part: &str| {
            !matches!(part, "" | "." | "..") && part.len() <= 200 && !part.contains('\0')
        };
        if path.len() > 600 || !path.split('/').all(plain) {
            continue;
        }
        for (at, _) in path.match_indices('/') {
            // A path with children is a folder, whatever a different line says.
            nodes.insert(path[..at].to_owned(), Node::Folder);
        }
        if nodes.get(path) != Some(&Node::Folder) {
            nodes.insert(path.to_owned(), node);
        }
    }
    nodes
}

/// A folder on disk with the files of the latest input.
///
/// Only the differences to the previous input are written: most inputs differ in one line.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    nodes: BTreeMap<String, Node>,
}

// === impl Tree ===

impl Tree {
    /// An empty tree in the folder for temporary files, which `fuzz/run` sets and removes.
    pub fn new() -> Self {
        let root = std::env::temp_dir().join(format!("pinfold-fuzz-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a folder for the tree");
        Self {
            root,
            nodes: BTreeMap::new(),
        }
    }

    /// The root folder of the files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Changes the tree to hold exactly the given files.
    pub fn set(&mut self, nodes: BTreeMap<String, Node>) {
        // In reverse order, the content of a folder precedes the folder.
        for (path, old) in self.nodes.iter().rev() {
            let at = self.root.join(path);
            match (old, nodes.get(path)) {
                (Node::Folder, Some(Node::Folder)) | (Node::File(_), Some(Node::File(_))) => {}
                (Node::Folder, _) => fs::remove_dir(&at).expect("an empty folder can be removed"),
                (Node::File(_), _) => fs::remove_file(&at).expect("a file can be removed"),
            }
        }
        for (path, new) in &nodes {
            let at = self.root.join(path);
            match (self.nodes.get(path), new) {
                (Some(old), new) if old == new => {}
                (_, Node::Folder) => fs::create_dir(&at).expect("a folder can be made"),
                (_, Node::File(content)) => fs::write(&at, content).expect("a file can be written"),
            }
        }
        self.nodes = nodes;
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}
