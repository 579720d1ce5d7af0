//! The peers of training pods, which are the pods of the same job on other nodes. An unknown
//! address causes a request to the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::context::ApiPods;
use crate::cluster::peers::{JobMember, members};
use crate::cluster::{Api, Jitter};
use crate::metrics::UnknownPeers;
use crate::pod::{self, ObjectName};

/// The shortest time between two requests about a job. After failures it doubles, up to
/// [`MAX_REQUEST_INTERVAL`], because the list of a large job may fail each time, and costs the
/// server much each time.
const MIN_REQUEST_INTERVAL: Duration = Duration::from_secs(30);

/// The longest random pause before a request about a job, for each unknown address. All nodes of a
/// job see new addresses at the same moment, and the more there are, the more nodes ask and the
/// longer is the answer.
const SPREAD_PER_ADDRESS: Duration = Duration::from_millis(50);

/// The longest random pause is at least this long, even for a few addresses.
const MIN_SPREAD: Duration = Duration::from_secs(2);

/// The longest time between two requests about a job with unknown addresses. After this time,
/// addresses without a pod are asked for again, because a new pod may have them.
const MAX_REQUEST_INTERVAL: Duration = Duration::from_secs(600);

/// How many addresses without a pod are remembered for a job.
const MAX_WITHOUT_POD: usize = 1000;

/// When jobs were last asked about, and with what result. The type does no I/O and reads no clock.
#[derive(Debug, Default)]
struct Requests(BTreeMap<ObjectName, LastRequest>);

#[derive(Debug)]
struct LastRequest {
    at: Instant,
    /// The addresses without a pod, according to this and earlier requests.
    without_pod: BTreeSet<IpAddr>,
    /// How many requests have failed in a row.
    failures: u32,
}

/// Asks for the members of jobs with unknown addresses, and passes them on. Without a sender it
/// does nothing.
pub(in crate::agent) async fn resolve(
    api: Api,
    pods: watch::Receiver<ApiPods>,
    mut unknown: mpsc::Receiver<UnknownPeers>,
    tell: impl Fn(ObjectName, Vec<JobMember>) + Send,
) -> anyhow::Result<()> {
    let (mut requests, mut jitter) = (Requests::default(), Jitter::default());
    while let Some(unknown) = unknown.recv().await {
        for (job, addresses) in requests.due(unknown, Instant::now()) {
            let Some((key, value)) = label(&pods.borrow(), &job) else {
                continue;
            };
            let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
            let spread = SPREAD_PER_ADDRESS.saturating_mul(count).max(MIN_SPREAD);
            tokio::time::sleep(jitter.spread(spread)).await;
            match members(&api, &job.namespace, (&key, &value)).await {
                Ok(found) => {
                    requests.answered(job.clone(), addresses, &found, Instant::now());
                    tell(job, found);
                }
                Err(failure) => {
                    // The API client counts the failure.
                    tracing::debug!("the pods of job {job} can't be listed: {failure}");
                    requests.failed(job, Instant::now());
                }
            }
        }
    }
    std::future::pending().await
}

/// The label that selects a job's pods, as one of its pods on this node has it.
fn label(pods: &ApiPods, job: &ObjectName) -> Option<(String, String)> {
    let mut in_namespace = pods.pods().filter(|pod| pod.namespace == job.namespace);
    in_namespace.find_map(|pod| {
        let (key, value) = pod::job_label(pod, &job.name)?;
        Some((key.to_owned(), value.to_owned()))
    })
}

// === impl Requests ===

impl Requests {
    /// The jobs to ask about now. Old ones without unknown addresses are forgotten.
    fn due(&mut self, unknown: UnknownPeers, now: Instant) -> UnknownPeers {
        self.0
            .retain(|job, last| unknown.contains_key(job) || now < last.at + MAX_REQUEST_INTERVAL);
        let is_due = |(job, addresses): &(ObjectName, BTreeSet<IpAddr>)| match self.0.get(job) {
            None => true,
            Some(last) => {
                now >= last.at + MAX_REQUEST_INTERVAL
                    || (now >= last.at + last.pause() && !addresses.is_subset(&last.without_pod))
            }
        };
        unknown.into_iter().filter(is_due).collect()
    }

