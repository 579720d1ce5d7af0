//! [`Preset`]: values with a name, for jobs that are to be as somebody described them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scene::{Amount, PS, Role};

/// Values that a job takes by name. What the job says itself goes before them, and they go before the plan's roles.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The values of the article that asked whether parameter servers and workers should share servers: TensorFlow 1, 300m for
    /// a worker and 2 CPUs for a parameter server, with 4Gi each, without limits and without exclusive CPUs.
    Article,
}

// === impl Preset ===

impl Preset {
    /// The image of all containers. The article had TensorFlow 1.3, which doesn't read thread counts from the environment; 1.15 is
    /// the last one of its line, and does.
    pub(super) fn image(self) -> &'static str {
        match self {
            Self::Article => "tensorflow/tensorflow:1.15.5",
        }
    }

    /// The resources of a task of the role; `None` for a role that the preset leaves to the plan.
    pub(super) fn role(self, role: &str) -> Option<Role> {
        let cpu = match (self, role) {
            (Self::Article, "worker") => "300m",
            (Self::Article, PS) => "2",
            (Self::Article, _) => return None,
        };
        let requests = [("cpu", cpu), ("memory", "4Gi")];
        Some(Role {
            requests: BTreeMap::from(
                requests.map(|(resource, amount)| (resource.to_owned(), Amount(amount.to_owned()))),
            ),
            pin: Some(false),
            ..Role::default()
        })
    }
}
