//! The rules of the definition of ScenePlan, checked by dry runs at the API server.

use anyhow::{Context, Result, bail, ensure};
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::report::Verdict;
use crate::scene::PLANS;
use crate::site::Site;

/// A plan that the API server accepts.
fn valid(name: &str) -> Value {
    json!({
        "apiVersion": PLANS, "kind": "ScenePlan", "metadata": {"name": name},
        "spec": {
            "nodes": {"names": ["pinfold-e2e-nowhere"]},
            "labels": {"scene": "SCENCE", "case": "CASE", "index": "INDEX", "type": "TYPE", "aliases": {"SCENCE": "SCENE"}},
            "taint": {"key": "pinfold.io/scene", "effect": "NoSchedule"},
            "roles": {"worker": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}},
            "scenes": [
                {
                    "scene": "1", "groups": [{"name": "all", "perNode": {"worker": 2}}],
                    "cases": [{"case": "1", "nodes": {"all": 1}, "totals": {"servers": 1, "worker": 2}}],
                },
                {
                    "scene": "2", "groups": [{"name": "w", "type": "worker"}, {"name": "p", "type": "ps"}],
                    "cases": [{"case": "1", "nodes": {"w": 1, "p": 1}}],
                },
            ],
        },
    })
}

/// A change that makes the plan invalid: a JSON pointer below `spec`, the new value, and a part of the server's answer.
type Mistake = (&'static str, Value, &'static str);

/// One mistake for each rule of the definition.
fn mistakes() -> Vec<Mistake> {
    [field_mistakes(), node_mistakes(), scene_mistakes()].concat()
}

/// Mistakes in the active case, the label keys and the taint.
fn field_mistakes() -> Vec<Mistake> {
    vec![
        (
            "/active",
            json!({"scene": "1", "case": "7"}),
            "active must name a scene of the plan",
        ),
        (
            "/active",
            json!({"scene": "3", "case": "1"}),
            "active must name a scene of the plan",
        ),
        ("/onBusy", json!("never"), "spec.onBusy"),
        (
            "/taint/key",
            json!("example.com/scene"),
            "a taint's key must start with pinfold.io/",
        ),
        ("/taint/effect", json!("NoExecute"), "spec.taint.effect"),
        (
            "/labels/scene",
            json!("kubernetes.io/scene"),
            "Kubernetes reserves keys",
        ),
        (
            "/labels/case",
            json!("a.k8s.io/case"),
            "Kubernetes reserves keys",
        ),
        ("/labels/index", json!("-index"), "a label's key is a name"),
        (
            "/labels/type",
            json!("CASE"),
            "the four label keys must differ",
        ),
        (
            "/labels/aliases",
            json!({"OTHER": "SCENE"}),
            "the key of an alias must be one",
        ),
        (
            "/labels/aliases",
            json!({"SCENCE": "CASE"}),
            "an alias must differ",
        ),
        (
            "/labels/aliases",
            json!({"SCENCE": "kubernetes.io/scene"}),
            "Kubernetes reserves keys",
        ),
    ]
}

/// Mistakes in the nodes and the roles.
fn node_mistakes() -> Vec<Mistake> {
    let expression = |operator: &str, values: Value| json!({"selector": {"matchExpressions": [{"key": "pool", "operator": operator, "values": values}]}});
    vec![
        ("/nodes", json!({}), "give either selector or names"),
        (
            "/nodes",
            json!({"names": ["a"], "selector": {}}),
            "give either selector or names",
        ),
        ("/nodes/names", json!([]), "spec.nodes.names"),
        ("/nodes/names", json!(["a", "a"]), "Duplicate value"),
        ("/nodes/names", json!(["Upper"]), "spec.nodes.names"),
        (
            "/nodes",
            expression("In", json!([])),
            "In and NotIn need values",
        ),
        (
            "/nodes",
            expression("Exists", json!(["a"])),
            "Exists and DoesNotExist take none",
        ),
        (
            "/nodes",
            expression("Like", json!(["a"])),
            "Unsupported value",
        ),
        (
            "/nodes",
            json!({"selector": {"matchLabels": {"a b": "c"}}}),
            "a label's key is a name",
        ),
        (
            "/nodes",
            json!({"selector": {"matchLabels": {"pool": "a b"}}}),
            "matchLabels",
        ),
        ("/roles/worker/requests/cpu", json!("two"), "requests"),
        ("/roles/worker/limits/cpu", json!("-2"), "limits"),
    ]
}

