use proptest::prelude::*;

use super::*;
use crate::pod::{Container, EnvSource, Mirror, Shared};

/// An update of a source, about some of a few pods.
#[derive(Debug, Clone)]
enum StoreUpdate {
    Listed(PodSource, Vec<usize>),
    Applied(PodSource, usize, u8),
    Deleted(PodSource, usize),
    All(Vec<usize>),
    Pod(usize, u8),
    Gone(usize),
    Away,
}

/// A pod. Pods 4 and 5 are mirror pods of the static pod with the uid of pod 0.
fn pod(number: usize, environment: u8) -> Pod {
    let env = [("N".to_owned(), EnvSource::Value(environment.to_string()))];
    let main = Container {
        name: "main".to_owned(),
        env: env.into(),
        args: vec!["train".to_owned()].into(),
        ..Container::default()
    };
    let mirror = (number > 3).then(|| Mirror {
        uid: "uid-0".into(),
        node: "node".into(),
    });
    Pod {
        name: format!("pod-{number}"),
        uid: Some(format!("uid-{number}").into()),
        api_uid: Some(format!("uid-{number}").into()),
        containers: vec![main],
        mirror,
        ..Pod::default()
    }
}

fn of_runtime(number: usize, environment: u8) -> RuntimePod {
    RuntimePod {
        pod: pod(number, environment),
        injected: BTreeMap::new(),
        removed: BTreeSet::new(),
        stopped: BTreeSet::new(),
    }
}

fn key(source: PodSource, number: usize) -> PodKey {
    match source {
        PodSource::Api => PodKey::of_api(&pod(number, 0)),
        PodSource::Folder => PodKey::Folder {
            file: "file".into(),
            number,
        },
    }
}

fn listed(source: PodSource, numbers: &[usize]) -> PodsChange {
    let pods = numbers.iter();
    PodsChange::Listed(
        pods.map(|&number| (key(source, number), Arc::new(pod(number, 0))))
            .collect(),
    )
}

fn take(store: &mut PodStore, source: PodSource, change: PodsChange) {
    store.take_pods(PodsUpdate {
        source,
        change: Some(change),
        errors: Vec::new(),
    });
}

fn updates() -> impl Strategy<Value = StoreUpdate> {
    let some = || prop::collection::vec(0_usize..6, 0..4);
    let source = || prop_oneof![Just(PodSource::Api), Just(PodSource::Folder)];
    prop_oneof![
        (source(), some()).prop_map(|(source, all)| StoreUpdate::Listed(source, all)),
        (source(), 0_usize..6, any::<u8>())
            .prop_map(|(source, number, env)| StoreUpdate::Applied(source, number, env)),
        (source(), 0_usize..6).prop_map(|(source, number)| StoreUpdate::Deleted(source, number)),
        some().prop_map(StoreUpdate::All),
        (0_usize..6, any::<u8>()).prop_map(|(number, env)| StoreUpdate::Pod(number, env)),
        (0_usize..6).prop_map(StoreUpdate::Gone),
        Just(StoreUpdate::Away),
    ]
}

fn apply(store: &mut PodStore, update: StoreUpdate) {
    match update {
        StoreUpdate::Listed(source, numbers) => take(store, source, listed(source, &numbers)),
        StoreUpdate::Applied(source, number, env) => {
            let applied = PodsChange::Applied(key(source, number), Arc::new(pod(number, env)));
            take(store, source, applied);
        }
        StoreUpdate::Deleted(source, number) => {
            take(store, source, PodsChange::Deleted(key(source, number)));
        }
        StoreUpdate::All(numbers) => {
            let all = numbers.into_iter().map(|number| of_runtime(number, 1));
            store.take_runtime(RuntimeUpdate::All(all.collect()));
        }
        StoreUpdate::Pod(number, env) => {
            store.take_runtime(RuntimeUpdate::Pod(Box::new(of_runtime(number, env))));
        }
        StoreUpdate::Gone(number) => {
            store.take_runtime(RuntimeUpdate::Gone(format!("uid-{number}")));
        }
        StoreUpdate::Away => {
            store.take_runtime(RuntimeUpdate::Away);
        }
    }
}

fn store() -> PodStore {
    let mut store = PodStore::new(ContainerIds::Awaited);
    store.take_node("node".into());
    store
}

/// A store that gets at once what another one has learned.
fn anew(known: &PodStore) -> PodStore {
    let mut anew = store();
    for source in [PodSource::Api, PodSource::Folder] {
        let pods = known.described.iter();
        let pods = pods.filter(|(key, _)| key.source() == Some(source));
        let pods = pods.map(|(key, pod)| (key.clone(), Arc::clone(pod)));
        take(&mut anew, source, PodsChange::Listed(pods.collect()));
    }
    anew.take_runtime(RuntimeUpdate::All(
        known.runtime.values().cloned().collect(),
    ));
    anew.ids_at_loss.clone_from(&known.ids_at_loss);
    anew.put_together(&known.runtime.keys().cloned().collect());
    anew
}

