//! Claims of slots by many nodes at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pinfold::cluster::claims::{ClaimOutcome, ClaimOwner, ClaimSettings, Claims};
use pinfold::cluster::{Api, Failure};
use serde_json::{Value, json};

use crate::fakeapi::{ADMIN, FakeApi, Fault, When};

const NAMESPACE: &str = "pinfold";

fn cluster(nodes: usize) -> FakeApi {
    let fake = FakeApi::direct();
    fake.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}));
    for node in 0..nodes {
        add_node(&fake, &format!("n{node}"), &format!("u{node}"));
    }
    fake
}

fn add_node(fake: &FakeApi, name: &str, uid: &str) -> Value {
    fake.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": uid}}))
}

fn claims(fake: &FakeApi, node: &str, uid: &str) -> Claims {
    let api = Api::new(fake.client(ADMIN), Duration::from_secs(10));
    let owner = ClaimOwner {
        node: node.to_owned(),
        uid: uid.to_owned(),
    };
    Claims::new(api, NAMESPACE, owner, ClaimSettings::default())
}

fn slots(count: usize, from: usize) -> Vec<String> {
    (0..count)
        .map(|slot| format!("slot-{:03}", (slot + from) % count))
        .collect()
}

/// The uid of the holder of each slot, by the server's Leases.
fn held(fake: &FakeApi) -> BTreeMap<String, String> {
    let leases = fake.all("coordination.k8s.io/v1", "Lease");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    leases
        .iter()
        .map(|lease| {
            (
                text(&lease["metadata"]["name"]),
                text(&lease["metadata"]["ownerReferences"][0]["uid"]),
            )
        })
        .collect()
}

/// All nodes claim at the same time. `begin` gives each node's first slot.
async fn scramble(
    fake: &FakeApi,
    nodes: usize,
    slot_count: usize,
    begin: impl Fn(usize) -> usize,
) -> Vec<Option<String>> {
    let tasks: Vec<_> = (0..nodes)
        .map(|node| {
            let claims = claims(fake, &format!("n{node}"), &format!("u{node}"));
            let names = slots(slot_count, begin(node));
            tokio::spawn(async move { claims.claim_first(names, &BTreeMap::new()).await.unwrap() })
        })
        .collect();
    let mut got = Vec::new();
    for task in tasks {
        got.push(task.await.unwrap());
    }
    got
}

