//! The addresses of all tasks: written once for all of them, and no longer than Linux passes to a
//! program.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::cluster::{Hosts, ResolvedJob, value};
use super::faults::Faults;
use super::folder;
use super::job::Folder;
use super::model::WorkloadFormat;
use super::task::RoleTasks;
use super::words::expanded;
use crate::scene::{CHIEF, EVALUATOR, PS};

/// The longest argument or variable that Linux passes to a program, zero byte included.
const LONGEST: u64 = 128 << 10;

/// How many digits the numbers below `count` have, all together.
fn digits(count: u32) -> u64 {
    let (mut sum, mut first, count) = (u64::from(count), 10_u64, u64::from(count));
    while first < count {
        sum = sum.saturating_add(count.saturating_sub(first));
        first = first.saturating_mul(10);
    }
    sum
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

impl ResolvedJob<'_> {
    /// The roles with a variable for addresses: the variable's name, the key in the ConfigMap, the role.
    fn listed(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let all = [
            ("PS_HOSTS", "ps", PS),
            ("WORKER_HOSTS", "worker", "worker"),
            ("CHIEF_HOSTS", "chief", CHIEF),
        ];
        all.into_iter()
            .filter(|(_, _, role)| *role != CHIEF || self.count(role) > 0)
    }

    /// The roles of TensorFlow's cluster specification, in which evaluators must not stand.
    fn specified(&self) -> impl Iterator<Item = &RoleTasks> {
        self.roles.iter().filter(|role| role.role != EVALUATOR)
    }

    /// The addresses, written out.
    pub(super) fn written(&self) -> Hosts {
        let lists = self
            .listed()
            .map(|(name, key, role)| (name, key, self.addresses(role).join(",")));
        let roles = self
            .specified()
            .map(|role| (role.role.clone(), json!(self.addresses(&role.role))));
        Hosts {
            lists: lists.collect(),
            cluster: Value::Object(roles.collect()).to_string(),
        }
    }

    /// The length of a role's addresses with commas between them, computed without writing them
    /// out.
    fn list_length(&self, role: &str) -> u64 {
        let count = u64::from(self.count(role));
        // The address's length with a number of one digit, port included.
        let fixed = length(&format!("{}:{}", self.host(role, 0), self.port)).saturating_sub(1);
        count
            .saturating_mul(fixed)
            .saturating_add(digits(self.count(role)))
            .saturating_add(count.saturating_sub(1))
    }

    /// How long the cluster specification is.
    fn cluster_length(&self) -> u64 {
        let roles = self.specified().map(|role| {
            let quotes = u64::from(role.count()).saturating_mul(2);
            self.list_length(&role.role)
                .saturating_add(quotes)
                .saturating_add(length(&role.role) + 6)
        });
        roles.fold(1, u64::saturating_add)
    }

    /// The ConfigMap with the addresses of all tasks. In each template, they would make a single object too large for the API
    /// server, and hundreds of objects too large as a set.
    pub(super) fn hosts_config(&self) -> Result<Value, String> {
        let lists = self
            .hosts
            .lists
            .iter()
            .map(|(_, key, hosts)| ((*key).to_owned(), hosts.clone()));
        let mut data: BTreeMap<String, String> = lists.collect();
        data.insert("cluster".to_owned(), self.hosts.cluster.clone());
        value(&ConfigMap {
            metadata: self.whole(self.config_name()),
            data: Some(data),
            ..ConfigMap::default()
        })
    }

    /// Refuses variables and arguments that are too long for Linux: a pod with such a task would be
    /// created, and never start.
    pub(super) fn check_lengths(&self, faults: &mut Faults) {
        let mut said = BTreeSet::new();
        for role in &self.roles {
            for (what, length) in self.variable_lengths(role) {
                if length >= LONGEST && said.insert(what.clone()) {
                    faults.say(format!(
                        "{what} would have {} KiB with the addresses of {} tasks, but Linux passes at most {} in one text to \
                         a program: choose a case with fewer tasks, or a shorter name",
                        length >> 10,
                        self.all(),
                        LONGEST >> 10
                    ));
                }
            }
        }
    }

    /// The variables (`NAME=VALUE`) and arguments of a role's last task, each with the length after the expansion by
    /// Kubernetes.
    fn variable_lengths(&self, role: &RoleTasks) -> Vec<(String, u64)> {
        let own = self.job.roles.get(&role.role);
        let mut known: BTreeMap<String, u64> = BTreeMap::new();
        for (name, _, role) in self.listed() {
            known.insert(name.to_owned(), self.list_length(role));
        }
        let task = json!({"type": role.role, "index": role.count().saturating_sub(1)}).to_string();
        let cluster = self.cluster_length();
        let config = cluster.saturating_add(length(&task) + length("{\"cluster\":,\"task\":}"));
        let all = u64::from(self.all());
        // The training operator's own TF_CONFIG has NAME.NAMESPACE.svc for each task.
        let namespace = self.job.namespace.as_deref().map_or(0, length);
        let longer = if self.format == WorkloadFormat::Tfjob {
            all.saturating_mul(namespace + 5)
        } else {
            0
        };
        known.insert("TF_CONFIG".to_owned(), config.saturating_add(longer));
        if self.format != WorkloadFormat::Tfjob {
            known.insert("CLUSTER_SPEC".to_owned(), cluster);
        }
        let number = |number: u32| length(&number.to_string());
        let path = |name: &str, folder: &Option<Folder>| {
            folder
                .as_ref()
                .map_or(0, |folder| length(&folder::path(name, folder)))
        };
        let small = [
            ("PS_COUNT", number(self.count(PS))),
            ("WORKER_COUNT", number(self.count("worker"))),
            ("TASK_TYPE", length(&role.role)),
            ("TASK_INDEX", number(role.count())),
            ("TASK_PORT", length(&self.port.to_string())),
            ("TRAINING_JOB", length(&self.name)),
            ("SCRIPT", self.job.script.as_deref().map_or(0, length)),
            ("DATA_DIR", path("data", &self.job.data)),
            ("LOG_DIR", path("log", &self.job.log)),
        ];
        known.extend(small.map(|(name, length)| (name.to_owned(), length)));
        let mut lengths: Vec<(String, u64)> = Vec::new();
        let variable =
            |name: &str, value: u64| (name.to_owned(), value.saturating_add(length(name) + 1));
        lengths.extend(known.iter().map(|(name, value)| variable(name, *value)));
        let mut users: BTreeMap<&String, &String> = self.job.env.iter().collect();
        users.extend(own.into_iter().flat_map(|own| &own.env));
        for (name, text) in users {
            let value = expanded(text, &known);
            lengths.push(variable(name, value));
            known.insert(name.clone(), value);
        }
        let command = own
            .and_then(|own| own.command.as_ref())
            .unwrap_or(&self.job.command);
        let args = own
            .and_then(|own| own.args.as_ref())
            .unwrap_or(&self.job.args);
        let words = [("command", command), ("args", args)];
        for (what, texts) in words {
            lengths.extend(
                texts
                    .iter()
                    .map(|text| (format!("a text of {what}"), expanded(text, &known))),
            );
        }
        lengths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_counted_without_writing_them() {
        for count in [0, 1, 2, 9, 10, 11, 99, 100, 101, 1000, 12345] {
            let written: usize = (0..count).map(|number: u32| number.to_string().len()).sum();
            assert_eq!(
                digits(count),
                u64::try_from(written).unwrap_or_default(),
                "{count}"
            );
        }
        assert!(digits(u32::MAX) > u64::from(u32::MAX));
    }
}
