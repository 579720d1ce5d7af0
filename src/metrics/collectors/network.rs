//! What the pods' own interfaces count.
//!
//! They are asked in each pod's own namespace. One netlink dump of the host's ends of all veth pairs would cost a tenth of it,
//! but those know nothing of what is dropped or wrong at the pods' ends, and not every pod has such a pair.

use super::super::families::{
    Family, POD_NETWORK_RECEIVE_BYTES, POD_NETWORK_RECEIVE_ERRORS, POD_NETWORK_RECEIVE_PACKETS,
    POD_NETWORK_RECEIVE_PACKETS_DROPPED, POD_NETWORK_SCOPE, POD_NETWORK_TRANSMIT_BYTES,
    POD_NETWORK_TRANSMIT_ERRORS, POD_NETWORK_TRANSMIT_PACKETS,
    POD_NETWORK_TRANSMIT_PACKETS_DROPPED,
};
use super::super::lock;
use super::super::page::{Labels, Lines, Page};
use super::namespaces::Scope;
use super::{Outcome, Scrape};
use crate::host::proc::InterfaceTraffic;

type Count = fn(&InterfaceTraffic) -> u64;

/// The families of an interface, and what each is of its counters.
const FAMILIES: [(&Family, Count); 8] = [
    (&POD_NETWORK_RECEIVE_BYTES, |traffic| traffic.receive.bytes),
    (&POD_NETWORK_RECEIVE_PACKETS, |traffic| {
        traffic.receive.packets
    }),
    (&POD_NETWORK_RECEIVE_ERRORS, |traffic| {
        traffic.receive.errors
    }),
    (&POD_NETWORK_RECEIVE_PACKETS_DROPPED, |traffic| {
        traffic.receive.dropped
    }),
    (&POD_NETWORK_TRANSMIT_BYTES, |traffic| {
        traffic.transmit.bytes
    }),
    (&POD_NETWORK_TRANSMIT_PACKETS, |traffic| {
        traffic.transmit.packets
    }),
    (&POD_NETWORK_TRANSMIT_ERRORS, |traffic| {
        traffic.transmit.errors
    }),
    (&POD_NETWORK_TRANSMIT_PACKETS_DROPPED, |traffic| {
        traffic.transmit.dropped
    }),
];

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let networks = scrape.networks();
    let (mut ways, mut reader) = (lock(&scrape.sources.ways), lock(&scrape.sources.reader));
    let mut scopes = page.lines(&POD_NETWORK_SCOPE);
    let mut lines = FAMILIES.map(|(family, _)| page.lines(family));
    let mut complete = networks.complete;
    for pod in &networks.pods {
        if scrape.is_late() {
            complete = false;
            break;
        }
        scopes.put_with(&pod.labels, &[("scope", pod.scope.name())], true);
        if pod.scope == Scope::Pod {
            let traffic = ways
                .traffic(&scrape.sources.proc, pod.process, &mut reader)
                .unwrap_or_default();
            traffic
                .iter()
                .for_each(|(interface, traffic)| put(&mut lines, &pod.labels, interface, traffic));
        }
    }
    page.add(scopes);
    lines.into_iter().for_each(|lines| page.add(lines));
    Outcome::of(complete)
}

fn put(lines: &mut [Lines], labels: &Labels, interface: &str, traffic: &InterfaceTraffic) {
    for (lines, (_, count)) in lines.iter_mut().zip(FAMILIES) {
        lines.put_with(labels, &[("interface", interface)], count(traffic));
    }
}