#[tokio::test(start_paused = true)]
async fn a_hundred_nodes_claim_a_hundred_slots() {
    // First slots: spread evenly, spread by a hash, and the same slot for all nodes.
    for (name, most, begin) in [
        (
            "spread",
            1,
            (|node: usize| node * 7919 % 100) as fn(usize) -> usize,
        ),
        ("hashed", 2, |node| {
            node.wrapping_mul(2_654_435_761) / 64 % 100
        }),
        ("worst", 7, |_| 0),
    ] {
        let fake = cluster(100);
        let got = scramble(&fake, 100, 100, begin).await;
        let distinct: BTreeSet<&String> = got.iter().flatten().collect();
        assert_eq!(distinct.len(), 100, "{name}: each node has its own slot");
        let there = held(&fake);
        for (node, slot) in got.iter().enumerate() {
            assert_eq!(there[slot.as_ref().unwrap()], format!("u{node}"), "{name}");
        }
        let writes = fake.count("create", "leases");
        let lists = fake.count("list", "leases");
        assert!(lists <= 300, "{name}: {lists} lists");
        assert!(writes <= 100 * most, "{name}: {writes} creates");
        println!("{name}: {writes} creates and {lists} lists for 100 nodes");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_busy_servers_cost_no_slot() {
    let fake = cluster(50);
    // Failures after which the claim may exist, and a busy server.
    fake.fail(
        When::always().verb("create").on("leases").times(15),
        Fault::Half,
    );
    fake.fail(
        When::always().verb("create").on("leases").times(10),
        Fault::Drop,
    );
    let busy = Fault::Refuse {
        code: 429,
        text: "Too many requests",
        retry_after: Some(1),
    };
    fake.fail(When::always().on("leases").times(20), busy);
    fake.fail(
        When::always().verb("get").on("leases").times(5),
        Fault::Hang,
    );
    let got = scramble(&fake, 50, 50, |node| node * 13).await;
    let distinct: BTreeSet<&String> = got.iter().flatten().collect();
    assert_eq!(distinct.len(), 50);
    let there = held(&fake);
    assert_eq!(there.len(), 50, "no node holds two slots");
    for (node, slot) in got.iter().enumerate() {
        assert_eq!(there[slot.as_ref().unwrap()], format!("u{node}"));
    }
}

#[tokio::test(start_paused = true)]
async fn surplus_nodes_get_no_slot() {
    let fake = cluster(12);
    let got = scramble(&fake, 12, 5, |node| node).await;
    assert_eq!(got.iter().flatten().collect::<BTreeSet<_>>().len(), 5);
    assert_eq!(got.iter().filter(|slot| slot.is_none()).count(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_became_free_after_the_last_list_is_found() {
    let fake = cluster(2);
    let (one, other) = (claims(&fake, "n0", "u0"), claims(&fake, "n1", "u1"));
    let none = BTreeMap::new();
    other.claim("slot-000", &none).await.unwrap();
    one.look_around().await.unwrap();
    // The list of `one` has become stale.
    assert!(other.release("slot-000").await.unwrap());
    for slot in &slots(5, 0)[1..] {
        assert_eq!(other.claim(slot, &none).await.unwrap(), ClaimOutcome::New);
    }
    fake.clear_log();
    let got = one.claim_first(slots(5, 0), &none).await.unwrap();
    assert_eq!(got.as_deref(), Some("slot-000"));
    assert_eq!(
        (fake.count("create", "leases"), fake.count("list", "leases")),
        (4, 1),
        "three refusals, one list, and the free slot"
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_survives_a_restart_and_ends_by_release_or_with_its_node() {
    let fake = cluster(2);
    let (one, other) = (claims(&fake, "n0", "u0"), claims(&fake, "n1", "u1"));
    let labels = BTreeMap::from([("pinfold.io/plan".to_owned(), "p".to_owned())]);
    assert_eq!(one.claim("a", &labels).await.unwrap(), ClaimOutcome::New);
    assert_eq!(one.claim("a", &labels).await.unwrap(), ClaimOutcome::Ours);
    assert_eq!(
        other.claim("a", &labels).await.unwrap(),
        ClaimOutcome::Taken
    );
    // After a restart, the node lists its claims from the server's cache and confirms each claim by a read.
    fake.clear_log();
    assert_eq!(
        claims(&fake, "n0", "u0").mine().await.unwrap(),
        BTreeSet::from(["a".to_owned()])
    );
    assert!(other.mine().await.unwrap().is_empty());
    assert_eq!((fake.count("list", ""), fake.count("get", "")), (2, 1));
    assert_eq!(
        fake.log()
            .iter()
            .map(|logged| logged.from_etcd)
            .sum::<usize>(),
        1
    );
    assert_eq!(other.list().await.unwrap()["a"].node, "n0");
    // A node can't release the claim of a different node.
    assert!(!other.release("a").await.unwrap());
    assert!(one.release("a").await.unwrap());
    assert!(!one.release("a").await.unwrap());
    assert_eq!(other.claim("a", &labels).await.unwrap(), ClaimOutcome::New);

    // The deletion of the Node deletes its claims. A Node of the same name with a new uid is a different Node.
    fake.remove(&fake.get("v1", "Node", "", "n1").unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(held(&fake).is_empty());
    add_node(&fake, "n1", "u1-new");
    assert_eq!(
        claims(&fake, "n1", "u1-new")
            .claim("a", &labels)
            .await
            .unwrap(),
        ClaimOutcome::New
    );
    // The server deletes a claim whose Node does not exist.
    assert_eq!(
        claims(&fake, "n9", "u9").claim("b", &labels).await.unwrap(),
        ClaimOutcome::New
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(held(&fake).into_keys().collect::<Vec<_>>(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_nodes_own_claim_is_never_reported_as_taken() {
    // The answer to the create is lost, the read of the holder fails, and the existing claim refuses the second create.
    for lost in [
        Fault::Hang,
        Fault::Drop,
        Fault::Refuse {
            code: 503,
            text: "no",
            retry_after: None,
        },
    ] {
        let fake = cluster(1);
        fake.fail(
            When::always().verb("create").on("leases").times(1),
            Fault::Half,
        );
        fake.fail(When::always().verb("get").on("leases").times(1), lost);
        let got = claims(&fake, "n0", "u0")
            .claim_first(["a", "b"], &BTreeMap::new())
            .await
            .unwrap();
        assert_eq!(got.unwrap(), "a");
        assert_eq!(held(&fake).into_keys().collect::<Vec<_>>(), ["a"]);
    }
    // Only the first refused slot causes a read of the holder.
    let fake = cluster(2);
    for name in ["a", "a2"] {
        claims(&fake, "n1", "u1")
            .claim(name, &BTreeMap::new())
            .await
            .unwrap();
    }
    let one = claims(&fake, "n0", "u0");
    fake.clear_log();
    let names = ["a", "a2", "b", "c"];
    assert_eq!(
        one.claim_first(names, &BTreeMap::new())
            .await
            .unwrap()
            .unwrap(),
        "b"
    );
    assert_eq!(fake.count("get", "leases"), 1);

    // A claim from before a restart, unknown to the new process.
    let again = claims(&fake, "n0", "u0");
    fake.clear_log();
    assert_eq!(
        again
            .claim_first(["b", "c"], &BTreeMap::new())
            .await
            .unwrap()
            .unwrap(),
        "b"
    );
    assert_eq!(
        (fake.count("create", "leases"), fake.count("get", "leases")),
        (1, 1)
    );
    assert_eq!(held(&fake), {
        let of = |(name, uid): (&str, &str)| (name.to_owned(), uid.to_owned());
        BTreeMap::from([("a", "u1"), ("a2", "u1"), ("b", "u0")].map(of))
    });
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_kind_is_an_error() {
    let fake = cluster(1);
    let claims = claims(&fake, "n0", "u0");
    claims.claim("a", &BTreeMap::new()).await.unwrap();
    for text in [
        "{}",
        r#"{"items": []}"#,
        r#"{"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {}}"#,
        r#"{"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": []}"#,
        r#"{"kind": "Lease", "metadata": {"name": "b", "uid": "x"}, "items": []}"#,
    ] {
        fake.fail(
            When::always().on("leases"),
            Fault::Refuse {
                code: 200,
                text,
                retry_after: None,
            },
        );
        let (mine, all, others) = (
            claims.mine().await,
            claims.list().await,
            claims.look_around().await,
        );
        for failure in [mine.unwrap_err(), all.unwrap_err(), others.unwrap_err()] {
            assert!(
                matches!(failure, Failure::InvalidResponse(_)),
                "{text}: {failure}"
            );
        }
        let failure = claims.release("a").await.unwrap_err();
        assert!(
            matches!(failure, Failure::InvalidResponse(_)),
            "{text}: {failure}"
        );
    }
    fake.heal();
    assert_eq!(
        claims.mine().await.unwrap(),
        BTreeSet::from(["a".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_list_is_an_error() {
    let fake = cluster(1);
    fake.user("agent", "agent");
    let api = Api::new(fake.client("agent"), Duration::from_secs(10));
    let owner = ClaimOwner {
        node: "n0".to_owned(),
        uid: "u0".to_owned(),
    };
    let claims = Arc::new(Claims::new(api, NAMESPACE, owner, ClaimSettings::default()));
    assert!(
        claims
            .mine()
            .await
            .unwrap_err()
            .to_string()
            .contains("cannot list resource \"leases\"")
    );
    let error = claims
        .claim_first(slots(3, 0), &BTreeMap::new())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot create resource \"leases\""),
        "{error}"
    );
    assert_eq!(
        fake.count("create", "leases"),
        1,
        "no retry after a refusal"
    );
}
