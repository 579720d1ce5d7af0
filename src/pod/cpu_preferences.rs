//! [`CpuPreferences`]: how a pod's owner wants the exclusive CPUs to be placed and used.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Pod;
use crate::cpu::{CoreKinds, Cores, CpuSet, Isolated, Numa, Order, Request};

/// What the names of all of Pinfold's annotations begin with.
pub(super) const PREFIX: &str = "pinfold.io/";

/// The annotation that takes more CPUs from the node than the scheduler counts, and its value.
pub(super) const SINGLE_CORES: (&str, &str) = ("pinfold.io/cores", "single");

/// The annotations for preferences, without the prefix.
pub(super) const NAMES: [&str; 9] = [
    "placement",
    "cores",
    "numa",
    "isolated",
    "core-kinds",
    "near-devices",
    "partition",
    "memory",
    "movable",
];

/// Whether an annotation says how the pod's owner wants the CPUs to be placed.
pub(super) fn is_preference(annotation: &str) -> bool {
    let name = annotation.strip_prefix(PREFIX);
    name.is_some_and(|name| NAMES.contains(&name))
}

/// Whether the pod's owner wants a single CPU of each core, with idle siblings: `pinfold.io/cores: single`.
pub(super) fn wants_single_cores(pod: &Pod) -> bool {
    let cores = pod.annotations.get(SINGLE_CORES.0);
    cores.is_some_and(|word| word == SINGLE_CORES.1)
}

/// Preferences for the exclusive CPUs of a pod's containers. The configuration has the defaults,
/// and an annotation of the pod overrides the default of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CpuPreferences {
    /// `pinfold.io/placement`: whether CPUs lie together or apart.
    pub placement: Order,
    /// `pinfold.io/cores`: whole cores if possible, whole cores only, or a single CPU of each core with idle
    /// siblings.
    pub cores: Cores,
    /// `pinfold.io/numa`: the treatment of containers that would span more NUMA nodes than necessary.
    pub numa: Numa,
    /// `pinfold.io/isolated`: the treatment of CPUs that were isolated at boot.
    pub isolated: Isolated,
    /// `pinfold.io/core-kinds`: whether cores of one kind come first, on hybrid machines.
    pub core_kinds: CoreKinds,
    /// `pinfold.io/near-devices`: whether CPUs lie near the pod's devices, such as GPUs and network cards.
    pub near_devices: bool,
    /// `pinfold.io/partition`: whether the kernel balances load inside the set.
    pub partition: Balancing,
    /// `pinfold.io/memory`: whether memory comes from the NUMA nodes of the CPUs.
    pub memory: MemoryPolicy,
    /// `pinfold.io/movable`: whether Pinfold may move the pod's running containers to make room for other pods.
    pub movable: bool,
}

// === impl CpuPreferences ===

impl Default for CpuPreferences {
    fn default() -> Self {
        Self {
            placement: Order::default(),
            cores: Cores::default(),
            numa: Numa::default(),
            isolated: Isolated::default(),
            core_kinds: CoreKinds::default(),
            near_devices: true,
            partition: Balancing::default(),
            memory: MemoryPolicy::default(),
            movable: false,
        }
    }
}

impl CpuPreferences {
    /// A request for a number of CPUs; `near` are the NUMA nodes of the pod's devices.
    pub fn request(&self, cpus: usize, near: &CpuSet) -> Request {
        let near = if self.near_devices {
            near.clone()
        } else {
            CpuSet::new()
        };
        let fewest_numa = self.numa == Numa::Fewest;
        let (order, cores, isolated) = (self.placement, self.cores, self.isolated);
        Request {
            cpus,
            order,
            cores,
            near,
            isolated,
            core_kinds: self.core_kinds,
            fewest_numa,
        }
    }
}

/// The type of a container's partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Balancing {
    /// The kernel balances load among the container's CPUs.
    #[default]
    Root,
    /// The kernel does not balance load: for programs that bind each thread to a CPU.
    Isolated,
}

/// The source of a container's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryPolicy {
    /// The NUMA nodes of the container's CPUs, if they have room for the memory limit.
    #[default]
    Follow,
    /// All NUMA nodes.
    Free,
}

