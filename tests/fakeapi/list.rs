//! Lists: complete or paged, at the current or an older resourceVersion.

use std::sync::Arc;

use serde_json::{Value, json};

use super::kinds::ObjectKind;
use super::select::Selector;
use super::status::{self, Answer};
use super::store::Store;

/// The parameters of a list request.
#[derive(Debug, Default, Clone)]
pub(crate) struct ListParameters {
    pub(crate) limit: usize,
    pub(crate) token: String,
    pub(crate) revision: String,
    pub(crate) exact: bool,
}

// === impl ListParameters ===

impl ListParameters {
    /// Whether the watch cache serves the list. Before Kubernetes 1.34, etcd serves every list with a limit, unless any version
    /// will do, and before 1.31 every list of the newest version.
    pub(crate) fn is_cached(&self) -> bool {
        let has_version = !self.revision.is_empty() && self.token.is_empty() && !self.exact;
        has_version && (self.revision == "0" || self.limit == 0)
    }
}

pub(crate) fn list(
    store: &Store,
    kind: &ObjectKind,
    selector: &Selector,
    wanted: &ListParameters,
) -> Answer<String> {
    let mut revision = store.revision;
    let mut start = None;
    if !wanted.token.is_empty() {
        let (at, from) = read_token(&wanted.token)?;
        start = Some(from.clone());
        match u64::try_from(at) {
            Ok(at) if at < store.compacted => {
                let mut refusal = status::expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start a new \
                     list without the continue parameter, or use the continue token in this response to retrieve the \
                     remainder of the results. Continuing with the provided token results in an inconsistent list - \
                     objects that were created, modified, or deleted between the time the first chunk was returned and \
                     now may show up in the list.",
                );
                refusal.body["metadata"] = json!({"continue": write_token(-1, &from)});
                return Err(refusal);
            }
            Ok(at) => revision = at,
            // An inconsistent continue token (revision -1) continues with the current objects.
            Err(_) => {}
        }
    } else if wanted.revision == "0" {
        revision = newest(store, wanted);
    } else if !wanted.revision.is_empty() {
        let requested: u64 = wanted.revision.parse().map_err(|_| {
            status::bad_request(&format!("invalid resourceVersion {:?}", wanted.revision))
        })?;
        let reached = newest(store, wanted);
        if requested > reached {
            return Err(status::too_large(requested, reached));
        }
        revision = reached;
        if wanted.exact {
            if requested < store.compacted {
                return Err(status::expired(
                    "The resourceVersion for the provided list is too old.",
                ));
            }
            revision = requested;
        }
    }
    // Keys of the watch cache start with a slash.
    let slash = if kind.cached { "/" } else { "" };
    let path = |namespace: &str, name: &str| match namespace {
        "" => format!("{slash}{name}"),
        namespace => format!("{slash}{namespace}/{name}"),
    };
    let after = start.as_deref().map(|start| start.trim_start_matches('/'));
    let (fitting, rest) = match quickly(store, kind, selector, revision, after, wanted.limit) {
        Some(found) => found,
        None => {
            let objects = store.fitting(kind, revision, |object| selector.matches(object));
            let mut fitting: Vec<(String, Arc<Value>)> = objects
                .into_iter()
                .map(|((namespace, name), object)| (path(&namespace, &name), object))
                // A continue token holds the first key of the next page.
                .filter(|(path, _)| after.is_none_or(|start| path.trim_start_matches('/') >= start))
                .collect();
            fitting.sort_by(|a, b| a.0.cmp(&b.0));
            let rest = if wanted.limit > 0 {
                fitting.len().saturating_sub(wanted.limit)
            } else {
                0
            };
            fitting.truncate(fitting.len() - rest);
            (
                fitting.into_iter().map(|(_, object)| object).collect(),
                rest,
            )
        }
    };
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if rest > 0 {
        let last = fitting.last().map(|object| {
            let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
            format!("{}\0", path(text("namespace"), text("name")))
        });
        let at = i64::try_from(revision).unwrap_or(i64::MAX);
        metadata["continue"] = json!(write_token(at, &last.unwrap_or_default()));
        if selector.is_all() {
            metadata["remainingItemCount"] = json!(rest);
        }
    }
    let head = json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "metadata": metadata});
    let mut text = head.to_string();
    text.pop();
    text.push_str(",\"items\":[");
    for (index, object) in fitting.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&store.text(kind, object));
    }
    text.push_str("]}");
    Ok(text)
}