    fn answered(
        &mut self,
        job: ObjectName,
        addresses: BTreeSet<IpAddr>,
        found: &[JobMember],
        now: Instant,
    ) {
        let known: BTreeSet<&IpAddr> = found.iter().flat_map(|member| &member.addresses).collect();
        let mut without_pod: BTreeSet<IpAddr> = addresses
            .into_iter()
            .filter(|address| !known.contains(address))
            .collect();
        // Addresses that had no pod earlier are kept, so one that returns causes no request.
        if let Some(last) = self.0.get(&job)
            && now < last.at + MAX_REQUEST_INTERVAL
            && last.without_pod.len() < MAX_WITHOUT_POD
        {
            let before = last.without_pod.iter();
            without_pod.extend(before.filter(|address| !known.contains(address)));
        }
        let last = LastRequest {
            at: now,
            without_pod,
            failures: 0,
        };
        self.0.insert(job, last);
    }

    fn failed(&mut self, job: ObjectName, now: Instant) {
        let last = self.0.entry(job).or_insert_with(|| LastRequest {
            at: now,
            without_pod: BTreeSet::new(),
            failures: 0,
        });
        last.at = now;
        last.failures = last.failures.saturating_add(1);
    }
}

// === impl LastRequest ===

impl LastRequest {
    /// The shortest time until the next request.
    fn pause(&self) -> Duration {
        let doubled = 1_u32.checked_shl(self.failures.saturating_sub(1));
        MIN_REQUEST_INTERVAL
            .saturating_mul(doubled.unwrap_or(u32::MAX))
            .min(MAX_REQUEST_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use crate::pod::PodRole;

    use super::*;

    fn addresses(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter()
            .map(|last| IpAddr::from([10, 0, 0, *last]))
            .collect()
    }

    fn unknown(last: &[u8]) -> UnknownPeers {
        BTreeMap::from([(ObjectName::new("train", "job"), addresses(last))])
    }

    #[test]
    fn a_job_is_requested_for_new_addresses() {
        let job = ObjectName::new("train", "job");
        let (mut requests, start) = (Requests::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(requests.due(unknown(&[1, 2]), start), unknown(&[1, 2]));
        let found = JobMember {
            pod: "w-1".to_owned(),
            role: PodRole::Worker,
            addresses: vec![[10, 0, 0, 1].into()],
        };
        requests.answered(job.clone(), addresses(&[1, 2]), &[found], start);
        // The second address belongs to no pod.
        assert!(requests.due(unknown(&[2]), after(60)).is_empty());
        assert!(
            requests.due(unknown(&[2, 3]), after(29)).is_empty(),
            "too soon"
        );
        assert_eq!(requests.due(unknown(&[2, 3]), after(30)), unknown(&[2, 3]));
        assert_eq!(requests.due(unknown(&[2]), after(600)), unknown(&[2]));
        // An address that returns causes no request.
        requests.answered(job.clone(), addresses(&[2, 3]), &[], after(610));
        requests.answered(job.clone(), addresses(&[4]), &[], after(640));
        assert!(requests.due(unknown(&[3]), after(700)).is_empty());
        // A failed request is repeated after a while, and later after more failures.
        let mut now = 700;
        for pause in [30, 60, 120, 240, 480, 600, 600] {
            requests.failed(job.clone(), after(now));
            let early = requests.due(unknown(&[5]), after(now + pause - 1));
            assert!(early.is_empty(), "{pause}");
            now += pause;
            assert_eq!(requests.due(unknown(&[5]), after(now)), unknown(&[5]));
        }
        // A success ends the longer pauses.
        requests.answered(job.clone(), addresses(&[5]), &[], after(now));
        requests.failed(job, after(now + 30));
        assert_eq!(requests.due(unknown(&[6]), after(now + 60)), unknown(&[6]));
    }
}
