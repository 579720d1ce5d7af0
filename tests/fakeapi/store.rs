//! The object store, with the history of all versions not yet compacted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::access::{Enforced, User, Write};
use super::fields;
use super::kinds::ObjectKind;
use super::select::Selector;
use super::status::{self, Answer};

/// Kind (plural and group), namespace, name.
pub(crate) type Key = (String, String, String);

/// One write.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) old: Option<Arc<Value>>,
    pub(crate) new: Option<Arc<Value>>,
}

/// The field managers of a new object.
#[derive(Debug)]
pub(crate) enum Owners {
    /// The sender of the request manages all fields.
    Writer,
    /// The managers computed by server-side apply.
    Applied(Vec<fields::Manager>),
}

/// All stored objects, their history and the store's settings.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) kinds: Vec<ObjectKind>,
    pub(crate) objects: BTreeMap<Key, Arc<Value>>,
    pub(crate) history: BTreeMap<String, Vec<Arc<Change>>>,
    pub(crate) revision: u64,
    /// The oldest version still kept. Older versions are compacted.
    pub(crate) compacted: u64,
    /// Uids for the next created objects. If the queue is empty, they are generated.
    pub(crate) uids: VecDeque<String>,
    /// Suffixes for the next generated names. If the queue is empty, they are generated.
    pub(crate) suffixes: VecDeque<String>,
    pub(crate) fixed_time: Option<String>,
    /// The number of seconds by which the server's clock is ahead.
    pub(crate) skew: i64,
    /// Names of protected pods, each with the name of its disruption budget.
    pub(crate) budgets: BTreeMap<String, String>,
    /// The validating admission policies, evaluated for each write.
    pub(crate) policies: Vec<Enforced>,
    made: u64,
    started: (SystemTime, tokio::time::Instant),
    /// The label index: kind, label key and label value map to namespaces and names of current objects.
    labelled: BTreeMap<(String, String, String), BTreeSet<(String, String)>>,
    /// The version that the watch cache has reached, if it lags behind etcd.
    pub(crate) cached: Option<u64>,
    /// Objects serialized as list items, by resourceVersion.
    texts: Mutex<HashMap<u64, Arc<str>>>,
    /// Cached list answers, by path and query. The cache is valid for one resourceVersion and one compaction.
    pages: Mutex<Pages>,
}

type Pages = ((u64, u64), HashMap<String, Bytes>);

