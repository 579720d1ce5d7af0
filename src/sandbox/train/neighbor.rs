//! A neighbor: another pod of the node, which keeps CPUs and caches busy with nothing of use.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::data::Random;
use super::progress::Progress;
use crate::host::proc::thread_cpu_time;

/// The memory that a thread walks through: more than a thread's share of most caches.
const WORDS: usize = 4 << 20 >> 3;

/// The memory of all threads together. On a large host, a process has many threads, and the node
/// has many such processes.
const ALL_WORDS: usize = 32 << 20 >> 3;

/// The least memory of a thread.
const LEAST_WORDS: usize = 1 << 13;

/// Words touched in a burst.
const BURST: usize = 1 << 16;

/// The pause of every second thread after a burst. Real pods wait now and then, and the scheduler favours a thread that
/// wakes up.
const REST: Duration = Duration::from_millis(1);

/// Starts `threads` threads that never end. Each burst counts as a step. `busy` is the share of a
/// CPU that each thread uses, in percent. Without it, every second thread pauses after each burst.
///
/// # Errors
///
/// The kernel refuses a thread.
pub fn start(threads: usize, busy: Option<u8>, progress: &Arc<Progress>) -> io::Result<()> {
    let words = words(threads);
    for index in 0..threads {
        let progress = Arc::clone(progress);
        thread::Builder::new()
            .name(format!("neighbor-{index}"))
            .spawn(move || {
                let mut random = Random::new(index as u64);
                let mut memory: Vec<u64> = (0..words).map(|_| random.bits()).collect();
                let mut at = 0;
                loop {
                    let start = Instant::now();
                    let begun = thread_cpu_time();
                    at = burst(&mut memory, at);
                    progress.step(start.elapsed(), None);
                    match busy {
                        None if index % 2 == 1 => thread::sleep(REST),
                        None => {}
                        // The pause follows from the burst's CPU time, because time without a CPU
                        // does not count as work.
                        Some(percent) => {
                            thread::sleep(rest(thread_cpu_time().saturating_sub(begun), percent));
                        }
                    }
                }
            })?;
    }
    Ok(())
}

/// The memory of each thread.
fn words(threads: usize) -> usize {
    (ALL_WORDS / threads.max(1)).clamp(LEAST_WORDS, WORDS)
}

/// The pause after a burst for a share of busy time.
fn rest(worked: Duration, percent: u8) -> Duration {
    let percent = u32::from(percent.clamp(1, 100));
    worked * (100 - percent) / percent
}

/// Reads and writes [`BURST`] words at random places, each depending on the word before; returns the last place.
fn burst(memory: &mut [u64], mut at: usize) -> usize {
    let words = memory.len();
    for _ in 0..BURST {
        let word = &mut memory[at];
        *word = word
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let next = (*word >> 32) as usize;
        at = next % words;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_makes_the_share() {
        let worked = Duration::from_millis(12);
        for (percent, rested) in [
            (100, 0),
            (75, 4),
            (50, 12),
            (25, 36),
            (1, 1188),
            (0, 1188),
            (200, 0),
        ] {
            assert_eq!(
                rest(worked, percent),
                Duration::from_millis(rested),
                "{percent} %"
            );
        }
    }

    #[test]
    fn many_threads_share_the_memory() {
        let all = [1, 8, 16, 64, 1024].map(|threads| words(threads) * 8 / 1024);
        assert_eq!(all, [4096, 4096, 2048, 512, 64], "KiB of each thread");
    }

    #[test]
    fn a_burst_wanders_through_all_of_the_memory() {
        let mut memory: Vec<u64> = (0..WORDS as u64).collect();
        let mut at = 0;
        for _ in 0..20 {
            at = burst(&mut memory, at);
            assert!(at < WORDS);
        }
        let touched = |part: &[u64]| {
            part.iter()
                .zip(1..)
                .filter(|&(word, _): &(&u64, u32)| *word > WORDS as u64)
                .count()
        };
        let quarters: Vec<usize> = memory.chunks(WORDS / 4).map(touched).collect();
        assert!(
            quarters.iter().all(|&count| count > WORDS / 8),
            "{quarters:?}"
        );
    }
}
