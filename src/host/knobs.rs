//! CPU sets of work outside the pods: interrupts, unbound work queues, packet steering, systemd's own slices.
//!
//! Each setting is a [`Knob`]: a set of CPUs in an existing file. No file is ever created. Settings
//! that the kernel itself manages refuse writes with EIO, which the caller reports.
//!
//! A work queue's own mask (`/sys/devices/virtual/workqueue/NAME/cpumask`) is no knob. The kernel
//! keeps every unbound work queue within the common mask, so changing that mask is enough, and
//! leaves less to restore.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::libc::{EACCES, EINVAL, EIO, EOPNOTSUPP, EPERM};

use super::cgroup::{CgroupError, Cgroups};
use super::file::{self, FileError};
use crate::cpu::{CpuSet, ParseCpuSetError};

/// A set of CPUs for work of the kernel or of systemd's own units.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Knob {
    /// The CPUs allowed for an interrupt.
    Irq(u32),
    /// The CPUs allowed for interrupts that are set up from now on.
    NewIrqs,
    /// The CPUs allowed for unbound work queues.
    Workqueues,
    /// The CPUs that get a receive queue's packets (RPS); empty if RPS is off.
    Receive {
        /// The network interface.
        device: String,
        queue: u32,
    },
    /// The CPUs that send through a transmit queue (XPS); empty if XPS is off.
    Transmit {
        /// The network interface.
        device: String,
        queue: u32,
    },
    /// The CPUs of a systemd slice or scope beside the pods' trees, by the unit's name.
    Slice(String),
}

/// The kind of work whose CPUs a knob sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KnobKind {
    Irqs,
    /// Unbound work queues.
    Workqueues,
    /// RPS and XPS.
    PacketSteering,
    /// systemd's slices and scopes outside the pods' trees.
    SystemSlices,
}

/// The values of the knobs at the time of reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnobValues {
    /// The kinds of knobs of which every value could be read.
    pub kinds: BTreeSet<KnobKind>,
    pub values: BTreeMap<Knob, CpuSet>,
    /// Knobs that exist but could not be read, each with the reason.
    pub unreadable: BTreeMap<Knob, String>,
}

/// The knobs below a root.
#[derive(Debug, Clone)]
pub struct Knobs {
    proc: PathBuf,
    sys: PathBuf,
    slices: Option<Slices>,
}

/// The hierarchy with systemd's slices, and the pods' trees.
#[derive(Debug, Clone)]
struct Slices {
    cgroups: Cgroups,
    trees: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
enum KnobError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} holds no set of CPUs: {source}", path.display())]
    Malformed {
        path: PathBuf,
        source: ParseCpuSetError,
    },
}

// === impl Knob ===

impl Knob {
    pub fn kind(&self) -> KnobKind {
        match self {
            Self::Irq(_) | Self::NewIrqs => KnobKind::Irqs,
            Self::Workqueues => KnobKind::Workqueues,
            Self::Receive { .. } | Self::Transmit { .. } => KnobKind::PacketSteering,
            Self::Slice(_) => KnobKind::SystemSlices,
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Irq(irq) => write!(f, "IRQ {irq}"),
            Self::NewIrqs => f.write_str("the default of new IRQs"),
            Self::Workqueues => f.write_str("unbound work queues"),
            Self::Receive { device, queue } => write!(f, "{device} receive queue {queue}"),
            Self::Transmit { device, queue } => write!(f, "{device} transmit queue {queue}"),
            Self::Slice(name) => f.write_str(name),
        }
    }
}

// === impl KnobKind ===

impl KnobKind {
    pub const ALL: [Self; 4] = [
        Self::Irqs,
        Self::Workqueues,
        Self::PacketSteering,
        Self::SystemSlices,
    ];
}

// === impl Knobs ===

