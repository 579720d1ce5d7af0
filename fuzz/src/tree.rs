//! A tree of small files made from a fuzzer's input: the /sys, /proc or cgroups of a machine that nobody has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// More lines than this of an input are not read.
const MOST_LINES: usize = 256;

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A folder.
    Folder,
    /// A file with this in it.
    File(Vec<u8>),
}

/// The files that an input describes, one in each line: `path = content`, with `\n` for a new line in the content.
///
/// A line without ` = ` is a folder, and `./name = content` is a file in the folder named last. Lines whose path leads
/// out of the tree are left out.
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
            // What has something below it is a folder, whatever another line says.
            nodes.insert(path[..at].to_owned(), Node::Folder);
        }
        if nodes.get(path) != Some(&Node::Folder) {
            nodes.insert(path.to_owned(), node);
        }
    }
    nodes
}

/// A folder on disk that holds the files of the latest input.
///
/// From one input to the next only what differs is written: most inputs differ in one line.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    nodes: BTreeMap<String, Node>,
}

// === impl Tree ===

impl Tree {
    /// An empty tree in the system's folder for temporary files, which `fuzz/run` sets and removes.
    pub fn new() -> Self {
        let root = std::env::temp_dir().join(format!("pinfold-fuzz-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a folder for the tree");
        Self {
            root,
            nodes: BTreeMap::new(),
        }
    }

    /// Where the files are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the tree hold these files, and nothing else.
    pub fn set(&mut self, nodes: BTreeMap<String, Node>) {
        // Backwards, what is in a folder comes before the folder.
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