/// A pod's preferences from annotations and defaults, and a sentence for each invalid annotation.
pub fn cpu_preferences(pod: &Pod, defaults: &CpuPreferences) -> (CpuPreferences, Vec<String>) {
    let mut preferences = *defaults;
    let mut errors = Vec::new();
    let mut annotations = AnnotationReader {
        pod,
        errors: &mut errors,
    };
    let [
        placement,
        cores,
        numa,
        isolated,
        core_kinds,
        near_devices,
        partition,
        memory,
        movable,
    ] = NAMES;
    annotations.read(placement, &mut preferences.placement);
    annotations.read(cores, &mut preferences.cores);
    annotations.read(numa, &mut preferences.numa);
    annotations.read(isolated, &mut preferences.isolated);
    annotations.read(core_kinds, &mut preferences.core_kinds);
    annotations.read(near_devices, &mut preferences.near_devices);
    annotations.read(partition, &mut preferences.partition);
    annotations.read(memory, &mut preferences.memory);
    annotations.read(movable, &mut preferences.movable);
    (preferences, errors)
}

struct AnnotationReader<'a> {
    pod: &'a Pod,
    errors: &'a mut Vec<String>,
}

// === impl AnnotationReader ===

impl AnnotationReader<'_> {
    /// Reads an annotation's word in the same way as a word of the configuration.
    fn read<T: DeserializeOwned>(&mut self, name: &str, preference: &mut T) {
        let Some(word) = self.pod.annotations.get(&format!("{PREFIX}{name}")) else {
            return;
        };
        let value = match word.as_str() {
            "true" => serde_json::Value::Bool(true),
            "false" => serde_json::Value::Bool(false),
            word => serde_json::Value::String(word.to_owned()),
        };
        match serde_json::from_value(value) {
            Ok(value) => *preference = value,
            Err(error) => self.error(name, word, &error),
        }
    }

    fn error(&mut self, name: &str, word: &str, error: &dyn Display) {
        self.errors.push(format!(
            "annotation {PREFIX}{name}={word:?} is ignored: {error}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &[(&str, &str)]) -> (CpuPreferences, Vec<String>) {
        let annotations = annotations
            .iter()
            .map(|&(key, word)| (key.to_owned(), word.to_owned()))
            .collect();
        cpu_preferences(
            &Pod {
                annotations,
                ..Pod::default()
            },
            &CpuPreferences::default(),
        )
    }

    #[test]
    fn annotations_set_preferences() {
        assert_eq!(read(&[]), (CpuPreferences::default(), Vec::new()));
        let (preferences, errors) = read(&[
            ("pinfold.io/partition", "isolated"),
            ("pinfold.io/movable", "true"),
            ("other", "x"),
        ]);
        assert_eq!(
            (preferences.partition, preferences.movable, errors.len()),
            (Balancing::Isolated, true, 0)
        );
        let (preferences, _) = read(&[
            ("pinfold.io/cores", "single"),
            ("pinfold.io/near-devices", "false"),
        ]);
        let near = "1".parse().unwrap();
        let request = preferences.request(4, &near);
        assert_eq!(
            (request.cpus, request.cores, request.near),
            (4, Cores::Single, CpuSet::new())
        );
        assert_eq!(CpuPreferences::default().request(1, &near).near, near);
        assert!(!preferences.request(1, &near).fewest_numa);
        let (preferences, errors) = read(&[("pinfold.io/numa", "fewest")]);
        assert!(preferences.request(1, &near).fewest_numa && errors.is_empty());
    }

    #[test]
    fn invalid_annotations_are_named_and_ignored() {
        let (preferences, errors) = read(&[
            ("pinfold.io/memory", "far"),
            ("pinfold.io/movable", "maybe"),
        ]);
        assert_eq!(preferences, CpuPreferences::default());
        assert!(
            errors[0].contains("pinfold.io/memory") && errors[0].contains("`follow`"),
            "{errors:?}"
        );
        assert!(errors[1].contains("pinfold.io/movable"), "{errors:?}");
    }
}