impl Knobs {
    /// The knobs of the machine whose `proc` and `sys` lie below `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            sys: root.join("sys"),
            slices: None,
        }
    }

    /// Adds systemd's slices and scopes, without the slices that contain the pods' trees.
    #[must_use]
    pub fn with_slices(mut self, cgroups: Cgroups, trees: &[String]) -> Self {
        self.slices = Some(Slices {
            cgroups,
            trees: trees.to_owned(),
        });
        self
    }

    /// Reads every knob of the given kinds, except those that the kernel lacks or that vanish
    /// meanwhile.
    ///
    /// # Errors
    /// An existing directory can't be listed.
    pub fn read(&self, kinds: &BTreeSet<KnobKind>) -> Result<KnobValues, FileError> {
        let mut found = KnobValues {
            kinds: kinds.clone(),
            ..KnobValues::default()
        };
        let mut knobs = Vec::new();
        if kinds.contains(&KnobKind::Irqs) {
            let irqs = names(&self.proc.join("irq"))?;
            knobs.extend(
                irqs.iter()
                    .filter_map(|name| name.parse().ok())
                    .map(Knob::Irq),
            );
            knobs.push(Knob::NewIrqs);
        }
        if kinds.contains(&KnobKind::Workqueues) {
            knobs.push(Knob::Workqueues);
        }
        if kinds.contains(&KnobKind::PacketSteering) {
            self.queues(&mut knobs)?;
        }
        match &self.slices {
            Some(slices) if kinds.contains(&KnobKind::SystemSlices) => {
                knobs.extend(slices.names()?.into_iter().map(Knob::Slice));
            }
            // A reader without access to systemd's slices must not report them as gone.
            _ => {
                found.kinds.remove(&KnobKind::SystemSlices);
            }
        }
        for knob in knobs {
            match self.value(&knob) {
                Ok(cpus) => found.values.extend(cpus.map(|cpus| (knob, cpus))),
                Err(error) => drop(found.unreadable.insert(knob, error.to_string())),
            }
        }
        Ok(found)
    }

    /// Reads one knob; `None` if it does not exist.
    ///
    /// # Errors
    /// The error is a sentence: the file can't be read, or holds no set of CPUs.
    pub fn get(&self, knob: &Knob) -> Result<Option<CpuSet>, String> {
        self.value(knob).map_err(|error| match &error {
            KnobError::File(file) => format!("{error}: {}", file.kernel_error()),
            KnobError::Malformed { .. } => error.to_string(),
        })
    }

    /// Sets a knob.
    ///
    /// # Errors
    /// The kernel's error: EIO for an interrupt that the kernel manages, EINVAL for a set without an online CPU. For
    /// a slice or scope, the error of the cgroup or of systemd.
    pub fn set(&self, knob: &Knob, cpus: &CpuSet) -> Result<(), CgroupError> {
        if let (Knob::Slice(name), Some(slices)) = (knob, &self.slices) {
            return slices.cgroups.set_cpus(name, cpus);
        }
        let text = if matches!(knob, Knob::Irq(_)) {
            cpus.to_string()
        } else {
            cpus.to_mask()
        };
        Ok(file::write(&self.path(knob), &text)?)
    }

    /// Whether the error of a write says that the kernel itself places the interrupt. The file of
    /// such an interrupt has no permission to write, so a process without the capability
    /// `CAP_DAC_OVERRIDE` gets EACCES. The mode of a link does not count.
    pub fn is_placed_by_kernel(&self, irq: u32, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(EIO | EPERM) => true,
            Some(EACCES) => fs::symlink_metadata(self.path(&Knob::Irq(irq)))
                .is_ok_and(|file| file.permissions().readonly()),
            _ => false,
        }
    }

    /// The users of an interrupt, as named by their drivers; empty for an unused interrupt.
    pub fn irq_name(&self, irq: u32) -> String {
        let actions = self.sys.join(format!("kernel/irq/{irq}/actions"));
        match file::read_optional(&actions) {
            Ok(Some(text)) => text.trim().to_owned(),
            // Before Linux 4.9 each user has a directory in `/proc/irq/N`.
            _ => {
                let directory = self.proc.join(format!("irq/{irq}"));
                let mut users = names(&directory).unwrap_or_default();
                users.retain(|name| directory.join(name).is_dir());
                users.join(",")
            }
        }
    }

    /// Whether irqbalance runs, a daemon that spreads interrupts by its own rules.
    pub fn irqbalance_runs(&self) -> bool {
        let processes = names(&self.proc).unwrap_or_default();
        // Most other entries of /proc have no file `comm`.
        processes.iter().any(|process| {
            let name = fs::read(self.proc.join(process).join("comm"));
            name.is_ok_and(|name| name == b"irqbalance\n")
        })
    }

    fn queues(&self, into: &mut Vec<Knob>) -> Result<(), FileError> {
        let net = self.sys.join("class/net");
        for device in names(&net)? {
            for name in names(&net.join(&device).join("queues"))? {
                let Some((direction, number)) = name.split_once('-') else {
                    continue;
                };
                let Ok(queue) = number.parse() else { continue };
                let device = device.clone();
                match direction {
                    "rx" => into.push(Knob::Receive { device, queue }),
                    "tx" => into.push(Knob::Transmit { device, queue }),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn value(&self, knob: &Knob) -> Result<Option<CpuSet>, KnobError> {
        let mut path = self.path(knob);
        if *knob == Knob::Workqueues {
            // Isolated partitions take CPUs out of the mask in force, but comparing and restoring
            // need the requested one.
            let requested = self.sys.join("devices/virtual/workqueue/cpumask_requested");
            if requested.exists() {
                path = requested;
            }
        }
        let text = match file::read_optional(&path) {
            // A queue of a device without packet steering returns EINVAL or EOPNOTSUPP.
            Err(error)
                if knob.kind() == KnobKind::PacketSteering
                    && matches!(
                        error.kernel_error().raw_os_error(),
                        Some(EINVAL | EOPNOTSUPP)
                    ) =>
            {
                None
            }
            text => text?,
        };
        let Some(text) = text else { return Ok(None) };
        let cpus = match knob {
            // An empty file means all CPUs, including those that are offline now.
            Knob::Slice(_) if text.trim().is_empty() => {
                path = self.sys.join("devices/system/cpu/possible");
                file::read(&path)?.parse()
            }
            Knob::Irq(_) | Knob::Slice(_) => text.parse(),
            _ => CpuSet::from_mask(&text),
        };
        cpus.map(Some)
            .map_err(|source| KnobError::Malformed { path, source })
    }

    fn path(&self, knob: &Knob) -> PathBuf {
        match knob {
            Knob::Irq(irq) => self.proc.join(format!("irq/{irq}/smp_affinity_list")),
            Knob::NewIrqs => self.proc.join("irq/default_smp_affinity"),
            Knob::Workqueues => self.sys.join("devices/virtual/workqueue/cpumask"),
            Knob::Receive { device, queue } => self
                .sys
                .join(format!("class/net/{device}/queues/rx-{queue}/rps_cpus")),
            Knob::Transmit { device, queue } => self
                .sys
                .join(format!("class/net/{device}/queues/tx-{queue}/xps_cpus")),
            Knob::Slice(name) => {
                let slices = self.slices.as_ref();
                let root = slices.map_or(Path::new(""), |slices| slices.cgroups.root());
                root.join(name).join("cpuset.cpus")
            }
        }
    }
}

// === impl Slices ===

impl Slices {
    /// The slices and scopes at the top of the hierarchy that hold no pods.
    fn names(&self) -> Result<Vec<String>, FileError> {
        let pods = |name: &String| {
            self.trees
                .iter()
                .any(|tree| tree.split('/').next() == Some(name))
        };
        let mut names = names(self.cgroups.root())?;
        names.retain(|name| (name.ends_with(".slice") || name.ends_with(".scope")) && !pods(name));
        Ok(names)
    }
}

/// The names in a directory; empty if it does not exist.
fn names(directory: &Path) -> Result<Vec<String>, FileError> {
    let entries = file::list_optional(directory).map_err(FileError::reading(directory))?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_places_interrupts_with_read_only_files() {
        let root = tempfile::tempdir().unwrap();
        let knobs = Knobs::new(root.path());
        let path = knobs.path(&Knob::Irq(7));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "0-1\n").unwrap();
        let by_kernel = |error| knobs.is_placed_by_kernel(7, &io::Error::from_raw_os_error(error));
        assert_eq!([EIO, EPERM, EACCES].map(by_kernel), [true, true, false]);
        let mut read_only = fs::metadata(&path).unwrap().permissions();
        read_only.set_readonly(true);
        fs::set_permissions(&path, read_only).unwrap();
        assert!(by_kernel(EACCES));
    }

    #[test]
    fn a_machine_without_any_has_none() {
        let root = tempfile::tempdir().unwrap();
        let knobs = Knobs::new(root.path());
        let found = knobs.read(&KnobKind::ALL.into()).unwrap();
        assert!(found.values.is_empty() && found.unreadable.is_empty());
        assert!(
            knobs
                .set(&Knob::Irq(1), &"0".parse().unwrap())
                .unwrap_err()
                .is_gone()
        );
        assert!(!knobs.irqbalance_runs());
        assert_eq!(knobs.irq_name(1), "");
        assert_eq!(
            fs::read_dir(root.path()).unwrap().count(),
            0,
            "something was made"
        );
    }
}
