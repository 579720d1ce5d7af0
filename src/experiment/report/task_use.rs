//! The usage of each task and of each role, and the balance between the parameter servers.

use std::collections::BTreeSet;

use serde::Serialize;

use super::balance::Balance;
use super::members::{Members, TRAINING};
use super::usage::{Totals, Traffic, Usage};

/// The parameter servers' role.
pub(super) const PS: &str = "ps";

/// The order of the roles in a report; further roles follow.
const ORDER: [&str; 6] = [PS, "chief", "master", "worker", "evaluator", "launcher"];

/// The usage of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskUse {
    /// The task, as `ps 0`; the pod's name where no index is known.
    pub task: String,
    /// The role.
    pub role: String,
    /// The pods: several, if the task was restarted.
    pub pods: BTreeSet<String>,
    /// Its pods' nodes.
    pub nodes: BTreeSet<String>,
    /// The slots of the nodes, like `ps 0`.
    pub slots: BTreeSet<String>,
    /// What it used.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The sum over all tasks of a role.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleUse {
    /// The role.
    pub role: String,
    /// Its tasks.
    pub tasks: usize,
    /// What they used.
    #[serde(flatten)]
    pub usage: Usage,
}

/// How evenly the load lies on the parameter servers; `None` for fewer than two, or where one's load is not known.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerBalance {
    /// Bytes in both directions.
    pub traffic: Option<Balance>,
    /// Their CPU time.
    pub cpu: Option<Balance>,
}

// === impl TaskUse ===

impl TaskUse {
    /// Whether the task is a parameter server.
    pub(super) fn is_server(&self) -> bool {
        self.role == PS
    }

    /// Whether the task trains. Parameter servers do not train.
    pub(super) fn is_training(&self) -> bool {
        TRAINING.contains(&self.role.as_str())
    }

    /// The place in a report: by role, and by number within the role.
    fn order(&self) -> (usize, String, Option<u64>, String) {
        let role = ORDER
            .iter()
            .position(|role| *role == self.role)
            .unwrap_or(ORDER.len());
        let index = self
            .task
            .rsplit(' ')
            .next()
            .and_then(|index| index.parse::<u64>().ok());
        (role, self.role.clone(), index, self.task.clone())
    }
}

// === impl Servers ===

impl ServerBalance {
    /// The balance between the parameter servers among the tasks.
    pub(super) fn of(tasks: &[TaskUse]) -> Self {
        let balance = |load: &dyn Fn(&Usage) -> Option<f64>| {
            let servers = tasks.iter().filter(|task| task.is_server());
            let loads: Option<Vec<(String, f64)>> = servers
                .map(|task| Some((task.task.clone(), load(&task.usage)?)))
                .collect();
            Balance::of(loads?)
        };
        Self {
            traffic: balance(&|usage| usage.traffic()),
            cpu: balance(&|usage| usage.cpu_seconds),
        }
    }
}

/// The tasks of a run with their usage, in the order of a report.
pub(super) fn tasks(members: &Members, totals: &Totals, traffic: Traffic) -> Vec<TaskUse> {
    let mut tasks = pods_by_task(members);
    tasks.sort_by_cached_key(TaskUse::order);
    for task in &mut tasks {
        let pods: Vec<&str> = task.pods.iter().map(String::as_str).collect();
        task.usage = Usage::of(totals, &pods, traffic, members.seconds());
    }
    tasks
}

/// The tasks with their pods, without usage. Pods of the same role with the same index belong to one task.
fn pods_by_task(members: &Members) -> Vec<TaskUse> {
    let mut tasks: Vec<TaskUse> = Vec::new();
    for (pod, member) in &members.pods {
        let task = match member.index.as_str() {
            "" => pod.clone(),
            index => format!("{} {index}", member.role),
        };
        let known = tasks
            .iter_mut()
            .find(|known| known.task == task && known.role == member.role);
        if let Some(known) = known {
            known.pods.insert(pod.clone());
            known.nodes.extend(member.nodes.iter().cloned());
            known.slots.extend(member.slots.iter().cloned());
        } else {
            tasks.push(TaskUse {
                task,
                role: member.role.clone(),
                pods: BTreeSet::from([pod.clone()]),
                nodes: member.nodes.clone(),
                slots: member.slots.clone(),
                usage: Usage::default(),
            });
        }
    }
    tasks
}

/// The usage of each role. The tasks are in the order of a report.
pub(super) fn roles(
    tasks: &[TaskUse],
    totals: &Totals,
    traffic: Traffic,
    seconds: f64,
) -> Vec<RoleUse> {
    let mut roles: Vec<RoleUse> = Vec::new();
    for of_role in tasks.chunk_by(|one, other| one.role == other.role) {
        let pods: Vec<&str> = of_role
            .iter()
            .flat_map(|task| task.pods.iter().map(String::as_str))
            .collect();
        let role = of_role
            .first()
            .map(|task| task.role.clone())
            .unwrap_or_default();
        roles.push(RoleUse {
            role,
            tasks: of_role.len(),
            usage: Usage::of(totals, &pods, traffic, seconds),
        });
    }
    roles
}
