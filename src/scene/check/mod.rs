//! [`check`]: what is wrong with plans, where, and what to write instead.

mod pool;
mod resources;
mod scenes;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::tree::Path;
use super::{Document, Node, Place, ScenePlan, TAINT_PREFIX, subdomain_fault};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The plan can't be carried out as it stands.
    Error,
    /// The plan can be carried out, and may not do what its author wants.
    Warning,
}

/// Something that is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
    /// What is wrong, in a sentence.
    pub text: String,
    /// What to do about it.
    pub fix: String,
}

/// How quantities are read and written. The grammar is not known to this module; callers supply it.
#[derive(Debug, Clone, Copy)]
pub struct Amounts {
    /// The amount of a resource, in thousandths of a CPU for `cpu` and in single units for all others, or what is wrong
    /// with the text.
    pub read: fn(resource: &str, text: &str) -> Result<u64, String>,
    /// Such an amount as a text.
    pub write: fn(resource: &str, amount: u64) -> String,
}

/// Everything that is wrong with these plans, in the order in which they stand in their files.
///
/// With `nodes`, also whether the plans' candidates are there, are enough, and can hold what the groups request.
pub fn check(documents: &[Document], nodes: Option<&[Node]>, amounts: Amounts) -> Vec<Finding> {
    let mut all = Vec::new();
    for document in documents {
        let mut findings = document.findings.clone();
        if let Some(plan) = &document.draft {
            let mut finder = Finder {
                document,
                plan,
                amounts,
                findings: &mut findings,
            };
            finder.name();
            finder.labels();
            finder.pool();
            finder.taint();
            finder.scenes();
            finder.active();
            finder.roles();
            if let Some(nodes) = nodes {
                finder.nodes(nodes);
            }
        }
        all.push(findings);
    }
    let pairs = documents.iter().zip(1..).flat_map(|(first, next)| {
        documents
            .iter()
            .enumerate()
            .skip(next)
            .map(move |(index, second)| (first, index, second))
    });
    for (first, index, second) in pairs {
        if let (Some(one), Some(other), Some(findings)) =
            (&first.draft, &second.draft, all.get_mut(index))
        {
            let mut finder = Finder {
                document: second,
                plan: other,
                amounts,
                findings,
            };
            finder.beside(first, one, nodes);
        }
    }
    for findings in &mut all {
        findings.sort_by(|a, b| (a.place.line, &a.place.path).cmp(&(b.place.line, &b.place.path)));
        findings.dedup();
    }
    all.into_iter().flatten().collect()
}

/// One plan under examination.
struct Finder<'a> {
    document: &'a Document,
    plan: &'a ScenePlan,
    amounts: Amounts,
    findings: &'a mut Vec<Finding>,
}

// === impl Finder ===

impl Finder<'_> {
    fn error(&mut self, path: &Path, text: impl Into<String>, fix: impl Into<String>) {
        let place = self.document.place(self.document.name(), path);
        self.findings
            .push(Finding::error(place, text.into(), fix.into()));
    }

    fn warning(&mut self, path: &Path, text: impl Into<String>, fix: impl Into<String>) {
        let place = self.document.place(self.document.name(), path);
        let (text, fix) = (text.into(), fix.into());
        self.findings.push(Finding {
            severity: Severity::Warning,
            place,
            text,
            fix,
        });
    }

    fn name(&mut self) {
        let path = Path::of(&["metadata", "name"]);
        match self.plan.metadata.name.as_deref() {
            None | Some("") => self.error(
                &path,
                "the plan has no name",
                "write metadata: {name: NAME}",
            ),
            Some(name) => {
                if let Some(fault) = subdomain_fault(name) {
                    self.error(
                        &path,
                        format!("{name:?} can't be a plan's name: {fault}"),
                        "choose another name",
                    );
                }
            }
        }
        if let Some(namespace) = &self.plan.metadata.namespace {
            self.warning(
                &Path::of(&["metadata", "namespace"]),
                format!("ScenePlans have no namespace, and {namespace} is ignored"),
                "leave it out",
            );
        }
    }

    fn taint(&mut self) {
        let Some(taint) = &self.plan.spec.taint else {
            return;
        };
        let path = Path::of(&["spec", "taint"]);
        let key = &taint.key.0;
        if let Some(fault) = super::key_fault(key) {
            let text = format!("{key:?} can't be a taint's key: {fault}");
            self.error(
                &path.key("key"),
                text,
                "choose another key, or leave it out for pinfold.io/scene",
            );
        } else if !key.starts_with(TAINT_PREFIX) {
            let name = key.rsplit('/').next().unwrap_or_default();
            let text =
                format!("{key} is no taint that agents may set: they may set {TAINT_PREFIX}* only");
            let fix = format!("write {TAINT_PREFIX}{name}, or leave it out for pinfold.io/scene");
            self.error(&path.key("key"), text, fix);
        }
        if let Some(fault) = super::value_fault(&taint.value) {
            let text = format!("{:?} can't be a taint's value: {fault}", taint.value);
            self.error(&path.key("value"), text, "choose another value");
        }
    }

    /// What is wrong with this plan because of one that stands before it.
    fn beside(&mut self, before: &Document, other: &ScenePlan, nodes: Option<&[Node]>) {
        let name = self.document.name();
        if !name.is_empty() && name == before.name() {
            let text = format!("{} has a plan {name}, too", before.origin);
            self.error(
                &Path::of(&["metadata", "name"]),
                text,
                "give one of them another name",
            );
        }
        self.overlap(before, other, nodes);
        self.same_labels(before, other);
    }

    /// Two active plans whose slots have the same labels: a pod can't tell their nodes apart.
    fn same_labels(&mut self, before: &Document, other: &ScenePlan) {
        let active = |plan: &ScenePlan| {
            let active = plan.spec.active.as_ref()?;
            let keys = &plan.spec.labels;
            let pairs = [(&keys.scene, &active.scene), (&keys.case, &active.case)];
            Some(pairs.map(|(key, value)| (key.clone(), value.clone())))
        };
        if active(self.plan).is_some_and(|mine| active(other).as_ref() == Some(&mine)) {
            let text = format!(
                "plan {} has the same scene and case active, with the same label keys: pods can't tell their nodes apart",
                before.name()
            );
            self.error(
                &Path::of(&["spec", "active"]),
                text,
                "activate another case, or use other label keys",
            );
        }
    }
}

// === impl Finding ===

impl Finding {
    pub(super) fn error(place: Place, text: String, fix: String) -> Self {
        Self {
            severity: Severity::Error,
            place,
            text,
            fix,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.place.file)?;
        if let Some(line) = self.place.line {
            write!(f, "{line}:")?;
        }
        let path = if self.place.path.is_empty() {
            "the plan"
        } else {
            &self.place.path
        };
        write!(f, " {}: {path}: {}; {}", self.severity, self.text, self.fix)
    }
}

// === impl Severity ===

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// The positions of what stands there a second time, each with the position of the first.
fn repeated<'a>(items: impl Iterator<Item = &'a str>) -> Vec<(usize, usize)> {
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, item) in items.enumerate() {
        let before = *first.entry(item).or_insert(index);
        if before != index {
            found.push((index, before));
        }
    }
    found
}

use crate::text::counted as many;
