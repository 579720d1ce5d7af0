//! What the pods' own interfaces count.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::collect::{Outcome, Scrape, of_pod};
use super::families::{
    Family, POD_NETWORK_RECEIVE_BYTES, POD_NETWORK_RECEIVE_ERRORS, POD_NETWORK_RECEIVE_PACKETS,
    POD_NETWORK_RECEIVE_PACKETS_DROPPED, POD_NETWORK_SCOPE, POD_NETWORK_TRANSMIT_BYTES,
    POD_NETWORK_TRANSMIT_ERRORS, POD_NETWORK_TRANSMIT_PACKETS, POD_NETWORK_TRANSMIT_PACKETS_DROPPED,
};
use super::page::{Labels, Lines, Page};
use crate::host::proc::Traffic;
use crate::pin::snapshot::ContainerState;

type Count = fn(&Traffic) -> u64;

/// The families of an interface, and what each is of its counters.
const FAMILIES: [(&Family, Count); 8] = [
    (&POD_NETWORK_RECEIVE_BYTES, |traffic| traffic.receive.bytes),
    (&POD_NETWORK_RECEIVE_PACKETS, |traffic| traffic.receive.packets),
    (&POD_NETWORK_RECEIVE_ERRORS, |traffic| traffic.receive.errors),
    (&POD_NETWORK_RECEIVE_PACKETS_DROPPED, |traffic| traffic.receive.dropped),
    (&POD_NETWORK_TRANSMIT_BYTES, |traffic| traffic.transmit.bytes),
    (&POD_NETWORK_TRANSMIT_PACKETS, |traffic| traffic.transmit.packets),
    (&POD_NETWORK_TRANSMIT_ERRORS, |traffic| traffic.transmit.errors),
    (&POD_NETWORK_TRANSMIT_PACKETS_DROPPED, |traffic| traffic.transmit.dropped),
];

/// A pod, and a process in its network namespace.
struct Seen<'a> {
    state: &'a ContainerState,
    host_network: bool,
    /// Whether the processes of all its containers could be read.
    known: bool,
    process: Option<i32>,
    namespace: Option<PathBuf>,
}

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let proc = &scrape.sources.proc;
    let own = i32::try_from(std::process::id()).ok().and_then(|pid| proc.network_namespace(pid));
    let mut pods: BTreeMap<(&str, &str), Seen<'_>> = BTreeMap::new();
    for subject in &scrape.subjects {
        let state = subject.state;
        let new = || Seen { state, host_network: false, known: true, process: None, namespace: None };
        let pod = pods.entry((&state.namespace, &state.pod)).or_insert_with(new);
        pod.host_network |= state.host_network;
        pod.known &= subject.processes.is_some();
        pod.process = pod.process.or_else(|| subject.processes.as_ref()?.first().copied());
    }
    let mut users: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for pod in pods.values_mut() {
        pod.namespace = pod.process.and_then(|pid| proc.network_namespace(pid));
        if let Some(namespace) = &pod.namespace {
            *users.entry(namespace.clone()).or_default() += 1;
        }
    }
    // One whose namespace is not known may share any.
    let all_known = pods.values().all(|pod| pod.known || pod.namespace.is_some());
    let mut scopes = Lines::of(&POD_NETWORK_SCOPE);
    let mut lines = FAMILIES.map(|(family, _)| Lines::of(family));
    let mut complete = all_known;
    for pod in pods.values() {
        let Some(process) = pod.process else { continue };
        if scrape.is_late() {
            complete = false;
            break;
        }
        // The node's own counters repeated for each such pod would be a wrong number, so there is none; the same goes for
        // a namespace that several pods share.
        let scope = match (&own, &pod.namespace) {
            _ if pod.host_network => "host",
            (Some(own), Some(theirs)) if own == theirs => "host",
            (_, Some(theirs)) if all_known && users.get(theirs) == Some(&1) => "pod",
            _ => "unknown",
        };
        let labels = of_pod(pod.state);
        scopes.put_with(&labels, &[("scope", scope)], true);
        if scope == "pod" {
            let traffic = proc.traffic(process).unwrap_or_default();
            traffic.iter().for_each(|(interface, traffic)| put(&mut lines, &labels, interface, traffic));
        }
    }
    page.add(scopes);
    lines.into_iter().for_each(|lines| page.add(lines));
    Outcome::of(complete)
}

fn put(lines: &mut [Lines], labels: &Labels, interface: &str, traffic: &Traffic) {
    for (lines, (_, count)) in lines.iter_mut().zip(FAMILIES) {
        lines.put_with(labels, &[("interface", interface)], count(traffic));
    }
}
