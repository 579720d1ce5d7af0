//! The resources of a role's tasks, in a form that allows pinning.

use std::collections::BTreeMap;

use super::faults::Faults;
use super::job::TrainingJob;
use crate::scene::{Amount, Amounts, ScenePlan};

/// Requests and limits of a role's tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskResources {
    pub requests: BTreeMap<String, Amount>,
    pub limits: BTreeMap<String, Amount>,
    /// Whether the tasks get exclusive CPUs, if the job or the plan says.
    pub pin: Option<bool>,
}

/// What a role's tasks ask for by plan and job. The job's words go before its preset's, those before the plan's; a role's go before
/// all roles'.
pub fn requested_resources(plan: &ScenePlan, job: &TrainingJob, role: &str) -> TaskResources {
    let planned = job
        .preset
        .and_then(|preset| preset.role(role))
        .or_else(|| plan.spec.roles.get(role).cloned())
        .unwrap_or_default();
    let own = job.roles.get(role);
    let mut requested = TaskResources {
        requests: planned.requests,
        limits: planned.limits,
        pin: own.and_then(|own| own.pin).or(job.pin).or(planned.pin),
    };
    if let Some(own) = own {
        // New limits without new requests: the plan's requests were for the plan's limits.
        if own.requests.is_empty() {
            requested
                .requests
                .retain(|resource, _| !own.limits.contains_key(resource));
        }
        requested.requests.extend(own.requests.clone());
        requested.limits.extend(own.limits.clone());
    }
    requested
}

/// The amounts of a role's tasks, and the functions that read them.
struct RoleAmounts<'a> {
    role: &'a str,
    amounts: Amounts,
}

// === impl RoleAmounts ===

impl RoleAmounts<'_> {
    fn read(&self, resource: &str, amount: &Amount) -> u64 {
        (self.amounts.read)(resource, &amount.0).unwrap_or_default()
    }

    fn is_whole_cpus(&self, cpu: &Amount) -> bool {
        let thousandths = self.read("cpu", cpu);
        thousandths > 0 && thousandths.is_multiple_of(1000)
    }

    /// The fault of the first amount that can't be read.
    fn unreadable(&self, requested: &TaskResources) -> Option<String> {
        let mut all = requested.requests.iter().chain(&requested.limits);
        all.find_map(|(resource, amount)| {
            let fault = (self.amounts.read)(resource, &amount.0).err()?;
            Some(format!(
                "{}: {resource} {:?}: {fault}; write a quantity like 300m, 4Gi or 2",
                self.role, amount.0
            ))
        })
    }

    /// The fault of the first request above its limit.
    fn above_limit(&self, requested: &TaskResources) -> Option<String> {
        requested.requests.iter().find_map(|(resource, request)| {
            let limit = requested.limits.get(resource)?;
            (self.read(resource, request) > self.read(resource, limit)).then(|| {
                format!(
                    "{}: the {resource} request {request} is more than the limit {limit}",
                    self.role
                )
            })
        })
    }

    /// Makes the requests equal to the limits, as exclusive CPUs need. Without a limit, the request becomes the limit.
    fn pin(&self, requested: &mut TaskResources, faults: &mut Faults, warnings: &mut Vec<String>) {
        let role = self.role;
        let lacks = ["cpu", "memory"].into_iter().find(|resource| {
            !requested.limits.contains_key(*resource) && !requested.requests.contains_key(*resource)
        });
        if let Some(resource) = lacks {
            faults.say(format!(
                "{role} is to be pinned, but has no {resource} limit; write the limits of a task, for example roles: \
                 {{{role}: {{limits: {{cpu: 1, memory: 4Gi}}}}}}"
            ));
            return;
        }
        for (resource, request) in &requested.requests {
            if requested
                .limits
                .get(resource)
                .is_some_and(|limit| self.read(resource, limit) != self.read(resource, request))
            {
                warnings.push(format!(
                    "{role} is to be pinned, so its {resource} request is raised to the limit: a pod with different requests \
                     and limits gets no exclusive CPUs"
                ));
            }
        }
        let requests = std::mem::take(&mut requested.requests);
        for (resource, request) in requests {
            requested.limits.entry(resource).or_insert(request);
        }
        requested.requests.clone_from(&requested.limits);
        if let Some(cpu) = requested
            .limits
            .get("cpu")
            .filter(|cpu| !self.is_whole_cpus(cpu))
        {
            let next = self.read("cpu", cpu).div_ceil(1000).max(1);
            faults.say(format!(
                "{role} is to be pinned, but {cpu} is not a whole number of CPUs; write roles: {{{role}: {{limits: {{cpu: \
                 {next}}}}}}}, or pin: false for the role"
            ));
        }
    }

    /// Whether the tasks get exclusive CPUs without `pin`: requests equal limits, with whole CPUs.
    fn is_pinnable(&self, requested: &TaskResources) -> bool {
        let equal = ["cpu", "memory"].into_iter().all(|resource| {
            let Some(limit) = requested.limits.get(resource) else {
                return false;
            };
            requested
                .requests
                .get(resource)
                .is_none_or(|request| self.read(resource, request) == self.read(resource, limit))
        });
        equal
            && requested
                .limits
                .get("cpu")
                .is_some_and(|cpu| self.is_whole_cpus(cpu))
    }
}

