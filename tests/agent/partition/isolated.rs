//! Partitions without load balancing. Linux 6.12 makes and removes such partitions under a lock that may hang the kernel.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{partition_tests, work_queues};
use crate::agent::{Manifests, Settings, worker, worker_with};

/// How often a partition changes between isolated and balanced. Without care, Linux 6.12 survived 2
/// to 15 changes.
const TIMES: usize = 6;

#[test]
fn programs_that_bind_their_threads_get_no_load_balancing_while_others_come_and_go() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let before = work_queues();
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    // A process that moves from cgroup to cgroup without end, as each container and each probe does once.
    let others = tree.pod("besteffort", "others-uid");
    let [here, there] = ["here1", "there1"].map(|name| tree.container(&others, name));
    let moving = tree.start(&here);
    let [here, there] =
        [here, there].map(|path| kernel.cgroups.root().join(path).join("cgroup.procs"));
    let (ends, mut moves) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        let moved = scope.spawn(|| {
            let mut moves = 0;
            while !ends.load(Ordering::Relaxed) {
                fs::write(&there, moving.to_string()).unwrap();
                fs::write(&here, moving.to_string()).unwrap();
                moves += 2;
            }
            moves
        });
        // A failure inside the scope must not leave the scope waiting.
        let ends = StopOnDrop(&ends);
        let pod = tree.pod("", "worker-uid");
        let main = tree.container(&pod, "main1");
        pods.put("worker.yaml", &worker("worker-0", "worker-uid", 2));
        tree.start(&main);
        agent.eventually("the worker is pinned", |_| {
            kernel.partition(&main) == "root"
        });
        assert_eq!(work_queues(), before, "the work queues keep their masks");
        for _ in 0..TIMES {
            pods.put(
                "worker.yaml",
                &worker_with(
                    "worker-0",
                    "worker-uid",
                    2,
                    "pinfold.io/partition: isolated",
                    "",
                ),
            );
            agent.eventually("the worker is isolated", |_| {
                kernel.partition(&main) == "isolated"
            });
            let own = kernel.effective(&main);
            assert!(
                work_queues().is_disjoint(&own),
                "{} beside {own}",
                work_queues()
            );
            pods.put("worker.yaml", &worker("worker-0", "worker-uid", 2));
            agent.eventually("and then not", |_| kernel.partition(&main) == "root");
            agent.eventually("work queues are back", |_| work_queues() == before);
        }
        pods.put(
            "worker.yaml",
            &worker_with(
                "worker-0",
                "worker-uid",
                2,
                "pinfold.io/partition: isolated",
                "",
            ),
        );
        agent.eventually("the worker is isolated once more", |_| {
            kernel.partition(&main) == "isolated"
        });
        tree.remove(&pod);
        pods.remove("worker.yaml");
        agent.eventually("the end of the pod restores the masks", |_| {
            work_queues() == before
        });
        drop(ends);
        moves = moved.join().unwrap();
    });
    println!("{moves} moves into other cgroups meanwhile");
    assert!(moves > 100, "{moves}");
    agent.stop();
}

/// Ends the moves at the drop.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
