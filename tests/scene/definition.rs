//! The definition's own schema and rules, evaluated as an API server evaluates them: what `scene check` refuses in a plan, the
//! server refuses, too.

use std::collections::HashMap;
use std::sync::Arc;

use cel::extractors::This;
use cel::{Context, Env, Value};
use pinfold::scene::{Severity, definition, key_fault, reserved_domain, value_fault};
use proptest::prelude::*;
use regex_lite::Regex;
use serde_json::{Value as Json, json};

use super::check::{MISTAKES, with};
use super::{AMOUNTS, SMALL, example, findings};

/// Paths of mistakes that only `scene check` names. They need a comparison of quantities, a look at nodes or other plans, or the server
/// has a rule of its own (fields that are not known, an object's name).
const CHECK_ALONE: &[&str] = &[
    "spec.aktive",
    "spec.replicas",
    "metadata.name",
    "spec.scenes[0].cases[0].nodes",
    "spec.scenes[0].groups[1].perNode.servers",
    "spec.nodes.selector.matchLabels.INDEX",
    "spec.nodes.names",
    "spec.roles.worker.requests.cpu",
    "spec.roles.worker",
    "spec.roles.servers",
];

/// Mistakes in what labels, taints, quantities and selectors are made of.
const PARTS: &[(&str, &str)] = &[
    ("spec:\n", "spec:\n  labels: {case: ''}\n"),
    ("spec:\n", "spec:\n  labels: {case: -a}\n"),
    ("spec:\n", "spec:\n  labels: {case: Example.org/case}\n"),
    ("spec:\n", "spec:\n  labels: {case: a..b/case}\n"),
    ("spec:\n", "spec:\n  labels: {case: example.org/a/b}\n"),
    ("spec:\n", "spec:\n  labels: {type: kubernetes.io/type}\n"),
    ("spec:\n", "spec:\n  labels: {aliases: {SCENCE: a b}}\n"),
    (
        "spec:\n",
        "spec:\n  labels: {aliases: {SCENCE: x.kubernetes.io/s}}\n",
    ),
    (
        "spec:\n",
        "spec:\n  labels: {aliases: {SCENCE: a, CASE: a}}\n",
    ),
    ("spec:\n", "spec:\n  taint: {key: pinfold.io/}\n"),
    ("spec:\n", "spec:\n  taint: {key: pinfold.io/a/b}\n"),
    ("spec:\n", "spec:\n  taint: {value: a b}\n"),
    ("{pool: train}", "{'a b': x}"),
    ("{pool: train}", "{pool: a b}"),
    (
        "{matchLabels: {pool: train}}",
        "{matchExpressions: [{key: 'a b', operator: Exists}]}",
    ),
    (
        "{matchLabels: {pool: train}}",
        "{matchExpressions: [{key: pool, operator: NotIn, values: []}]}",
    ),
    (
        "{matchLabels: {pool: train}}",
        "{matchExpressions: [{key: pool, operator: In, values: [a b]}]}",
    ),
    (
        "{matchLabels: {pool: train}}",
        "{matchExpressions: [{key: pool, operator: DoesNotExist, values: [a]}]}",
    ),
    ("memory: 4Gi}", "memory: 4gi}"),
    ("memory: 4Gi}", "memory: -4Gi}"),
    ("memory: 4Gi}", "memory: ''}"),
    ("limits: {cpu: 1, ", "limits: {cpu: -1, "),
    ("limits: {cpu: 1, ", "limits: {cpu: 1.5, "),
];

