//! Objects by the types of the API: fields that the type does not know are errors.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Reads a value into a type and back. A value that is missing afterwards was no field of the type.
pub(crate) fn strictly<T: DeserializeOwned + Serialize>(value: &Value) -> Vec<String> {
    let typed: T = match serde_json::from_value(value.clone()) {
        Ok(typed) => typed,
        Err(error) => return vec![error.to_string()],
    };
    let mut lost = Vec::new();
    missing(value, &serde_json::to_value(typed).unwrap(), "", &mut lost);
    lost
}

fn missing(from: &Value, to: &Value, path: &str, lost: &mut Vec<String>) {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            for (key, value) in from {
                match to.get(key) {
                    Some(other) => missing(value, other, &format!("{path}.{key}"), lost),
                    // An empty value may be left out.
                    None if value.is_null() || *value == json!({}) || *value == json!([]) => {}
                    None => lost.push(format!("{path}.{key}: no such field")),
                }
            }
        }
        (Value::Array(from), Value::Array(to)) if from.len() == to.len() => {
            for (at, (from, to)) in from.iter().zip(to).enumerate() {
                missing(from, to, &format!("{path}[{at}]"), lost);
            }
        }
        (Value::Number(from), Value::Number(to)) if from.as_f64() == to.as_f64() => {}
        _ if from == to => {}
        _ => lost.push(format!("{path}: {from} became {to}")),
    }
}
