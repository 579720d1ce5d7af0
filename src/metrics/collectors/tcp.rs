//! What TCP counts in the pods' own network namespaces.

use super::super::families::{POD_TCP_RETRANSMITTED_SEGMENTS, POD_TCP_SENT_SEGMENTS, POD_TCP_TIMEOUTS};
use super::super::page::{Lines, Page};
use super::namespaces::Scope;
use super::{Outcome, Scrape};

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let (proc, networks) = (&scrape.sources.proc, scrape.networks());
    let mut sent = Lines::of(&POD_TCP_SENT_SEGMENTS);
    let mut retransmitted = Lines::of(&POD_TCP_RETRANSMITTED_SEGMENTS);
    let mut timeouts = Lines::of(&POD_TCP_TIMEOUTS);
    let mut complete = networks.complete;
    for pod in networks.pods.iter().filter(|pod| pod.scope == Scope::Pod) {
        if scrape.is_late() {
            complete = false;
            break;
        }
        let Some(tcp) = proc.tcp(pod.process) else {
            // A process that has ended meanwhile has nothing to tell.
            complete &= proc.network_namespace(pod.process).is_none();
            continue;
        };
        sent.put(&pod.labels, tcp.sent);
        retransmitted.put(&pod.labels, tcp.retransmitted);
        timeouts.put(&pod.labels, tcp.timeouts);
    }
    [sent, retransmitted, timeouts].into_iter().for_each(|lines| page.add(lines));
    Outcome::of(complete)
}