proptest! {
    #[test]
    fn changes_of_single_pods_lead_to_the_same_pods_as_complete_lists(
        all in prop::collection::vec(updates(), 1..30)
    ) {
        let mut store = store();
        for update in all {
            apply(&mut store, update);
            let anew = anew(&store);
            prop_assert_eq!(store.known(), anew.known());
            prop_assert_eq!(&store.conflicts, &anew.conflicts);
            let known = store.known();
            let mut uids = HashSet::new();
            for pod in known.iter() {
                let uid = pod.cgroup_uid().unwrap();
                prop_assert!(uids.insert(uid), "each uid once");
                let found = store.pod(uid);
                prop_assert_eq!(found.as_ref(), Some(pod));
            }
        }
    }
}

/// The pods as decisions see them, by number.
fn known(store: &mut PodStore) -> Vec<Arc<RecognizedPod>> {
    store.known().to_vec()
}

#[test]
fn a_change_of_one_pod_reads_the_texts_of_that_pod_only() {
    let mut store = store();
    take(
        &mut store,
        PodSource::Api,
        listed(PodSource::Api, &[1, 2, 3]),
    );
    let before = known(&mut store);
    let reads = |store: &mut PodStore| {
        let pairs = known(store).into_iter().zip(before.clone());
        let read = pairs.filter(|(now, before)| !Arc::ptr_eq(now, before));
        read.map(|(now, _)| now.name.clone()).collect::<Vec<_>>()
    };
    // The same list again, as after a reconnect.
    take(
        &mut store,
        PodSource::Api,
        listed(PodSource::Api, &[1, 2, 3]),
    );
    assert!(reads(&mut store).is_empty());
    apply(&mut store, StoreUpdate::Applied(PodSource::Api, 2, 7));
    assert_eq!(reads(&mut store), ["pod-2"]);
    apply(&mut store, StoreUpdate::Pod(3, 0));
    let now = known(&mut store);
    assert_eq!(reads(&mut store), ["pod-2", "pod-3"]);
    apply(&mut store, StoreUpdate::Pod(3, 0));
    assert!(
        Arc::ptr_eq(&now[2], &known(&mut store)[2]),
        "nothing is new"
    );
}

#[test]
fn all_holders_of_a_pod_share_its_texts() {
    let mut store = store();
    let described = Arc::new(Pod {
        ids: ContainerIds::Awaited,
        ..pod(1, 0)
    });
    let change = PodsChange::Applied(key(PodSource::Api, 1), Arc::clone(&described));
    take(&mut store, PodSource::Api, change);
    assert!(Arc::ptr_eq(known(&mut store)[0].pod(), &described));
    assert_eq!(
        Arc::strong_count(&described),
        3,
        "the test, the store's description, and the pod that decisions see"
    );
    // With the runtime's ids it is another pod, with the same texts.
    apply(&mut store, StoreUpdate::Pod(1, 9));
    let merged = known(&mut store).remove(0);
    let (merged, of_runtime) = (&merged.containers[0], &store.runtime["uid-1"].pod);
    assert!(Shared::is_same(&merged.args, &described.containers[0].args));
    assert!(Shared::is_same(&merged.env, &of_runtime.containers[0].env));
}

fn with_id(id: Option<&str>) -> Pod {
    let mut pod = pod(0, 0);
    for container in &mut pod.containers {
        container.runtime_id = id.map(str::to_owned);
    }
    pod
}

#[test]
fn while_the_runtime_is_away_its_id_counts_until_the_api_gives_a_newer_one() {
    let runtime = |id| {
        let of_runtime = RuntimePod {
            pod: with_id(Some(id)),
            ..of_runtime(0, 0)
        };
        RuntimeUpdate::All(vec![of_runtime])
    };
    // The last id of the API at the loss, and what it gives later.
    for before in [None, Some("old"), Some("running")] {
        let mut store = PodStore::new(ContainerIds::Awaited);
        let api = |store: &mut PodStore, id| {
            let pods = [(key(PodSource::Api, 0), Arc::new(with_id(id)))];
            take(store, PodSource::Api, PodsChange::Listed(pods.into()));
        };
        let known = |store: &mut PodStore| {
            let pod = store.pod("uid-0").unwrap();
            assert_eq!(*store.known(), [Arc::clone(&pod)]);
            (pod.ids, pod.containers[0].runtime_id.clone().unwrap())
        };
        let is = |ids, id: &str| (ids, id.to_owned());
        api(&mut store, before);
        store.take_runtime(runtime("running"));
        assert_eq!(known(&mut store), is(ContainerIds::Runtime, "running"));
        store.take_runtime(RuntimeUpdate::Away);
        assert_eq!(known(&mut store), is(ContainerIds::Awaited, "running"));
        // A list that repeats what the API had given is no news.
        api(&mut store, before);
        assert_eq!(known(&mut store), is(ContainerIds::Awaited, "running"));
        api(&mut store, Some("again"));
        assert_eq!(known(&mut store), is(ContainerIds::Awaited, "again"));
        store.take_runtime(runtime("later"));
        assert_eq!(known(&mut store), is(ContainerIds::Runtime, "later"));
    }
}
