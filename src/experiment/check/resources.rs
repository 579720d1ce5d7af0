//! The requests of tasks: whether the amounts are readable, fit the nodes, and allow pinning.

use std::collections::BTreeMap;

use super::Finder;
use crate::pod::MOST_CPUS;
use crate::scene::{Group, Node, Path, Role, SERVERS, Scene, Slots};
use crate::text::counted;

impl Finder<'_> {
    pub(super) fn roles(&mut self) {
        let plan = self.plan;
        let path = Path::of(&["spec", "roles"]);
        for (name, role) in &plan.spec.roles {
            let path = path.key(name);
            let mut groups = plan.spec.scenes.iter().flat_map(|scene| &scene.groups);
            if name == SERVERS {
                let text = format!(
                    "{SERVERS} is reserved: totals use this name for the number of servers"
                );
                self.error(&path, text, "give the role another name");
            } else if !groups.any(|group| group.per_node.contains_key(name)) {
                let text = format!("no group runs the role {name}");
                self.warning(
                    &path,
                    text,
                    format!("add {name}: 1 or more to a group's perNode, or remove the role"),
                );
            }
            if self.amounts_are_right(role, &path) && role.pin != Some(false) {
                self.can_be_pinned(name, role, &path);
            }
        }
    }

    fn amounts_are_right(&mut self, role: &Role, path: &Path) -> bool {
        let mut right = true;
        for (field, amounts) in [("requests", &role.requests), ("limits", &role.limits)] {
            for (resource, amount) in amounts {
                if let Err(fault) = (self.amounts.read)(resource, &amount.0) {
                    self.error(
                        &path.key(field).key(resource),
                        fault,
                        "write a quantity like 300m, 4Gi or 2",
                    );
                    right = false;
                }
            }
        }
        for (resource, limit) in &role.limits {
            let Some(request) = role.requests.get(resource) else {
                continue;
            };
            let read = |amount: &str| (self.amounts.read)(resource, amount).unwrap_or_default();
            if read(&request.0) > read(&limit.0) {
                let text =
                    format!("the {resource} request {request} is more than the limit {limit}");
                self.error(
                    &path.key("requests").key(resource),
                    text,
                    format!("write {limit} or less"),
                );
                right = false;
            }
        }
        right
    }

    /// Exclusive CPUs need QoS class Guaranteed and a CPU limit in whole numbers.
    fn can_be_pinned(&mut self, name: &str, role: &Role, path: &Path) {
        if role.requests.is_empty() && role.limits.is_empty() {
            if role.pin == Some(true) {
                let text = format!("role {name} has pin: true, but no CPU limit");
                self.error(
                    path,
                    text,
                    "add the limits of a task, for example limits: {cpu: 1, memory: 4Gi}",
                );
            }
            return;
        }
        let Some((place, text)) = self.pin_fault(name, role, path) else {
            return;
        };
        let equal = self.equal_amounts(role);
        if role.pin == Some(true) {
            self.error(&place, text, format!("write {equal}, or pin: false"));
        } else {
            self.warning(
                &place,
                text,
                format!("write {equal}; or pin: false, if the tasks need no exclusive CPUs"),
            );
        }
    }

    /// Why the amounts of a role prevent exclusive CPUs, with the place of the wrong amount.
    fn pin_fault(&self, name: &str, role: &Role, path: &Path) -> Option<(Path, String)> {
        if let Some((resource, why)) = self.burstable(role) {
            let field = if role.requests.contains_key(resource) {
                "requests"
            } else {
                "limits"
            };
            let text =
                format!("tasks of role {name} are Burstable and can't get exclusive CPUs: {why}");
            return Some((path.key(field).key(resource), text));
        }
        let limit = role.limits.get("cpu").map_or("", |limit| limit.0.as_str());
        let thousandths = self.read_or_zero("cpu", limit);
        let why = if thousandths / 1000 > u64::from(MOST_CPUS) {
            format!("more than the {MOST_CPUS} CPUs that Linux can have")
        } else if thousandths == 0 || !thousandths.is_multiple_of(1000) {
            "not a whole number".to_owned()
        } else {
            return None;
        };
        let text = format!(
            "tasks of role {name} can't get exclusive CPUs: the CPU limit {limit} is {why}"
        );
        Some((path.key("limits").key("cpu"), text))
    }

    /// The resource that makes the tasks of a role Burstable, and the reason. Guaranteed tasks have limits that equal the
    /// requests.
    fn burstable(&self, role: &Role) -> Option<(&'static str, String)> {
        ["cpu", "memory"].into_iter().find_map(|resource| {
            let Some(limit) = role.limits.get(resource) else {
                return Some((resource, format!("the {resource} limit is missing")));
            };
            let request = role.requests.get(resource)?;
            let requested = self.read_or_zero(resource, &request.0);
            let most = self.read_or_zero(resource, &limit.0);
            (requested != most).then(|| {
                (
                    resource,
                    format!("the {resource} request {request} differs from the limit {limit}"),
                )
            })
        })
    }

    /// The amounts for exclusive CPUs that are closest to the role's amounts, as a part of a correction.
    fn equal_amounts(&self, role: &Role) -> String {
        let limit_or_request = |resource: &str| {
            let limit = role.limits.get(resource);
            limit.or_else(|| role.requests.get(resource))
        };
        let whole_cpus = limit_or_request("cpu").map_or(1, |cpu| {
            self.read_or_zero("cpu", &cpu.0).div_ceil(1000).max(1)
        });
        let memory = limit_or_request("memory").map_or("4Gi", |memory| memory.0.as_str());
        format!("requests and limits cpu: {whole_cpus}, memory: {memory}")
    }

    /// An amount as a number. Unreadable amounts are reported elsewhere.
    fn read_or_zero(&self, resource: &str, amount: &str) -> u64 {
        (self.amounts.read)(resource, amount).unwrap_or_default()
    }

    /// Each group's requests fit enough of the candidates, by what pods can have of an empty node.
    pub(super) fn fits(&mut self, candidates: &[&Node]) {
        let plan = self.plan;
        for (index, scene) in plan.spec.scenes.iter().enumerate() {
            for (place, group) in scene.groups.iter().enumerate() {
                let path = Path::of(&["spec", "scenes"])
                    .at(index)
                    .key("groups")
                    .at(place)
                    .key("perNode");
                let needs = self.needs(group);
                if needs.is_empty() || candidates.is_empty() {
                    continue;
                }
                if plan.spec.nodes.names.is_some() {
                    self.fits_by_name(scene, group, &needs, candidates, &path);
                } else {
                    self.fits_anywhere(scene, group, &needs, candidates, &path);
                }
            }
        }
    }

    /// What a server of the group needs, by resource. Unreadable amounts are reported elsewhere.
    fn needs(&self, group: &Group) -> BTreeMap<String, u64> {
        let mut needs: BTreeMap<String, u64> = BTreeMap::new();
        for (role, count) in &group.per_node {
            let Some(role) = self.plan.spec.roles.get(role) else {
                continue;
            };
            for (resource, amount) in role.requested() {
                let each = (self.amounts.read)(resource, &amount.0).unwrap_or_default();
                let needed = needs.entry(resource.to_owned()).or_default();
                *needed = needed.saturating_add(each.saturating_mul(u64::from(*count)));
            }
        }
        needs.retain(|_, needed| *needed > 0);
        needs
    }

    /// The resources that a node lacks for the needs, in words; `None` without a lack or for unknown resources.
    fn lacks(&self, node: &Node, needs: &BTreeMap<String, u64>) -> Option<String> {
        if node.allocatable.is_empty() {
            return None;
        }
        needs.iter().find_map(|(resource, needed)| {
            let text = node
                .allocatable
                .get(resource)
                .map_or("0", |amount| amount.0.as_str());
            let has = (self.amounts.read)(resource, text).ok()?;
            let write = |amount: u64| (self.amounts.write)(resource, amount);
            (has < *needed).then(|| {
                format!(
                    "{} of {resource}, but {} has {}",
                    write(*needed),
                    node.name,
                    write(has)
                )
            })
        })
    }

    fn fits_anywhere(
        &mut self,
        scene: &Scene,
        group: &Group,
        needs: &BTreeMap<String, u64>,
        candidates: &[&Node],
        path: &Path,
    ) {
        let lacking: Vec<String> = candidates
            .iter()
            .filter_map(|node| self.lacks(node, needs))
            .collect();
        let Some(first) = lacking.first() else { return };
        let fitting = candidates.len() - lacking.len();
        let most = scene
            .cases
            .iter()
            .filter_map(|case| case.nodes.get(&group.name))
            .max()
            .copied()
            .unwrap_or(0);
        let text = format!(
            "a server of group {} in scene {} needs {first}",
            group.name, scene.scene
        );
        if fitting < most as usize {
            let text = format!(
                "{text}; {} can hold such a server, but the group needs {}",
                counted(fitting as u64, "candidate"),
                counted(u64::from(most), "server")
            );
            self.error(
                path,
                text,
                "lower the requests or the tasks per server, or choose larger nodes",
            );
        } else {
            let text = format!(
                "{text}; {} too small, but may still get a slot",
                are(lacking.len())
            );
            self.warning(
                path,
                text,
                "narrow the selector to nodes that are large enough",
            );
        }
    }

    /// A list gives each slot a fixed node: the nodes of the group must be large enough.
    fn fits_by_name(
        &mut self,
        scene: &Scene,
        group: &Group,
        needs: &BTreeMap<String, u64>,
        candidates: &[&Node],
        path: &Path,
    ) {
        let names = self.plan.spec.nodes.names.as_deref().unwrap_or_default();
        let known: BTreeMap<&str, &Node> = candidates
            .iter()
            .map(|node| (node.name.as_str(), *node))
            .collect();
        for case in &scene.cases {
            let slots = Slots::new(scene, case);
            let mine = (0..slots.len()).filter(|&place| slots.group(place) == Some(&group.name));
            let nodes = mine.filter_map(|place| names.get(place));
            let lacking = nodes
                .filter_map(|name| known.get(name.as_str()))
                .find_map(|node| self.lacks(node, needs));
            if let Some(lacking) = lacking {
                let text = format!(
                    "in scene {} case {}, a server of group {} needs {lacking}",
                    scene.scene, case.case, group.name
                );
                return self.error(
                    path,
                    text,
                    "lower the requests or the tasks per server, or list a larger node",
                );
            }
        }
    }
}

fn are(count: usize) -> String {
    if count == 1 {
        "1 candidate is".to_owned()
    } else {
        format!("{count} candidates are")
    }
}
