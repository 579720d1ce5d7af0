//! [`follow`]: how many CPUs the scheduler counts on this node, as its Node says.

use std::time::Duration;

use tokio::sync::watch;

use crate::cluster::own_node::{self, OwnNode};
use crate::cluster::{Api, Failure, Jitter};
use crate::pod::{Allocatable, AllocatableSource};

/// The mean time between two reads of the Node. A kubelet changes the amount only when it starts.
const INTERVAL: Duration = Duration::from_secs(900);

/// The mean wait after a read without an answer, or before the kubelet has reported the amount.
const RETRY: Duration = Duration::from_secs(60);

/// The longest random pause before the first read, so that not all agents ask at once after a rollout.
const FIRST: Duration = Duration::from_secs(10);

/// By the Node's status; `None` if the kubelet has not reported any CPUs.
pub(in crate::agent) fn of_node(node: &OwnNode) -> Option<Allocatable> {
    Some(Allocatable {
        millicores: node.allocatable_cpu?,
        capacity: node.capacity_cpu,
        source: AllocatableSource::Node,
    })
}

/// Reads the Node from time to time. After a failed read, the last amount stays.
pub(super) async fn follow(
    api: Api,
    name: String,
    reported: watch::Sender<Option<Allocatable>>,
) -> anyhow::Result<()> {
    follow_node(|| own_node::read(&api, &name), reported).await
}

async fn follow_node<F: Future<Output = Result<Option<OwnNode>, Failure>>>(
    read: impl Fn() -> F,
    reported: watch::Sender<Option<Allocatable>>,
) -> anyhow::Result<()> {
    let mut jitter = Jitter::default();
    let mut pause = jitter.spread(FIRST);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = reported.closed() => return Ok(()),
        }
        let node = read().await.ok().flatten();
        let found = node.as_ref().and_then(of_node);
        if found.is_some() {
            reported.send_replace(found);
        }
        let mean = if found.is_some() { INTERVAL } else { RETRY };
        pause = mean.mul_f64(0.5 + jitter.roll());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_amount_stays_and_a_failed_read_is_tried_again_soon() {
        let requests = Cell::new(0);
        let read = || {
            requests.set(requests.get() + 1);
            let allocatable_cpu = match requests.get() {
                2 => Some(40_000),
                4 => Some(38_000),
                _ => None,
            };
            let node = OwnNode {
                allocatable_cpu,
                ..OwnNode::default()
            };
            let answer = match requests.get() {
                3 => Err(Failure::Timeout(Duration::from_secs(1))),
                _ => Ok(Some(node)),
            };
            async { answer }
        };
        let (sender, mut received) = watch::channel(None::<Allocatable>);
        let begun = tokio::time::Instant::now();
        let seen = async {
            let mut seen = Vec::new();
            for _ in 0..2 {
                received.changed().await.unwrap();
                let amount = received.borrow_and_update().unwrap().millicores;
                seen.push((amount, begun.elapsed()));
            }
            seen
        };
        let seen = tokio::select! {
            ended = follow_node(read, sender) => panic!("{ended:?}"),
            seen = seen => seen,
        };
        let [(first, soon), (second, later)] = seen.try_into().unwrap();
        assert_eq!([first, second], [40_000, 38_000]);
        assert!(soon <= FIRST + RETRY.mul_f64(1.5), "{soon:?}");
        let waited = later - soon;
        assert!(
            waited >= (INTERVAL + RETRY) / 2 && waited <= (INTERVAL + RETRY).mul_f64(1.5),
            "{waited:?}"
        );
    }
}
