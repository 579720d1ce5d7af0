//! Pods from a folder of manifests, whose changes inotify reports.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::event::{AgentEvent, PodKey, PodSource, PodsChange, PodsUpdate};
use crate::host::watch::Watch;
use crate::pod::{self, Manifests, Pod};
use crate::text::parse_errors;

#[derive(Debug)]
pub(super) struct ManifestFolder {
    path: PathBuf,
    files: BTreeMap<PathBuf, Vec<Arc<Pod>>>,
    /// The pods that the reconciler knows; `None` before the first read.
    sent: Option<BTreeMap<PodKey, Arc<Pod>>>,
    /// The errors of the last read. Each change of the folder leads to a read of all its files, the
    /// damaged ones included.
    errors: Vec<String>,
}

// === impl ManifestFolder ===

impl ManifestFolder {
    /// The folder must exist.
    pub(super) fn new(path: &Path) -> anyhow::Result<Self> {
        fs::read_dir(path).map_err(|error| {
            anyhow::anyhow!(
                "can't read the folder of pod manifests {}: {error}; make it, or name another with --manifest-dir",
                path.display()
            )
        })?;
        Ok(Self {
            path: path.to_owned(),
            files: BTreeMap::new(),
            sent: None,
            errors: Vec::new(),
        })
    }