/// Marks the roles of an experiment whose CPUs and threads its ways decide: all that can be pinned, unless the job or the plan
/// says `pin: false`. Without such a role, all ways would be the same.
pub(super) fn vary(
    requested: &mut BTreeMap<String, TaskResources>,
    amounts: Amounts,
    faults: &mut Faults,
) {
    for (role, resources) in &mut *requested {
        let of_role = RoleAmounts { role, amounts };
        if resources.pin.is_none() && of_role.is_pinnable(resources) {
            resources.pin = Some(true);
        }
    }
    if !requested.is_empty() && !requested.values().any(|role| role.pin == Some(true)) {
        let role = requested
            .keys()
            .next_back()
            .map_or("worker", String::as_str);
        faults.say(format!(
            "no role of the case can get exclusive CPUs, so all ways of the experiment would be the same: write whole CPUs as \
             limits and pin: true for at least one role, for example roles: {{{role}: {{pin: true, limits: {{cpu: 1, memory: \
             4Gi}}}}}}"
        ));
    }
}

/// The final resources of tasks: with `pin`, requests equal limits. An impossible amount is a fault, a surprising
/// amount a warning.
pub(super) fn final_resources(
    role: &str,
    mut requested: TaskResources,
    amounts: Amounts,
    faults: &mut Faults,
    warnings: &mut Vec<String>,
) -> TaskResources {
    let of_role = RoleAmounts { role, amounts };
    let fault = of_role
        .unreadable(&requested)
        .or_else(|| of_role.above_limit(&requested));
    if let Some(fault) = fault {
        faults.say(fault);
        return requested;
    }
    match requested.pin {
        Some(true) => of_role.pin(&mut requested, faults, warnings),
        None if !of_role.is_pinnable(&requested) => warnings.push(format!(
            "tasks of role {role} get no exclusive CPUs: requests must equal limits for cpu and memory, with whole CPUs; \
             write pin: true for exclusive CPUs, or pin: false for shared CPUs"
        )),
        _ => {}
    }
    requested
}

// === impl TaskResources ===

impl TaskResources {
    /// The exclusive CPUs that a task is entitled to; 0 for a task on shared CPUs.
    pub fn exclusive_cpus(&self, amounts: Amounts) -> u64 {
        let of_role = RoleAmounts { role: "", amounts };
        if self.pin == Some(false) || self.pin.is_none() && !of_role.is_pinnable(self) {
            return 0;
        }
        let limit = self.limits.get("cpu");
        limit.map_or(0, |cpu| of_role.read("cpu", cpu) / 1000)
    }

    /// The amounts that a task requests: the requests, or the limits of a task without requests or with pinning.
    pub fn requested(&self) -> BTreeMap<&str, &Amount> {
        let (first, then) = match self.pin {
            Some(true) => (&self.requests, &self.limits),
            _ => (&self.limits, &self.requests),
        };
        first
            .iter()
            .chain(then)
            .map(|(resource, amount)| (resource.as_str(), amount))
            .collect()
    }
}
