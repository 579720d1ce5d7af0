//! Names that become hosts, objects and labels: whether Kubernetes and the format's own controller take them.

use super::cluster::{ResolvedJob, WorkloadFormat};
use super::faults::Faults;
use super::task::RoleTasks;
use crate::scene::subdomain_fault;

/// The longest label of a host's name, and the longest value of a label.
const LONGEST: usize = 63;

impl ResolvedJob<'_> {
    /// Names that become DNS labels, with the parts that the format's controller adds.
    pub(super) fn check_names(&self, faults: &mut Faults) {
        if self.name.is_empty() {
            return;
        }
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !self.name.starts_with(|c: char| c.is_ascii_lowercase())
            || !self.name.chars().all(inner)
            || self.name.ends_with('-')
        {
            faults.say(format!(
                "name {:?} can't be part of a host's name: use lower-case letters, digits and '-', with a letter at the \
                 start and a letter or digit at the end",
                self.name
            ));
            return;
        }
        let longest = self.longest_name();
        if longest > LONGEST {
            faults.say(format!(
                "name {:?} is too long: names of tasks would have {longest} characters, and the limit is {LONGEST}",
                self.name
            ));
        }
        self.check_object_names(faults);
    }

    fn check_object_names(&self, faults: &mut Faults) {
        let gang = self.job.gang.as_ref();
        for (what, name) in [
            ("namespace", self.job.namespace.as_ref()),
            ("serviceAccount", self.job.service_account.as_ref()),
            ("gang.group", gang.and_then(|gang| gang.group.as_ref())),
            (
                "gang.scheduler",
                gang.and_then(|gang| gang.scheduler.as_ref()),
            ),
            ("gang.queue", gang.and_then(|gang| gang.queue.as_ref())),
        ] {
            let Some(name) = name else {
                continue;
            };
            if let Some(fault) = self.name_fault(what, name) {
                faults.say(format!("{what} {name:?} can't be a name: {fault}"));
            }
        }
        for name in &self.job.image_pull_secrets {
            if let Some(fault) = subdomain_fault(name) {
                faults.say(format!(
                    "imagePullSecrets: {name:?} can't be a Secret's name: {fault}"
                ));
            }
        }
    }

    /// The fault of the name in the setting `what`.
    fn name_fault(&self, what: &str, name: &str) -> Option<String> {
        let fault = subdomain_fault(name);
        if fault.is_some() {
            return fault;
        }
        if what == "namespace" && name.contains('.') {
            return Some("use lower-case letters, digits and '-', without '.'".to_owned());
        }
        // A namespace is part of hosts' names; Volcano writes the queue into a label.
        let short =
            what == "namespace" || what == "gang.queue" && self.format == WorkloadFormat::Volcano;
        (short && name.len() > LONGEST).then(|| {
            format!(
                "{} characters are more than the limit {LONGEST}",
                name.len()
            )
        })
    }

    /// The length of the longest name that the format's controller makes or admits.
    fn longest_name(&self) -> usize {
        let mut before = 0_u32;
        let lengths = self.roles.iter().map(|role| {
            let name = self
                .task_name(&role.role, role.count().saturating_sub(1))
                .len();
            before = before.saturating_add(RoleTasks::count(role));
            name + match self.format {
                WorkloadFormat::Native | WorkloadFormat::Tfjob => 0,
                // Volcano's pod is NAME-0, but its webhook looks at the name with the task's place among all tasks.
                WorkloadFormat::Volcano => format!("-{}", before.saturating_sub(1)).len(),
                WorkloadFormat::Jobset => "-0-0-abcde".len(),
            }
        });
        lengths.max().unwrap_or_default()
    }
}
