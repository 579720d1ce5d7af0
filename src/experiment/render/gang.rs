//! The group of a job's tasks, for schedulers that start all tasks together.

use serde_json::{Value, json};

use super::cluster::ResolvedJob;
use super::model::WorkloadFormat;
use crate::text::counted;

/// The scheduler with known pod groups.
const VOLCANO: &str = "volcano";

impl ResolvedJob<'_> {
    /// The scheduler, if the job names one.
    pub(super) fn scheduler(&self) -> Option<&str> {
        let gang = self.job.gang.as_ref();
        let named = gang.map(|gang| gang.scheduler.as_deref().unwrap_or(VOLCANO));
        named.or_else(|| (self.format == WorkloadFormat::Volcano).then_some(VOLCANO))
    }

    /// The gang's group, if any. A group that comes with the job belongs to a case, like the other objects.
    pub(super) fn group(&self) -> Option<String> {
        let gang = self.job.gang.as_ref()?;
        Some(match &gang.group {
            Some(group) if self.scheduler() == Some(VOLCANO) => format!("{group}{}", self.suffix),
            Some(group) => group.clone(),
            None => self.name.clone(),
        })
    }

    /// The group of all pods. Schedulers other than Volcano have their own kinds of groups.
    pub(super) fn pod_group(&self) -> Option<Value> {
        let group = self.group().filter(|_| self.scheduler() == Some(VOLCANO))?;
        let mut object = json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": group, "labels": self.whole_labels()},
            "spec": {"minMember": self.all()},
        });
        if let Some(namespace) = &self.job.namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        if let Some(queue) = self.job.gang.as_ref().and_then(|gang| gang.queue.as_ref()) {
            object["spec"]["queue"] = json!(queue);
        }
        Some(object)
    }

    /// Warns of settings of the gang without effect, and of a missing group, with which tasks wait
    /// forever or start one by one.
    pub(super) fn check_gang(&self, warnings: &mut Vec<String>) {
        let (Some(gang), Some(group), Some(scheduler)) =
            (&self.job.gang, self.group(), self.scheduler())
        else {
            return;
        };
        let (all, is_volcano) = (counted(self.all(), "pod"), scheduler == VOLCANO);
        match self.format {
            WorkloadFormat::Native | WorkloadFormat::Jobset if !is_volcano => {
                let queue = if gang.queue.is_some() { ", with its queue" } else { "" };
                warnings.push(format!(
                    "gang: the pods name group {group} of scheduler {scheduler}, but Pinfold renders groups only for volcano: \
                     create the group for {all}{queue}; without the group, the pods don't start together"
                ));
            }
            WorkloadFormat::Volcano if !is_volcano => warnings.push(format!(
                "gang: only Volcano's scheduler reads the PodGroup of a Volcano Job: if {scheduler} is a different scheduler, \
                 the {all} don't start together"
            )),
            WorkloadFormat::Tfjob if !is_volcano => warnings.push(format!(
                "gang: the training operator makes the group only if its --gang-scheduler-name fits {scheduler}; otherwise \
                 the {all} don't start together"
            )),
            _ => {}
        }
        let own = match self.format {
            WorkloadFormat::Volcano => "Volcano makes the group of a Job",
            WorkloadFormat::Tfjob => "the training operator makes a group with the job's name",
            WorkloadFormat::Native | WorkloadFormat::Jobset => return,
        };
        if let Some(group) = gang.group.as_ref().filter(|_| gang.group != self.job.name) {
            warnings.push(format!("gang.group {group} is not used: {own}"));
        }
    }
}
