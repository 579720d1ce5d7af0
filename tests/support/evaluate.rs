//! Admission policies, evaluated as an API server evaluates them: match conditions, variables, validations, and the apply
//! configuration of a mutation merged into the object.
//!
//! The crate `cel` runs the expressions. This file adds the Kubernetes extensions that the policies use: quantities,
//! `Object…{}` with the field names of a Pod, and the authorizer, which answers from given roles and bindings. The server's
//! type check is missing. The recorded policies of a real server give the recorded answers here, so the evaluation is close
//! enough.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cel::common::types::Type;
use cel::common::value::{CowVal, Val};
use cel::extractors::This;
use cel::{Context, Env, ExecutionError, Program, StructType, Value};
use serde_json::{Value as Json, json};

/// The result of the validations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The policy does not match the request.
    NotMatched,
    /// Every validation holds.
    Allowed,
    /// The first validation that fails: the message and the reason.
    Denied(String, String),
}

/// A literal `Object.a.b{…}`: the type's name and the fields.
struct Shape {
    ty: Type,
    fields: &'static [&'static str],
}

impl StructType for Shape {
    fn get_type(&self) -> &Type {
        &self.ty
    }

    fn new_value<'b, 'v>(
        &self,
        fields: BTreeMap<String, CowVal<'b, 'v>>,
    ) -> Result<Box<dyn Val + 'v>, ExecutionError> {
        let mut map: HashMap<String, Value> = HashMap::new();
        for (name, value) in fields {
            if !self.fields.contains(&name.as_str()) {
                return Err(ExecutionError::function_error(
                    self.ty.name(),
                    format!("no field {name}"),
                ));
            }
            map.insert(name, Value::try_from(&*value)?);
        }
        Box::<dyn Val>::try_from(Value::from(map)).map(|value| value as Box<dyn Val + 'v>)
    }
}

fn environment() -> Arc<Env> {
    let mut env = Env::stdlib();
    env.add_extension(cel::extensions::strings).unwrap();
    let shapes: [(&str, &[&str]); 4] = [
        ("Object", &["metadata", "spec"]),
        ("Object.spec", &["containers", "runtimeClassName"]),
        ("Object.spec.containers", &["name", "env"]),
        ("Object.spec.containers.env", &["name", "value"]),
    ];
    for (name, fields) in shapes {
        env.add_type(Shape {
            ty: Type::new_struct(name.to_owned()),
            fields,
        })
        .unwrap();
    }
    Arc::new(env)
}

/// A quantity's amount; the policies ask for whole numbers and for a float.
fn quantity(text: &str) -> Option<f64> {
    let at = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(at);
    let scale = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "Ki" => 1024.0,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * scale)
}

/// A policy with the expressions compiled.
pub(crate) struct Policy {
    env: Arc<Env>,
    conditions: Vec<Program>,
    variables: Vec<(String, Program)>,
    validations: Vec<(Program, Json)>,
    mutations: Vec<Program>,
    /// The roles and bindings by which the authorizer answers.
    rights: Arc<Vec<Json>>,
}

/// The request that an expression reads.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) object: Json,
    pub(crate) old: Json,
    pub(crate) request: Json,
}

// === impl Policy ===

impl Policy {
    /// Compiles a policy of either kind.
    pub(crate) fn new(policy: &Json) -> Self {
        let env = environment();
        let compile = |text: &Json| {
            let text = text.as_str().unwrap();
            env.compile(text)
                .unwrap_or_else(|error| panic!("{error}\n{text}"))
        };
        let list = |key: &str| policy["spec"][key].as_array().cloned().unwrap_or_default();
        let conditions = list("matchConditions")
            .iter()
            .map(|item| compile(&item["expression"]))
            .collect();
        let variables = list("variables")
            .iter()
            .map(|item| {
                (
                    item["name"].as_str().unwrap().to_owned(),
                    compile(&item["expression"]),
                )
            })
            .collect();
        let validations = list("validations")
            .into_iter()
            .map(|item| (compile(&item["expression"]), item))
            .collect();
        let mutations = list("mutations")
            .iter()
            .map(|item| {
                assert_eq!(
                    item["patchType"], "ApplyConfiguration",
                    "the form that is known to work"
                );
                compile(&item["applyConfiguration"]["expression"])
            })
            .collect();
        Self {
            env: Arc::clone(&env),
            conditions,
            variables,
            validations,
            mutations,
            rights: Arc::default(),
        }
    }

    /// The policy in a cluster with the given roles and bindings.
    pub(crate) fn beside(mut self, objects: &[Json]) -> Self {
        self.rights = Arc::new(objects.to_vec());
        self
    }

