//! [`Node`]: the properties of a Kubernetes Node that scenes need, and a reader.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::plan::LEAVING_LABEL;
use super::{Amount, ReadError};
use crate::text::document;

/// The longest text of nodes that is read, in bytes: ten thousand nodes as the API server writes them.
const MAX_TEXT: usize = 512 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// The allocatable amounts by resource; empty if unknown.
    pub allocatable: BTreeMap<String, Amount>,
    /// The CPUs that the node's kubelet counts before it reserves some, if known.
    pub capacity_cpu: Option<Amount>,
    /// Whether the node is cordoned, so that the scheduler places no new pod on it.
    pub cordoned: bool,
    pub taints: Vec<NodeTaint>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "a taint")]
pub struct NodeTaint {
    pub key: Option<String>,
    pub value: Option<String>,
    /// The effect on pods without a toleration.
    pub effect: Option<String>,
}

impl Node {
    /// Whether the node gives up its slot when its pods have ended.
    pub fn is_leaving(&self) -> bool {
        self.labels.contains_key(LEAVING_LABEL)
    }
}

/// The nodes in a text: YAML or JSON, many documents, Nodes or Lists of them, as `kubectl get nodes -o yaml` prints them.
///
/// `origin` names the text in errors. Fails on objects of other kinds, and on two nodes of the same
/// name.
pub fn read_nodes(text: &str, origin: &str) -> Result<Vec<Node>, ReadError> {
    if text.len() > MAX_TEXT {
        let what = format!(
            "the text has {} bytes, and the limit is {MAX_TEXT}",
            text.len()
        );
        return Err(ReadError::new(origin, 0, None, what));
    }
    let read = document::read::<Option<NodeObject>>(text, MAX_TEXT);
    let (documents, _) = read.map_err(|mistake| ReadError::syntax(origin, mistake))?;
    let mut nodes: Vec<Node> = Vec::new();
    for (document, number) in documents.into_iter().zip(1..) {
        let Some(object) = document else { continue };
        let document_error = |what: &str| {
            ReadError::new(
                origin,
                number,
                None,
                format!("{what}; the file may contain only Nodes and Lists of Nodes"),
            )
        };
        let items = match object.kind.as_deref() {
            Some("Node") => {
                vec![NodeItem {
                    kind: None,
                    metadata: object.metadata,
                    spec: object.spec,
                    status: object.status,
                }]
            }
            Some("List" | "NodeList") => object.items.unwrap_or_default(),
            Some(kind) => return Err(document_error(&format!("the document is a {kind}"))),
            None => return Err(document_error("the document has no kind")),
        };
        for (item, place) in items.into_iter().zip(0..) {
            if let Some(kind) = item.kind.as_deref().filter(|&kind| kind != "Node") {
                return Err(document_error(&format!("items[{place}] is a {kind}")));
            }
            let node = Node::from(item);
            if node.name.is_empty() {
                return Err(document_error(&format!("items[{place}] has no name")));
            }
            nodes.push(node);
        }
    }
    let mut names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.windows(2).find(|pair| pair.first() == pair.get(1)) {
        return Err(ReadError::new(
            origin,
            0,
            None,
            format!("node {name} appears twice: remove one of the two"),
        ));
    }
    Ok(nodes)
}

#[derive(Deserialize)]
#[serde(expecting = "a Kubernetes object")]
struct NodeObject {
    kind: Option<String>,
    metadata: Option<NodeItemMetadata>,
    spec: Option<NodeItemSpec>,
    status: Option<NodeItemStatus>,
    items: Option<Vec<NodeItem>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a Node")]
struct NodeItem {
    kind: Option<String>,
    metadata: Option<NodeItemMetadata>,
    spec: Option<NodeItemSpec>,
    status: Option<NodeItemStatus>,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object's metadata")]
struct NodeItemMetadata {
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "a node's spec")]
struct NodeItemSpec {
    unschedulable: Option<bool>,
    taints: Option<Vec<NodeTaint>>,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "a node's status")]
struct NodeItemStatus {
    allocatable: Option<BTreeMap<String, Amount>>,
    capacity: Option<BTreeMap<String, Amount>>,
}

// === impl Node ===

impl From<NodeItem> for Node {
    fn from(item: NodeItem) -> Self {
        let metadata = item.metadata.unwrap_or_default();
        let spec = item.spec.unwrap_or_default();
        let status = item.status.unwrap_or_default();
        Self {
            name: metadata.name.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            allocatable: status.allocatable.unwrap_or_default(),
            capacity_cpu: status.capacity.and_then(|mut all| all.remove("cpu")),
            cordoned: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
        }
    }
}

/// From a Node as the API server writes it.
impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NodeItem::deserialize(deserializer).map(Self::from)
    }
}

/// Names in the order in which people count: `node-2` before `node-10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (word, number, rest) = chunk(left);
        let (other_word, other_number, other_rest) = chunk(right);
        let order = word
            .cmp(other_word)
            .then_with(|| number.len().cmp(&other_number.len()))
            .then_with(|| number.cmp(other_number));
        if order != Ordering::Equal {
            return order;
        }
        if rest.is_empty() || other_rest.is_empty() {
            // Only leading zeros can still differ.
            return rest.len().cmp(&other_rest.len()).then_with(|| a.cmp(b));
        }
        (left, right) = (rest, other_rest);
    }
}

/// What comes before the first digit, the digits without leading zeros, and the rest.
fn chunk(text: &str) -> (&str, &str, &str) {
    let start = text
        .find(|c: char| c.is_ascii_digit())
        .unwrap_or(text.len());
    let (word, rest) = text.split_at(start);
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    (word, digits.trim_start_matches('0'), rest)
}
