//! The folders of data and logs: volumes, mounts, and claims that are to be made.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, HostPathVolumeSource, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource, Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::cluster::ResolvedJob;
use super::faults::Faults;
use super::job::{Folder, TrainingJob};
use crate::scene::{Amounts, EVALUATOR, Slot, subdomain_fault};

const MODES: [&str; 4] = [
    "ReadWriteMany",
    "ReadOnlyMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

/// The folder for logs and checkpoints.
const LOG: &str = "log";

/// The folders of a job, each with the name of its volume.
pub(super) fn folders(job: &TrainingJob) -> impl Iterator<Item = (&'static str, &Folder)> {
    [("data", job.data.as_ref()), (LOG, job.log.as_ref())]
        .into_iter()
        .filter_map(|(name, folder)| Some((name, folder?)))
}

/// Where containers see a folder.
pub(super) fn path(name: &str, folder: &Folder) -> String {
    folder.path.clone().unwrap_or_else(|| format!("/{name}"))
}

/// The components of a path: `/data`, `/data/` and `/./data` are equal.
fn parts(path: &str) -> Vec<&str> {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect()
}

/// The claim of a folder. A new one has the job's own name, without scene and case: data and logs are there for all cases and
/// runs, and outlive them.
fn claim(job: &TrainingJob, name: &str, folder: &Folder) -> Option<String> {
    let job = job.name.as_deref().unwrap_or_default();
    let made = || folder.size.as_ref().map(|_| format!("{job}-{name}"));
    folder.claim.clone().or_else(made)
}

/// Whether a folder ends with its pod: one for logs, without a volume.
fn is_empty_dir(folder: &Folder) -> bool {
    folder.host_path.is_none() && folder.claim.is_none() && folder.size.is_none()
}

/// Whether the tasks write into a claim.
pub(super) fn has_writable_claim(job: &TrainingJob) -> bool {
    folders(job).any(|(name, folder)| !folder.read_only && claim(job, name, folder).is_some())
}

/// Adds a fault for each mistake in the settings of the folders.
pub(super) fn check(job: &TrainingJob, amounts: Amounts, faults: &mut Faults) {
    for (name, folder) in folders(job) {
        check_path(name, folder, faults);
        check_source(name, folder, faults);
        check_new_claim(name, folder, amounts, faults);
        check_object_names(name, folder, faults);
    }
    if let (Some(data), Some(log)) = (&job.data, &job.log) {
        check_both(job, data, log, faults);
    }
}

/// Refuses a path in the containers that is not absolute, or that the kubelet does not mount.
fn check_path(name: &str, folder: &Folder, faults: &mut Faults) {
    let path = path(name, folder);
    let parts = parts(&path);
    if !path.starts_with('/') || path.contains(':') || parts.is_empty() || parts.contains(&"..") {
        faults.say(format!(
            "{name}.path: {path:?}: write an absolute path without ':' and '..'"
        ));
    }
}

/// Refuses a folder without a volume or with two volumes, and a path of the node that is not absolute.
fn check_source(name: &str, folder: &Folder, faults: &mut Faults) {
    let has_claim = folder.claim.is_some() || folder.size.is_some();
    match (&folder.host_path, has_claim) {
        (Some(_), true) => faults.say(format!(
            "{name}: give either a claim or a hostPath, but not both"
        )),
        (None, false) if name != LOG => faults.say(format!(
            "{name}: the folder has no volume: write claim: NAME, size: 10Gi for a new claim, or hostPath: /folder"
        )),
        (Some(path), false)
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") =>
        {
            faults.say(format!(
                "{name}.hostPath: {path:?}: write an absolute path without '..'"
            ));
        }
        _ => {}
    }
}

/// Checks the size and the access mode of a new claim. An existing claim has its own settings.
fn check_new_claim(name: &str, folder: &Folder, amounts: Amounts, faults: &mut Faults) {
    if folder.size.is_none() && (folder.storage_class.is_some() || folder.access_mode.is_some()) {
        faults.say(format!(
            "{name}: storageClass and accessMode are for a new claim: add its size"
        ));
    }
    if let Some(size) = &folder.size {
        match (amounts.read)("memory", size) {
            Ok(0) => {
                faults.say(format!(
                    "{name}.size: the size is 0; write 10Gi or a similar size"
                ));
            }
            Ok(_) => {}
            Err(fault) => {
                faults.say(format!(
                    "{name}.size: {size:?}: {fault}; write a quantity like 10Gi"
                ));
            }
        }
    }
    if let Some(mode) = folder
        .access_mode
        .as_ref()
        .filter(|mode| !MODES.contains(&mode.as_str()))
    {
        faults.say(format!(
            "{name}.accessMode: {mode:?} is not an access mode: write one of {}",
            MODES.join(", ")
        ));
    }
}

/// Refuses names of claims and storage classes that Kubernetes does not allow.
fn check_object_names(name: &str, folder: &Folder, faults: &mut Faults) {
    for (what, text) in [
        ("claim", &folder.claim),
        ("storageClass", &folder.storage_class),
    ] {
        if let Some((text, fault)) = text
            .as_ref()
            .and_then(|text| Some((text, subdomain_fault(text)?)))
        {
            faults.say(format!("{name}.{what}: {text:?} can't be a name: {fault}"));
        }
    }
}

/// Refuses the same path or the same claim for both folders.
fn check_both(job: &TrainingJob, data: &Folder, log: &Folder, faults: &mut Faults) {
    if parts(&path("data", data)) == parts(&path("log", log)) {
        faults.say("data and log have the same path: give them different ones".to_owned());
    }
    let data_claim = claim(job, "data", data);
    if data_claim.is_some() && data_claim == claim(job, LOG, log) {
        faults.say(format!(
            "data and log are the same claim, {}: a pod that mounts a claim twice may never start; name two claims, or \
             use one folder for both",
            data_claim.unwrap_or_default()
        ));
    }
}

impl ResolvedJob<'_> {
    /// Warns of claims that a single node or pod can mount although several tasks need them: the
    /// other tasks would never start.
    pub(super) fn check_claims(&self, warnings: &mut Vec<String>) {
        let slots: BTreeSet<Slot> = self.tasks().map(|task| task.slot).collect();
        for (name, folder) in folders(self.job).filter(|(_, folder)| folder.size.is_some()) {
            let mode = folder.access_mode.as_deref().unwrap_or_default();
            let (by, all) = match mode {
                "ReadWriteOnce" if slots.len() > 1 => {
                    ("on one node", format!("on {} nodes", slots.len()))
                }
                "ReadWriteOncePod" if self.all() > 1 => {
                    ("by one pod", format!("{} pods", self.all()))
                }
                _ => continue,
            };
            warnings.push(format!(
                "{name}: a claim with {mode} is mounted only {by}, but the tasks are {all}: the other pods would never start; \
                 use ReadWriteMany with a storage class that supports this mode"
            ));
        }
    }

    /// Warns of logs that don't fit the tasks: an evaluator reads the chief's checkpoints, and a run of an experiment must not find
    /// those of another.
    pub(super) fn check_logs(&self, warnings: &mut Vec<String>) {
        let Some(log) = &self.job.log else { return };
        if is_empty_dir(log) && self.count(EVALUATOR) > 0 {
            warnings.push(
                "log: each pod has a folder of its own, so an evaluator sees no checkpoints: give the folder a volume, for example \
                 log: {size: 10Gi}"
                    .to_owned(),
            );
        }
        if self.run.is_some() && !is_empty_dir(log) && !self.job.mentions("TRAINING_JOB") {
            warnings.push(
                "log: all runs of the experiment have the same folder, and a program may go on from the checkpoints of the run \
                 before: write $(LOG_DIR)/$(TRAINING_JOB) in the command, or log: {} for a folder that ends with its pod"
                    .to_owned(),
            );
        }
    }

    pub(super) fn claims(&self) -> Vec<PersistentVolumeClaim> {
        let made = folders(self.job).filter_map(|(name, folder)| {
            let size = Quantity(folder.size.clone()?);
            Some(PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: claim(self.job, name, folder),
                    namespace: self.job.namespace.clone(),
                    labels: Some(self.lasting_labels()),
                    ..ObjectMeta::default()
                },
                spec: Some(PersistentVolumeClaimSpec {
                    access_modes: Some(vec![
                        folder
                            .access_mode
                            .clone()
                            .unwrap_or_else(|| MODES[0].to_owned()),
                    ]),
                    resources: Some(VolumeResourceRequirements {
                        requests: Some(BTreeMap::from([("storage".to_owned(), size)])),
                        ..VolumeResourceRequirements::default()
                    }),
                    storage_class_name: folder.storage_class.clone(),
                    ..PersistentVolumeClaimSpec::default()
                }),
                ..PersistentVolumeClaim::default()
            })
        });
        made.collect()
    }

    pub(super) fn volumes(&self) -> Option<Vec<Volume>> {
        let volumes = folders(self.job).map(|(name, folder)| Volume {
            name: name.to_owned(),
            host_path: folder.host_path.clone().map(|path| HostPathVolumeSource {
                path,
                type_: Some("DirectoryOrCreate".to_owned()),
            }),
            empty_dir: is_empty_dir(folder).then(EmptyDirVolumeSource::default),
            persistent_volume_claim: claim(self.job, name, folder).map(|claim_name| {
                PersistentVolumeClaimVolumeSource {
                    claim_name,
                    read_only: folder.read_only.then_some(true),
                }
            }),
            ..Volume::default()
        });
        Some(volumes.collect()).filter(|volumes: &Vec<_>| !volumes.is_empty())
    }

    pub(super) fn mounts(&self) -> Option<Vec<VolumeMount>> {
        let mounts = folders(self.job).map(|(name, folder)| VolumeMount {
            name: name.to_owned(),
            mount_path: path(name, folder),
            read_only: folder.read_only.then_some(true),
            ..VolumeMount::default()
        });
        Some(mounts.collect()).filter(|mounts: &Vec<_>| !mounts.is_empty())
    }
}
