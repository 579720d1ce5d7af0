//! [`members`]: reads the pods of a training job on all nodes, with addresses and roles.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use kube::core::params::WatchParams;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::informer::refuses_streaming;
use super::watch::{ChangeKind, Identity, WatchStream};
use super::{Api, Call, Failure};
use crate::pod::{Pod, PodObject, PodRole, recognise};

/// The number of pods after which the list of a job ends early.
const MAX_MEMBERS: usize = 10_000;

/// The longest time for the pods of a job, in seconds.
const READ_SECONDS: u32 = 60;

/// After this time without another pod, a server without streaming lists has sent all of them.
const SILENCE_AFTER_LIST: Duration = Duration::from_secs(2);

/// A pod of a job, with its own IP addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMember {
    pub pod: String,
    pub role: PodRole,
    pub addresses: Vec<IpAddr>,
}

#[derive(Deserialize)]
struct PodAddresses {
    status: Option<AddressStatus>,
}

#[derive(Deserialize)]
struct AddressStatus {
    #[serde(rename = "podIPs")]
    ips: Option<Vec<Address>>,
}

#[derive(Deserialize)]
struct Address {
    ip: Option<String>,
}

/// Reads the pods in a namespace with the given label, from the server's cache. Finished pods, pods in the host network and
/// pods without an address are left out.
///
/// The pods come one by one, by a watch that begins with all objects, and only addresses are kept. A list of 5,000 pods has about
/// 100 MB, which the agent of every node of the job would hold at once.
///
/// # Errors
/// Any [`Failure`]; the counters include it.
pub async fn members(
    api: &Api,
    namespace: &str,
    label: (&str, &str),
) -> Result<Vec<JobMember>, Failure> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let mut params = WatchParams {
        label_selector: Some(format!("{}={}", label.0, label.1)),
        timeout: Some(READ_SECONDS),
        send_initial_events: true,
        ..WatchParams::default()
    };
    let opened = WatchStream::open(api, Call::ListJob, &path, &params, "").await;
    let (watch, has_bookmark) = match opened {
        Err(failure) if refuses_streaming(&failure) => {
            // Such a watch begins with the objects in the server's cache, too, but without a bookmark after the last one.
            params.send_initial_events = false;
            let watch = WatchStream::open(api, Call::ListJob, &path, &params, "0").await?;
            (watch, false)
        }
        opened => (opened?, true),
    };
    let deadline = Duration::from_secs(READ_SECONDS.into());
    let read = tokio::time::timeout(deadline, read(watch, has_bookmark)).await;
    read.unwrap_or(Err(Failure::Timeout(deadline)))
        .inspect_err(|failure| api.counters().failed(failure.kind()))
}

/// Reads the objects with which a watch begins. `has_bookmark`: the server may send a bookmark after the last one.
async fn read(mut watch: WatchStream, has_bookmark: bool) -> Result<Vec<JobMember>, Failure> {
    let mut members: BTreeMap<String, JobMember> = BTreeMap::new();
    let mut has_begun = false;
    // A server that does not know streaming lists ignores the request for a bookmark, so silence ends each list.
    let silence = if has_bookmark {
        5 * SILENCE_AFTER_LIST
    } else {
        SILENCE_AFTER_LIST
    };
    while members.len() < MAX_MEMBERS {
        let change = match watch.next(silence).await {
            Ok(Some(change)) => change,
            Ok(None) => {
                let ended = "the list ended before it was complete".to_owned();
                return Err(Failure::Connection(ended));
            }
            Err(Failure::Timeout(_)) if has_begun => break,
            Err(failure) => return Err(failure),
        };
        has_begun = true;
        let identity = Identity::of(&change.object);
        match change.kind {
            ChangeKind::Bookmark if identity.ends_list() => break,
            ChangeKind::Bookmark => {}
            ChangeKind::Put => match member(&change.object) {
                Some(member) => {
                    members.insert(identity.uid().to_owned(), member);
                }
                None => {
                    members.remove(identity.uid());
                }
            },
            ChangeKind::Deleted => {
                members.remove(identity.uid());
            }
        }
    }
    Ok(members.into_values().collect())
}

/// The member for a pod; `None` for an unreadable or finished pod, or a pod without its own address.
fn member(object: &RawValue) -> Option<JobMember> {
    let pod: PodObject = serde_json::from_str(object.get()).ok()?;
    let pod = Pod::from_k8s(pod).ok()?;
    let addressed: PodAddresses = serde_json::from_str(object.get()).ok()?;
    let addresses = addressed.status?.ips?.into_iter();
    let addresses: Vec<IpAddr> = addresses
        .filter_map(|address| address.ip?.parse().ok())
        .collect();
    let own = !pod.host_network && !pod.finished && !addresses.is_empty();
    own.then(|| JobMember {
        role: recognise(&pod).role,
        pod: pod.name,
        addresses,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(host_network: bool, phase: &str, ips: &Value) -> Box<RawValue> {
        let labels = json!({"training.kubeflow.org/job-name": "j", "training.kubeflow.org/replica-type": "ps"});
        let object = json!({
            "metadata": {"name": "ps-0", "namespace": "train", "uid": "u", "labels": labels},
            "spec": {"hostNetwork": host_network, "containers": [{"name": "c"}]},
            "status": {"phase": phase, "podIP": "10.0.0.1", "podIPs": ips},
        });
        serde_json::value::to_raw_value(&object).unwrap()
    }

    #[test]
    fn members_have_their_own_addresses() {
        let ips = json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}, {"ip": "nonsense"}, {}]);
        let addresses = ["10.0.0.1", "fd00::1"]
            .map(|address| address.parse().unwrap())
            .to_vec();
        let member_of = JobMember {
            pod: "ps-0".to_owned(),
            role: PodRole::Ps,
            addresses,
        };
        assert_eq!(member(&pod(false, "Running", &ips)), Some(member_of));
        assert_eq!(
            member(&pod(true, "Running", &ips)),
            None,
            "the address is the node's"
        );
        assert_eq!(
            member(&pod(false, "Succeeded", &ips)),
            None,
            "a new pod may have the address"
        );
        assert_eq!(member(&pod(false, "Pending", &json!([]))), None);
        assert_eq!(member(&pod(false, "Pending", &json!(7))), None);
    }
}
