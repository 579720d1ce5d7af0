//! [`Manifests`]: pods of manifests, those included that objects like Jobs and Deployments would create.

use std::collections::{BTreeMap, BTreeSet};

use super::object::ManifestObject;
use super::workload::{ObjectKind, PodTemplate, SUPPORTED, Workload, pod_templates};
use super::{FoundObject, KnownKinds, ManifestError, objects, read_pod};
use crate::pod::object::ObjectMeta;
use crate::pod::{Container, ContainerKind, EnvSource, ObjectName, Pod, PodError};

/// The most pods that are made of templates. A node runs a few hundred, while a number in a manifest can be anything.
pub const MOST_PODS: u64 = 5000;

/// Manifests of one or more texts.
///
/// Kinds without pods, such as Services, are skipped. Where an object and its owner are both given, as in the output of `kubectl get
/// all`, only the owned one counts.
#[derive(Debug, Default)]
pub struct Manifests {
    objects: Vec<FoundObject>,
}

/// The names in use, and the pods so far.
#[derive(Default)]
struct Expansion {
    /// The source of each object, by its API version, its kind and its full name.
    seen: BTreeMap<(Option<String>, String, ObjectName), String>,
    /// The names of pods, by namespace, each with the next number for a pod that would have the same name.
    names: BTreeMap<(String, String), u64>,
    /// The number of pods that were made of templates.
    made: u64,
    pods: Vec<Pod>,
}

// === impl Manifests ===

impl Manifests {
    /// Reads one more text, YAML or JSON; `source` names it in errors. Returns the number of objects in it.
    ///
    /// # Errors
    /// The text can't be read, or has an object of an unknown kind.
    pub fn read(&mut self, text: &str, source: &str) -> Result<usize, ManifestError> {
        let known = KnownKinds {
            contain: |_| true,
            description: SUPPORTED,
        };
        let found = objects(text, source, &known)?;
        let count = found.len();
        self.objects.extend(found);
        Ok(count)
    }

    /// The pods, in the order of the objects.
    ///
    /// The pods of a template are named as their controller would name them, but with numbers instead of random letters, and have the
    /// labels that the controller adds to show a pod's role.
    ///
    /// # Errors
    /// A pod or a template is not valid, an object has no template, two objects of a kind have the same name, or the templates
    /// make more than [`MOST_PODS`] pods.
    pub fn pods(self) -> Result<Vec<Pod>, ManifestError> {
        let all = self.objects.iter();
        let metadata = all.filter_map(|found| found.object.metadata.as_ref());
        let owners = metadata.flat_map(|metadata| metadata.owners.iter().flatten());
        let owners: BTreeSet<String> = owners.filter_map(|owner| owner.uid.clone()).collect();
        let mut expansion = Expansion::default();
        // A name that is written somewhere goes before a name that is made up here.
        for found in &self.objects {
            if found.kind() == Some(ObjectKind::Pod) {
                expansion.names.insert(found.full_name(), 0);
            }
        }
        for found in self.objects {
            let Some(kind) = found.kind().filter(|kind| *kind != ObjectKind::WithoutPods) else {
                continue;
            };
            expansion.check_name(&found)?;
            match kind {
                ObjectKind::Workload(workload) if !found.is_one_of(&owners) => {
                    expansion.add(workload, found)?;
                }
                ObjectKind::Pod => expansion.pods.push(found.into_pod()?),
                _ => {}
            }
        }
        Ok(expansion.pods)
    }
}

// === impl FoundObject ===

impl FoundObject {
    fn kind(&self) -> Option<ObjectKind> {
        ObjectKind::of(&self.kind, self.api_version.as_deref())
    }

    /// The namespace and the name.
    fn full_name(&self) -> (String, String) {
        let metadata = self.object.metadata.as_ref();
        let namespace = metadata.and_then(|metadata| metadata.namespace.clone());
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        let name = self.object.name().unwrap_or_default().to_owned();
        (namespace.unwrap_or_else(|| "default".to_owned()), name)
    }

    fn is_one_of(&self, uids: &BTreeSet<String>) -> bool {
        let metadata = self.object.metadata.as_ref();
        let uid = metadata.and_then(|metadata| metadata.uid.as_ref());
        uid.is_some_and(|uid| uids.contains(uid))
    }
}

// === impl Expansion ===

