//! Commands and variables of tasks, and the check that the user's references exist.

use std::collections::{BTreeMap, BTreeSet};

use super::faults::Faults;
use super::job::{TaskOf, TrainingJob};
use super::task::RoleTasks;

/// The variables of each task. Variables of folders, the script and the chief exist only if the job has them.
pub(super) const OURS: [&str; 14] = [
    "PS_HOSTS",
    "WORKER_HOSTS",
    "CHIEF_HOSTS",
    "PS_COUNT",
    "WORKER_COUNT",
    "CLUSTER_SPEC",
    "TASK_TYPE",
    "TASK_INDEX",
    "TASK_PORT",
    "TRAINING_JOB",
    "SCRIPT",
    "DATA_DIR",
    "LOG_DIR",
    "TF_CONFIG",
];

/// The variable of the home folder, which a job may set itself.
pub(super) const HOME: &str = "HOME";

/// A text with `$(NAME)` escaped, which Kubernetes does not expand.
pub(super) fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// The names in `$(NAME)` of a text, as Kubernetes reads it: `$$` is a dollar sign.
pub(super) fn references(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        rest = after;
        if let Some(escaped) = after.strip_prefix('$') {
            rest = escaped;
        } else if let Some((name, more)) = after
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            found.push(name);
            rest = more;
        }
    }
    found
}

/// The length of a text after the expansion by Kubernetes, from the lengths of the known variables.
pub(super) fn expanded(text: &str, known: &BTreeMap<String, u64>) -> u64 {
    let count = |text: &str| u64::try_from(text.len()).unwrap_or(u64::MAX);
    let (mut length, mut rest) = (0_u64, text);
    while let Some((before, after)) = rest.split_once('$') {
        rest = after;
        let dollar = if let Some(escaped) = after.strip_prefix('$') {
            rest = escaped;
            1
        } else if let Some((name, more)) = after
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            rest = more;
            known
                .get(name)
                .copied()
                .unwrap_or_else(|| count(name).saturating_add(3))
        } else {
            1
        };
        length = length.saturating_add(count(before)).saturating_add(dollar);
    }
    length.saturating_add(count(rest))
}

/// Whether a name looks like a variable's; what stands in `$(…)` otherwise is for a shell.
fn is_variable(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_') && name.chars().all(inner)
}

/// Adds a fault for each impossible name of a variable, and for each reference to a missing
/// variable.
pub(super) fn check(job: &TrainingJob, roles: &[RoleTasks], faults: &mut Faults) {
    if job
        .image
        .as_ref()
        .is_some_and(|image| image.contains(char::is_whitespace))
    {
        faults.say("image: the name of the image contains a space".to_owned());
    }
    let none = TaskOf::default();
    let mut check = TextCheck {
        job,
        roles,
        faults,
        said: BTreeSet::new(),
    };
    for role in roles {
        check.role(&role.role, job.roles.get(&role.role).unwrap_or(&none));
    }
}

/// The check of the commands and variables of all roles.
struct TextCheck<'a> {
    job: &'a TrainingJob,
    roles: &'a [RoleTasks],
    faults: &'a mut Faults,
    /// The faults so far. Several roles may have the same fault.
    said: BTreeSet<String>,
}

// === impl TextCheck ===

impl TextCheck<'_> {
    fn say(&mut self, what: String) {
        if self.said.insert(what.clone()) {
            self.faults.say(what);
        }
    }

    /// Checks the texts of a role, whose own settings overrule the job's.
    fn role(&mut self, role: &str, own: &TaskOf) {
        if own.command.as_ref().is_some_and(Vec::is_empty) {
            self.say(format!(
                "roles.{role}.command is an empty list: write the program and its arguments, or remove the list for the job's \
                 command"
            ));
        }
        let job = self.job;
        let env: BTreeSet<&str> = job
            .env
            .keys()
            .chain(own.env.keys())
            .map(String::as_str)
            .collect();
        for name in &env {
            self.variable_name(name);
        }
        let variables = job
            .env
            .iter()
            .filter(|(key, _)| !own.env.contains_key(*key))
            .chain(&own.env);
        for (key, text) in variables {
            self.text(&env, &format!("env.{key}"), text, Some(key.as_str()));
        }
        for text in own.command.as_ref().unwrap_or(&job.command) {
            self.text(&env, "command", text, None);
        }
        for text in own.args.as_ref().unwrap_or(&job.args) {
            self.text(&env, "args", text, None);
        }
    }

    /// Checks the name of a user's variable.
    fn variable_name(&mut self, name: &str) {
        if OURS.contains(&name) {
            self.say(format!(
                "env: {name} is set for each task by Pinfold: choose another name"
            ));
        } else if name.is_empty() || !name.chars().all(|c| c.is_ascii_graphic() && c != '=') {
            self.say(format!("env: {name:?} can't be a variable's name"));
        } else if name.starts_with(|c: char| c.is_ascii_digit()) {
            self.say(format!(
                "env: {name:?} can't be a variable's name: it begins with a digit, which older clusters and every shell \
                 refuse"
            ));
        }
    }

    /// Checks a text with references. `env` has the names of the user's variables. A variable's value may refer only to
    /// variables before its own name, `variable`.
    fn text(&mut self, env: &BTreeSet<&str>, place: &str, text: &str, variable: Option<&str>) {
        if text.contains('\0') {
            self.say(format!(
                "{place}: the text has a zero byte, which Linux does not pass to a program"
            ));
        }
        for name in references(text)
            .into_iter()
            .filter(|name| is_variable(name))
        {
            let is_of_user = env.contains(name);
            let is_set = is_of_user && variable.is_none_or(|variable| name < variable);
            if !is_set && (is_of_user || !self.has(name)) {
                self.say(missing_variable(place, name, is_of_user));
            }
        }
    }

    /// Whether each task has the variable from Pinfold.
    fn has(&self, name: &str) -> bool {
        match name {
            "SCRIPT" => self.job.script.is_some(),
            "DATA_DIR" => self.job.data.is_some(),
            "LOG_DIR" => self.job.log.is_some(),
            "CHIEF_HOSTS" => self.roles.iter().any(|role| role.role == "chief"),
            HOME => self.job.run_as_user != Some(0),
            "TF_CONFIG" | "CLUSTER_SPEC" => false,
            name => OURS.contains(&name),
        }
    }
}

/// The fault of a reference to a variable that is not set, or that is set after the text.
fn missing_variable(place: &str, name: &str, is_set_later: bool) -> String {
    match name {
        _ if is_set_later => format!(
            "{place}: Kubernetes would not expand $({name}): variables are set in the order of their names, and \
             {name} comes later"
        ),
        "SCRIPT" => format!("{place}: $(SCRIPT) has no value: the job has no script"),
        "DATA_DIR" => format!("{place}: $(DATA_DIR) has no value: the job has no data folder"),
        "LOG_DIR" => format!("{place}: $(LOG_DIR) has no value: the job has no log folder"),
        "CHIEF_HOSTS" => format!("{place}: $(CHIEF_HOSTS) has no value: the case has no chief"),
        _ => format!(
            "{place}: there is no variable {name}; write $$({name}) for the literal text, or set the variable in \
             env. The variables are \
             PS_HOSTS, WORKER_HOSTS, PS_COUNT, WORKER_COUNT, TASK_TYPE, TASK_INDEX, TASK_PORT, TRAINING_JOB, SCRIPT, \
             DATA_DIR, LOG_DIR"
        ),
    }
}
