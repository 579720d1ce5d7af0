//! The cost of a page of 1,000 containers: Pinfold's writer beside the encoder of the crate `prometheus`.
//!
//! Both programs write the same families, labels and values, and the texts are compared. Pinfold's
//! writer formats labels and values, and cuts the page into the pieces of an answer; the other
//! program makes a `MetricFamily` for each family, and encodes them all with `TextEncoder`. Both
//! keep their buffers from round to round, as an agent does. Times are CPU times. Memory is counted
//! in separate rounds, so that the counting takes no measured time.
#![allow(unsafe_code, reason = "a global allocator is unsafe code")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicIsize};
use std::time::Duration;

use pinfold::host::proc::thread_cpu_time;
use pinfold::metrics::{FAMILIES, Family, FamilyKind, Format, Labels, Page};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

/// Pods on the page.
const PODS: usize = 250;

/// Containers of each pod.
const CONTAINERS: usize = 4;

/// Rounds of each program with measured times.
const ROUNDS: usize = 41;

/// Counts the memory of this process while [`COUNTING`] is true.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static COUNTING: AtomicBool = AtomicBool::new(false);

/// All allocated bytes. A buffer that grows counts with its growth.
static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

/// The bytes in use, and the most bytes in use.
static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// Counts a change of the memory in use.
fn count(change: isize) {
    if COUNTING.load(Relaxed) {
        ALLOCATED.fetch_add(change.max(0), Relaxed);
        let live = LIVE.fetch_add(change, Relaxed) + change;
        PEAK.fetch_max(live, Relaxed);
    }
}

// SAFETY: Each method passes its arguments to the system's allocator and returns the result.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: The caller guarantees a valid layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: The caller guarantees a block of this allocator, with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: The caller guarantees a block of this allocator, with this layout, and a valid size.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Measures both programs and prints a table.
pub(crate) fn print() {
    let content = Content::new();
    let (mut own, mut encoder) = (OwnWriter::default(), CrateEncoder::default());
    own.round(&content);
    encoder.round(&content);
    let text = own.page.text(Format::Text);
    assert!(
        text.as_bytes() == encoder.output,
        "the two programs write different pages"
    );
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    println!(
        "{} containers, {series} series, {} bytes, {ROUNDS} rounds",
        PODS * CONTAINERS,
        text.len()
    );
    drop(text);

    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..ROUNDS {
        // Each program is first in every second round.
        let (writing, encoding) = if round % 2 == 0 {
            let writing = time(&mut own, &content);
            (writing, time(&mut encoder, &content))
        } else {
            let encoding = time(&mut encoder, &content);
            (time(&mut own, &content), encoding)
        };
        let ms = |time: Duration| 1000.0 * time.as_secs_f64();
        times[0].push(ms(writing));
        times[1].push(ms(encoding));
        times[2].push(ms(encoder.encoding));
        times[3].push(encoding.as_secs_f64() / writing.as_secs_f64());
    }
    let used = [
        memory::<OwnWriter>(&content),
        memory::<CrateEncoder>(&content),
    ];
    report(times.map(median), &used);
}

/// Prints the times of both programs and of the encoder alone, the ratio of the two times, and the
/// memory of both.
fn report([writing, encoding, alone, ratio]: [f64; 4], [own, encoder]: &[MemoryUse; 2]) {
    println!(
        "{:<24} {:>8} {:>14} {:>9}",
        "", "CPU ms", "allocated KiB", "peak KiB"
    );
    for (name, time, memory) in [
        ("Pinfold's writer", writing, own),
        ("crate prometheus", encoding, encoder),
    ] {
        println!(
            "{name:<24} {time:>8.2} {:>14.0} {:>9.0}",
            memory.allocated / 1024.0,
            memory.peak / 1024.0
        );
    }
    println!("{:<24} {alone:>8.2}", "  only its encoder");
    println!(
        "{:<24} {ratio:>8.2} {:>14.2} {:>9.2}",
        "crate / writer",
        encoder.allocated / own.allocated,
        encoder.peak / own.peak
    );
}

