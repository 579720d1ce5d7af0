//! [`tell`]: the uid of this Node, which a mirror pod must name as its owner.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::ApiPods;
use crate::agent::event::Event;
use crate::cluster::{Api, node};
use crate::pod::ApiUid;

/// The least time between two requests.
const BETWEEN: Duration = Duration::from_secs(60);

/// Reads the Node's uid as soon as a mirror pod names an unknown one, and tells the owner. Nodes without mirror pods cost no
/// request. A replaced Node is read again.
pub(super) async fn tell(
    api: Api,
    name: String,
    mut pods: watch::Receiver<ApiPods>,
    owner: mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let mut known: Option<ApiUid> = None;
    loop {
        let is_new = |pods: &ApiPods| {
            let mirrors = pods.iter().flat_map(|pods| pods.iter()).filter_map(|pod| pod.mirror.as_ref());
            mirrors.into_iter().any(|mirror| Some(&mirror.node) != known.as_ref())
        };
        if pods.wait_for(is_new).await.is_err() {
            return Ok(());
        }
        match node::read(&api, &name).await {
            Ok(Some(found)) => {
                let uid = ApiUid::from(found.uid);
                if known.as_ref() != Some(&uid) && owner.send(Event::Node(uid.clone())).await.is_err() {
                    return Ok(());
                }
                known = Some(uid);
                tokio::time::sleep(BETWEEN).await;
                // The same pods need no second request.
                if pods.changed().await.is_err() {
                    return Ok(());
                }
            }
            Ok(None) => tokio::time::sleep(BETWEEN).await,
            Err(failure) => {
                tracing::warn!(
                    "mirror pods are not matched with their static pods yet: Node {name} can't be read: {failure}"
                );
                tokio::time::sleep(BETWEEN).await;
            }
        }
    }
}
