//! [`Machine`]: what kind of machine this is, for whoever compares measurements.

use std::fs;
use std::path::Path;

/// The kind of machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs' model, as the kernel names it; empty where it doesn't.
    pub cpu_model: String,
    /// Whether the CPUs are emulated, so that times mean nothing: a machine of QEMU without the clock that KVM offers to guests.
    pub is_emulated: bool,
}

// === impl Machine ===

impl Machine {
    /// The machine below a root; `/` on a usual one.
    pub fn read(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let vendor = read("sys/class/dmi/id/sys_vendor");
        let clocks = read("sys/devices/system/clocksource/clocksource0/available_clocksource");
        let model = read("proc/cpuinfo");
        let model = model.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "model name").then(|| value.trim().to_owned())
        });
        Self {
            cpu_model: model.unwrap_or_default(),
            is_emulated: vendor.trim() == "QEMU" && !clocks.contains("kvm-clock"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_qemu_without_kvm_is_emulated() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let clocks = "sys/devices/system/clocksource/clocksource0/available_clocksource";
        assert_eq!(Machine::read(root.path()), Machine::default());
        put(
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Some CPU: 9\n\nmodel name\t: other\n",
        );
        put("sys/class/dmi/id/sys_vendor", "QEMU\n");
        put(clocks, "kvm-clock tsc acpi_pm\n");
        let mut machine = Machine {
            cpu_model: "Some CPU: 9".to_owned(),
            is_emulated: false,
        };
        assert_eq!(Machine::read(root.path()), machine);
        put(clocks, "tsc hpet acpi_pm\n");
        machine.is_emulated = true;
        assert_eq!(Machine::read(root.path()), machine);
    }
}
