//! The plan in itself: labels, scenes, groups, cases, totals.

use std::collections::BTreeSet;

use super::{Finder, repeated};
use crate::scene::{Case, Group, Path, SERVERS, Scene, key_fault, reserved_domain, value_fault};
use crate::text::counted;

/// The most tasks of a case: ten on each of the most servers.
const MAX_TASKS: u64 = 100_000;

impl Finder<'_> {
    pub(super) fn labels(&mut self) {
        let keys = &self.plan.spec.labels;
        let path = Path::of(&["spec", "labels"]);
        let fields = ["scene", "case", "index", "type"];
        for (field, key) in fields.into_iter().zip(keys.keys()) {
            self.label_key(&path.key(field), key);
        }
        for (again, before) in repeated(keys.keys().into_iter()) {
            let (field, first) = (
                fields.get(again).copied().unwrap_or_default(),
                fields.get(before).copied(),
            );
            let text = format!("the label {} has the same key", first.unwrap_or_default());
            self.error(
                &path.key(field),
                text,
                "give each of the four labels a different key",
            );
        }
        let mut taken: BTreeSet<&str> = keys.keys().into_iter().collect();
        for (key, alias) in &keys.aliases {
            let path = path.key("aliases").key(key);
            if !keys.keys().contains(&key.as_str()) {
                let text = format!("{key} is not a label key of the plan");
                let fix = format!("write one of {} before the colon", keys.keys().join(", "));
                self.error(&path, text, fix);
            }
            self.label_key(&path, alias);
            if !taken.insert(alias) {
                self.error(
                    &path,
                    format!("{alias} is already a key of this plan"),
                    "choose another alias",
                );
            }
        }
    }

    fn label_key(&mut self, path: &Path, key: &str) {
        if let Some(fault) = key_fault(key) {
            self.error(
                path,
                format!("{key:?} can't be a label's key: {fault}"),
                "choose another key",
            );
        } else if let Some(domain) = reserved_domain(key) {
            let text = format!("{key} is in the domain {domain}, which Kubernetes reserves");
            self.error(
                path,
                text,
                "choose a key without a prefix, or with a prefix in your own domain",
            );
        }
    }

    fn label_value(&mut self, path: &Path, value: &str) {
        if value.is_empty() {
            self.error(
                path,
                "the name is empty, but becomes the value of a label",
                "write a name",
            );
        } else if let Some(fault) = value_fault(value) {
            let text = format!("{value:?} can't be a label's value: {fault}");
            self.error(path, text, "choose another name");
        }
    }

    pub(super) fn active(&mut self) {
        let Some(active) = &self.plan.spec.active else {
            return;
        };
        let path = Path::of(&["spec", "active"]);
        let list = |names: Vec<&str>| format!("write one of {}", names.join(", "));
        let Some(scene) = self
            .plan
            .spec
            .scenes
            .iter()
            .find(|scene| scene.scene == active.scene)
        else {
            let fix = list(
                self.plan
                    .spec
                    .scenes
                    .iter()
                    .map(|scene| scene.scene.as_str())
                    .collect(),
            );
            return self.error(
                &path.key("scene"),
                format!("the plan has no scene {}", active.scene),
                fix,
            );
        };
        if !scene.cases.iter().any(|case| case.case == active.case) {
            let fix = list(scene.cases.iter().map(|case| case.case.as_str()).collect());
            let text = format!("scene {} has no case {}", active.scene, active.case);
            self.error(&path.key("case"), text, fix);
        }
    }

    pub(super) fn scenes(&mut self) {
        let plan = self.plan;
        let path = Path::of(&["spec", "scenes"]);
        for (again, before) in repeated(plan.spec.scenes.iter().map(|scene| scene.scene.as_str())) {
            let text = format!("scenes[{before}] has the same name");
            self.error(
                &path.at(again).key("scene"),
                text,
                "give each scene a different name",
            );
        }
        for (index, scene) in plan.spec.scenes.iter().enumerate() {
            self.scene(scene, &path.at(index));
        }
    }

    fn scene(&mut self, scene: &Scene, path: &Path) {
        self.label_value(&path.key("scene"), &scene.scene);
        self.groups(scene, path);
        let path = path.key("cases");
        for (again, before) in repeated(scene.cases.iter().map(|case| case.case.as_str())) {
            let text = format!("cases[{before}] of scene {} has the same name", scene.scene);
            self.error(
                &path.at(again).key("case"),
                text,
                "give each case of a scene a different name",
            );
        }
        for (index, case) in scene.cases.iter().enumerate() {
            let path = path.at(index);
            self.label_value(&path.key("case"), &case.case);
            self.counts(scene, case, &path.key("nodes"));
            self.tasks(scene, case, &path.key("nodes"));
            self.totals(scene, case, &path.key("totals"));
        }
    }

    fn groups(&mut self, scene: &Scene, path: &Path) {
        let path = path.key("groups");
        for (again, before) in repeated(scene.groups.iter().map(|group| group.name.as_str())) {
            let text = format!(
                "groups[{before}] of scene {} has the same name",
                scene.scene
            );
            self.error(
                &path.at(again).key("name"),
                text,
                "give each group of a scene a different name",
            );
        }
        for (index, group) in scene.groups.iter().enumerate() {
            let path = path.at(index);
            match &group.kind {
                Some(kind) => self.label_value(&path.key("type"), kind),
                None => self.missing_type(scene, group, &path),
            }
            if group.per_node.contains_key(SERVERS) {
                let text = format!(
                    "{SERVERS} is reserved: totals use this name for the number of servers"
                );
                self.error(
                    &path.key("perNode").key(SERVERS),
                    text,
                    "give the role another name",
                );
            }
        }
        self.repeated_types(scene, &path);
    }

    /// A group without a type can only be the single group of a scene.
    fn missing_type(&mut self, scene: &Scene, group: &Group, path: &Path) {
        let typed = scene
            .groups
            .iter()
            .filter(|group| group.kind.is_some())
            .count();
        if typed > 0 {
            let text = format!(
                "group {} has no type, but {} group of scene {} has one: the group's nodes would lack the label {}",
                group.name,
                if typed == 1 { "another" } else { "every other" },
                scene.scene,
                self.plan.spec.labels.kind
            );
            let fix = format!(
                "write type: {}, or remove the type of every group",
                group.name
            );
            self.error(path, text, fix);
        } else if scene.groups.len() > 1 {
            let text = format!(
                "scene {} has {} groups without a type: nodes of group {} would have the labels of other groups",
                scene.scene,
                scene.groups.len(),
                group.name
            );
            self.error(path, text, format!("write type: {}", group.name));
        }
    }

    /// Two groups of a scene never have the same type.
    fn repeated_types(&mut self, scene: &Scene, path: &Path) {
        let kinds = scene
            .groups
            .iter()
            .enumerate()
            .filter_map(|(index, group)| Some((index, group.kind.as_deref()?)));
        let kinds: Vec<(usize, &str)> = kinds.collect();
        for (again, before) in repeated(kinds.iter().map(|(_, kind)| *kind)) {
            let (Some((again, kind)), Some((before, _))) = (kinds.get(again), kinds.get(before))
            else {
                continue;
            };
            let text = format!(
                "groups[{before}] of scene {} also has the type {kind}",
                scene.scene
            );
            self.error(
                &path.at(*again).key("type"),
                text,
                "give each group a different type",
            );
        }
    }

    /// Each group has its number of servers.
    fn counts(&mut self, scene: &Scene, case: &Case, path: &Path) {
        let groups: Vec<&str> = scene
            .groups
            .iter()
            .map(|group| group.name.as_str())
            .collect();
        for name in case
            .nodes
            .keys()
            .filter(|name| !groups.contains(&name.as_str()))
        {
            let fix = format!("write one of {}", groups.join(", "));
            self.error(
                &path.key(name),
                format!("scene {} has no group {name}", scene.scene),
                fix,
            );
        }
        for group in groups
            .iter()
            .filter(|group| !case.nodes.contains_key(**group))
        {
            let text = format!("the case has no number of servers for group {group}");
            self.error(path, text, format!("add {group}: 0 or more"));
        }
        let known = case
            .nodes
            .iter()
            .filter(|(name, _)| groups.contains(&name.as_str()));
        if !case.nodes.is_empty() && known.map(|(_, count)| u64::from(*count)).sum::<u64>() == 0 {
            let text = format!("scene {} case {} has no servers", scene.scene, case.case);
            self.error(path, text, "give a group at least one server");
        }
    }

    /// Whether the totals equal the sums of the numbers.
    fn totals(&mut self, scene: &Scene, case: &Case, path: &Path) {
        for (total, &written) in &case.totals {
            let (path, written) = (path.key(total), u64::from(written));
            if total == SERVERS {
                self.total_servers(scene, case, written, &path);
            } else {
                self.total_tasks(scene, case, (total.as_str(), written), &path);
            }
        }
    }

    /// Whether a cluster could run so many tasks. Each one becomes a pod, and an address in the environment of all others.
    fn tasks(&mut self, scene: &Scene, case: &Case, path: &Path) {
        let of_group = |group: &Group| {
            let per_node: u64 = group.per_node.values().copied().map(u64::from).sum();
            servers_of(case, &group.name).saturating_mul(per_node)
        };
        let groups = scene.groups.iter().map(of_group);
        let tasks = groups.fold(0, u64::saturating_add);
        if tasks > MAX_TASKS {
            let text = format!(
                "scene {} case {} has {}; the maximum is {MAX_TASKS}",
                scene.scene,
                case.case,
                counted(tasks, "task")
            );
            self.error(path, text, "write fewer nodes, or fewer tasks in perNode");
        }
    }

    /// Whether the written number of servers is the sum over the groups.
    fn total_servers(&mut self, scene: &Scene, case: &Case, written: u64, path: &Path) {
        let groups = || scene.groups.iter().map(|group| group.name.as_str());
        let servers: u64 = groups().map(|group| servers_of(case, group)).sum();
        if written == servers {
            return;
        }
        let parts = groups().map(|group| format!("{} {group}", servers_of(case, group)));
        let text = format!(
            "totals say {}, but the groups of scene {} case {} have {}: {servers} in total",
            counted(written, "server"),
            scene.scene,
            case.case,
            parts.collect::<Vec<_>>().join(" and ")
        );
        self.error(path, text, format!("write {SERVERS}: {servers}"));
    }

    /// Whether the written number of a role's tasks is the sum over the groups that run the role.
    fn total_tasks(
        &mut self,
        scene: &Scene,
        case: &Case,
        (role, written): (&str, u64),
        path: &Path,
    ) {
        let running: Vec<(u64, u64, &str)> = scene
            .groups
            .iter()
            .filter_map(|group| {
                Some((
                    servers_of(case, &group.name),
                    u64::from(*group.per_node.get(role)?),
                    group.name.as_str(),
                ))
            })
            .collect();
        if running.is_empty() {
            return self.unknown_role(scene, role, path);
        }
        let tasks: u64 = running
            .iter()
            .map(|(servers, each, _)| servers * each)
            .sum();
        if written == tasks {
            return;
        }
        let parts = running.iter().map(|(servers, each, name)| {
            format!(
                "{} of group {name} with {each} each",
                counted(*servers, "server")
            )
        });
        let text = format!(
            "totals say {} of role {role}, but scene {} case {} has {tasks}: {}",
            counted(written, "task"),
            scene.scene,
            case.case,
            parts.collect::<Vec<_>>().join(" and ")
        );
        let mut fix = format!("write {role}: {tasks}");
        if let [(_, each, name)] = running.as_slice()
            && *each > 0
            && written > 0
            && written.is_multiple_of(*each)
        {
            fix += &format!(
                " (or, for {}, write {name}: {} in nodes)",
                counted(written, "task"),
                written / each
            );
        }
        self.error(path, text, fix);
    }

    /// A total of a role that no group of the scene runs.
    fn unknown_role(&mut self, scene: &Scene, role: &str, path: &Path) {
        let roles: BTreeSet<&str> = scene
            .groups
            .iter()
            .flat_map(|group| group.per_node.keys().map(String::as_str))
            .collect();
        let known = roles
            .into_iter()
            .chain([SERVERS])
            .collect::<Vec<_>>()
            .join(", ");
        let text = format!("no group of scene {} runs the role {role}", scene.scene);
        self.error(path, text, format!("write one of {known}"));
    }
}

/// The number of servers that a case gives to a group.
fn servers_of(case: &Case, group: &str) -> u64 {
    u64::from(case.nodes.get(group).copied().unwrap_or(0))
}
