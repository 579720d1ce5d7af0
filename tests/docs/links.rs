//! Links between pages.

use std::collections::BTreeSet;
use std::path::Path;

use crate::markdown::{DocumentPage, pages};
use crate::yaml::here;

const INDEX: &str = "docs/README.md";

/// A link of a page: the path in the repository, and the anchor. A link to another site has none.
fn resolve(page: &DocumentPage, target: &str) -> Option<(String, Option<String>)> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (target, None),
    };
    if path.is_empty() {
        return Some((page.path.clone(), anchor));
    }
    let folder = Path::new(&page.path).parent().unwrap().to_string_lossy();
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            // A path above the repository leads nowhere.
            ".." => {
                if parts.pop().is_none() {
                    parts.push("(above the repository)");
                }
            }
            part => parts.push(part),
        }
    }
    Some((parts.join("/"), anchor))
}

#[test]
fn every_link_resolves() {
    let pages = pages();
    let mut broken = Vec::new();
    for page in &pages {
        for target in page.links() {
            let Some((path, anchor)) = resolve(page, &target) else {
                continue;
            };
            if !here(&path).exists() {
                broken.push(format!("{}: {target}: no such file", page.path));
                continue;
            }
            let Some(anchor) = anchor else { continue };
            let there = pages.iter().find(|other| other.path == path);
            if !there.is_some_and(|other| other.anchors().contains(&anchor)) {
                broken.push(format!("{}: {target}: no such heading", page.path));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_index_links_every_page() {
    let index = DocumentPage::read(INDEX);
    let linked: BTreeSet<String> = index
        .links()
        .iter()
        .filter_map(|target| Some(resolve(&index, target)?.0))
        .collect();
    let missing: Vec<String> = pages()
        .into_iter()
        .map(|page| page.path)
        .filter(|path| path.starts_with("docs/") && path != INDEX && !linked.contains(path))
        .collect();
    assert!(missing.is_empty(), "{INDEX} lacks links to {missing:?}");
}

#[test]
fn the_headings_of_a_page_differ() {
    for page in pages() {
        let mut seen = BTreeSet::new();
        for heading in page.headings() {
            assert!(
                seen.insert(heading.to_lowercase()),
                "{}: the heading {heading:?} is repeated",
                page.path
            );
        }
    }
}