/// Valid changes that resemble the mistakes of [`PARTS`].
const RIGHT: &[(&str, &str)] = &[
    (
        "spec:\n",
        "spec:\n  labels: {case: example.org/Case_1.a, aliases: {SCENCE: SCENE, INDEX: a/b}}\n",
    ),
    ("spec:\n", "spec:\n  labels: {case: mykubernetes.io/case}\n"),
    (
        "spec:\n",
        "spec:\n  taint: {key: pinfold.io/case, value: ''}\n",
    ),
    (
        "spec:\n",
        "spec:\n  taint: {value: A_b.c-1, effect: PreferNoSchedule}\n",
    ),
    ("{pool: train}", "{kubernetes.io/os: linux, pool: ''}"),
    (
        "{matchLabels: {pool: train}}",
        "{matchExpressions: [{key: k8s.io/a, operator: In, values: ['', a]}]}",
    ),
    (
        "{matchLabels: {pool: train}}",
        "{matchExpressions: [{key: pool, operator: Exists, values: []}]}",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "limits: {cpu: '1', memory: 4e9}",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "limits: {cpu: '+1.5', memory: .5Gi, example.org/gpu: 0}",
    ),
];

/// A document for CEL: whole numbers have a single type, and null fields are absent.
fn cel(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => number
            .as_i64()
            .map_or_else(|| Value::from(number.as_f64().unwrap()), Value::Int),
        Json::String(text) => Value::from(text.clone()),
        Json::Array(list) => Value::from(list.iter().map(cel).collect::<Vec<_>>()),
        Json::Object(map) => {
            let there = map.iter().filter(|(_, value)| !value.is_null());
            Value::from(
                there
                    .map(|(key, value)| (key.clone(), cel(value)))
                    .collect::<HashMap<_, _>>(),
            )
        }
    }
}

/// Whether a rule holds; a failed evaluation refuses.
fn holds(rule: &str, value: &Json) -> bool {
    let mut env = Env::stdlib();
    env.add_extension(cel::extensions::strings).unwrap();
    let env = Arc::new(env);
    let program = env
        .compile(rule)
        .unwrap_or_else(|error| panic!("{error}\n{rule}"));
    let mut context = Context::with_env(env);
    let sum = |This(list): This<Arc<Vec<Value>>>| {
        list.iter()
            .map(|one| {
                if let Value::Int(number) = one {
                    *number
                } else {
                    panic!("{one:?}")
                }
            })
            .sum::<i64>()
    };
    context.add_function("sum", sum).unwrap();
    context.add_variable_from_value("self", cel(value));
    matches!(program.execute(&context), Ok(Value::Bool(true)))
}

/// Fills in the defaults of missing fields.
fn complete(value: &mut Json, schema: &Json) {
    if let Json::Object(map) = value {
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            if !property["default"].is_null() && !map.contains_key(key) {
                map.insert(key.clone(), property["default"].clone());
            }
        }
    }
    let inner = |key: &str| {
        let property = &schema["properties"][key];
        if property.is_null() {
            &schema["additionalProperties"]
        } else {
            property
        }
    };
    match value {
        Json::Object(map) => map
            .iter_mut()
            .for_each(|(key, value)| complete(value, inner(key))),
        Json::Array(list) => list
            .iter_mut()
            .for_each(|value| complete(value, &schema["items"])),
        _ => {}
    }
}

