//! The collector `network`: the counters of the pods' own interfaces.
//!
//! Each pod's counters are read in its own namespace. A netlink dump of the host's ends of all veth
//! pairs would cost a tenth, but it does not count drops and errors at the pods' ends, and some
//! pods have no veth pair.

use super::super::families::{
    Family, POD_NETWORK_RECEIVE_BYTES, POD_NETWORK_RECEIVE_ERRORS, POD_NETWORK_RECEIVE_PACKETS,
    POD_NETWORK_RECEIVE_PACKETS_DROPPED, POD_NETWORK_SCOPE, POD_NETWORK_TRANSMIT_BYTES,
    POD_NETWORK_TRANSMIT_ERRORS, POD_NETWORK_TRANSMIT_PACKETS,
    POD_NETWORK_TRANSMIT_PACKETS_DROPPED,
};
use super::super::page::{Labels, Lines, Page};
use super::measured::CollectOutcome;
use super::pod_networks::NetworkScope;
use super::scrape::{Collector, Scrape};
use crate::host::proc::InterfaceTraffic;

type InterfaceCounter = fn(&InterfaceTraffic) -> u64;

/// The families of an interface, each with its counter.
const FAMILIES: [(&Family, InterfaceCounter); 8] = [
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

#[derive(Debug)]
pub(super) struct NetworkCollector;

impl Collector for NetworkCollector {
    fn name(&self) -> &'static str {
        "network"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        let networks = scrape.networks();
        let mut scopes = page.lines(&POD_NETWORK_SCOPE);
        let mut lines = FAMILIES.map(|(family, _)| page.lines(family));
        let mut complete = networks.complete;
        for pod in &networks.pods {
            if scrape.deadline.is_over() {
                complete = false;
                break;
            }
            for scope in NetworkScope::ALL {
                scopes.put_with(&pod.labels, &[("scope", scope.name())], scope == pod.scope);
            }
            if pod.scope != NetworkScope::Pod {
                continue;
            }
            let state = &mut *scrape.state;
            let traffic = state
                .netns_handles
                .traffic(&scrape.host.proc, pod.process, &mut state.reader)
                .unwrap_or_default();
            for (interface, traffic) in &traffic {
                put(&mut lines, &pod.labels, interface, traffic);
            }
        }
        page.add(scopes);
        lines.into_iter().for_each(|lines| page.add(lines));
        CollectOutcome::from_complete(complete)
    }
}

fn put(lines: &mut [Lines], labels: &Labels, interface: &str, traffic: &InterfaceTraffic) {
    for (lines, (_, counter)) in lines.iter_mut().zip(FAMILIES) {
        lines.put_with(labels, &[("interface", interface)], counter(traffic));
    }
}
