//! The values of the chart.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::yaml::here;

/// The paths of all values in the chart's schema, like `image.tag`. A map or a list with free content is one value.
pub(crate) fn values_of_the_schema() -> BTreeSet<String> {
    let text = std::fs::read_to_string(here("deploy/helm/pinfold/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    let mut values = BTreeSet::new();
    collect(&schema, "", &mut values);
    // Helm sets `global` for charts of charts.
    values.remove("global");
    values
}

fn collect(schema: &Value, path: &str, values: &mut BTreeSet<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        values.insert(path.to_owned());
        return;
    };
    for (name, inner) in properties {
        let inner_path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        collect(inner, &inner_path, values);
    }
}