    fn context(&self, request: &Request) -> Context<'static, 'static> {
        let mut context = Context::with_env(Arc::clone(&self.env));
        let wrong =
            |text: &str| ExecutionError::function_error("quantity", format!("{text} is none"));
        context
            .add_function("quantity", move |text: Arc<String>| {
                quantity(&text).ok_or_else(|| wrong(&text))
            })
            .unwrap();
        context
            .add_function("isInteger", |This(amount): This<f64>| amount.fract() == 0.0)
            .unwrap();
        #[allow(clippy::cast_possible_truncation, reason = "of a number that is whole")]
        context
            .add_function("asInteger", |This(amount): This<f64>| amount as i64)
            .unwrap();
        context
            .add_function("asApproximateFloat", |This(amount): This<f64>| amount)
            .unwrap();
        let user = request.request["userInfo"]["username"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        self.authorize(&mut context, user);
        for (name, value) in [
            ("object", &request.object),
            ("oldObject", &request.old),
            ("request", &request.request),
        ] {
            context.add_variable(name, value.clone()).unwrap();
        }
        // The server evaluates a variable at its first use; a variable that cannot be evaluated is an error only then.
        let mut known: HashMap<String, Value> = HashMap::new();
        for (name, program) in &self.variables {
            context.add_variable_from_value("variables", Value::from(known.clone()));
            if let Ok(value) = program.execute(&context) {
                known.insert(name.clone(), value);
            }
        }
        context.add_variable_from_value("variables", Value::from(known));
        context
    }

    /// The authorizer of a user: each call appends an argument to a text, and the last one looks up
    /// the right in the bindings.
    fn authorize(&self, context: &mut Context<'static, 'static>, user: String) {
        context.add_variable("authorizer", json!("")).unwrap();
        let append = |This(text): This<Arc<String>>, word: Arc<String>| format!("{text}{word} ");
        for call in ["group", "resource", "check"] {
            context.add_function(call, append).unwrap();
        }
        let rights = Arc::clone(&self.rights);
        let allowed = move |This(text): This<Arc<String>>| {
            let words: Vec<&str> = text.split(' ').collect();
            may(&rights, &user, [words[0], words[1], words[2]])
        };
        context.add_function("allowed", allowed).unwrap();
    }

    fn matches(&self, context: &Context<'_, '_>) -> Result<bool, ExecutionError> {
        for condition in &self.conditions {
            match condition.execute(context)? {
                Value::Bool(true) => {}
                Value::Bool(false) => return Ok(false),
                other => panic!("a match condition gives {other:?}"),
            }
        }
        Ok(true)
    }

    /// The result of the validations. An expression that cannot be evaluated denies, as with failurePolicy Fail.
    pub(crate) fn validate(&self, request: &Request) -> Verdict {
        let context = self.context(request);
        match self.matches(&context) {
            Ok(true) => {}
            Ok(false) => return Verdict::NotMatched,
            Err(error) => return Verdict::Denied(error.to_string(), "Error".to_owned()),
        }
        for (program, validation) in &self.validations {
            let reason = validation["reason"]
                .as_str()
                .unwrap_or("Invalid")
                .to_owned();
            match program.execute(&context) {
                Ok(Value::Bool(true)) => {}
                Ok(Value::Bool(false)) => {
                    let message = match validation["messageExpression"].as_str() {
                        Some(text) => {
                            match self.env.compile(text).unwrap().execute(&context).unwrap() {
                                Value::String(text) => text.to_string(),
                                other => panic!("a message is {other:?}"),
                            }
                        }
                        None => validation["message"].as_str().unwrap().to_owned(),
                    };
                    return Verdict::Denied(message, reason);
                }
                Ok(other) => panic!("a validation gives {other:?}"),
                Err(error) => return Verdict::Denied(error.to_string(), "Error".to_owned()),
            }
        }
        Verdict::Allowed
    }

    /// The pod after the mutation; unchanged where the policy does not match.
    ///
    /// # Errors
    /// An expression that cannot be evaluated: with failurePolicy Ignore the server then leaves the pod unchanged.
    pub(crate) fn mutate(&self, pod: &Json) -> Result<Json, ExecutionError> {
        let request = Request {
            object: pod.clone(),
            old: Json::Null,
            request: json!({}),
        };
        let context = self.context(&request);
        let mut pod = pod.clone();
        if self.matches(&context)? {
            for mutation in &self.mutations {
                merge(&mut pod, &mutation.execute(&context)?.json().unwrap());
            }
        }
        Ok(pod)
    }
}

/// Whether a ClusterRoleBinding among the objects gives a service account the right to a group, resource and verb.
fn may(objects: &[Json], user: &str, right: [&str; 3]) -> bool {
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let has = |list: &Json, word: &str| {
        list.as_array()
            .into_iter()
            .flatten()
            .any(|entry| entry == word || entry == "*")
    };
    let bound = of_kind("ClusterRoleBinding").filter(|binding| {
        binding["subjects"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|subject| {
                let (namespace, name) = (subject["namespace"].as_str(), subject["name"].as_str());
                let (Some(namespace), Some(name)) = (namespace, name) else {
                    return false;
                };
                user == format!("system:serviceaccount:{namespace}:{name}")
            })
    });
    let roles = bound.flat_map(|binding| {
        of_kind("ClusterRole").filter(|role| role["metadata"]["name"] == binding["roleRef"]["name"])
    });
    roles
        .flat_map(|role| role["rules"].as_array().into_iter().flatten())
        .any(|rule| {
            ["apiGroups", "resources", "verbs"]
                .iter()
                .zip(right)
                .all(|(key, word)| has(&rule[*key], word))
        })
}

/// Merges an apply configuration: lists of containers and variables are maps by name.
fn merge(into: &mut Json, patch: &Json) {
    match (into, patch) {
        (Json::Object(into), Json::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Json::Null), value);
            }
        }
        (Json::Array(into), Json::Array(patch)) => {
            for value in patch {
                match into.iter_mut().find(|old| old["name"] == value["name"]) {
                    Some(old) => merge(old, value),
                    None => into.push(value.clone()),
                }
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}