/// The CPU time of a round.
fn time(program: &mut impl Program, content: &Content) -> Duration {
    let start = thread_cpu_time();
    program.round(content);
    thread_cpu_time() - start
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The memory of a program, in bytes.
struct MemoryUse {
    /// Allocated in a round.
    allocated: f64,
    /// The most memory in use, with the buffers of earlier rounds.
    peak: f64,
}

/// Counts in the second round of a program, because by then its buffers have their size.
fn memory<P: Program>(content: &Content) -> MemoryUse {
    LIVE.store(0, Relaxed);
    COUNTING.store(true, Relaxed);
    let mut program = P::default();
    program.round(content);
    ALLOCATED.store(0, Relaxed);
    PEAK.store(LIVE.load(Relaxed), Relaxed);
    program.round(content);
    COUNTING.store(false, Relaxed);
    MemoryUse {
        allocated: ALLOCATED.load(Relaxed) as f64,
        peak: PEAK.load(Relaxed) as f64,
    }
}

/// The content of the page: each family of pods and containers but histograms, with a series for each pod or container.
struct Content {
    families: Vec<FamilyContent>,
    /// The values of the labels `namespace` and `pod`.
    pods: Vec<Vec<String>>,
    /// The values of the labels `namespace`, `pod` and `container`.
    containers: Vec<Vec<String>>,
}

/// A family and its labels beside the labels of the pod or container. The value of such a label is its name.
struct FamilyContent {
    family: &'static Family,
    of_containers: bool,
    more: Vec<(&'static str, &'static str)>,
}

const LABELS: [&str; 3] = ["namespace", "pod", "container"];

// === impl Content ===

impl Content {
    fn new() -> Self {
        let families = FAMILIES.iter().copied().filter_map(FamilyContent::new);
        let pod = |number: usize| vec!["train".to_owned(), format!("web-{number}")];
        let container = |number: usize| {
            let mut values = pod(number / CONTAINERS);
            values.push(format!("c{}", number % CONTAINERS));
            values
        };
        Self {
            families: families.collect(),
            pods: (0..PODS).map(pod).collect(),
            containers: (0..PODS * CONTAINERS).map(container).collect(),
        }
    }
}

// === impl FamilyContent ===

impl FamilyContent {
    fn new(family: &'static Family) -> Option<Self> {
        let of_containers = family.labels.starts_with(&LABELS);
        let own = if of_containers { 3 } else { 2 };
        let is_of_pods = family.labels.starts_with(&LABELS[..own]);
        (is_of_pods && family.kind != FamilyKind::Histogram).then(|| Self {
            family,
            of_containers,
            more: family.labels[own..]
                .iter()
                .map(|name| (*name, *name))
                .collect(),
        })
    }

    /// The value of the series with this number.
    fn sample(&self, number: u64) -> Sample {
        if self.family.kind == FamilyKind::Info {
            Sample::One
        } else if self.family.name.contains("_seconds") {
            Sample::Nanoseconds(number * 987_654_321)
        } else {
            Sample::Whole(number * 7_919_357)
        }
    }
}

/// The value of a series.
#[derive(Clone, Copy)]
enum Sample {
    One,
    Nanoseconds(u64),
    Whole(u64),
}

// === impl Sample ===

impl Sample {
    /// The value as the crate `prometheus` wants it. A whole number of nanoseconds keeps all its digits.
    fn number(self) -> f64 {
        match self {
            Self::One => 1.0,
            Self::Nanoseconds(value) => value as f64 / 1e9,
            Self::Whole(value) => value as f64,
        }
    }
}

/// A program that writes the page.
trait Program: Default {
    fn round(&mut self, content: &Content);
}

/// Pinfold's writer, with the page of the round before.
#[derive(Default)]
struct OwnWriter {
    page: Page,
}

// === impl OwnWriter ===

impl Program for OwnWriter {
    fn round(&mut self, content: &Content) {
        let mut page = std::mem::take(&mut self.page).emptied();
        let formatted = |all: &[Vec<String>]| -> Vec<Labels> {
            let labels = all.iter().map(|values| {
                let pairs: Vec<(&str, &str)> = LABELS
                    .into_iter()
                    .zip(values.iter().map(String::as_str))
                    .collect();
                Labels::new(&pairs)
            });
            labels.collect()
        };
        let (pods, containers) = (formatted(&content.pods), formatted(&content.containers));
        for one in &content.families {
            let all = if one.of_containers {
                &containers
            } else {
                &pods
            };
            let mut lines = page.lines(one.family);
            for (labels, number) in all.iter().zip(0..) {
                match one.sample(number) {
                    Sample::One => lines.put_with(labels, &one.more, true),
                    Sample::Nanoseconds(value) => {
                        lines.put_with(labels, &one.more, Duration::from_nanos(value));
                    }
                    Sample::Whole(value) => lines.put_with(labels, &one.more, value),
                }
            }
            page.add(lines);
        }
        black_box(page.chunks(Format::Text));
        self.page = page;
    }
}

/// The encoder of the crate `prometheus`, with the buffer of the round before.
#[derive(Default)]
struct CrateEncoder {
    output: Vec<u8>,
    /// The CPU time of the encoder alone in the last round.
    encoding: Duration,
}

// === impl CrateEncoder ===

impl Program for CrateEncoder {
    fn round(&mut self, content: &Content) {
        let made = |all: &[Vec<String>]| -> Vec<Vec<LabelPair>> {
            let pairs = all.iter().map(|values| {
                let pairs = LABELS.iter().zip(values);
                pairs.map(|(name, value)| pair(name, value)).collect()
            });
            pairs.collect()
        };
        let (pods, containers) = (made(&content.pods), made(&content.containers));
        let families: Vec<MetricFamily> = content
            .families
            .iter()
            .map(|one| {
                let all = if one.of_containers {
                    &containers
                } else {
                    &pods
                };
                metric_family(one, all)
            })
            .collect();
        let start = thread_cpu_time();
        self.output.clear();
        TextEncoder::new()
            .encode(&families, &mut self.output)
            .unwrap();
        self.encoding = thread_cpu_time() - start;
        black_box(&self.output);
    }
}

fn pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

fn metric_family(one: &FamilyContent, all: &[Vec<LabelPair>]) -> MetricFamily {
    let more: Vec<LabelPair> = one
        .more
        .iter()
        .map(|(name, value)| pair(name, value))
        .collect();
    let metric = |(labels, number): (&Vec<LabelPair>, u64)| {
        let mut metric = Metric::from_label(labels.iter().chain(&more).cloned().collect());
        let value = one.sample(number).number();
        if one.family.kind == FamilyKind::Counter {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    };
    let mut family = MetricFamily::default();
    family.set_name(one.family.name.to_owned());
    family.set_help(one.family.help.to_owned());
    family.set_field_type(match one.family.kind {
        FamilyKind::Counter => MetricType::COUNTER,
        _ => MetricType::GAUGE,
    });
    family.set_metric(all.iter().zip(0..).map(metric).collect());
    family
}
