//! [`parse`]: pods from YAML or JSON text.
//!
//! Each document is read twice: first for the kind, so that an error about a Deployment names the
//! Deployment, and then for the pods. As in Kubernetes, YAML numbers and booleans are not strings:
//! a label `CASE: 2` is an error, which advises quotes.

use std::collections::HashSet;

use serde::Deserialize;

use super::object::{ObjectMeta, PodObject, PodSpec, PodStatus};
use super::{Pod, PodError};
use crate::text::document::{self, Mistake};

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
    #[error(
        "{origin}: document {document} has no kind: only Pods and Lists of Pods are read, write `kind: Pod`"
    )]
    NoKind {
        /// The source of the text.
        origin: String,
        /// The document's number.
        document: usize,
    },
    /// A document or an item of a list with an unsupported kind.
    #[error(
        "{origin}: document {document}{} is a {kind} ({api_version}): only Pods and Lists of Pods (v1) are read",
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
    },
    #[error(
        "{origin}: two pods have the name {pod}: give each pod of a namespace its own name, or remove one of them"
    )]
    Repeated {
        /// The source of the text.
        origin: String,
        /// The namespace and the name.
        pod: String,
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
        head.check(source, document)?;
    }
    let mut pods = Vec::new();
    let documents = document::read_as::<ManifestDocument>(text, form, MAX_TEXT).map_err(syntax)?;
    for (document, number) in documents.into_iter().zip(1..) {
        document.pods(source, number, &mut pods)?;
    }
    match repeated(&pods) {
        Some(pod) => Err(ManifestError::Repeated {
            origin: origin(),
            pod: pod.to_string(),
        }),
        None => Ok(pods),
    }
}

/// The first pod with the namespace and the name of an earlier one.
///
/// A name that ends in `-` is a `generateName`, from which each pod gets a name of its own.
pub fn repeated(pods: &[Pod]) -> Option<&Pod> {
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

/// A Pod or a list of Pods. Both have `kind` and `metadata`, and a list's `metadata` is unused.
#[derive(Deserialize)]
#[serde(expecting = "a Kubernetes object")]
struct ManifestDocument {
    kind: Option<String>,
    metadata: Option<ObjectMeta>,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
    items: Option<Vec<PodObject>>,
}

// === impl DocumentHead ===

impl DocumentHead {
    fn check(&self, origin: &str, document: usize) -> Result<(), ManifestError> {
        let refuse = |item, kind: &str, version: &Option<String>| ManifestError::Kind {
            origin: origin.to_owned(),
            document,
            item,
            kind: kind.to_owned(),
            api_version: version
                .clone()
                .unwrap_or_else(|| "no apiVersion".to_owned()),
        };
        let v1 =
            |version: &Option<String>| version.as_deref().is_none_or(|version| version == "v1");
        match self.kind.as_deref() {
            None | Some("") => Err(ManifestError::NoKind {
                origin: origin.to_owned(),
                document,
            }),
            Some("Pod") if v1(&self.api_version) => Ok(()),
            Some("List" | "PodList") if v1(&self.api_version) => {
                let unsupported = self
                    .items
                    .iter()
                    .flatten()
                    .zip(0..)
                    .find_map(|(item, index)| {
                        let kind = item.kind.as_deref().unwrap_or("Pod");
                        (kind != "Pod" || !v1(&item.api_version)).then_some((
                            index,
                            kind,
                            &item.api_version,
                        ))
                    });
                unsupported.map_or(Ok(()), |(index, kind, version)| {
                    Err(refuse(Some(index), kind, version))
                })
            }
            Some(kind) => Err(refuse(None, kind, &self.api_version)),
        }
    }
}

// === impl ManifestDocument ===

impl ManifestDocument {
    fn pods(self, origin: &str, document: usize, into: &mut Vec<Pod>) -> Result<(), ManifestError> {
        let single = self.kind.as_deref() == Some("Pod");
        let pods = if single {
            let Self {
                metadata,
                spec,
                status,
                ..
            } = self;
            vec![PodObject {
                metadata,
                spec,
                status,
            }]
        } else {
            self.items.unwrap_or_default()
        };
        for (pod, index) in pods.into_iter().zip(0..) {
            let name = display_name(pod.metadata.as_ref());
            let read = check_restart_policies(&pod).and_then(|()| Pod::from_k8s(pod));
            let read = read.and_then(|pod| {
                if pod.containers.is_empty() {
                    Err(PodError::NoContainers)
                } else {
                    Ok(pod)
                }
            });
            into.push(read.map_err(|source| ManifestError::Pod {
                origin: origin.to_owned(),
                document,
                item: (!single).then_some(index),
                pod: name,
                source: Box::new(source),
            })?);
        }
        Ok(())
    }
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

fn display_name(metadata: Option<&ObjectMeta>) -> String {
    let name =
        metadata.and_then(|metadata| metadata.name.as_ref().or(metadata.generate_name.as_ref()));
    name.map_or_else(
        || "a pod without a name".to_owned(),
        |name| format!("pod {name}"),
    )
}

#[cfg(test)]
mod tests;
