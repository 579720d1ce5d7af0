//! [`DocumentPage`]: the headings, links, tables and code blocks of a Markdown page.

use std::fs;
use std::path::Path;

use crate::yaml::here;

/// A page of the documentation.
pub(crate) struct DocumentPage {
    /// The path in the repository.
    pub(crate) path: String,
    /// The lines outside code blocks. A line of a code block is empty here.
    prose: Vec<String>,
    /// The code blocks.
    pub(crate) blocks: Vec<Block>,
}

/// A fenced code block.
pub(crate) struct Block {
    /// The language after the fence.
    pub(crate) language: String,
    /// The line number of the opening fence.
    pub(crate) line: usize,
    /// The text between the fences.
    pub(crate) text: String,
}

/// A row of a table: the cells.
pub(crate) type Row = Vec<String>;

// === impl DocumentPage ===

impl DocumentPage {
    /// Reads a page of the repository.
    pub(crate) fn read(path: &str) -> Self {
        let text = fs::read_to_string(here(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self::parse(path, &text)
    }

    fn parse(path: &str, text: &str) -> Self {
        let (mut prose, mut blocks) = (Vec::new(), Vec::new());
        let mut open: Option<(usize, Block)> = None;
        for (line, number) in text.lines().zip(1..) {
            let inner = line.trim_start();
            let indent = line.len() - inner.len();
            let (keep, next) = match (open.take(), inner.strip_prefix("```")) {
                (Some((_, block)), Some("")) => {
                    blocks.push(block);
                    ("", None)
                }
                (Some((outer, mut block)), _) => {
                    block.text.push_str(&line[indent.min(outer)..]);
                    block.text.push('\n');
                    ("", Some((outer, block)))
                }
                (None, Some(language)) => {
                    let block = Block {
                        language: language.trim().to_owned(),
                        line: number,
                        text: String::new(),
                    };
                    ("", Some((indent, block)))
                }
                (None, None) => (line, None),
            };
            prose.push(keep.to_owned());
            open = next;
        }
        assert!(open.is_none(), "{path}: a code block has no end");
        Self {
            path: path.to_owned(),
            prose,
            blocks,
        }
    }

    /// The headings, without the number signs.
    pub(crate) fn headings(&self) -> Vec<&str> {
        let headings = self.prose.iter().filter(|line| is_heading(line));
        headings
            .map(|line| line.trim_start_matches('#').trim())
            .collect()
    }

    /// The anchors of the headings, by GitHub's rule. A repeated heading has a number at the end.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        for heading in self.headings() {
            let first = anchor(heading);
            let mut name = first.clone();
            let mut number = 0;
            while anchors.contains(&name) {
                number += 1;
                name = format!("{first}-{number}");
            }
            anchors.push(name);
        }
        anchors
    }

    /// The targets of links and images.
    pub(crate) fn links(&self) -> Vec<String> {
        let prose = self.prose.join("\n");
        // A code span ends with its paragraph.
        let paragraphs = prose.split("\n\n").map(without_code);
        paragraphs
            .flat_map(|paragraph| targets(&paragraph))
            .collect()
    }

    /// The tables. The first row of each table is the header.
    pub(crate) fn tables(&self) -> Vec<Vec<Row>> {
        let mut tables = Vec::new();
        let mut rows: Vec<Row> = Vec::new();
        for line in self.prose.iter().map(|line| line.trim()).chain([""]) {
            if !line.starts_with('|') {
                if !rows.is_empty() {
                    tables.push(std::mem::take(&mut rows));
                }
            } else if !line.chars().all(|c| "|-: ".contains(c)) {
                let cells = line.trim_matches('|').split('|');
                rows.push(cells.map(|cell| cell.trim().to_owned()).collect());
            }
        }
        tables
    }
}

/// Whether a line is a heading: one to six number signs and a space.
fn is_heading(line: &str) -> bool {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    (1..=6).contains(&level) && line[level..].starts_with(' ')
}

/// GitHub's anchor of a heading: lower case, hyphens for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let lower = heading.to_lowercase();
    lower
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// The text without code spans.
fn without_code(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('`') {
        let length = rest[start..]
            .bytes()
            .take_while(|byte| *byte == b'`')
            .count();
        kept.push_str(&rest[..start]);
        let inside = &rest[start + length..];
        let ticks = "`".repeat(length);
        rest = match inside.find(&ticks) {
            Some(end) => &inside[end + length..],
            None => inside,
        };
    }
    kept.push_str(rest);
    kept
}

/// The targets of the links in a text: `[text](target)`, `[label]: target`, and HTML attributes.
fn targets(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for rest in text.split("](").skip(1) {
        targets.push(first_word(rest.split(')').next().unwrap_or_default()));
    }
    for attribute in ["src=\"", "href=\""] {
        for rest in text.split(attribute).skip(1) {
            targets.push(first_word(rest.split('"').next().unwrap_or_default()));
        }
    }
    for line in text.lines().filter(|line| line.starts_with('[')) {
        if let Some((_, target)) = line.split_once("]: ") {
            targets.push(first_word(target));
        }
    }
    targets
}

fn first_word(text: &str) -> String {
    text.split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The README, and the pages in `docs`, in the order of their paths.
pub(crate) fn pages() -> Vec<DocumentPage> {
    let mut paths = vec!["README.md".to_owned()];
    find("docs", "md", &mut paths);
    paths.sort();
    paths.iter().map(|path| DocumentPage::read(path)).collect()
}

/// Adds the files with the extension in a folder of the repository, and in the folders below.
pub(crate) fn find(folder: &str, extension: &str, paths: &mut Vec<String>) {
    let entries = fs::read_dir(here(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    for entry in entries {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            find(&path, extension, paths);
        } else if Path::new(&path).extension().is_some_and(|e| e == extension) {
            paths.push(path);
        }
    }
}

#[test]
fn the_parts_of_a_page_are_found() {
    let page = DocumentPage::parse(
        "page.md",
        "# One `two`: three\n\nA [link](a.md#b \"title\") and `[code](c.md)`.\n\n## One\n\n- list\n\n  ```sh\n  # no heading\n    [x](y)\n  ```\n\n\
         ## One\n\n| a | b |\n|---|---|\n| `1` | two |\n\n[label]: d.md\n",
    );
    assert_eq!(page.headings(), ["One `two`: three", "One", "One"]);
    assert_eq!(page.anchors(), ["one-two-three", "one", "one-1"]);
    assert_eq!(page.links(), ["a.md#b", "d.md"]);
    assert_eq!(page.tables(), [[["a", "b"], ["`1`", "two"]]]);
    let block = &page.blocks[0];
    assert_eq!((block.language.as_str(), block.line), ("sh", 9));
    assert_eq!(block.text, "# no heading\n  [x](y)\n");
}
