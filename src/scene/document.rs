//! [`Document`]: a plan and its source, a file with lines or the API.

use super::finding::{Finding, SourcePlace};
use super::plan::ScenePlan;
use super::schema::{mended, violations};
use super::tree::{Path, Tree, ValueKind};
use crate::text::document::{self, Mistake, TextForm};

/// The longest text of plans that is read, in bytes. The API server takes no object of more than 3 MiB.
const MAX_TEXT: usize = 16 << 20;

/// A plan and its source.
#[derive(Debug, Clone)]
pub struct Document {
    /// The file, or another name for the source.
    pub origin: String,
    /// The plan, if the schema has nothing against it.
    pub plan: Option<ScenePlan>,
    /// The plan that the author probably meant. Only checks use it.
    pub(crate) draft: Option<ScenePlan>,
    /// The schema's findings.
    pub(crate) findings: Vec<Finding>,
    tree: Option<Tree>,
}

/// A text without a readable plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}{}{}: {what}", of_document(*document), at_line(*line))]
pub struct ReadError {
    origin: String,
    /// 0 for an error about the entire text.
    document: usize,
    line: Option<u64>,
    what: String,
}

fn at_line(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}

fn of_document(document: usize) -> String {
    if document == 0 {
        String::new()
    } else {
        format!(", document {document}")
    }
}

/// The API version and the kind of a document.
struct DocumentType {
    api_version: Option<String>,
    kind: Option<String>,
}

/// The plans in a text: YAML or JSON, one or many documents, ScenePlans or Lists of them.
///
/// `origin` names the text in findings and errors. Fails on invalid YAML and on objects of other
/// kinds. All other mistakes become findings of the documents.
pub fn read(text: &str, origin: &str) -> Result<Vec<Document>, ReadError> {
    if text.len() > MAX_TEXT {
        let what = format!(
            "the text has {} bytes, and the limit is {MAX_TEXT}: split the text",
            text.len()
        );
        return Err(ReadError::new(origin, 0, None, what));
    }
    let trees = document::read_as::<Tree>(text, TextForm::PlainYaml, MAX_TEXT);
    let trees = trees.map_err(|mistake| ReadError::syntax(origin, mistake))?;
    let mut documents = Vec::new();
    for (tree, number) in trees.into_iter().zip(1..) {
        if tree.is_null() {
            continue;
        }
        let fail = |tree: &Tree, what: String| {
            ReadError::new(
                origin,
                number,
                Some(tree.line).filter(|&line| line > 0),
                what,
            )
        };
        let only = "the file may contain only ScenePlans (pinfold.io/v1alpha1)";
        match head(&tree).map_err(|what| fail(&tree, what))? {
            DocumentType {
                kind: Some(kind), ..
            } if kind == "List" || kind == "ScenePlanList" => {
                let items = match tree.get("items").map(|items| &items.node) {
                    Some(ValueKind::List(items)) => items.as_slice(),
                    _ => &[],
                };
                for item in items {
                    match head(item).map_err(|what| fail(item, what))? {
                        head if head.is_plan() => {
                            documents.push(Document::new(origin, item.clone()));
                        }
                        head => {
                            return Err(fail(
                                item,
                                format!("the document is {}; {only}", head.name()),
                            ));
                        }
                    }
                }
            }
            head if head.is_plan() => documents.push(Document::new(origin, tree)),
            head => {
                return Err(fail(
                    &tree,
                    format!("the document is {}; {only}", head.name()),
                ));
            }
        }
    }
    if documents.is_empty() {
        return Err(ReadError::new(
            origin,
            0,
            None,
            "the text has no ScenePlan".to_owned(),
        ));
    }
    Ok(documents)
}

fn head(tree: &Tree) -> Result<DocumentType, String> {
    let text = |key: &str| match tree.get(key).map(|value| &value.node) {
        Some(ValueKind::Scalar(value)) => value.as_str().map(str::to_owned),
        _ => None,
    };
    match &tree.node {
        ValueKind::Map(_) => Ok(DocumentType {
            api_version: text("apiVersion"),
            kind: text("kind"),
        }),
        _ => Err("the document is not a Kubernetes object: add apiVersion and kind".to_owned()),
    }
}

// === impl DocumentType ===

impl DocumentType {
    fn is_plan(&self) -> bool {
        self.kind.as_deref() == Some("ScenePlan")
            && self.api_version.as_deref() == Some("pinfold.io/v1alpha1")
    }

    fn name(&self) -> String {
        let kind = self.kind.as_deref().unwrap_or("an object without kind");
        format!(
            "{kind} ({})",
            self.api_version.as_deref().unwrap_or("no apiVersion")
        )
    }
}

// === impl Document ===

impl Document {
    /// A plan from the API. The findings have paths, but no lines.
    pub fn from_plan(origin: &str, plan: ScenePlan) -> Self {
        let draft = Some(plan.clone());
        Self {
            origin: origin.to_owned(),
            plan: Some(plan),
            draft,
            findings: Vec::new(),
            tree: None,
        }
    }

    fn new(origin: &str, tree: Tree) -> Self {
        let mut value = tree.value();
        // A copy of a plan from the cluster has a status, which has no meaning outside of the cluster.
        if let Some(fields) = value.as_object_mut() {
            fields.shift_remove("status");
        }
        let name = value
            .pointer("/metadata/name")
            .and_then(|name| name.as_str());
        let name = name.unwrap_or_default().to_owned();
        let found = violations(&tree);
        let mut document = Self {
            origin: origin.to_owned(),
            plan: None,
            draft: None,
            findings: Vec::new(),
            tree: Some(tree),
        };
        let findings = found
            .into_iter()
            .map(|(path, text, fix)| Finding::error(document.place(&name, &path), text, fix))
            .collect();
        document.findings = findings;
        if !document.findings.is_empty() {
            document.draft = serde_json::from_value(mended(value)).ok();
            return document;
        }
        match serde_json::from_value::<ScenePlan>(value) {
            Ok(plan) => {
                document.draft = Some(plan.clone());
                document.plan = Some(plan);
            }
            // The schema's findings have a place. A mistake that only serde finds has none.
            Err(error) => document.findings.push(Finding::error(
                document.place(&name, &Path::default()),
                format!("the document is not a valid ScenePlan: {error}"),
                "compare the plan with the fields that `kubectl explain sceneplan.spec` lists"
                    .to_owned(),
            )),
        }
        document
    }

    /// The plan's name; empty for a plan without a name.
    pub fn name(&self) -> &str {
        self.draft
            .as_ref()
            .and_then(|plan| plan.metadata.name.as_deref())
            .unwrap_or_default()
    }

    pub(crate) fn place(&self, plan: &str, path: &Path) -> SourcePlace {
        SourcePlace {
            file: self.origin.clone(),
            line: self.tree.as_ref().and_then(|tree| tree.line_of(path)),
            plan: plan.to_owned(),
            path: path.to_string(),
        }
    }
}

// === impl ReadError ===

impl ReadError {
    pub(crate) fn new(origin: &str, document: usize, line: Option<u64>, what: String) -> Self {
        Self {
            origin: origin.to_owned(),
            document,
            line,
            what,
        }
    }

    pub(crate) fn syntax(origin: &str, mistake: Mistake) -> Self {
        Self::new(origin, mistake.document, mistake.line, mistake.message)
    }
}
