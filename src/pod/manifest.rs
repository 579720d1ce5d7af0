//! Pods from YAML or JSON text: [`parse`] reads Pods, and [`Manifests`] also makes the pods of Jobs, Deployments and other objects.
//!
//! Each document is read twice: first for the kind, so that an error about an unknown kind names
//! the kind, and then for the pods. As in Kubernetes, YAML numbers and booleans are not strings:
//! a label `CASE: 2` is an error, which advises quotes.

mod expand;
mod object;
mod workload;

use std::collections::HashSet;

use serde::Deserialize;

use super::object::PodObject;
use super::{Pod, PodError};
use crate::text::document::{self, Mistake};
pub use expand::{MOST_PODS, Manifests};
use object::ManifestObject;
use workload::ObjectKind;

/// The longest accepted text, in bytes. A list of all pods of a full node is far smaller.
const MAX_TEXT: usize = 64 << 20;

/// Why a text is not a list of pods. Documents count from 1, without empty documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("{origin}: {size} bytes, more than the limit of {MAX_TEXT}: split the file")]
    TooLong {
        /// The source of the text.
        origin: String,
        /// The text's size in bytes.
        size: usize,
    },
    /// Not YAML or JSON, or a field of the wrong type.
    #[error("{origin}: document {document}{} can't be read", at_line(*line))]
    Syntax {
        /// The source of the text.
        origin: String,
        /// The document's number.
        document: usize,
        /// The line in the text, if known.
        line: Option<u64>,
        /// The parser's error.
        #[source]
        source: SyntaxError,
    },
    /// A document without `kind`.
    #[error("{origin}: document {document} has no kind: write the object's kind, like `kind: Pod`")]
    NoKind {
        /// The source of the text.
        origin: String,
        /// The document's number.
        document: usize,
    },
    /// A document or an item of a list with an unsupported kind.
    #[error(
        "{origin}: document {document}{} is a {kind} ({api_version}): {known}",
        of_item(*item)
    )]
    Kind {
        /// The source of the text.
        origin: String,
        /// The document's number.
        document: usize,
        /// The item's index in a list.
        item: Option<usize>,
        kind: String,
        /// The API version, or `no apiVersion`.
        api_version: String,
        /// What the reader knows.
        known: &'static str,
    },
    /// Two objects of a kind with the same name.
    #[error(
        "{origin}: a second {kind} has the name {name}; the first is in {first}: name each file once, and give each {kind} of a \
         namespace its own name"
    )]
    Repeated {
        /// The source of the second object.
        origin: String,
        kind: String,
        /// The namespace and the name.
        name: String,
        /// The source of the first object.
        first: String,
    },
    /// An object whose pods are unknown.
    #[error("{origin}: document {document}{}, {object}: {problem}", of_item(*item))]
    Workload {
        /// The source of the text.
        origin: String,
        /// The document's number.
        document: usize,
        /// The item's index in a list.
        item: Option<usize>,
        /// The kind and the name.
        object: String,
        /// The field, the mistake and the remedy.
        problem: String,
    },
    #[error("{origin}: document {document}{}, {pod}, is not valid", of_item(*item))]
    Pod {
        /// The source of the text.
        origin: String,
        /// The document's number.
        document: usize,
        /// The item's index in a list.
        item: Option<usize>,
        /// The pod's name, or `a pod without a name`.
        pod: String,
        #[source]
        source: Box<PodError>,
    },
}

/// The text of a parser's error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SyntaxError(String);

fn at_line(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line},"))
}

fn of_item(item: Option<usize>) -> String {
    item.map_or_else(String::new, |item| format!(", items[{item}]"))
}

/// The pods of a text, in order.
///
/// The text is YAML or JSON and may hold many documents: a Pod, a PodList or a List of Pods each.
/// Items of a list may lack `kind` and `apiVersion`, as in the API server's answers. `source` names
/// the text in errors. The first error fails the whole text, since half of a file would be
/// surprising.
pub fn parse(text: &str, source: &str) -> Result<Vec<Pod>, ManifestError> {
    let known = KnownKinds {
        contain: |kind| kind == ObjectKind::Pod,
        description: "only Pods and Lists of Pods (v1) are read",
    };
    let objects = objects(text, source, &known)?;
    let pods = objects.into_iter().map(FoundObject::into_pod);
    let pods = pods.collect::<Result<Vec<_>, _>>()?;
    match repeated(&pods) {
        Some(pod) => Err(ManifestError::Repeated {
            origin: source.to_owned(),
            kind: "Pod".to_owned(),
            name: pod.to_string(),
            first: source.to_owned(),
        }),
        None => Ok(pods),
    }
}

/// The kinds that a reader takes.
struct KnownKinds {
    contain: fn(ObjectKind) -> bool,
    /// For an error about any other kind.
    description: &'static str,
}

/// An object of a text, and its place.
#[derive(Debug)]
struct FoundObject {
    origin: String,
    /// The document's number, from 1.
    document: usize,
    /// The index in a list.
    item: Option<usize>,
    kind: String,
    api_version: Option<String>,
    object: ManifestObject,
}

