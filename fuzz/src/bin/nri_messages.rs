//! A container runtime's messages about pods and containers, and the pods built from the messages.
//!
//! The first byte selects the method, and the rest is the message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfold::nri::{EventRequest, Inventory, PluginRequest, pod, pod_uid, qos_class};
use pinfold::pod::{Pod, Policy, Qos, RecognizedPod, entitlement, processes, qos, recognise};
use pinfold_fuzz::says_why;

const METHODS: [&str; 16] = [
    "Configure",
    "Synchronize",
    "StateChange",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "StopContainer",
    "RemoveContainer",
    "Shutdown",
    "Nothing",
];

fuzz_target!(|data: &[u8]| {
    let Some((&method, payload)) = data.split_first() else {
        return;
    };
    let method = METHODS[usize::from(method) % METHODS.len()];
    let request = match PluginRequest::read("nri.pkg.api.v1alpha1.Plugin", method, payload) {
        Ok(request) => request,
        Err(error) => return says_why(&error),
    };
    let mut inventory = Inventory::default();
    match request {
        PluginRequest::Synchronize {
            pods, containers, ..
        } => {
            let ids: Vec<String> = pods.iter().map(|sandbox| sandbox.id.clone()).collect();
            inventory.replace(pods, containers);
            for pod in ids.iter().filter_map(|id| inventory.pod(id)) {
                let class = pod.qos_reported;
                check(&pod, "");
                assert!(class == Some(Qos::Guaranteed) || qos(&pod) != Qos::Guaranteed);
            }
        }
        PluginRequest::Event(event, request_of_event) => {
            let EventRequest {
                pod: sandbox,
                container,
            } = *request_of_event;
            assert_eq!(event.to_string() == method, method != "StateChange");
            check(&pod(&sandbox, [&container]), sandbox.cgroup_parent());
            // The getters must not panic, and a period is never zero.
            let cpu = container
                .resources()
                .and_then(|resources| resources.cpu.clone())
                .unwrap_or_default();
            assert!(cpu.period() > 0 && cpu.shares() != Some(0) && cpu.quota() != Some(0));
            inventory.put(sandbox.clone(), container);
            assert!(
                inventory
                    .pod(&sandbox.id)
                    .is_some_and(|pod| pod.name == sandbox.name)
            );
            inventory.remove_pod(&sandbox.id);
            assert!(inventory.pod(&sandbox.id).is_none());
        }
        PluginRequest::Configure(_) | PluginRequest::Shutdown | PluginRequest::Other => {}
    }
});

/// Properties of every pod from a runtime.
fn check(pod: &Pod, cgroup_parent: &str) {
    if !cgroup_parent.is_empty() {
        assert_eq!(pod.qos_reported, qos_class(cgroup_parent));
        assert!(pod_uid(cgroup_parent).is_none_or(|uid| !uid.is_empty()));
    }
    assert!(
        pod.qos_reported == Some(Qos::Guaranteed) || qos(pod) != Qos::Guaranteed,
        "{pod:?}"
    );
    let pod = &RecognizedPod::from(pod.clone());
    assert_eq!(*pod.recognition(), recognise(pod));
    for container in &pod.containers {
        assert!(!container.name.is_empty());
        let granted = entitlement(pod, container, &Policy::default());
        assert!(
            granted.cpus() == 0 || qos(pod) == Qos::Guaranteed,
            "{granted:?}"
        );
        processes(pod, container);
    }
}
