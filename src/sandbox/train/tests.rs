use std::sync::Arc;
use std::time::{Duration, Instant};

use super::progress::{ProcessRole, Progress};
use super::worker::WorkerError;
use super::{Geometry, MAX_THREADS, ps, threads, worker};

const SMALL: Geometry = Geometry {
    features: 6,
    vocabulary: 30,
    dim: 4,
    hidden: [16, 8],
    seed: 11,
};

fn ps_options(shard: u32, shards: u32) -> ps::ServerOptions {
    ps::ServerOptions {
        listen: "127.0.0.1:0".to_owned(),
        geometry: SMALL,
        shard,
        shards,
        threads: 2,
        rates: RATES,
    }
}

const RATES: ps::Rates = ps::Rates {
    dense: 0.1,
    embedding: 1.0,
};

/// A server on a free port; its threads last as long as the test program.
fn serve(options: &ps::ServerOptions) -> (String, Arc<Progress>) {
    let progress = Progress::new(ProcessRole::Ps, options.shard, options.threads);
    let server = ps::Server::bind(options, Arc::clone(&progress)).unwrap();
    let address = server.address().unwrap().to_string();
    std::thread::spawn(move || server.run());
    (address, progress)
}

fn worker_options(ps_hosts: Vec<String>, index: u32, steps: u64) -> worker::WorkerOptions {
    worker::WorkerOptions {
        ps_hosts,
        index,
        geometry: SMALL,
        batch: 64,
        threads: 2,
        steps: Some(steps),
        patience: Duration::from_secs(60),
        rates: RATES,
    }
}

/// Loss over the first and over the last of some steps, and the worker's own counts.
fn learn(ps_hosts: &[String], index: u32) -> (f32, f32, Arc<Progress>) {
    let progress = Progress::new(ProcessRole::Worker, index, 2);
    let options = |steps| worker_options(ps_hosts.to_vec(), index, steps);
    worker::train(&options(20), &progress).unwrap();
    let first = progress.line().loss.unwrap();
    worker::train(&options(500), &progress).unwrap();
    progress.line();
    worker::train(&options(50), &progress).unwrap();
    (first, progress.line().loss.unwrap(), progress)
}

#[test]
fn two_workers_learn_with_one_server() {
    let (host, served) = serve(&ps_options(0, 1));
    let losses = std::thread::scope(|scope| {
        let both = [0, 1].map(|index| {
            let host = host.clone();
            scope.spawn(move || learn(&[host], index))
        });
        both.map(|one| one.join().unwrap())
    });
    for (first, last, worker) in &losses {
        assert!(*last < first - 0.1, "from {first} to {last}");
        assert_eq!(worker.line().steps, 570);
    }
    let sum = |count: fn(&super::progress::ProgressLine) -> u64| {
        losses.iter().map(|(.., w)| count(&w.line())).sum::<u64>()
    };
    // The last answer may be read before the server has counted it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while served.line().steps < 2 * (2 * 570 + 3) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let line = served.line();
    assert_eq!(line.steps, 2 * (2 * 570 + 3), "hellos, pulls and pushes");
    assert_eq!(
        (line.bytes_in, line.bytes_out),
        (sum(|line| line.bytes_out), sum(|line| line.bytes_in))
    );
}

#[test]
fn the_number_of_servers_changes_nothing_for_one_worker() {
    let train = |shards: u32| {
        let hosts: Vec<String> = (0..shards)
            .map(|shard| serve(&ps_options(shard, shards)).0)
            .collect();
        let progress = Progress::new(ProcessRole::Worker, 0, 2);
        worker::train(&worker_options(hosts, 0, 60), &progress).unwrap();
        progress.line().loss.unwrap()
    };
    let alone = train(1);
    assert_eq!(train(3).to_bits(), alone.to_bits());
    assert_eq!(
        train(0).to_bits(),
        alone.to_bits(),
        "a worker that keeps the parameters itself learns the same"
    );
}

#[test]
fn a_worker_waits_for_a_server_that_is_late() {
    // Connections come from 127.0.0.1, so none of them takes the port of this address in the
    // meantime.
    let listener = std::net::TcpListener::bind("127.0.0.79:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    drop(listener);
    let late = ps::ServerOptions {
        listen: host.clone(),
        ..ps_options(0, 1)
    };
    let server = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        serve(&late)
    });
    let progress = Progress::new(ProcessRole::Worker, 0, 2);
    worker::train(&worker_options(vec![host], 0, 5), &progress).unwrap();
    server.join().unwrap();
    assert_eq!(progress.line().steps, 5);
}

#[test]
fn a_worker_gives_up_with_a_sentence() {
    let progress = Progress::new(ProcessRole::Worker, 0, 2);
    let patience = Duration::from_millis(300);
    let nowhere = worker::WorkerOptions {
        patience,
        ..worker_options(vec!["127.0.0.1:1".to_owned()], 0, 5)
    };
    let start = Instant::now();
    let error = worker::train(&nowhere, &progress).unwrap_err();
    assert!(
        matches!(&error, WorkerError::Lost { host, .. } if host == "127.0.0.1:1"),
        "{error:?}"
    );
    assert!(start.elapsed() >= patience);

    let (host, _) = serve(&ps_options(0, 1));
    let mut other = worker_options(vec![host], 0, 5);
    other.geometry.dim = 5;
    let error = worker::train(&other, &progress).unwrap_err();
    assert!(
        matches!(&error, WorkerError::Refused { reason, .. } if reason.contains("same shapes")),
        "{error:?}"
    );
}

#[test]
fn threads_come_from_the_environment_or_from_the_host() {
    let sys = tempfile::tempdir().unwrap();
    let dir = sys.path().join("devices/system/cpu");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("online"), "0-15,64\n").unwrap();
    let count = |env: &[(&str, &str)]| {
        let get = |name: &str| {
            env.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        threads(
            &["TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"],
            get,
            sys.path(),
        )
        .unwrap()
    };
    assert_eq!(count(&[]), 17);
    assert_eq!(count(&[("OMP_NUM_THREADS", "3")]), 3);
    assert_eq!(
        count(&[("OMP_NUM_THREADS", "3"), ("TF_NUM_INTRAOP_THREADS", "2")]),
        2
    );
    for nonsense in ["0", "-1", "", "many", "1.5"] {
        assert_eq!(
            count(&[("TF_NUM_INTRAOP_THREADS", nonsense)]),
            17,
            "{nonsense:?}"
        );
        assert_eq!(
            count(&[
                ("TF_NUM_INTRAOP_THREADS", nonsense),
                ("OMP_NUM_THREADS", "4")
            ]),
            4
        );
    }
    assert_eq!(count(&[("OMP_NUM_THREADS", "999999")]), MAX_THREADS);
}
