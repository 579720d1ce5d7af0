//! [`parse`]: pods out of YAML or JSON text that somebody else has read.
//!
//! Each document is read twice: once for its kind, so that a Deployment is refused as a Deployment and not as a Pod
//! with strange fields, and once as what it is. What YAML calls a number or a boolean is not taken for a string, as in
//! Kubernetes: a label `CASE: 2` is an error that says to quote it.

use super::object::{Object, ObjectMeta, PodSpec, PodStatus};
use super::{Pod, PodError};
use crate::text::{self, Mistake, part};

/// The longest text that is read, in bytes: a list of every pod that a node can hold is far smaller.
const MAX_TEXT: usize = 64 << 20;

/// Why a text is not a list of pods. Documents count from 1, and those that are empty don't count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// A text that is too long to be a list of pods.
    #[error("{origin}: {size} bytes are more than the {MAX_TEXT} that are read: split the file")]
    TooLong {
        /// Where the text came from.
        origin: String,
        /// Its size in bytes.
        size: usize,
    },
    /// Not YAML or JSON, or a field of the wrong type.
    #[error("{origin}: document {document}{} can't be read", at_line(*line))]
    Syntax {
        /// Where the text came from.
        origin: String,
        /// The document.
        document: usize,
        /// The line in the text, where known.
        line: Option<u64>,
        /// What the parser says.
        #[source]
        source: SyntaxError,
    },
    /// A document without `kind`.
    #[error(
        "{origin}: document {document} has no kind: only Pods and Lists of Pods are read, write `kind: Pod`"
    )]
    NoKind {
        /// Where the text came from.
        origin: String,
        /// The document.
        document: usize,
    },
    /// A document, or an item of a list, of another kind.
    #[error(
        "{origin}: document {document}{} is a {kind} ({api_version}): only Pods and Lists of Pods (v1) are read",
        of_item(*item)
    )]
    Kind {
        /// Where the text came from.
        origin: String,
        /// The document.
        document: usize,
        /// The item's index, if it is one of a list's.
        item: Option<usize>,
        /// Its kind.
        kind: String,
        /// Its API version, or `no apiVersion`.
        api_version: String,
    },
    /// A pod that could not run.
    #[error("{origin}: document {document}{}, {pod}, is not valid", of_item(*item))]
    Pod {
        /// Where the text came from.
        origin: String,
        /// The document.
        document: usize,
        /// The item's index, if it is one of a list's.
        item: Option<usize>,
        /// The pod, by its name, or `a pod without a name`.
        pod: String,
        /// What is wrong.
        #[source]
        source: Box<PodError>,
    },
}

/// A parser's own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SyntaxError(String);

fn at_line(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line},"))
}

fn of_item(item: Option<usize>) -> String {
    item.map_or_else(String::new, |item| format!(", items[{item}]"))
}

/// The pods in a text, in its order.
///
/// The text is YAML or JSON and may hold many documents, each a Pod, a PodList or a List of Pods; the items of a list
/// may lack `kind` and `apiVersion`, as in the API server's answers. `source` names the text in errors. The first thing
/// that is wrong fails the whole text: half a file would be a surprise.
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
    let (heads, form) = text::read::<DocumentHead>(text, MAX_TEXT).map_err(syntax)?;
    for (head, document) in heads.iter().zip(1..) {
        head.check(source, document)?;
    }
    let mut pods = Vec::new();
    let documents = text::read_as::<ManifestDocument>(text, form, MAX_TEXT).map_err(syntax)?;
    for (document, number) in documents.into_iter().zip(1..) {
        document.pods(source, number, &mut pods)?;
    }
    Ok(pods)
}

part! {
    /// What a document says it is.
    struct DocumentHead: "a Kubernetes object" {
        api_version: String = "apiVersion",
        kind: String = "kind",
        items: Vec<ListItemHead> = "items",
    }
}

part! {
    /// What an item of a list says it is.
    struct ListItemHead: "a Kubernetes object" {
        api_version: String = "apiVersion",
        kind: String = "kind",
    }
}

part! {
    /// A Pod, or a list of them: the two have no field in common but `metadata`, and a list's has nothing that is used.
    struct ManifestDocument: "a Kubernetes object" {
        kind: String = "kind",
        metadata: ObjectMeta = "metadata",
        spec: PodSpec = "spec",
        status: PodStatus = "status",
        items: Vec<Object> = "items",
    }
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
                let stranger = self
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
                stranger.map_or(Ok(()), |(index, kind, version)| {
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
            vec![Object {
                metadata,
                spec,
                status,
            }]
        } else {
            self.items.unwrap_or_default()
        };
        for (pod, index) in pods.into_iter().zip(0..) {
            let name = name_for_people(pod.metadata.as_ref());
            let read = Pod::from_k8s(pod).and_then(|pod| {
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

fn name_for_people(metadata: Option<&ObjectMeta>) -> String {
    let name =
        metadata.and_then(|metadata| metadata.name.as_ref().or(metadata.generate_name.as_ref()));
    name.map_or_else(
        || "a pod without a name".to_owned(),
        |name| format!("pod {name}"),
    )
}

#[cfg(test)]
mod tests;
