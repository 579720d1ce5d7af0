//! [`check`]: the mistakes of plans, with place and correction.

mod pool;
mod resources;
mod scenes;

use std::collections::BTreeMap;

use crate::scene::{
    Amounts, Document, Finding, Node, Path, STARTUP_TAINT, ScenePlan, Severity, TAINT_PREFIX,
    key_fault, subdomain_fault, value_fault,
};

/// The mistakes of the plans, in the order of the files' lines.
///
/// With `nodes`, also whether the candidates exist, are enough, and have the requested resources.
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

/// A plan under examination.
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
                format!("ScenePlans have no namespace, so {namespace} is ignored"),
                "remove the namespace",
            );
        }
    }

    fn taint(&mut self) {
        let Some(taint) = &self.plan.spec.taint else {
            return;
        };
        let path = Path::of(&["spec", "taint"]);
        let key = &taint.key.0;
        if let Some(fault) = key_fault(key) {
            let text = format!("{key:?} can't be a taint's key: {fault}");
            self.error(
                &path.key("key"),
                text,
                "choose another key, or remove the key for the default pinfold.io/scene",
            );
        } else if key == STARTUP_TAINT {
            let text = format!("{key} is the startup taint, which agents remove from their Node");
            let fix = "choose another key, or remove the key for the default pinfold.io/scene";
            self.error(&path.key("key"), text, fix);
        } else if !key.starts_with(TAINT_PREFIX) {
            let name = key.rsplit('/').next().unwrap_or_default();
            let text = format!(
                "agents may not set the taint {key}: its key must start with {TAINT_PREFIX}"
            );
            let fix = format!(
                "write {TAINT_PREFIX}{name}, or remove the key for the default pinfold.io/scene"
            );
            self.error(&path.key("key"), text, fix);
        }
        if let Some(fault) = value_fault(&taint.value) {
            let text = format!("{:?} can't be a taint's value: {fault}", taint.value);
            self.error(&path.key("value"), text, "choose another value");
        }
    }

    /// Mistakes of a plan that follow from an earlier plan.
    fn beside(&mut self, before: &Document, other: &ScenePlan, nodes: Option<&[Node]>) {
        let name = self.document.name();
        if !name.is_empty() && name == before.name() {
            let text = format!("{} also has a plan with the name {name}", before.origin);
            self.error(
                &Path::of(&["metadata", "name"]),
                text,
                "rename one of the plans",
            );
        }
        self.overlap(before, other, nodes);
        self.same_labels(before, other);
    }

    /// Two active plans whose slots have the same labels: a pod can't distinguish the plans' nodes.
    fn same_labels(&mut self, before: &Document, other: &ScenePlan) {
        let active = |plan: &ScenePlan| {
            let active = plan.spec.active.as_ref()?;
            let keys = &plan.spec.labels;
            let pairs = [(&keys.scene, &active.scene), (&keys.case, &active.case)];
            Some(pairs.map(|(key, value)| (key.clone(), value.clone())))
        };
        if active(self.plan).is_some_and(|mine| active(other).as_ref() == Some(&mine)) {
            let text = format!(
                "plan {} activates the same scene and case with the same label keys: pods can't distinguish the nodes of the \
                 two plans",
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

/// The positions of repeated items, each with the position of the first occurrence.
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