impl Expansion {
    /// Refuses a second object of a kind with the same name. The API server makes up the rest of a name that ends in `-`.
    fn check_name(&mut self, found: &FoundObject) -> Result<(), ManifestError> {
        let (namespace, name) = found.full_name();
        if name.is_empty() || name.ends_with('-') {
            return Ok(());
        }
        let name = ObjectName::new(namespace, name);
        let key = (found.api_version.clone(), found.kind.clone(), name.clone());
        match self.seen.insert(key, found.origin.clone()) {
            None => Ok(()),
            Some(first) => Err(ManifestError::Repeated {
                origin: found.origin.clone(),
                kind: found.kind.clone(),
                name: name.to_string(),
                first,
            }),
        }
    }

    /// Adds the pods of a workload.
    fn add(&mut self, workload: Workload, found: FoundObject) -> Result<(), ManifestError> {
        let (namespace, name) = found.full_name();
        let FoundObject {
            origin,
            document,
            item,
            kind,
            api_version: _,
            object,
        } = found;
        let wrong = |problem: String| ManifestError::Workload {
            origin: origin.clone(),
            document,
            item,
            object: match name.as_str() {
                "" => format!("a {kind} without a name"),
                name => format!("{kind} {name}"),
            },
            problem,
        };
        // The rest of a generated name is unknown.
        let start = name.trim_end_matches('-');
        if start.is_empty() {
            return Err(wrong("metadata.name is missing: give it a name".to_owned()));
        }
        let spec = object.spec.unwrap_or_default();
        let templates = pod_templates(workload, (kind.as_str(), start), spec).map_err(wrong)?;
        for mut template in templates {
            self.made = self.made.saturating_add(template.pods);
            if self.made > MOST_PODS {
                return Err(wrong(format!(
                    "{} makes {} pods, and {MOST_PODS} are the most for all templates together: lower the number in a copy of the \
                     file, because one node runs far fewer",
                    template.path, template.pods
                )));
            }
            let object = std::mem::take(&mut template.object);
            let pod = pod_of(object, &namespace, &template);
            let pod = pod.map_err(|source| ManifestError::Pod {
                origin: origin.clone(),
                document,
                item,
                pod: format!("the pod template {} of {kind} {name}", template.path),
                source: Box::new(source),
            })?;
            for number in 0..template.pods {
                self.add_pod(&pod, &template, number);
            }
        }
        Ok(())
    }

    fn add_pod(&mut self, pod: &Pod, template: &PodTemplate, number: u64) {
        let mut pod = pod.clone();
        let (name, labels) = template.names.of(number, template.pods);
        pod.name = self.free_name(&pod.namespace, name);
        for (key, number) in labels {
            pod.labels.insert(key.to_owned(), number.to_string());
        }
        self.pods.push(pod);
    }

    /// The name, with a number if another pod has it: a Job and a Deployment may share a name, and their pods get different ones.
    fn free_name(&mut self, namespace: &str, name: String) -> String {
        let key = |name: &str| (namespace.to_owned(), name.to_owned());
        let Some(mut next) = self.names.get(&key(&name)).copied() else {
            self.names.insert(key(&name), 0);
            return name;
        };
        loop {
            let other = format!("{name}-{next}");
            next += 1;
            if !self.names.contains_key(&key(&other)) {
                self.names.insert(key(&name), next);
                self.names.insert(key(&other), 0);
                return other;
            }
        }
    }
}

/// The pod of a template, with what the controller adds to it.
fn pod_of(
    object: ManifestObject,
    namespace: &str,
    template: &PodTemplate,
) -> Result<Pod, PodError> {
    let mut pod = object.into_pod();
    let own = pod.metadata.take().unwrap_or_default();
    let mut labels = own.labels.unwrap_or_default();
    let added = template.labels.iter();
    labels.extend(added.map(|(key, value)| ((*key).to_owned(), value.clone())));
    pod.metadata = Some(ObjectMeta {
        name: Some(template.names.start.clone()),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels),
        annotations: own.annotations,
        ..ObjectMeta::default()
    });
    let mut pod = read_pod(pod)?;
    let is_app = |container: &Container| container.kind == ContainerKind::App;
    for container in pod
        .containers
        .iter_mut()
        .filter(|container| is_app(container))
    {
        for (name, value) in &template.variables {
            let value = EnvSource::Value(value.clone());
            container.env.insert((*name).to_owned(), value);
        }
    }
    let first = pod.containers.iter().position(is_app).unwrap_or_default();
    if let Some(container) = pod
        .containers
        .get_mut(first)
        .filter(|first| first.args.is_empty())
    {
        container.args = template
            .command
            .iter()
            .map(|&word| word.to_owned())
            .collect();
    }
    if let Some(container) = &template.init {
        pod.containers.insert(first, container.clone());
    }
    Ok(pod)
}

#[cfg(test)]
mod tests;