/// The objects of a text, those in lists one by one.
fn objects(
    text: &str,
    source: &str,
    known: &KnownKinds,
) -> Result<Vec<FoundObject>, ManifestError> {
    let origin = || source.to_owned();
    if text.len() > MAX_TEXT {
        return Err(ManifestError::TooLong {
            origin: origin(),
            size: text.len(),
        });
    }
    let syntax = |mistake: Mistake| ManifestError::Syntax {
        origin: origin(),
        document: mistake.document,
        line: mistake.line,
        source: SyntaxError(mistake.message),
    };
    let (heads, form) = document::read::<DocumentHead>(text, MAX_TEXT).map_err(syntax)?;
    for (head, document) in heads.iter().zip(1..) {
        head.check((source, document), known)?;
    }
    let documents = document::read_as::<ManifestObject>(text, form, MAX_TEXT).map_err(syntax)?;
    let mut found = Vec::new();
    for (mut object, document) in documents.into_iter().zip(1..) {
        let kind = object.kind.take().unwrap_or_default();
        let api_version = object.api_version.take();
        let mut add = |item, kind, api_version, object| {
            found.push(FoundObject {
                origin: origin(),
                document,
                item,
                kind,
                api_version,
                object,
            });
        };
        let Some(of_items) = kind_of_items(&kind) else {
            add(None, kind, api_version, object);
            continue;
        };
        for (mut item, index) in object.items.into_iter().flatten().zip(0..) {
            let version = item.api_version.take();
            let (kind, version) = match item.kind.take() {
                Some(kind) => (kind, version),
                None => (of_items.to_owned(), version.or_else(|| api_version.clone())),
            };
            add(Some(index), kind, version, item);
        }
    }
    Ok(found)
}

/// The kind of a list's items, which they need not repeat; none if the kind is no list's.
fn kind_of_items(kind: &str) -> Option<&str> {
    kind.strip_suffix("List")
        .map(|kind| if kind.is_empty() { "Pod" } else { kind })
}

/// The first pod with the namespace and the name of an earlier one.
///
/// A name that ends in `-` is a `generateName`, from which each pod gets a name of its own.
fn repeated(pods: &[Pod]) -> Option<&Pod> {
    let mut names = HashSet::new();
    let mut named = pods.iter().filter(|pod| !pod.name.ends_with('-'));
    named.find(|pod| !names.insert((&pod.namespace, &pod.name)))
}

/// The kind and the version of a document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a Kubernetes object")]
struct DocumentHead {
    api_version: Option<String>,
    kind: Option<String>,
    items: Option<Vec<ListItemHead>>,
}

/// The kind and the version of a list's item.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a Kubernetes object")]
struct ListItemHead {
    api_version: Option<String>,
    kind: Option<String>,
}

// === impl DocumentHead ===

impl DocumentHead {
    fn check(
        &self,
        (origin, document): (&str, usize),
        known: &KnownKinds,
    ) -> Result<(), ManifestError> {
        let is_known =
            |kind: &str, version| ObjectKind::of(kind, version).is_some_and(known.contain);
        let refuse = |item, kind: &str, version: Option<&str>| ManifestError::Kind {
            origin: origin.to_owned(),
            document,
            item,
            kind: kind.to_owned(),
            api_version: version.unwrap_or("no apiVersion").to_owned(),
            known: known.description,
        };
        let kind = self.kind.as_deref().filter(|kind| !kind.is_empty());
        let kind = kind.ok_or_else(|| ManifestError::NoKind {
            origin: origin.to_owned(),
            document,
        })?;
        let version = self.api_version.as_deref();
        let of_items = kind_of_items(kind);
        if !is_known(of_items.unwrap_or(kind), version) {
            return Err(refuse(None, kind, version));
        }
        let items = self.items.iter().flatten().zip(0..);
        for (item, index) in items.filter(|_| of_items.is_some()) {
            let own = item.api_version.as_deref();
            let (kind, version) = match item.kind.as_deref() {
                Some(kind) => (kind, own),
                None => (of_items.unwrap_or_default(), own.or(version)),
            };
            if !is_known(kind, version) {
                return Err(refuse(Some(index), kind, version));
            }
        }
        Ok(())
    }
}

// === impl FoundObject ===

impl FoundObject {
    /// The object, a Pod, as the rules need it.
    fn into_pod(self) -> Result<Pod, ManifestError> {
        let name = match self.object.name() {
            Some(name) => format!("pod {name}"),
            None => "a pod without a name".to_owned(),
        };
        let pod = read_pod(self.object.into_pod());
        pod.map_err(|source| ManifestError::Pod {
            origin: self.origin,
            document: self.document,
            item: self.item,
            pod: name,
            source: Box::new(source),
        })
    }
}

/// A pod as its author wrote it, which the API server has not checked yet.
fn read_pod(pod: PodObject) -> Result<Pod, PodError> {
    check_restart_policies(&pod)?;
    let pod = Pod::from_k8s(pod)?;
    if pod.containers.is_empty() {
        return Err(PodError::NoContainers);
    }
    Ok(pod)
}

/// Whether the API server would accept the restart policies. An object of the API server is not
/// checked, because newer servers may have more policies.
fn check_restart_policies(pod: &PodObject) -> Result<(), PodError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let init = spec.init_containers.iter().flatten().zip(0..);
    let init = init.map(|(c, i)| (format!("spec.initContainers[{i}]"), &c.restart_policy));
    let app = spec.containers.iter().flatten().zip(0..);
    let app = app.map(|(c, i)| (format!("spec.containers[{i}]"), &c.restart_policy));
    let whole = [("spec".to_owned(), &spec.restart_policy)];
    for (path, word) in whole.into_iter().chain(init).chain(app) {
        match word.as_deref() {
            None | Some("" | "Always" | "OnFailure" | "Never") => {}
            Some(word) => {
                let word = word.to_owned();
                return Err(PodError::RestartPolicy { path, word });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