/// The schema's refusals of a value, with the paths.
fn refusals(value: &Json, schema: &Json, path: &str, found: &mut Vec<String>) {
    if schema.is_null() || (value.is_null() && schema["nullable"] == true) {
        return;
    }
    let before = found.len();
    let mut refuse = |right: bool, what: &str| {
        if !right {
            found.push(format!("{path}: {what}"));
        }
    };
    let within = |number: u64, least: &str, most: &str| {
        schema[least].as_u64().is_none_or(|least| number >= least)
            && schema[most].as_u64().is_none_or(|most| number <= most)
    };
    let typed = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("string") => value.is_string(),
        _ => value.is_string() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
    };
    refuse(typed, "type");
    let words = schema["enum"].as_array();
    refuse(words.is_none_or(|words| words.contains(value)), "enum");
    match value {
        Json::String(text) => {
            refuse(
                within(text.chars().count() as u64, "minLength", "maxLength"),
                "length",
            );
            let pattern = schema["pattern"]
                .as_str()
                .map(|pattern| Regex::new(pattern).unwrap());
            refuse(
                pattern.is_none_or(|pattern| pattern.is_match(text)),
                "pattern",
            );
        }
        Json::Number(number) => {
            let (number, bound) = (number.as_f64().unwrap(), |key: &str| schema[key].as_f64());
            refuse(
                bound("minimum").is_none_or(|least| number >= least),
                "minimum",
            );
            refuse(
                bound("maximum").is_none_or(|most| number <= most),
                "maximum",
            );
        }
        Json::Array(list) => {
            refuse(within(list.len() as u64, "minItems", "maxItems"), "items");
            let key = |item: &Json| match schema["x-kubernetes-list-map-keys"][0].as_str() {
                Some(key) => item[key].clone(),
                None => item.clone(),
            };
            let unique = !schema["x-kubernetes-list-type"].is_null();
            let twice = list
                .iter()
                .enumerate()
                .any(|(at, one)| list[..at].iter().any(|two| key(one) == key(two)));
            refuse(!unique || !twice, "twice");
        }
        Json::Object(map) => {
            refuse(
                within(map.len() as u64, "minProperties", "maxProperties"),
                "properties",
            );
            let required = schema["required"].as_array().into_iter().flatten();
            required.for_each(|key| refuse(map.contains_key(key.as_str().unwrap()), "required"));
        }
        _ => {}
    }
    match value {
        Json::Object(map) => {
            for (key, value) in map {
                let property = &schema["properties"][key];
                let inner = if property.is_null() {
                    &schema["additionalProperties"]
                } else {
                    property
                };
                refusals(value, inner, &format!("{path}.{key}"), found);
            }
        }
        Json::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                refusals(value, &schema["items"], &format!("{path}[{at}]"), found);
            }
        }
        _ => {}
    }
    // The server evaluates rules on values that have the right types only.
    if found.len() == before {
        for rule in schema["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            if !holds(rule["rule"].as_str().unwrap(), value) {
                found.push(format!("{path}: {}", rule["message"].as_str().unwrap()));
            }
        }
    }
}

fn schema() -> Json {
    serde_json::to_value(definition()).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        .clone()
}

/// The definition's refusals of the plan in a text.
fn refused(text: &str) -> Vec<String> {
    let (schema, mut found) = (schema(), Vec::new());
    let mut plan: Json = serde_saphyr::from_str(text).unwrap();
    complete(&mut plan, &schema);
    refusals(
        &plan["spec"],
        &schema["properties"]["spec"],
        "spec",
        &mut found,
    );
    found
}

fn errors(text: &str) -> Vec<String> {
    let found = findings(text, None).into_iter();
    found
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| finding.to_string())
        .collect()
}

#[test]
fn a_plan_that_check_refuses_is_refused_by_the_definition() {
    for &(old, new) in PARTS {
        let text = with(SMALL, old, new);
        assert_ne!(errors(&text), Vec::<String>::new(), "{new}");
        assert_ne!(
            refused(&text),
            Vec::<String>::new(),
            "{new}: {:?}",
            errors(&text)
        );
    }
    for &(old, new, severity, path, _) in MISTAKES {
        let text = with(SMALL, old, new);
        let refusals = refused(&text);
        if severity == "warning" {
            assert_eq!(refusals, Vec::<String>::new(), "{new}");
        } else if !CHECK_ALONE.contains(&path) {
            assert_ne!(refusals, Vec::<String>::new(), "{new}: {:?}", errors(&text));
        }
    }
}

#[test]
fn a_plan_that_check_takes_is_taken_by_the_definition() {
    for text in [SMALL, &example()] {
        assert_eq!(refused(text), Vec::<String>::new());
    }
    for &(old, new) in RIGHT {
        let text = with(SMALL, old, new);
        assert_eq!(
            (errors(&text), refused(&text)),
            (Vec::new(), Vec::new()),
            "{new}"
        );
    }
}

