//! What the ports of RDMA devices count: the node's, and those that are in a pod's own network namespace.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::families::{
    Family, NODE_RDMA_HW, NODE_RDMA_PORT_EVENTS, NODE_RDMA_PORT_RECEIVE_BYTES,
    NODE_RDMA_PORT_RECEIVE_PACKETS, NODE_RDMA_PORT_STATE, NODE_RDMA_PORT_TRANSMIT_BYTES,
    NODE_RDMA_PORT_TRANSMIT_PACKETS, POD_RDMA_RECEIVE_BYTES, POD_RDMA_RECEIVE_PACKETS,
    POD_RDMA_TRANSMIT_BYTES, POD_RDMA_TRANSMIT_PACKETS,
};
use super::super::page::{Labels, Lines, Page};
use super::namespaces::Scope;
use super::{Outcome, Scrape};
use crate::host::rdma::{self, COUNTERS, Port};

/// The families of data and packets, of the node and of a pod, by the counter's name; all others are events.
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

/// The machine's first process, where we see the machine's own process ids (`hostPID`).
const FIRST_PROCESS: i32 = 1;

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    // In a pod, our own /sys shows the devices of the pod's namespace; the machine's first process sees the node's.
    let of_node = rdma::directory(&scrape.sources.proc.root_of(FIRST_PROCESS));
    let root = &scrape.sources.root;
    let folder = if of_node.is_dir() {
        of_node
    } else {
        rdma::directory(root)
    };
    if !folder.is_dir() {
        // The class is there as soon as the kernel's module is loaded, in every namespace.
        return Outcome::Unsupported(format!(
            "there is no {}: no RDMA device, or no driver for it",
            folder.display()
        ));
    }
    let ports = rdma::ports(&folder);
    let mut node = FAMILIES.map(|(_, family, _)| Lines::of(family));
    let mut pods = FAMILIES.map(|(_, _, family)| Lines::of(family));
    let (mut state, mut events) = (
        Lines::of(&NODE_RDMA_PORT_STATE),
        Lines::of(&NODE_RDMA_PORT_EVENTS),
    );
    let mut hardware = Lines::of(&NODE_RDMA_HW);
    for port in &ports {
        let labels = labels(port);
        put(&mut node, &labels, &[], port);
        for (name, count) in COUNTERS.iter().zip(port.counts) {
            let event = FAMILIES.iter().all(|(other, ..)| other != name);
            if let Some(count) = count.filter(|_| event) {
                events.put_with(
                    &labels,
                    &[("event", name.strip_prefix("port_").unwrap_or(name))],
                    count,
                );
            }
        }
        if let Some(name) = &port.state {
            state.put_with(&labels, &[("state", name)], true);
        }
        port.hardware
            .iter()
            .for_each(|(name, count)| hardware.put_with(&labels, &[("counter", name)], *count));
    }
    // A device that is seen here, too, is everybody's: whose traffic it counts can't be told.
    let shared: BTreeSet<&str> = ports.iter().map(|port| port.device.as_str()).collect();
    let (networks, mut complete) = (scrape.networks(), true);
    // Where all devices are in all namespaces, no pod has one for itself, and nobody's root need be entered.
    let exclusive = rdma::is_exclusive(root);
    for pod in networks
        .pods
        .iter()
        .filter(|pod| exclusive && pod.scope == Scope::Pod)
    {
        if scrape.is_late() {
            complete = false;
            break;
        }
        let of_process = scrape.sources.proc.root_of(pod.process.pid);
        // In a tree of files there is nothing that the kernel shows.
        let held = if root == Path::new("/") {
            rdma::DeviceDirectory::open(&of_process)
        } else {
            None
        };
        let theirs = match &held {
            Some(held) => held.path(),
            None if root == Path::new("/") => continue,
            None => rdma::directory(&of_process),
        };
        for port in rdma::ports(&theirs)
            .iter()
            .filter(|port| !shared.contains(port.device.as_str()))
        {
            put(
                &mut pods,
                &pod.labels,
                &[("device", &port.device), ("port", &port.port)],
                port,
            );
        }
    }
    node.into_iter()
        .chain(pods)
        .chain([state, events, hardware])
        .for_each(|lines| page.add(lines));
    Outcome::of(complete)
}

fn labels(port: &Port) -> Labels {
    Labels::new(&[("device", &port.device), ("port", &port.port)])
}

fn put(lines: &mut [Lines; FAMILIES.len()], labels: &Labels, more: &[(&str, &str)], port: &Port) {
    for (lines, (name, ..)) in lines.iter_mut().zip(FAMILIES) {
        let at = COUNTERS.iter().position(|other| *other == name);
        if let Some(count) = at.and_then(|at| port.counts.get(at).copied().flatten()) {
            lines.put_with(labels, more, count);
        }
    }
}