/// Mistakes in the scenes, their groups and their cases.
fn scene_mistakes() -> Vec<Mistake> {
    let long = "a".repeat(64);
    vec![
        ("/scenes", json!([]), "spec.scenes"),
        ("/scenes/0/scene", json!(long), "Too long"),
        ("/scenes/0/scene", json!("a b"), "spec.scenes[0].scene"),
        ("/scenes/1/scene", json!("1"), "Duplicate value"),
        ("/scenes/0/cases", json!([]), "spec.scenes[0].cases"),
        ("/scenes/0/cases/0/nodes/all", json!(-1), "nodes"),
        (
            "/scenes/0/cases/0/nodes",
            json!({}),
            "a count for each group",
        ),
        (
            "/scenes/0/cases/0/nodes",
            json!({"all": 1, "b": 1}),
            "a count for each group",
        ),
        (
            "/scenes/0/cases/0/totals/servers",
            json!(2),
            "totals.servers of a case",
        ),
        (
            "/scenes/0/cases/0/totals/worker",
            json!(3),
            "a role's total must be",
        ),
        ("/scenes/0/groups", json!([]), "spec.scenes[0].groups"),
        ("/scenes/1/groups/1/name", json!("w"), "Duplicate value"),
        (
            "/scenes/1/groups/1",
            json!({"name": "p"}),
            "each group needs a type",
        ),
        (
            "/scenes/1/groups/1/type",
            json!("worker"),
            "two groups of a scene have the same type",
        ),
    ]
}

/// The plan with a mistake.
fn with(plan: &Value, pointer: &str, value: Value) -> Result<Value> {
    let mut plan = plan.clone();
    let (parent, key) = pointer
        .rsplit_once('/')
        .context("a pointer begins with /")?;
    let parent = plan.pointer_mut(&format!("/spec{parent}"));
    match parent.with_context(|| format!("the valid plan has no {pointer}"))? {
        Value::Object(fields) => {
            fields.insert(key.to_owned(), value);
        }
        Value::Array(items) => {
            let item = items.get_mut(key.parse::<usize>()?);
            *item.with_context(|| format!("the valid plan has no {pointer}"))? = value;
        }
        other => bail!("{pointer} lies in {other}"),
    }
    Ok(plan)
}

/// The API server accepts a valid plan, and refuses each mistake with a message of the rule.
pub(super) async fn rules(site: &Site<'_>) -> Result<Verdict> {
    let api = site.cluster.objects(PLANS, "ScenePlan", None);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let good = valid(&site.namespace);
    let object: DynamicObject = serde_json::from_value(good.clone())?;
    api.create(&dry, &object)
        .await
        .context("the server refuses a valid plan")?;
    let mistakes = mistakes();
    let count = mistakes.len();
    for (pointer, value, part) in mistakes {
        let mistake = format!("{pointer}: {value}");
        let object: DynamicObject = serde_json::from_value(with(&good, pointer, value)?)?;
        match api.create(&dry, &object).await {
            Ok(_) => bail!("the server accepts the mistake {mistake}"),
            Err(kube::Error::Api(status)) => ensure!(
                status.code == 422 && status.message.contains(part),
                "the mistake {mistake} gets the answer {}: {}; expected is \"{part}\"",
                status.code,
                status.message
            ),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Verdict::Passed(format!("1 valid plan, {count} mistakes")))
}