// === impl Store ===

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            kinds: ObjectKind::built_in(),
            objects: BTreeMap::new(),
            history: BTreeMap::new(),
            revision: 1,
            compacted: 0,
            uids: VecDeque::new(),
            suffixes: VecDeque::new(),
            fixed_time: None,
            skew: 0,
            budgets: BTreeMap::new(),
            policies: Vec::new(),
            made: 0,
            started: (SystemTime::now(), tokio::time::Instant::now()),
            labelled: BTreeMap::new(),
            cached: None,
            texts: Mutex::default(),
            pages: Mutex::default(),
        }
    }

    /// The server's time in whole seconds, formatted as in objects.
    pub(crate) fn now(&self) -> String {
        if let Some(fixed) = &self.fixed_time {
            return fixed.clone();
        }
        let since: Duration = (self.started.0 + self.started.1.elapsed())
            .duration_since(UNIX_EPOCH)
            .expect("the clock is past 1970");
        let seconds = i64::try_from(since.as_secs()).expect("a time of this age") + self.skew;
        Timestamp::from_second(seconds)
            .expect("a time of this age")
            .to_string()
    }

    fn uid(&mut self) -> String {
        self.made += 1;
        let made = self.made;
        self.uids
            .pop_front()
            .unwrap_or_else(|| format!("00000000-0000-4000-8000-{made:012x}"))
    }

    fn suffix(&mut self) -> String {
        self.made += 1;
        let letters = b"bcdfghjklmnpqrstvwxz2456789";
        let (mut rest, mut suffix) = (self.made.wrapping_mul(2_654_435_761), String::new());
        for _ in 0..5 {
            suffix.push(char::from(letters[(rest % 27) as usize]));
            rest /= 27;
        }
        self.suffixes.pop_front().unwrap_or(suffix)
    }

    pub(crate) fn kind(&self, group: &str, version: &str, plural: &str) -> Option<&ObjectKind> {
        self.kinds
            .iter()
            .find(|kind| kind.is(group, plural) && kind.version == version)
    }

    pub(crate) fn get(&self, kind: &ObjectKind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects
            .get(&(kind.qualified(), namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    /// Stores an object under a new resourceVersion, or deletes it if `new` is `None`.
    pub(crate) fn write(
        &mut self,
        kind: &ObjectKind,
        namespace: &str,
        name: &str,
        new: Option<Value>,
    ) -> Arc<Value> {
        self.revision += 1;
        let revision = self.revision;
        self.write_at(kind, namespace, name, new, revision)
    }

    /// Like [`Store::write`], but with a given resourceVersion, newer than all earlier versions.
    pub(crate) fn write_at(
        &mut self,
        kind: &ObjectKind,
        namespace: &str,
        name: &str,
        new: Option<Value>,
        revision: u64,
    ) -> Arc<Value> {
        self.revision = self.revision.max(revision);
        let key = (kind.qualified(), namespace.to_owned(), name.to_owned());
        let old = self.objects.remove(&key);
        if let Some(old) = &old {
            for label in labels(kind, old) {
                if let Some(names) = self.labelled.get_mut(&label) {
                    names.remove(&(namespace.to_owned(), name.to_owned()));
                }
            }
        }
        let new = new.map(|mut new| {
            new["metadata"]["resourceVersion"] = json!(revision.to_string());
            Arc::new(new)
        });
        let returned = match (&new, &old) {
            (Some(new), _) => Arc::clone(new),
            (None, Some(old)) => {
                let mut deleted = (**old).clone();
                deleted["metadata"]["resourceVersion"] = json!(revision.to_string());
                Arc::new(deleted)
            }
            (None, None) => Arc::new(Value::Null),
        };
        if let Some(new) = &new {
            for label in labels(kind, new) {
                self.labelled
                    .entry(label)
                    .or_default()
                    .insert((namespace.to_owned(), name.to_owned()));
            }
            self.objects.insert(key, Arc::clone(new));
        }
        // A DELETED event carries the object's last state with the resourceVersion of the deletion.
        let old = if new.is_none() {
            Some(Arc::clone(&returned))
        } else {
            old
        };
        self.history
            .entry(kind.qualified())
            .or_default()
            .push(Arc::new(Change { revision, old, new }));
        if kind.kind == "CustomResourceDefinition" {
            self.serve();
        }
        returned
    }

    /// Returns to an earlier version, as after the restore of a backup of etcd.
    pub(crate) fn restore(&mut self, revision: u64) {
        let mut objects = BTreeMap::new();
        for kind in &self.kinds {
            let at = self.at(kind, revision).into_iter();
            objects.extend(
                at.map(|((namespace, name), object)| ((kind.qualified(), namespace, name), object)),
            );
        }
        self.objects = objects;
        for changes in self.history.values_mut() {
            changes.retain(|change| change.revision <= revision);
        }
        self.revision = revision;
    }

    /// The objects of a kind at a version not yet compacted.
    pub(crate) fn at(
        &self,
        kind: &ObjectKind,
        revision: u64,
    ) -> BTreeMap<(String, String), Arc<Value>> {
        self.fitting(kind, revision, |_| true)
    }

    /// Like [`Store::at`], but only the objects accepted by `fits`.
    pub(crate) fn fitting(
        &self,
        kind: &ObjectKind,
        revision: u64,
        fits: impl Fn(&Value) -> bool,
    ) -> BTreeMap<(String, String), Arc<Value>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let key = |object: &Value| {
            (
                text(&object["metadata"]["namespace"]),
                text(&object["metadata"]["name"]),
            )
        };
        let qualified = kind.qualified();
        let mut objects: BTreeMap<(String, String), Arc<Value>> = self
            .objects
            .range((qualified.clone(), String::new(), String::new())..)
            .take_while(|((plural, _, _), _)| *plural == qualified)
            .filter(|(_, object)| revision != self.revision || fits(object))
            .map(|((_, namespace, name), object)| {
                ((namespace.clone(), name.clone()), Arc::clone(object))
            })
            .collect();
        let changes = self
            .history
            .get(&kind.qualified())
            .map_or(&[][..], Vec::as_slice);
        for change in changes
            .iter()
            .rev()
            .take_while(|change| change.revision > revision)
        {
            match (&change.old, &change.new) {
                (Some(old), _) => {
                    objects.insert(key(old), Arc::clone(old));
                }
                (None, Some(new)) => {
                    objects.remove(&key(new));
                }
                (None, None) => {}
            }
        }
        objects.retain(|_, object| fits(object));
        objects
    }

    /// At most `limit` of the matching objects of one namespace at a version not yet compacted,
    /// ordered by name, from the name `first` on.
    pub(crate) fn from(
        &self,
        kind: &ObjectKind,
        namespace: &str,
        first: &str,
        revision: u64,
        selector: &Selector,
        limit: usize,
    ) -> Vec<Arc<Value>> {
        let fits = |object: &&Arc<Value>| selector.matches(object);
        let place = (namespace.to_owned(), first.to_owned());
        if let Some((key, value)) = selector.label().filter(|_| revision == self.revision) {
            let names = self
                .labelled
                .get(&(kind.qualified(), key.to_owned(), value.to_owned()));
            let names = names
                .into_iter()
                .flat_map(|names| names.range(place.clone()..));
            let names = names.take_while(|(other, _)| other == namespace);
            let objects = names.filter_map(|(namespace, name)| {
                self.objects
                    .get(&(kind.qualified(), namespace.clone(), name.clone()))
            });
            return objects.filter(fits).take(limit).cloned().collect();
        }
        // Objects changed after `revision`, each with its state at `revision`.
        let mut before: BTreeMap<&str, Option<&Arc<Value>>> = BTreeMap::new();
        let changes = self
            .history
            .get(&kind.qualified())
            .map_or(&[][..], Vec::as_slice);
        for change in changes
            .iter()
            .rev()
            .take_while(|change| change.revision > revision)
        {
            let metadata = &change
                .old
                .as_ref()
                .or(change.new.as_ref())
                .expect("a change of something")["metadata"];
            if metadata["namespace"].as_str().unwrap_or_default() == namespace {
                let name = metadata["name"].as_str().unwrap_or_default();
                before.insert(name, change.old.as_ref());
            }
        }
        let qualified = kind.qualified();
        let current = self
            .objects
            .range((qualified.clone(), place.0, place.1)..)
            .take_while(|((plural, other, _), _)| *plural == qualified && other == namespace)
            .map(|((_, _, name), object)| (name.as_str(), Some(object)))
            .filter(|(name, _)| !before.contains_key(name));
        let mut historic = before
            .range(first..)
            .map(|(name, object)| (*name, *object))
            .peekable();
        let mut current = current.peekable();
        let merged = std::iter::from_fn(|| match (current.peek(), historic.peek()) {
            (Some(one), Some(other)) if one.0 <= other.0 => current.next(),
            (Some(_), None) => current.next(),
            _ => historic.next(),
        });
        merged
            .filter_map(|(_, object)| object)
            .filter(fits)
            .take(limit)
            .cloned()
            .collect()
    }

    /// The JSON text of an object as a list item.
    pub(crate) fn text(&self, kind: &ObjectKind, object: &Arc<Value>) -> Arc<str> {
        let version = object["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|version| version.parse().ok());
        let mut texts = self.texts.lock().unwrap();
        let text = texts.entry(version.unwrap_or_default()).or_insert_with(|| {
            let mut item = (**object).clone();
            if !kind.custom() {
                let map = item.as_object_mut().expect("objects are maps");
                map.shift_remove("kind");
                map.shift_remove("apiVersion");
            }
            item.to_string().into()
        });
        Arc::clone(text)
    }

    /// The cached answer to a list request, if no write or compaction has happened since.
    pub(crate) fn page(&self, request: &str) -> Option<Bytes> {
        let pages = self.pages.lock().unwrap();
        pages
            .1
            .get(request)
            .filter(|_| pages.0 == (self.revision, self.compacted))
            .cloned()
    }

    pub(crate) fn keep_page(&self, request: String, page: Bytes) {
        let mut pages = self.pages.lock().unwrap();
        if pages.0 != (self.revision, self.compacted) {
            *pages = ((self.revision, self.compacted), HashMap::new());
        }
        pages.1.insert(request, page);
    }

    /// The resourceVersion of the latest write to a kind.
    pub(crate) fn latest(&self, kind: &str) -> u64 {
        self.history
            .get(kind)
            .and_then(|changes| changes.last())
            .map_or(0, |change| change.revision)
    }

    /// The changes of a kind after a resourceVersion.
    pub(crate) fn since(&self, kind: &ObjectKind, revision: u64) -> Vec<Arc<Change>> {
        let changes = self
            .history
            .get(&kind.qualified())
            .map_or(&[][..], Vec::as_slice);
        let from = changes.partition_point(|change| change.revision <= revision);
        changes[from..].to_vec()
    }

    /// Drops the history before `revision`.
    pub(crate) fn compact(&mut self, revision: u64) {
        self.compacted = self.compacted.max(revision);
        for changes in self.history.values_mut() {
            changes.retain(|change| change.revision >= revision);
        }
    }

    /// Stores a new object.
    pub(crate) fn create(
        &mut self,
        kind: &ObjectKind,
        namespace: &str,
        mut object: Value,
        owners: Owners,
        writer: &fields::Writer<'_>,
    ) -> Answer<Arc<Value>> {
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        object["kind"] = json!(kind.kind);
        object["apiVersion"] = json!(kind.api_version());
        let metadata = &object["metadata"];
        let requested_name = metadata["name"].as_str().unwrap_or_default().to_owned();
        let name = match metadata["generateName"].as_str() {
            Some(prefix) if requested_name.is_empty() => {
                let prefix = prefix.to_owned();
                format!("{prefix}{}", self.suffix())
            }
            _ => requested_name,
        };
        if name.is_empty() {
            return Err(status::invalid(
                kind,
                "",
                &[status::Mistake {
                    field: "metadata.name",
                    reason: "FieldValueRequired",
                    words: "Required value: name or generateName is required".to_owned(),
                }],
            ));
        }
        if kind.namespaced && !namespace.is_empty() {
            let namespaces = self
                .kind("", "v1", "namespaces")
                .cloned()
                .expect("namespaces are built in");
            if namespace != "default" && self.get(&namespaces, "", namespace).is_none() {
                return Err(status::not_found(&namespaces, namespace));
            }
        }
        let metadata = object["metadata"].as_object_mut().expect("made above");
        metadata.shift_remove("managedFields");
        metadata.shift_remove("resourceVersion");
        metadata.insert("name".to_owned(), json!(name));
        if kind.namespaced {
            metadata.insert("namespace".to_owned(), json!(namespace));
        }
        if kind.has_status() {
            object
                .as_object_mut()
                .expect("an object")
                .shift_remove("status");
        }
        kind.default(&mut object);
        let mistakes = kind.mistakes(None, &object);
        if !mistakes.is_empty() {
            return Err(status::invalid(kind, &name, &mistakes));
        }
        self.admit("CREATE", kind, namespace, &name, Some(&object), writer)?;
        if self.get(kind, namespace, &name).is_some() {
            return Err(status::already_exists(kind, &name));
        }
        let suffix = if kind.kind == "Pod" {
            self.suffix()
        } else {
            String::new()
        };
        let mut empty = kind.empty();
        if kind.has_status() {
            empty
                .as_object_mut()
                .expect("an object")
                .shift_remove("status");
        }
        match owners {
            Owners::Writer => fields::account_update(&empty, &mut object, writer),
            Owners::Applied(managers) => fields::set_managers(&mut object, managers),
        }
        kind.admit(&mut object, &suffix);
        object["metadata"]["uid"] = json!(self.uid());
        object["metadata"]["creationTimestamp"] = json!(self.now());
        Ok(self.write(kind, namespace, &name, Some(object)))
    }

    /// Stores a changed object. One that is unchanged is not written and keeps its resourceVersion.
    pub(crate) fn replace(
        &mut self,
        kind: &ObjectKind,
        namespace: &str,
        name: &str,
        mut new: Value,
        writer: &fields::Writer<'_>,
    ) -> Answer<Arc<Value>> {
        let old = self
            .get(kind, namespace, name)
            .ok_or_else(|| status::not_found(kind, name))?;
        for map in ["labels", "annotations"] {
            if new["metadata"][map]
                .as_object()
                .is_none_or(serde_json::Map::is_empty)
            {
                new["metadata"]
                    .as_object_mut()
                    .expect("an object")
                    .shift_remove(map);
            }
        }
        let wrong = kind.mistakes(Some(&old), &new);
        if !wrong.is_empty() {
            return Err(status::invalid(kind, name, &wrong));
        }
        self.admit("UPDATE", kind, namespace, name, Some(&new), writer)?;
        let generation = old["metadata"]["generation"].as_u64();
        if let Some(generation) = generation {
            let next = if old["spec"] == new["spec"] {
                generation
            } else {
                generation + 1
            };
            new["metadata"]["generation"] = json!(next);
        }
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        if *old == new {
            return Ok(old);
        }
        Ok(self.write(kind, namespace, name, Some(new)))
    }

    /// Evaluates the admission policies for a write.
    pub(crate) fn admit(
        &self,
        operation: &str,
        kind: &ObjectKind,
        namespace: &str,
        name: &str,
        object: Option<&Value>,
        writer: &fields::Writer<'_>,
    ) -> Answer<()> {
        let old = self
            .get(kind, namespace, name)
            .filter(|_| operation != "CREATE");
        let (user, subresource) = (writer.user, writer.subresource);
        let write = Write {
            user,
            operation,
            kind,
            subresource,
            namespace,
            name,
            object,
            old: old.as_deref(),
        };
        self.policies
            .iter()
            .try_for_each(|policy| policy.judge(&write))
    }

    /// Rebuilds the list of custom kinds from the established `CustomResourceDefinition` objects.
    fn serve(&mut self) {
        self.kinds.retain(|kind| !kind.custom());
        let definitions = self
            .objects
            .iter()
            .filter(|((kind, ..), _)| kind.starts_with("customresourcedefinitions"));
        let established = definitions.map(|(_, object)| object).filter(|object| {
            let conditions = object["status"]["conditions"].as_array();
            conditions
                .into_iter()
                .flatten()
                .any(|one| one["type"] == "Established" && one["status"] == "True")
        });
        let kinds: Vec<ObjectKind> = established
            .flat_map(|definition| ObjectKind::of_definition(definition))
            .collect();
        self.kinds.extend(kinds);
    }

    /// Marks new `CustomResourceDefinition` objects as established.
    pub(crate) fn establish(&mut self) {
        let server = User::new("system:apiserver");
        let kind = self
            .kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
            .cloned();
        let kind = kind.expect("definitions are built in");
        let names: Vec<String> = self
            .at(&kind, self.revision)
            .into_keys()
            .map(|(_, name)| name)
            .collect();
        for name in names {
            let old = self.get(&kind, "", &name).expect("listed just now");
            if old["status"]["conditions"].is_array() {
                continue;
            }
            let now = self.now();
            let mut new = (*old).clone();
            let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message});
            new["status"]["conditions"] = json!([
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition(
                    "Established",
                    "InitialNamesAccepted",
                    "the initial names have been accepted"
                ),
            ]);
            new["status"]["acceptedNames"] = new["spec"]["names"].clone();
            let writer = fields::Writer {
                manager: "kube-apiserver",
                version: "apiextensions.k8s.io/v1",
                subresource: "status",
                now: &now,
                user: &server,
                custom: false,
            };
            fields::account_update(&old, &mut new, &writer);
            self.write(&kind, "", &name, Some(new));
        }
    }

    /// Deletes the objects whose owners are all deleted.
    pub(crate) fn collect_garbage(&mut self) {
        let uids: HashSet<&str> = self
            .objects
            .values()
            .filter_map(|object| object["metadata"]["uid"].as_str())
            .collect();
        let orphans: Vec<Key> = self
            .objects
            .iter()
            .filter(|(_, object)| {
                let owners = object["metadata"]["ownerReferences"].as_array();
                owners.is_some_and(|owners| {
                    !owners.is_empty()
                        && owners
                            .iter()
                            .all(|owner| !uids.contains(owner["uid"].as_str().unwrap_or_default()))
                })
            })
            .map(|(key, _)| key.clone())
            .collect();
        for (plural, namespace, name) in orphans {
            let kind = self
                .kinds
                .iter()
                .find(|kind| kind.qualified() == plural)
                .cloned();
            self.write(&kind.expect("it is stored"), &namespace, &name, None);
        }
    }
}

/// The labels of an object, as keys of the label index.
fn labels(kind: &ObjectKind, object: &Value) -> Vec<(String, String, String)> {
    let labels = object["metadata"]["labels"].as_object();
    let pairs = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    pairs
        .map(|(key, value)| (kind.qualified(), key, value))
        .collect()
}
