//! Who is at the other ends of the connections of training pods: the pods of their jobs on other nodes, asked for when an
//! address is seen that nobody knows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::ApiPods;
use crate::cluster::peers::{Member, members};
use crate::cluster::{Api, Dice};
use crate::metrics::Unknown;
use crate::pod;

/// A training job: its namespace and its name.
pub(in crate::agent) type Job = (String, String);

/// A job is not asked for again sooner, whatever addresses are seen.
const SOONEST: Duration = Duration::from_secs(30);

/// The longest random pause before a job is asked for: all its nodes see the addresses of its pods at the same moment.
const SPREAD: Duration = Duration::from_secs(2);

/// After so long it is asked again for addresses that were no pod's: they may be one's by now.
const LATEST: Duration = Duration::from_secs(600);

/// So many addresses that are no pod's are remembered of a job.
const NOBODYS: usize = 1000;

/// When jobs were asked for, and what came of it. Plain values: it neither asks nor waits.
#[derive(Debug, Default)]
struct Asked(BTreeMap<Job, (Instant, BTreeSet<IpAddr>)>);

/// Asks for the members of jobs as looks find addresses that are not known, and passes them on, until nobody looks any more.
pub(in crate::agent) async fn resolve(
    api: Api,
    pods: watch::Receiver<ApiPods>,
    mut unknown: mpsc::Receiver<Unknown>,
    tell: impl Fn(Job, Vec<Member>) + Send,
) -> anyhow::Result<()> {
    let (mut asked, mut dice) = (Asked::default(), Dice::default());
    while let Some(unknown) = unknown.recv().await {
        for (job, addresses) in asked.due(unknown, Instant::now()) {
            let Some((key, value)) = label(&pods.borrow(), &job) else {
                continue;
            };
            tokio::time::sleep(dice.spread(SPREAD)).await;
            match members(&api, &job.0, (&key, &value)).await {
                Ok(found) => {
                    asked.answered(job.clone(), addresses, &found, Instant::now());
                    tell(job, found);
                }
                Err(failure) => {
                    // Counted, and tried again in its time.
                    tracing::debug!("the pods of {}/{} are not known: {failure}", job.0, job.1);
                    asked.answered(job, BTreeSet::new(), &[], Instant::now());
                }
            }
        }
    }
    std::future::pending().await
}

/// The label by which the pods of a job are found, as one of them here has it.
fn label(pods: &ApiPods, (namespace, job): &Job) -> Option<(String, String)> {
    let mut of_job = pods
        .iter()
        .flat_map(|pods| pods.iter())
        .filter(|pod| pod.namespace == *namespace);
    of_job.find_map(|pod| {
        let (key, value) = pod::job_label(pod).filter(|(_, value)| value == job)?;
        Some((key.to_owned(), value.to_owned()))
    })
}

// === impl Asked ===

impl Asked {
    /// The jobs that are to be asked for now; those that nobody looks at any more are forgotten.
    fn due(&mut self, unknown: Unknown, now: Instant) -> Unknown {
        self.0
            .retain(|job, (at, _)| unknown.contains_key(job) || now < *at + LATEST);
        let is_due = |(job, addresses): &(Job, BTreeSet<IpAddr>)| match self.0.get(job) {
            None => true,
            Some((at, nobodys)) => {
                now >= *at + LATEST || (now >= *at + SOONEST && !addresses.is_subset(nobodys))
            }
        };
        unknown.into_iter().filter(is_due).collect()
    }

    fn answered(&mut self, job: Job, addresses: BTreeSet<IpAddr>, found: &[Member], now: Instant) {
        let known: BTreeSet<&IpAddr> = found.iter().flat_map(|member| &member.addresses).collect();
        let mut nobodys: BTreeSet<IpAddr> = addresses
            .into_iter()
            .filter(|address| !known.contains(address))
            .collect();
        // Those of before still are: whoever comes back is no news.
        if let Some((at, before)) = self.0.get(&job)
            && now < *at + LATEST
            && before.len() < NOBODYS
        {
            nobodys.extend(before.iter().filter(|address| !known.contains(address)));
        }
        self.0.insert(job, (now, nobodys));
    }
}

#[cfg(test)]
mod tests {
    use crate::pod::Role;

    use super::*;

    fn addresses(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter()
            .map(|last| IpAddr::from([10, 0, 0, *last]))
            .collect()
    }

    fn unknown(last: &[u8]) -> Unknown {
        BTreeMap::from([(("train".to_owned(), "job".to_owned()), addresses(last))])
    }

    #[test]
    fn a_job_is_asked_for_when_there_is_something_new() {
        let job = ("train".to_owned(), "job".to_owned());
        let (mut asked, start) = (Asked::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(asked.due(unknown(&[1, 2]), start), unknown(&[1, 2]));
        let found = Member {
            pod: "w-1".to_owned(),
            role: Role::Worker,
            addresses: vec![[10, 0, 0, 1].into()],
        };
        asked.answered(job.clone(), addresses(&[1, 2]), &[found], start);
        // The other one is no pod's.
        assert!(asked.due(unknown(&[2]), after(60)).is_empty());
        assert!(
            asked.due(unknown(&[2, 3]), after(29)).is_empty(),
            "too soon"
        );
        assert_eq!(asked.due(unknown(&[2, 3]), after(30)), unknown(&[2, 3]));
        assert_eq!(asked.due(unknown(&[2]), after(600)), unknown(&[2]));
        // An address that comes and goes is no news when it is back.
        asked.answered(job.clone(), addresses(&[2, 3]), &[], after(610));
        asked.answered(job.clone(), addresses(&[4]), &[], after(640));
        assert!(asked.due(unknown(&[3]), after(700)).is_empty());
        // A refusal is asked again, in its time.
        asked.answered(job, BTreeSet::new(), &[], after(700));
        assert!(asked.due(unknown(&[5]), after(701)).is_empty());
        assert_eq!(asked.due(unknown(&[5]), after(740)), unknown(&[5]));
    }
}
