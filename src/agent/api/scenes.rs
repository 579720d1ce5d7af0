//! [`tell`]: the node's running pods, for the scene task.

use tokio::sync::watch;

use super::context::ApiPods;
use crate::cluster::scenes::{RunningPod, RunningPods};

pub(super) async fn tell(
    mut known: watch::Receiver<ApiPods>,
    out: watch::Sender<RunningPods>,
) -> anyhow::Result<()> {
    loop {
        let pods = {
            let known = known.borrow_and_update();
            known.is_complete().then(|| RunningPod::among(known.pods()))
        };
        out.send_if_modified(|sent| {
            let changed = *sent != pods;
            *sent = pods;
            changed
        });
        if known.changed().await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::cluster::pods::PodsEvent;
    use crate::pod::Pod;

    #[tokio::test]
    async fn unknown_pods_differ_from_no_pods() {
        let pod = |name: &str, finished| {
            Arc::new(Pod {
                name: name.to_owned(),
                api_uid: Some(name.into()),
                finished,
                ..Pod::default()
            })
        };
        let list = |pods: Vec<Arc<Pod>>| {
            let unreadable = BTreeMap::new();
            PodsEvent::Listed { pods, unreadable }
        };
        let (sender, known) = watch::channel(ApiPods::default());
        let (out, mut received) = watch::channel(None);
        tokio::spawn(tell(known, out));
        let some = list(vec![pod("b", false), pod("a", false), pod("c", true)]);
        sender.send_modify(|known| {
            known.take(&some);
        });
        received.changed().await.unwrap();
        let names = |pods: &RunningPods| {
            pods.as_ref()
                .map(|pods| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(
            names(&received.borrow_and_update()),
            Some(vec!["/a".to_owned(), "/b".to_owned()])
        );
        let none = list(Vec::new());
        sender.send_modify(|known| {
            known.take(&none);
        });
        received.changed().await.unwrap();
        assert_eq!(names(&received.borrow_and_update()), Some(Vec::new()));
    }
}
