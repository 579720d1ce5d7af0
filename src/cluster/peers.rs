//! [`members`]: reads the pods of a training job on all nodes, with addresses and roles.

use std::net::IpAddr;

use kube::core::params::ListParams;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::list::{List, list};
use super::{Api, Call, Failure};
use crate::pod::{Pod, PodObject, PodRole, recognise};

/// The number of pods after which the list of a job ends early.
const MOST: usize = 10_000;

/// A pod of a job, with its own IP addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMember {
    /// The pod's name.
    pub pod: String,
    /// The pod's role.
    pub role: PodRole,
    /// The pod's IP addresses.
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
/// # Errors
/// Any [`Failure`]; the counters include the failure.
pub async fn members(
    api: &Api,
    namespace: &str,
    label: (&str, &str),
) -> Result<Vec<JobMember>, Failure> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    // `match_any` selects the server's cache. Without a version, the server reads the whole namespace from etcd for the label.
    let params = ListParams::default()
        .labels(&format!("{}={}", label.0, label.1))
        .match_any();
    let mut wanted = List::new(Call::ListJob, &path, "PodList").with(params);
    wanted.limit = MOST;
    let mut members = Vec::new();
    list(api, wanted, |object| {
        members.extend(member(&object));
        Ok(())
    })
    .await?;
    Ok(members)
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
