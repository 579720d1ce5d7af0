//! Updates that nobody asked for, and those that are asked for where none may be.

use std::time::Duration;

use pinfold::nri::{ContainerUpdate, CpuChange, Event, Lost, Quota, UpdateError};
use prost::Message;

use crate::listening::{Conduct, Listening, Serving};
use crate::runtime::{Changed, Changes, Reply, ReplyStatus, soon, told};

fn lift(id: &str) -> ContainerUpdate {
    let cpu = CpuChange {
        quota: Some(Quota::Unlimited),
        ..CpuChange::default()
    };
    ContainerUpdate {
        container: id.to_owned(),
        cpu,
        ignore_failure: true,
    }
}

#[tokio::test]
async fn from_outside_of_a_call() {
    let mut serving = Serving::new(Listening::to([Event::CreateContainer]));
    assert_eq!(
        serving.updater.update(vec![lift("a")]).await,
        Err(UpdateError::Away)
    );
    let mut runtime = serving.socket.synchronized(0).await;
    let update = |ids: &[&str]| {
        let (updater, updates) = (
            serving.updater.clone(),
            ids.iter().map(|id| lift(id)).collect(),
        );
        tokio::spawn(async move { updater.update(updates).await })
    };

    let asked = update(&["a", "b"]);
    let (stream, call) = runtime.called().await;
    assert_eq!((stream, call.method.as_str()), (3, "UpdateContainers"));
    let sent = Changed::decode(call.payload.as_slice()).unwrap().update;
    let ids: Vec<(&str, bool)> = sent
        .iter()
        .map(|one| (one.id.as_str(), one.ignore_failure))
        .collect();
    assert_eq!(ids, [("a", true), ("b", true)]);
    // resources { cpu { quota { value: -1 } } }
    let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let quota = [&[10, 17, 18, 15, 18, 13, 8][..], &minus_one[..]].concat();
    let cut = |bytes: &[u8]| bytes[bytes.len() - 11..].to_vec();
    assert_eq!(cut(&sent[0].linux), cut(&quota));
    let failed = Changed {
        update: vec![Changes {
            id: "b".to_owned(),
            ..Changes::default()
        }],
        more: false,
    };
    runtime
        .reply(
            stream,
            &Reply {
                status: None,
                payload: failed.encode_to_vec(),
            },
        )
        .await;
    assert_eq!(
        soon("the answer", asked).await.unwrap(),
        Ok(vec!["b".to_owned()])
    );

    let asked = update(&["c"]);
    let (stream, _) = runtime.called().await;
    let status = ReplyStatus {
        code: 2,
        message: "no".to_owned(),
    };
    runtime
        .reply(
            stream,
            &Reply {
                status: Some(status),
                payload: Vec::new(),
            },
        )
        .await;
    let refused = UpdateError::Refused {
        code: 2,
        message: "no".to_owned(),
    };
    assert_eq!(soon("the answer", asked).await.unwrap(), Err(refused));

    // No answer comes; then one to somebody who has gone, which harms nobody.
    let asked = update(&["d"]);
    let (stream, _) = runtime.called().await;
    let silence = UpdateError::Timeout(Duration::from_secs(2));
    assert_eq!(
        soon("the end of patience", asked).await.unwrap(),
        Err(silence)
    );
    runtime.reply(stream, &Reply::default()).await;
    runtime.reply(99, &Reply::default()).await;

    let asked = update(&["e"]);
    let (stream, _) = runtime.called().await;
    runtime
        .reply(
            stream,
            &Reply {
                status: None,
                payload: vec![0xff],
            },
        )
        .await;
    assert!(matches!(
        soon("the answer", asked).await.unwrap(),
        Err(UpdateError::Nonsense(_))
    ));

    let many: Vec<ContainerUpdate> = (0..60_000).map(|n| lift(&format!("{n:064}"))).collect();
    assert_eq!(
        serving.updater.update(many).await,
        Err(UpdateError::TooMany)
    );

    // The runtime dies before it answers.
    let asked = update(&["f"]);
    runtime.called().await;
    drop(runtime);
    assert_eq!(
        soon("the answer", asked).await.unwrap(),
        Err(UpdateError::Away)
    );
    serving.end().await;
}

#[tokio::test]
async fn not_before_what_exists_is_known() {
    let mut serving = Serving::new(Listening::to([Event::CreateContainer]));
    let mut runtime = serving.socket.accept().await;
    runtime.register().await;
    runtime.configure(0).await;
    assert_eq!(
        serving.updater.update(vec![lift("a")]).await,
        Err(UpdateError::Away)
    );
    runtime.call("Synchronize", Vec::new()).await.unwrap();
    drop(runtime);
    serving.away(|lost| *lost != Lost::NotTried).await;
    serving.end().await;
}

#[tokio::test]
async fn not_from_inside_a_call() {
    let plugin = Listening {
        conduct: Conduct::Update,
        ..Listening::to([Event::CreateContainer])
    };
    let mut serving = Serving::new(plugin);
    let mut runtime = serving.socket.synchronized(0).await;
    runtime
        .call("CreateContainer", told("ps-0", "ps").encode_to_vec())
        .await
        .unwrap();
    assert_eq!(
        *serving.plugin.update.lock().unwrap(),
        Some(Err(UpdateError::InsideCall))
    );
    serving.end().await;
}
