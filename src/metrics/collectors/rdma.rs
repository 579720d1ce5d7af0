//! The collector `rdma`: the port counters of the node's RDMA devices, and of devices in a pod's own network namespace.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::families::{
    Family, NODE_RDMA_HW, NODE_RDMA_PORT_EVENTS, NODE_RDMA_PORT_RECEIVE_BYTES,
    NODE_RDMA_PORT_RECEIVE_PACKETS, NODE_RDMA_PORT_STATE, NODE_RDMA_PORT_TRANSMIT_BYTES,
    NODE_RDMA_PORT_TRANSMIT_PACKETS, POD_RDMA_RECEIVE_BYTES, POD_RDMA_RECEIVE_PACKETS,
    POD_RDMA_TRANSMIT_BYTES, POD_RDMA_TRANSMIT_PACKETS,
};
use super::super::page::{Labels, Lines, Page};
use super::measured::CollectOutcome;
use super::pod_networks::NetworkScope;
use super::scrape::{Collector, Scrape};
use crate::host::counters::rdma::{self, COUNTERS, RdmaPort};

/// The families of bytes and packets, for the node and for a pod, by the counter's name. The remaining counters are events.
const FAMILIES: [(&str, &Family, &Family); 4] = [
    (
        "port_xmit_data",
        &NODE_RDMA_PORT_TRANSMIT_BYTES,
        &POD_RDMA_TRANSMIT_BYTES,
    ),
    (
        "port_rcv_data",
        &NODE_RDMA_PORT_RECEIVE_BYTES,
        &POD_RDMA_RECEIVE_BYTES,
    ),
    (
        "port_xmit_packets",
        &NODE_RDMA_PORT_TRANSMIT_PACKETS,
        &POD_RDMA_TRANSMIT_PACKETS,
    ),
    (
        "port_rcv_packets",
        &NODE_RDMA_PORT_RECEIVE_PACKETS,
        &POD_RDMA_RECEIVE_PACKETS,
    ),
];

/// The machine's first process. Visible with the machine's own process ids only (`hostPID`).
const FIRST_PROCESS: i32 = 1;

/// The port states by the kernel's names (drivers/infiniband/core/sysfs.c).
const PORT_STATES: [&str; 6] = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];

#[derive(Debug)]
pub(super) struct RdmaCollector;

impl Collector for RdmaCollector {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        // The agent's own /sys shows the devices of the agent's namespace, while the machine's
        // first process sees the node's.
        let node_directory = rdma::directory(&scrape.host.proc.root_of(FIRST_PROCESS));
        let directory = if node_directory.is_dir() {
            node_directory
        } else {
            rdma::directory(&scrape.host.root)
        };
        if !directory.is_dir() {
            // The kernel's module creates the directory in every namespace.
            let directory = directory.display();
            return CollectOutcome::unsupported(
                "no_rdma_device",
                format!("{directory} is missing: the node has no RDMA device, or no driver"),
            );
        }
        let ports = rdma::ports(&directory);
        write_node(&ports, page);
        // Other namespaces share a device that the node shows, so its traffic belongs to no single
        // pod.
        let shared = ports.iter().map(|port| port.device.as_str()).collect();
        CollectOutcome::from_complete(write_pods(scrape, &shared, page))
    }
}

/// Writes the families of the node's ports.
fn write_node(ports: &[RdmaPort], page: &mut Page) {
    let mut traffic = FAMILIES.map(|(_, family, _)| Lines::of(family));
    let mut state = Lines::of(&NODE_RDMA_PORT_STATE);
    let mut events = Lines::of(&NODE_RDMA_PORT_EVENTS);
    let mut hardware = Lines::of(&NODE_RDMA_HW);
    for port in ports {
        let labels = Labels::new(&[("device", &port.device), ("port", &port.port)]);
        put(&mut traffic, &labels, &[], port);
        for (name, count) in COUNTERS.iter().zip(port.counts) {
            let is_event = FAMILIES.iter().all(|(counter, ..)| counter != name);
            if let Some(count) = count.filter(|_| is_event) {
                let event = name.strip_prefix("port_").unwrap_or(name);
                events.put_with(&labels, &[("event", event)], count);
            }
        }
        if let Some(current) = &port.state {
            let unknown = (!PORT_STATES.contains(&current.as_str())).then_some(current.as_str());
            for name in PORT_STATES.into_iter().chain(unknown) {
                state.put_with(&labels, &[("state", name)], name == current);
            }
        }
        for (name, count) in &port.hardware {
            hardware.put_with(&labels, &[("counter", name)], *count);
        }
    }
    traffic
        .into_iter()
        .chain([state, events, hardware])
        .for_each(|lines| page.add(lines));
}

/// Writes the families of devices in a pod's own network namespace. Returns false if the time was up.
fn write_pods(scrape: &mut Scrape<'_>, shared: &BTreeSet<&str>, page: &mut Page) -> bool {
    let networks = scrape.networks();
    let root = scrape.host.root.as_path();
    let mut traffic = FAMILIES.map(|(_, _, family)| Lines::of(family));
    // In the shared mode, all namespaces have all devices, so no pod has its own, and no pod's root
    // is entered.
    let exclusive = rdma::is_exclusive(root);
    let own_networks = networks
        .pods
        .iter()
        .filter(|pod| exclusive && pod.scope == NetworkScope::Pod);
    let mut complete = true;
    for pod in own_networks {
        if scrape.deadline.is_over() {
            complete = false;
            break;
        }
        let pod_root = scrape.host.proc.root_of(pod.process.pid);
        // A test's folder has plain directories, which need no handle.
        let opened = (root == Path::new("/")).then(|| rdma::DeviceDirectory::open(&pod_root));
        let directory = match &opened {
            Some(Some(opened)) => opened.path(),
            Some(None) => continue,
            None => rdma::directory(&pod_root),
        };
        let ports = rdma::ports(&directory);
        let own = |port: &&RdmaPort| !shared.contains(port.device.as_str());
        for port in ports.iter().filter(own) {
            let labels = [("device", port.device.as_str()), ("port", &port.port)];
            put(&mut traffic, &pod.labels, &labels, port);
        }
    }
    traffic.into_iter().for_each(|lines| page.add(lines));
    complete
}

fn put(
    lines: &mut [Lines; FAMILIES.len()],
    labels: &Labels,
    port_labels: &[(&str, &str)],
    port: &RdmaPort,
) {
    for (lines, (name, ..)) in lines.iter_mut().zip(FAMILIES) {
        let index = COUNTERS.iter().position(|counter| *counter == name);
        if let Some(count) = index.and_then(|index| port.counts.get(index).copied().flatten()) {
            lines.put_with(labels, port_labels, count);
        }
    }
}
