//! [`tasks`]: the tasks of a case, and the slot of each.

use std::fmt;

use crate::scene::{CHIEF, EVALUATOR, NoSuchCase, PS, ScenePlan, Slot, slots};

/// The roles of a training cluster, in the order of the written objects.
pub const ROLES: [&str; 4] = [PS, CHIEF, "worker", EVALUATOR];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobTask {
    pub role: String,
    /// The number within the role.
    pub index: u32,
    pub slot: Slot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleTasks {
    pub role: String,
    /// The groups that run the role, in the plan's order.
    pub groups: Vec<TaskShare>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskShare {
    /// The group's type.
    pub kind: Option<String>,
    /// The group's servers in the case.
    pub servers: u32,
    pub per_node: u32,
}

/// All tasks of a case: the roles in the order of [`ROLES`], others after them by name.
///
/// Task i of a role belongs to the server with the index i ÷ tasks per server; where several groups run a role, the first
/// group gets the first tasks.
///
/// # Errors
/// The plan has no such scene or case.
pub fn tasks(plan: &ScenePlan, scene: &str, case: &str) -> Result<Vec<JobTask>, NoSuchCase> {
    let roles = roles(plan, scene, case)?;
    Ok(roles
        .iter()
        .flat_map(|role| role.tasks(scene, case))
        .collect())
}

/// The roles of a case, in the same order.
///
/// # Errors
/// The plan has no such scene or case.
pub fn roles(plan: &ScenePlan, scene: &str, case: &str) -> Result<Vec<RoleTasks>, NoSuchCase> {
    slots(plan, scene, case)?;
    let Some((of_scene, of_case)) = plan.spec.case(scene, case) else {
        return Ok(Vec::new());
    };
    let mut found: Vec<RoleTasks> = Vec::new();
    for group in &of_scene.groups {
        let servers = of_case.nodes.get(&group.name).copied().unwrap_or(0);
        for (role, &per_node) in &group.per_node {
            if servers == 0 || per_node == 0 {
                continue;
            }
            let share = TaskShare {
                kind: group.kind.clone(),
                servers,
                per_node,
            };
            match found.iter_mut().find(|entry| entry.role == *role) {
                Some(entry) => entry.groups.push(share),
                None => found.push(RoleTasks {
                    role: role.clone(),
                    groups: vec![share],
                }),
            }
        }
    }
    let rank = |role: &str| {
        ROLES
            .iter()
            .position(|known| *known == role)
            .unwrap_or(ROLES.len())
    };
    found.sort_by(|a, b| (rank(&a.role), &a.role).cmp(&(rank(&b.role), &b.role)));
    Ok(found)
}

// === impl RoleTasks ===

impl RoleTasks {
    /// The number of tasks. A checked plan stays far below the limit of the type.
    pub fn count(&self) -> u32 {
        self.groups
            .iter()
            .fold(0, |sum, share| sum.saturating_add(share.count()))
    }

    /// The tasks, by number.
    pub fn tasks(&self, scene: &str, case: &str) -> impl Iterator<Item = JobTask> {
        let slots = self.groups.iter().flat_map(move |share| {
            (0..share.count()).map(move |task| Slot {
                scene: scene.to_owned(),
                case: case.to_owned(),
                kind: share.kind.clone(),
                index: task.checked_div(share.per_node).unwrap_or(0),
            })
        });
        (0..).zip(slots).map(|(index, slot)| JobTask {
            role: self.role.clone(),
            index,
            slot,
        })
    }
}

// === impl TaskShare ===

impl TaskShare {
    fn count(&self) -> u32 {
        self.servers.saturating_mul(self.per_node)
    }
}

// === impl JobTask ===

impl fmt::Display for JobTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.index)
    }
}
