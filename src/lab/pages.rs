//! [`AgentPages`]: the agents' pages of metrics, read through port-forwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::client::Endpoint;
use crate::cluster::Failure;
use crate::cluster::agents::{AgentRoute, Agents};

/// How long the pages of all nodes may take. What an agent that is just restarted doesn't tell now, it tells at the next reading.
const DEADLINE: Duration = Duration::from_secs(8);

/// The agents of some nodes.
#[derive(Debug, Clone)]
pub(super) struct AgentPages {
    routes: BTreeMap<String, Endpoint>,
}

// === impl AgentPages ===

impl AgentPages {
    /// The agents on the nodes for which `is_wanted` is true.
    ///
    /// # Errors
    /// The agents' pods can't be listed.
    pub(super) async fn find(
        agents: &Agents,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, Failure> {
        let pods = agents.list(None).await?;
        let routes = pods
            .into_iter()
            .filter(|pod| is_wanted(&pod.node))
            .map(|pod| {
                let node = pod.node.clone();
                let route = Arc::new(AgentRoute::new(agents.clone(), pod));
                (node.clone(), Endpoint::behind(route, &node))
            });
        Ok(Self {
            routes: routes.collect(),
        })
    }

    /// The nodes that have an agent.
    pub(super) fn nodes(&self) -> BTreeSet<&str> {
        self.routes.keys().map(String::as_str).collect()
    }

    /// The pages of the agents that answer in time, by node.
    pub(super) async fn read(&self) -> BTreeMap<String, String> {
        let mut requests = JoinSet::new();
        for (node, endpoint) in &self.routes {
            let (node, endpoint) = (node.clone(), endpoint.clone());
            requests.spawn(async move {
                let bodies = tokio::time::timeout(DEADLINE, endpoint.get(&["/metrics"])).await;
                let page = bodies.ok()?.ok()?.into_iter().next()?;
                Some((node, String::from_utf8_lossy(&page).into_owned()))
            });
        }
        let mut pages = BTreeMap::new();
        while let Some(page) = requests.join_next().await {
            pages.extend(page.ok().flatten());
        }
        pages
    }
}
