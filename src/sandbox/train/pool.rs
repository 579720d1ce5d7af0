//! The intra-op threads: a pool in the manner of OpenMP, with a static schedule and a barrier after every loop.
//!
//! A loop over `rows` output rows is cut into as many blocks as there are threads (fewer if the loop is too small to
//! be worth it); thread `i` computes block `i`, and the caller, which is thread 0, waits for all of them. Waiting is
//! what OpenMP and Eigen do: spin for a moment, because on CPUs of one's own the others are done any time now, then
//! sleep in the kernel. On fewer CPUs than threads the bet is lost: the spinning takes time from the thread that is
//! waited for, and every loop costs a sleep and a wake-up for each thread. Nothing here makes that worse than it is.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle, Thread};

/// How many times a waiting thread looks before it sleeps: about 50 µs, the order of what Eigen does and far less than
/// OpenMP's runtimes, which spin for milliseconds.
const SPINS: u32 = 2_000;

/// The least work of a block, in multiply-adds: about 20 µs, below which waking a thread costs more than it gives.
const MIN_BLOCK: usize = 100_000;

/// Computes some of a loop's output rows: appends `width` numbers for each row of the range.
pub type Kernel = dyn Fn(Range<usize>, &mut Vec<f32>) + Send + Sync;

/// A fixed number of threads that compute loops together. A drop ends them.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<PoolState>,
    helpers: Vec<Helper>,
}

#[derive(Debug)]
struct Helper {
    thread: Option<JoinHandle<()>>,
    slot: Arc<HelperState>,
}

struct PoolState {
    /// The loop under way. Read by every thread in it, written by the caller between loops.
    task: RwLock<Option<LoopTask>>,
    /// Helpers that have not finished the current block.
    pending: AtomicUsize,
    /// A block panicked, so the loop has no result.
    broken: AtomicBool,
    stop: AtomicBool,
}

struct LoopTask {
    kernel: Box<Kernel>,
    rows: usize,
    blocks: usize,
    caller: Thread,
}

#[derive(Debug, Default)]
struct HelperState {
    /// The number of loops so far.
    calls: AtomicU64,
    /// The numbers of its block; the memory is kept from loop to loop.
    output: Mutex<Vec<f32>>,
}

// === impl ThreadPool ===

impl ThreadPool {
    /// A pool of `threads` threads (at least 1), the caller's included.
    ///
    /// # Errors
    ///
    /// The kernel refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(PoolState {
            task: RwLock::new(None),
            pending: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self {
            shared,
            helpers: Vec::new(),
        };
        for block in 1..threads.max(1) {
            let slot = Arc::new(HelperState::default());
            let (shared, own) = (Arc::clone(&pool.shared), Arc::clone(&slot));
            let thread = thread::Builder::new()
                .name(format!("intra-op-{block}"))
                .spawn(move || help(block, &shared, &own))?;
            pool.helpers.push(Helper {
                thread: Some(thread),
                slot,
            });
        }
        Ok(pool)
    }

    /// The number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Computes a loop of `rows` output rows, each `cost` multiply-adds of work, into `out`, which is overwritten.
    ///
    /// Each row is computed by one thread, so the result does not depend on how many there are.
    pub fn compute(&self, rows: usize, cost: usize, out: &mut Vec<f32>, kernel: Box<Kernel>) {
        out.clear();
        let worth = (rows.saturating_mul(cost) / MIN_BLOCK).max(1);
        let blocks = self.threads().min(worth).min(rows.max(1));
        if blocks == 1 {
            return kernel(0..rows, out);
        }
        self.shared.pending.store(blocks - 1, Ordering::Release);
        let task = LoopTask {
            kernel,
            rows,
            blocks,
            caller: thread::current(),
        };
        *self
            .shared
            .task
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(task);
        let called = &self.helpers[..blocks - 1];
        for helper in called {
            helper.slot.calls.fetch_add(1, Ordering::Release);
            // A system call happens only if the thread sleeps.
            if let Some(thread) = &helper.thread {
                thread.thread().unpark();
            }
        }
        self.shared.run(0, out);
        wait(|| self.shared.pending.load(Ordering::Acquire) == 0);
        for helper in called {
            out.append(
                &mut helper
                    .slot
                    .output
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
        // The kernel's borrowed tensors are given back before the caller goes on.
        *self
            .shared
            .task
            .write()
            .unwrap_or_else(PoisonError::into_inner) = None;
        assert!(
            !self.shared.broken.load(Ordering::Acquire),
            "a block of the loop panicked"
        );
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for helper in &mut self.helpers {
            if let Some(thread) = helper.thread.take() {
                thread.thread().unpark();
                let _ = thread.join();
            }
        }
    }
}

impl PoolState {
    fn run(&self, block: usize, out: &mut Vec<f32>) {
        let task = self.task.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = &*task {
            let edge = |block: usize| task.rows * block / task.blocks;
            (task.kernel)(edge(block)..edge(block + 1), out);
        }
    }

    /// Counts a helper as finished; the last one wakes the caller.
    fn arrive(&self) {
        // The caller may be gone from the loop as soon as the count is zero, so its handle is fetched before.
        let caller = {
            let task = self.task.read().unwrap_or_else(PoisonError::into_inner);
            task.as_ref().map(|task| task.caller.clone())
        };
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(caller) = caller
        {
            caller.unpark();
        }
    }
}

impl std::fmt::Debug for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolState")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

/// A helper's life: wait for a call, compute the block, arrive at the barrier.
fn help(block: usize, shared: &PoolState, slot: &HelperState) {
    /// Arrives even if the kernel panics: the caller must learn of it and not wait for ever.
    struct Arrive<'a>(&'a PoolState);
    impl Drop for Arrive<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                self.0.broken.store(true, Ordering::Release);
            }
            self.0.arrive();
        }
    }

    let mut finished_loops = 0;
    loop {
        wait(|| {
            slot.calls.load(Ordering::Acquire) != finished_loops
                || shared.stop.load(Ordering::Acquire)
        });
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        finished_loops += 1;
        let _arrive = Arrive(shared);
        let mut output = slot.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.clear();
        shared.run(block, &mut output);
    }
}

