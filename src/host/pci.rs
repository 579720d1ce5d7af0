//! The NUMA nodes of PCI devices.

use std::path::Path;

use super::file;

/// The NUMA node near a PCI device, whose address has the form `0000:3b:00.0`.
///
/// `None` where the address is malformed, the device is missing, or its NUMA node is unknown (the
/// kernel reports −1).
pub fn numa_node(root: &Path, address: &str) -> Option<u32> {
    if !is_address(address) {
        return None;
    }
    let path = root
        .join("sys/bus/pci/devices")
        .join(address.to_ascii_lowercase())
        .join("numa_node");
    file::read(&path).ok()?.parse().ok()
}

/// Whether a text is domain, bus, device and function in hexadecimal. It comes from another program
/// and must not become a path unchecked.
fn is_address(text: &str) -> bool {
    let hex = |part: &str, min: usize, max: usize| {
        (min..=max).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let Some((front, function)) = text.rsplit_once('.') else {
        return false;
    };
    let mut parts = front.splitn(3, ':');
    let (Some(domain), Some(bus), Some(device)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    hex(domain, 4, 8) && hex(bus, 2, 2) && hex(device, 2, 2) && hex(function, 1, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_are_looked_up() {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("sys/bus/pci/devices");
        for (address, node) in [("0000:3b:00.0", "1\n"), ("0000:af:00.1", "-1\n")] {
            std::fs::create_dir_all(devices.join(address)).unwrap();
            std::fs::write(devices.join(address).join("numa_node"), node).unwrap();
        }
        assert_eq!(numa_node(root.path(), "0000:3b:00.0"), Some(1));
        assert_eq!(numa_node(root.path(), "0000:3B:00.0"), Some(1));
        assert_eq!(numa_node(root.path(), "0000:af:00.1"), None);
        for other in [
            "0000:00:00.0",
            "GPU-fef8089b",
            "../0000:3b:00.0",
            "0000:3b:00",
            "",
            "..",
            "3b:00.0",
        ] {
            assert_eq!(numa_node(root.path(), other), None, "{other}");
        }
    }
}
