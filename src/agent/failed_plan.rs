//! [`FailedPlan`]: a plan that changed nothing because its steps failed.
//!
//! The kernel reports a refused write like any other: the file was opened for writing and closed. The report leads to the
//! next pass, which would try the same write again at once, and so on without an end. Ignoring the agent's own writes is no
//! way out, because a foreign write right behind would be ignored with them. Instead each pass reads the cgroups, and tries a
//! failed plan again only if the plan or something that was read has changed. The timer permits a new attempt in any case.

use crate::host::cgroup::{PodCgroup, PodSurroundings};
use crate::pin::{Observed, Step};

/// The number of attempts after which a plan waits. The first failure may come from something that has passed already, for
/// example a cgroup that a program was just making.
const ATTEMPTS: u32 = 2;

/// A plan with failed steps, and the cgroups that it was made for.
#[derive(Debug)]
pub(super) struct FailedPlan {
    pods: Vec<PodCgroup>,
    /// The cgroups above the pods are among them: on cgroup v1 a cgroup gets no CPU that the cgroup above lacks.
    surroundings: PodSurroundings,
    steps: Vec<Step>,
    /// The errors of the steps, as sentences.
    errors: Vec<String>,
    /// The number of attempts since the cgroups are like this.
    attempts: u32,
}

// === impl FailedPlan ===

impl FailedPlan {
    /// Notes a plan with failed steps. `before` was read before the steps, and `after` behind them. `None` if the steps have
    /// changed something: the next plan then has fewer steps, or the same steps may succeed.
    pub(super) fn new(
        before: &Observed,
        after: &Observed,
        steps: Vec<Step>,
        errors: Vec<String>,
    ) -> Option<Self> {
        let pods = lasting(before);
        let is_same = pods == lasting(after) && before.surroundings == after.surroundings;
        is_same.then(|| Self {
            pods,
            surroundings: before.surroundings.clone(),
            steps,
            errors,
            attempts: 1,
        })
    }

    /// The same plan after another attempt, if `last` is the same plan.
    pub(super) fn after(mut self, last: Option<&Self>) -> Self {
        let is_same = |last: &&Self| {
            (&last.steps, &last.surroundings, &last.pods)
                == (&self.steps, &self.surroundings, &self.pods)
        };
        self.attempts += last.filter(is_same).map_or(0, |last| last.attempts);
        self
    }

    /// Permits one more attempt.
    pub(super) fn permit(&mut self) {
        self.attempts = self.attempts.min(ATTEMPTS - 1);
    }

    /// The errors to expect from the same steps on the same cgroups; `None` if an attempt makes sense.
    pub(super) fn errors_again(&self, observed: &Observed, steps: &[Step]) -> Option<&[String]> {
        let is_same = self.attempts >= ATTEMPTS
            && self.steps == steps
            && self.surroundings == observed.surroundings
            && self.pods == lasting(observed);
        is_same.then_some(&self.errors)
    }
}

/// The cgroups without the values that change while the programs inside run.
fn lasting(observed: &Observed) -> Vec<PodCgroup> {
    let mut pods: Vec<PodCgroup> = observed.pods.iter().map(|pod| pod.cgroup.clone()).collect();
    for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
        container.memory.bytes_to_move = None;
    }
    pods
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::host::cgroup::ContainerCgroup;
    use crate::pin::{ObservedPod, Reason};

    fn observed(cpus: &str, bytes: u64) -> Observed {
        let mut container = ContainerCgroup {
            path: "kubepods/pod1/c1".to_owned(),
            ..ContainerCgroup::default()
        };
        container.cpuset.cpus = cpus.parse().unwrap();
        container.memory.bytes_to_move = Some(bytes);
        let mut pod = ObservedPod::default();
        pod.cgroup.containers.push(container);
        Observed {
            pods: vec![pod],
            ..Observed::default()
        }
    }

    fn steps(cpus: &str) -> Vec<Step> {
        vec![Step::Cpus {
            path: "kubepods/pod1/c1".to_owned(),
            cpus: cpus.parse().unwrap(),
            reason: Reason::Own,
        }]
    }

    #[test]
    fn a_failed_plan_waits_until_the_plan_or_a_cgroup_changes() {
        let errors = vec!["kubepods/pod1/c1: EACCES".to_owned()];
        let note = |after| FailedPlan::new(&observed("0-3", 1), &after, steps("6"), errors.clone());
        // A plan that changed a cgroup has not only failed.
        assert!(note(observed("0-2", 1)).is_none());
        let waits = |failed: &FailedPlan, cpus, step| {
            let again = failed.errors_again(&observed(cpus, 3), &steps(step));
            again.map(<[String]>::to_vec)
        };
        let first = note(observed("0-3", 2)).unwrap();
        assert_eq!(waits(&first, "0-3", "6"), None);
        let mut failed = note(observed("0-3", 2)).unwrap().after(Some(&first));
        assert_eq!(waits(&failed, "0-3", "6"), Some(errors.clone()));
        assert_eq!(waits(&failed, "0-2", "6"), None);
        assert_eq!(waits(&failed, "0-3", "7"), None);
        // The timer permits one attempt, not two.
        failed.permit();
        assert_eq!(waits(&failed, "0-3", "6"), None);
        let failed = note(observed("0-3", 2)).unwrap().after(Some(&failed));
        assert_eq!(waits(&failed, "0-3", "6"), Some(errors.clone()));
    }
}