/// Spins, then sleeps, until `is_done`. The thread that makes the condition true must unpark this
/// one.
fn wait(is_done: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if is_done() {
            return;
        }
        std::hint::spin_loop();
    }
    while !is_done() {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(pool: &ThreadPool, rows: usize) -> Vec<f32> {
        let mut out = vec![99.0; 3];
        let kernel = |range: Range<usize>, out: &mut Vec<f32>| {
            out.extend(range.map(|row| (row * row) as f32));
        };
        pool.compute(rows, MIN_BLOCK, &mut out, Box::new(kernel));
        out
    }

    #[test]
    fn every_row_once_and_in_order() {
        for threads in [1, 2, 3, 7, 16] {
            let pool = ThreadPool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for rows in [0, 1, 2, 5, 7, 100] {
                let expected: Vec<f32> = (0..rows).map(|row| (row * row) as f32).collect();
                assert_eq!(
                    squares(&pool, rows),
                    expected,
                    "{threads} threads, {rows} rows"
                );
            }
        }
    }

    #[test]
    fn no_call_is_lost_between_spinning_and_sleeping() {
        let pool = ThreadPool::new(4).unwrap();
        for round in 0..2_000 {
            assert_eq!(squares(&pool, 8).len(), 8);
            if round % 100 == 0 {
                // Long enough for every helper to be asleep.
                thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    }

    #[test]
    fn small_loops_stay_on_the_caller() {
        let pool = ThreadPool::new(4).unwrap();
        let caller = thread::current().id();
        let kernel = move |rows: Range<usize>, out: &mut Vec<f32>| {
            assert_eq!(thread::current().id(), caller);
            out.extend(rows.map(|_| 1.0));
        };
        let mut out = Vec::new();
        pool.compute(10, 1, &mut out, Box::new(kernel));
        assert_eq!(out.len(), 10);
    }

    #[test]
    #[should_panic(expected = "a block of the loop panicked")]
    fn a_panic_in_a_block_reaches_the_caller() {
        let pool = ThreadPool::new(2).unwrap();
        let kernel = |rows: Range<usize>, _: &mut Vec<f32>| {
            assert_eq!(rows.start, 0, "not the caller's block");
        };
        pool.compute(4, MIN_BLOCK, &mut Vec::new(), Box::new(kernel));
    }
}