/// The newest version that a list can have: the watch cache's, if the cache serves the list.
fn newest(store: &Store, wanted: &ListParameters) -> u64 {
    let cached = store.cached.filter(|_| wanted.is_cached());
    cached.unwrap_or(store.revision)
}

/// A page with only the metadata of each object, as a client asks for it in the header `Accept`.
pub(crate) fn metadata_of(page: &str) -> String {
    let mut page: Value = serde_json::from_str(page).expect("a page of the fake");
    page["kind"] = json!("PartialObjectMetadataList");
    page["apiVersion"] = json!("meta.k8s.io/v1");
    for item in page["items"].as_array_mut().expect("a page with items") {
        *item = partial(item);
    }
    page.to_string()
}

/// The metadata of an object, as an object of its own.
pub(crate) fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// A page read in storage order, and the number of remaining objects. `None` unless the list covers
/// exactly one namespace or a cluster-scoped kind. The general path visits all objects for each
/// page, which is too slow for the claims of ten thousand nodes.
fn quickly(
    store: &Store,
    kind: &ObjectKind,
    selector: &Selector,
    revision: u64,
    after: Option<&str>,
    limit: usize,
) -> Option<(Vec<Arc<Value>>, usize)> {
    let namespace = selector.namespace();
    if kind.namespaced == namespace.is_empty() {
        return None;
    }
    let first = match after {
        Some(after) if kind.namespaced => after.strip_prefix(namespace)?.strip_prefix('/')?,
        after => after.unwrap_or_default(),
    };
    // The answer has a remaining count only without selectors. One extra object tells whether another page follows.
    let max_objects = if limit == 0 || selector.is_all() {
        usize::MAX
    } else {
        limit + 1
    };
    let mut found = store.from(kind, namespace, first, revision, selector, max_objects);
    let rest = if limit > 0 {
        found.len().saturating_sub(limit)
    } else {
        0
    };
    found.truncate(found.len() - rest);
    Some((found, rest))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn write_token(revision: i64, start: &str) -> String {
    let text = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string();
    let mut token = String::new();
    for three in text.as_bytes().chunks(3) {
        let bits = three
            .iter()
            .fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte))
            << (8 * (3 - three.len()));
        for index in 0..=three.len() {
            token.push(char::from(
                ALPHABET[(bits >> (18 - 6 * index) & 63) as usize],
            ));
        }
    }
    token
}

pub(crate) fn read_token(token: &str) -> Answer<(i64, String)> {
    let bad = |why: &str| status::bad_request(&format!("invalid continue token: {why}"));
    let mut bytes = Vec::new();
    for four in token.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for letter in four {
            let value = ALPHABET.iter().position(|other| other == letter);
            let value =
                value.ok_or_else(|| bad("continue key is not valid: illegal base64 data"))?;
            bits = (bits << 6) | u32::try_from(value).expect("below 64");
        }
        bits <<= 6 * (4 - four.len());
        let whole = bits.to_be_bytes();
        bytes.extend_from_slice(&whole[1..four.len().max(1)]);
    }
    if let Some(first) = bytes.first().filter(|first| **first != b'{') {
        let letter = match char::from(*first) {
            letter if letter.is_ascii_graphic() => letter.to_string(),
            letter => format!("\\u{:04x}", u32::from(letter)),
        };
        return Err(bad(&format!(
            "continue key is not valid: invalid character '{letter}' looking for beginning of value"
        )));
    }
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| bad(&format!("continue key is not valid: {error}")))?;
    match (value["rv"].as_i64(), value["start"].as_str()) {
        (Some(revision), Some(start)) => Ok((revision, start.to_owned())),
        _ => Err(bad("continue key is not valid: no start")),
    }
}