    pub(super) async fn run(
        mut self,
        events: tokio::sync::mpsc::Sender<AgentEvent>,
    ) -> anyhow::Result<()> {
        // The watch begins before the first read, so that no change is missed.
        let mut watch =
            Watch::new(&self.path, 0).context("can't watch the folder of pod manifests")?;
        loop {
            // The read runs on a blocking thread, because a slow folder must not delay the agent's
            // shutdown.
            let read = tokio::task::spawn_blocking(move || {
                let read = self.read();
                (self, read)
            });
            let (changes, mut errors);
            (self, (changes, errors)) = read
                .await
                .context("the task that reads pod manifests failed")?;
            errors.extend(watch.problem().map(str::to_owned));
            let only_errors = changes.is_empty().then_some(None);
            for change in changes.into_iter().map(Some).chain(only_errors) {
                let update = PodsUpdate {
                    source: PodSource::Folder,
                    change,
                    errors: errors.clone(),
                };
                if events.send(AgentEvent::Pods(update)).await.is_err() {
                    return Ok(());
                }
            }
            watch
                .changed()
                .await
                .context("can't watch the folder of pod manifests any longer")?;
            // Writers change several files at once, so a short pause lets all changes arrive.
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }

    /// Reads every manifest, and returns what has changed, with the errors. An unreadable file
    /// keeps its earlier pods, because missing data never unpins a container.
    fn read(&mut self) -> (Vec<PodsChange>, Vec<String>) {
        let mut errors = Vec::new();
        let found = match manifests(&self.path) {
            Ok(found) => found,
            Err(error) => {
                errors.push(format!("can't list {}: {error}", self.path.display()));
                self.files.keys().cloned().collect()
            }
        };
        self.files.retain(|path, _| found.contains(path));
        for path in found {
            match read_entry(&path) {
                Ok(pods) => {
                    let pods = pods.into_iter().map(Arc::new).collect();
                    self.files.insert(path, pods);
                }
                Err(error) => errors.push(format!("{error:#}")),
            }
        }
        for error in errors.iter().filter(|error| !self.errors.contains(error)) {
            tracing::warn!("{error}; the pods from the last valid content stay");
        }
        self.errors.clone_from(&errors);
        let pods = self.distinct(&mut errors);
        (self.changes(pods), errors)
    }

    /// The changes from the pods that the reconciler knows to `pods`. A pod that has moved to
    /// another file appears there before it goes here, because a pod without a description would
    /// lose its CPUs.
    fn changes(&mut self, pods: BTreeMap<PodKey, Arc<Pod>>) -> Vec<PodsChange> {
        let Some(sent) = self.sent.replace(pods) else {
            return vec![PodsChange::Listed(self.sent.clone().unwrap_or_default())];
        };
        let now = self.sent.as_ref();
        let applied = now
            .into_iter()
            .flatten()
            .filter(|(key, pod)| sent.get(key) != Some(pod))
            .map(|(key, pod)| PodsChange::Applied(key.clone(), Arc::clone(pod)));
        let is_gone = |key: &&PodKey| now.is_none_or(|now| !now.contains_key(key));
        let deleted = sent.keys().filter(is_gone).cloned();
        applied.chain(deleted.map(PodsChange::Deleted)).collect()
    }

    /// All pods, each uid once: the first file with it wins, and an error names each further one. A
    /// pod with the name of another one is only reported, and stays, because a running container
    /// may belong to it.
    fn distinct(&self, errors: &mut Vec<String>) -> BTreeMap<PodKey, Arc<Pod>> {
        let mut first: BTreeMap<&str, &Path> = BTreeMap::new();
        let mut names: BTreeMap<String, &Path> = BTreeMap::new();
        let mut pods = BTreeMap::new();
        let files = self.files.iter();
        let all = files.flat_map(|(path, pods)| pods.iter().zip(0..).map(move |pod| (path, pod)));
        for (path, (pod, number)) in all {
            let again = pod.cgroup_uid().and_then(|uid| match first.get(uid) {
                Some(other) => Some((uid, *other)),
                None => first.insert(uid, path).and(None),
            });
            match again {
                None => {
                    let named = names.insert(pod.to_string(), path);
                    if let Some(other) = named.filter(|_| !pod.name.ends_with('-')) {
                        errors.push(format!(
                            "{}: pod {pod} has the name of a pod in {}: give each pod of a namespace its own name",
                            path.display(),
                            other.display()
                        ));
                    }
                    let file = path.clone();
                    pods.insert(PodKey::Folder { file, number }, Arc::clone(pod));
                }
                Some((uid, other)) => errors.push(format!(
                    "{}: pod {pod} is ignored, because its uid {uid} is the uid of a pod in {}",
                    path.display(),
                    other.display()
                )),
            }
        }
        pods
    }
}

/// The pods of manifests: of files, of all manifests in folders, or of the standard input (`-`). Unlike the folder of a running agent,
/// these may have Jobs, Deployments and other objects, which stand for the pods that they create.
///
/// # Errors
/// A file can't be read or understood, a file or a folder is empty, or there are no pods at all.
pub fn read_pods(paths: &[PathBuf]) -> anyhow::Result<Vec<Pod>> {
    let mut manifests = Manifests::default();
    for path in paths {
        let mut count = 0;
        if path.is_dir() {
            let files = self::manifests(path);
            let files = files.with_context(|| format!("can't list {}", path.display()))?;
            for file in files {
                count += manifests.read(&entry(&file)?, &file.display().to_string())?;
            }
        } else if path == Path::new("-") {
            let text = io::read_to_string(io::stdin());
            let text = text.map_err(|error| unread("on the standard input", error))?;
            count += manifests.read(&text, STDIN)?;
        } else {
            count += manifests.read(&text(path)?, &path.display().to_string())?;
        }
        let name = match path.to_str() {
            Some("-") => STDIN.into(),
            _ => path.to_string_lossy(),
        };
        anyhow::ensure!(
            count > 0,
            "{name} holds no pods, because it has no objects: name a file with Pods or with objects that create pods, such as Jobs, or a \
             folder with such files (.yaml, .yml or .json)"
        );
    }
    let pods = manifests.pods()?;
    anyhow::ensure!(
        !pods.is_empty(),
        "the manifests hold no pods: their objects create none (they have 0 replicas, or are of kinds like Service)"
    );
    Ok(pods)
}

fn read_entry(path: &Path) -> anyhow::Result<Vec<Pod>> {
    Ok(pod::parse(&entry(path)?, &path.display().to_string())?)
}

/// The text of a file in a folder.
fn entry(path: &Path) -> anyhow::Result<String> {
    // Reading a pipe without a writer would never end.
    let strange = fs::metadata(path).is_ok_and(|kind| !kind.is_file());
    anyhow::ensure!(
        !strange,
        "{} is not a regular file: only regular files are read as manifests",
        path.display()
    );
    text(path)
}

fn text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).map_err(|error| unread(&path.display().to_string(), error))
}

/// The name of the standard input in errors.
const STDIN: &str = "the standard input";

fn unread(origin: &str, error: io::Error) -> anyhow::Error {
    // Windows PowerShell writes UTF-16.
    let remedy = match error.kind() {
        io::ErrorKind::InvalidData => " (save it as UTF-8)",
        _ => "",
    };
    anyhow::Error::new(parse_errors::reading(error))
        .context(format!("can't read the manifest {origin}{remedy}"))
}

/// The manifest files in a folder, chosen by their names and sorted.
fn manifests(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let kind = path.extension().and_then(|extension| extension.to_str());
        if !hidden && matches!(kind, Some("yaml" | "yml" | "json")) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