/// Further valid plans: the base plan with harmless changes.
const HARMLESS: &[(&str, &str)] = &[
    ("name: small", "name: small.2"),
    ("spec:\n", "spec:\n  onBusy: wait\n"),
    ("spec:\n", "spec:\n  onBusy: force\n"),
    ("spec:\n", "spec:\n  taint: {}\n"),
    ("spec:\n", "spec:\n  labels: {scene: SCENE}\n"),
    ("spec:\n", "spec:\n  labels: {type: example.org/type}\n"),
    ("memory: 4Gi}", "memory: 500M}"),
    ("{pool: train}", "{pool: train, zone: a}"),
];

/// The schema and the rules of the definition, and `scene check`, judge the same plans in the same way.
#[test]
fn check_and_the_definition_have_the_same_verdict_on_each_plan() {
    let mistakes = MISTAKES
        .iter()
        .filter(|mistake| !CHECK_ALONE.contains(&mistake.3));
    let mistakes = mistakes.map(|mistake| (mistake.0, mistake.1));
    let mutations = HARMLESS.iter().chain(RIGHT).chain(PARTS).copied();
    let (mut valid, mut invalid) = (0, 0);
    for (old, new) in mutations.chain(mistakes) {
        let text = with(SMALL, old, new);
        let (by_check, by_definition) = (errors(&text), refused(&text));
        assert_eq!(
            by_check.is_empty(),
            by_definition.is_empty(),
            "{new}: {by_check:?} {by_definition:?}"
        );
        if by_check.is_empty() {
            valid += 1;
        } else {
            invalid += 1;
        }
    }
    assert!(
        valid >= 15 && invalid >= 35,
        "{valid} valid, {invalid} invalid plans"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Keys, values and quantities are the same for both.
    #[test]
    fn check_and_the_definition_agree_on_texts(
        key in "([a-zA-Z.-]{0,3}(kubernetes[.]io|k8s[.]io|a[.]b)?/)?[-_.a-zA-Z0-9/ä]{0,5}",
        long in ("[a-z]{250,256}", "[a-z]{60,66}"),
        value in "[-_.aZ9 ]{0,4}|a{62,65}",
        amount in "[-+]?[0-9]{0,2}[.]?[0-9]{0,2}([numkMGTPEKi]{0,2}|[eE][-+]?[0-9.]{0,2})",
    ) {
        let spec = schema()["properties"]["spec"]["properties"].clone();
        let says = |value: Json, schema: &Json| {
            let mut found = Vec::new();
            refusals(&value, schema, "", &mut found);
            found.is_empty()
        };
        let selector = &spec["nodes"]["properties"]["selector"]["properties"];
        let own = &spec["labels"]["properties"]["case"];
        for key in [key, long.0.clone(), long.1.clone(), format!("{}/{}", long.0, long.1)] {
            let right = key_fault(&key).is_none();
            prop_assert_eq!(says(json!({&key: "a"}), &selector["matchLabels"]), right, "{}", &key);
            let expression = &selector["matchExpressions"]["items"]["properties"]["key"];
            prop_assert_eq!(says(json!(&key), expression), right, "{}", &key);
            prop_assert_eq!(says(json!(&key), own), right && reserved_domain(&key).is_none(), "{}", &key);
        }
        let right = value_fault(&value).is_none();
        prop_assert_eq!(says(json!(&value), &spec["taint"]["properties"]["value"]), right, "{}", &value);
        let amounts = &spec["roles"]["additionalProperties"]["properties"]["limits"];
        let right = (AMOUNTS.read)("cpu", &amount).is_ok();
        prop_assert_eq!(says(json!({"cpu": &amount}), amounts), right, "{}", &amount);
    }
}
