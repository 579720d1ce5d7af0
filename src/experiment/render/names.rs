//! Names that become hosts, objects and labels: what they are made of, and whether Kubernetes and the format's own controller
//! take them.
//!
//! | what | name |
//! |---|---|
//! | the job in a case | `JOB-sSCENE-cCASE` |
//! | the job in a run of an experiment | `JOB-sSCENE-cCASE-WAY-rRUN` |
//! | a task of it | the same, with `-ROLE-INDEX` |
//!
//! So two cases and two runs never want the same object. Kubernetes would refuse the second, because a Job's template can't
//! change.

use std::collections::BTreeMap;

use super::cluster::ResolvedJob;
use super::faults::Faults;
use super::model::{RenderRequest, RunTag, WorkloadFormat};
use super::task::RoleTasks;
use crate::experiment::statistics::Way;
use crate::scene::{
    CASE_LABEL, EXPERIMENT_LABEL, PLAN_LABEL, RUN_LABEL, SCENE_LABEL, ScenePlan, WAY_LABEL,
    subdomain_fault, value_fault,
};

/// The longest label of a host's name, and the longest value of a label.
const LONGEST: usize = 63;

/// A scene or a case, which may be any value of a label, as a part of a host's name.
fn dns(value: &str) -> String {
    value.to_ascii_lowercase().replace(['.', '_'], "-")
}

/// What follows the job's name in the names of a case.
fn of_case(scene: &str, case: &str) -> String {
    format!("-s{}-c{}", dns(scene), dns(case))
}

/// What follows the job's name in the names of all objects.
pub(super) fn suffix(request: &RenderRequest<'_>) -> String {
    let of_case = of_case(request.scene, request.case);
    match request.run {
        Some(RunTag { way, run, .. }) => format!("{of_case}-{}-r{run}", way.name()),
        None => of_case,
    }
}

/// A suffix without the part of a run, if it ends like one.
fn without_run(suffix: &str) -> &str {
    let case = || {
        let (rest, run) = suffix.rsplit_once("-r")?;
        let is_number = !run.is_empty() && run.chars().all(|c| c.is_ascii_digit());
        let (case, way) = rest.rsplit_once('-').filter(|_| is_number)?;
        Way::ALL
            .iter()
            .any(|known| known.name() == way)
            .then_some(case)
    };
    case().unwrap_or(suffix)
}

/// Another case of the plan, or a run of it, whose objects would have the names of this case.
fn same_names<'a>(plan: &'a ScenePlan, (scene, case): (&str, &str)) -> Option<(&'a str, &'a str)> {
    let own = of_case(scene, case);
    let all = plan.spec.scenes.iter().flat_map(|of_scene| {
        let cases = of_scene.cases.iter();
        cases.map(|of_case| (of_scene.scene.as_str(), of_case.case.as_str()))
    });
    all.filter(|other| *other != (scene, case))
        .find(|(scene, case)| {
            let other = of_case(scene, case);
            own == other || without_run(&own) == other || without_run(&other) == own
        })
}

/// The labels by which all objects and pods of a case are found, besides the job's name.
pub(super) fn origin(request: &RenderRequest<'_>, faults: &mut Faults) -> BTreeMap<String, String> {
    let mut labels = vec![
        (SCENE_LABEL, request.scene.to_owned()),
        (CASE_LABEL, request.case.to_owned()),
    ];
    // As on claims, a name that is too long for a label has none.
    let plan = request.plan.metadata.name.clone();
    let plan = plan.filter(|plan| value_fault(plan).is_none());
    labels.extend(plan.map(|plan| (PLAN_LABEL, plan)));
    if let Some(RunTag {
        experiment,
        way,
        run,
    }) = request.run
    {
        labels.extend([
            (EXPERIMENT_LABEL, experiment.clone()),
            (WAY_LABEL, way.name().to_owned()),
            (RUN_LABEL, run.to_string()),
        ]);
    }
    for (label, value) in &labels {
        if let Some(fault) = value_fault(value) {
            faults.say(format!(
                "{value:?} can't be the value of the label {label}: {fault}"
            ));
        }
    }
    let labels = labels.into_iter();
    labels
        .map(|(label, value)| (label.to_owned(), value))
        .collect()
}

/// The fault of a job's name with which a task's name would have `longest` characters.
fn too_long(name: &str, longest: usize) -> String {
    let remedy = match name.len().saturating_sub(longest.saturating_sub(LONGEST)) {
        0 => "rename the scene or the case to a shorter name".to_owned(),
        left => format!("use a name of at most {left} characters"),
    };
    format!(
        "name {name:?} is too long: names of tasks, with scene and case, would have {longest} characters, and the limit is \
         {LONGEST}; {remedy}"
    )
}

impl ResolvedJob<'_> {
    /// Names that become DNS labels, with the parts that the format's controller adds.
    pub(super) fn check_names(&self, faults: &mut Faults) {
        let name = self.job.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return;
        }
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !name.starts_with(|c: char| c.is_ascii_lowercase())
            || !name.chars().all(inner)
            || name.ends_with('-')
        {
            faults.say(format!(
                "name {name:?} can't be part of a host's name: use lower-case letters, digits and '-', with a letter at the \
                 start and a letter or digit at the end"
            ));
            return;
        }
        if let Some((scene, case)) = same_names(self.plan, (self.scene, self.case)) {
            faults.say(format!(
                "scene {} case {} and scene {scene} case {case} would have the same names of objects, because names have only \
                 lower-case letters, digits and '-': rename one of them in the plan",
                self.scene, self.case
            ));
        }
        let longest = self.longest_name();
        if longest > LONGEST {
            faults.say(too_long(name, longest));
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
