//! Tests of the plan, and whole histories of a simulated kernel with crashes at any step.

use proptest::prelude::*;

use super::*;

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn receive(queue: u32) -> Knob {
    Knob::Receive {
        device: "eth0".to_owned(),
        queue,
    }
}

fn transmit(queue: u32) -> Knob {
    Knob::Transmit {
        device: "eth0".to_owned(),
        queue,
    }
}

const ALL: CpuIsolationOptions = CpuIsolationOptions {
    irqs: true,
    workqueues: true,
    packet_steering: true,
    system_slices: true,
};

/// A kernel: the knobs, and a record on a cgroup.
#[derive(Debug, Clone)]
struct KnobKernel {
    knobs: BTreeMap<Knob, CpuSet>,
    managed: BTreeSet<Knob>,
    note: Option<String>,
    online: CpuSet,
    refused: BTreeSet<Knob>,
    /// The isolated CPUs among the exclusive ones.
    isolated: CpuSet,
}

impl KnobKernel {
    fn new(knobs: &[(Knob, &str)]) -> Self {
        Self {
            knobs: knobs
                .iter()
                .map(|(knob, list)| (knob.clone(), set(list)))
                .collect(),
            managed: BTreeSet::new(),
            note: None,
            online: set("0-7"),
            refused: BTreeSet::new(),
            isolated: CpuSet::new(),
        }
    }

    fn plan(&self, options: CpuIsolationOptions, exclusive: &CpuSet) -> IsolationPlan {
        let note = KnobRecord::parse(self.note.as_deref()).unwrap();
        let (isolated, online) = (&self.isolated.intersection(exclusive), &self.online);
        let input = IsolationInput {
            options,
            exclusive,
            isolated,
            online,
        };
        let kinds = input.kinds(&note);
        let values = self
            .knobs
            .iter()
            .filter(|(knob, _)| kinds.contains(&knob.kind()))
            .map(|(k, v)| (k.clone(), v.clone()));
        let values = KnobValues {
            values: values.collect(),
            kinds,
            unreadable: BTreeMap::new(),
        };
        plan(&input, &self.refused, &values, &note)
    }

    /// Carries a plan out until a crash after `crash` steps. Returns the number of turned knobs.
    fn turn(&mut self, options: CpuIsolationOptions, exclusive: &CpuSet, crash: usize) -> usize {
        let plan = self.plan(options, exclusive);
        if crash == 0 {
            return 0;
        }
        self.note = plan.ahead.text();
        let mut failed = BTreeSet::new();
        for (step, write) in plan.writes.iter().enumerate() {
            if step + 1 == crash {
                return step;
            }
            if self.managed.contains(&write.knob) {
                failed.insert(write.knob.clone());
                self.refused.insert(write.knob.clone());
            } else {
                self.knobs.insert(write.knob.clone(), write.cpus.clone());
            }
        }
        if crash > plan.writes.len() + 1 {
            self.note = plan.settled(|write| !failed.contains(&write.knob)).text();
        }
        plan.writes.len() - failed.len()
    }

    fn run(&mut self, options: CpuIsolationOptions, exclusive: &str) -> usize {
        self.turn(options, &set(exclusive), usize::MAX)
    }

    fn holds(&self, knob: &Knob) -> String {
        self.knobs[knob].to_string()
    }
}

#[test]
fn each_kind_has_its_rule() {
    let mut kernel = KnobKernel::new(&[
        (Knob::Irq(1), "0-7"),
        (Knob::Irq(2), "2-3"),
        (Knob::Irq(3), "0"),
        (Knob::NewIrqs, "0-7"),
        (Knob::Workqueues, "0-7"),
        (receive(0), ""),
        (receive(1), "2"),
        (receive(2), "0-3"),
        (transmit(0), ""),
        (transmit(1), "2"),
        (transmit(2), "0-3"),
    ]);
    let before = kernel.clone();
    assert_eq!(kernel.run(ALL, "2-3"), 7);
    for (knob, list) in [
        (Knob::Irq(1), "0-1,4-7"),
        (Knob::Irq(2), "0-1,4-7"),
        (Knob::Irq(3), "0"),
        (Knob::NewIrqs, "0-1,4-7"),
        (Knob::Workqueues, "0-1,4-7"),
        (receive(0), ""),
        (receive(1), "0-1,4-7"),
        (receive(2), "0-1"),
        (transmit(0), ""),
        (transmit(1), "2"),
        (transmit(2), "0-1"),
    ] {
        assert_eq!(kernel.holds(&knob), list, "{knob}");
    }
    assert_eq!(
        kernel.run(ALL, "2-3"),
        0,
        "the second time there is nothing to do"
    );
    // CPUs that become shared return to the knobs.
    kernel.run(ALL, "3");
    assert_eq!(kernel.holds(&Knob::Irq(2)), "2");
    assert_eq!(kernel.holds(&transmit(2)), "0-2");
    kernel.run(CpuIsolationOptions { irqs: false, ..ALL }, "3");
    assert_eq!(kernel.holds(&Knob::Irq(2)), "2-3");
    assert_eq!(kernel.holds(&Knob::Workqueues), "0-2,4-7");
    kernel.run(ALL, "");
    assert_eq!((&kernel.knobs, &kernel.note), (&before.knobs, &None));
}

#[test]
fn work_queues_are_off_isolated_cpus_whatever_is_asked_for() {
    let mut kernel = KnobKernel::new(&[(Knob::Irq(1), "0-7"), (Knob::Workqueues, "0-7")]);
    kernel.isolated = set("2");
    assert_eq!(kernel.run(CpuIsolationOptions::default(), "2-3"), 1);
    assert_eq!(
        (kernel.holds(&Knob::Irq(1)), kernel.holds(&Knob::Workqueues)),
        ("0-7".into(), "0-1,3-7".into())
    );
    kernel.run(
        CpuIsolationOptions {
            workqueues: true,
            ..CpuIsolationOptions::default()
        },
        "2-3",
    );
    assert_eq!(kernel.holds(&Knob::Workqueues), "0-1,4-7");
    kernel.isolated = CpuSet::new();
    assert_eq!(kernel.run(CpuIsolationOptions::default(), "2-3"), 1);
    assert_eq!(
        (kernel.holds(&Knob::Workqueues), &kernel.note),
        ("0-7".into(), &None)
    );
}

#[test]
fn interrupts_set_up_meanwhile_spread_again() {
    let mut kernel = KnobKernel::new(&[
        (Knob::Irq(1), "0-7"),
        (Knob::Irq(2), "0-1,4-7"),
        (Knob::Irq(3), "0"),
        (Knob::NewIrqs, "0-7"),
    ]);
    let before = kernel.clone();
    kernel.run(ALL, "2-3");
    // Drivers set up two interrupts, the second one before Pinfold sees that another owner has come.
    kernel.knobs.insert(Knob::Irq(4), set("0-1,4-7"));
    kernel.run(ALL, "2-3");
    assert_eq!(kernel.run(ALL, "2-3"), 0);
    kernel.knobs.insert(Knob::Irq(5), set("0-1,4-7"));
    kernel.run(ALL, "2-5");
    assert_eq!(kernel.holds(&Knob::Irq(5)), "0-1,6-7");
    kernel.run(ALL, "2");
    assert_eq!(kernel.holds(&Knob::Irq(4)), "0-1,3-7");
    assert_eq!(
        kernel.holds(&Knob::Irq(2)),
        "0-1,4-7",
        "as set before Pinfold came"
    );
    // An interrupt that goes leaves nothing behind.
    kernel.knobs.remove(&Knob::Irq(5));
    kernel.run(ALL, "");
    let mut expected = before.knobs;
    expected.insert(Knob::Irq(4), set("0-7"));
    assert_eq!((&kernel.knobs, &kernel.note), (&expected, &None));
}

#[test]
fn interrupts_keep_cpus_that_become_those_of_new_interrupts() {
    let mut kernel = KnobKernel::new(&[(Knob::Irq(2), "0-3"), (Knob::NewIrqs, "0-7")]);
    let before = kernel.clone();
    for exclusive in ["6-7", "4-7", "4-7", "7", ""] {
        kernel.run(ALL, exclusive);
    }
    assert_eq!((&kernel.knobs, &kernel.note), (&before.knobs, &None));
}

#[test]
fn a_later_value_of_another_program_is_left_alone() {
    let mut kernel = KnobKernel::new(&[
        (Knob::Irq(1), "0-7"),
        (Knob::Irq(2), "0-7"),
        (Knob::Irq(3), "0-7"),
    ]);
    kernel.run(ALL, "2-3");
    kernel.knobs.insert(Knob::Irq(1), set("5"));
    kernel.knobs.insert(Knob::Irq(2), set("1-2"));
    kernel.run(ALL, "2-3");
    assert_eq!(
        kernel.holds(&Knob::Irq(2)),
        "1",
        "it must not touch owned CPUs, whoever says so"
    );
    kernel.run(ALL, "");
    assert_eq!(kernel.holds(&Knob::Irq(1)), "5");
    assert_eq!(kernel.holds(&Knob::Irq(2)), "1-2");
    assert_eq!(kernel.holds(&Knob::Irq(3)), "0-7");
}

#[test]
fn an_interrupt_managed_by_the_kernel_is_tried_once() {
    let mut kernel = KnobKernel::new(&[(Knob::Irq(1), "2"), (Knob::Irq(2), "2")]);
    kernel.managed.insert(Knob::Irq(1));
    assert_eq!(kernel.plan(ALL, &set("2")).writes.len(), 2);
    kernel.run(ALL, "2");
    assert_eq!(kernel.plan(ALL, &set("2")).writes, []);
    let note = KnobRecord::parse(kernel.note.as_deref()).unwrap();
    assert_eq!(note.entries().keys().collect::<Vec<_>>(), [&Knob::Irq(2)]);
}

#[test]
fn missing_data_forgets_nothing() {
    let mut kernel = KnobKernel::new(&[
        (Knob::Irq(1), "0-7"),
        (receive(0), "0-7"),
        (receive(1), "0-7"),
    ]);
    kernel.run(ALL, "2-3");
    let note = KnobRecord::parse(kernel.note.as_deref()).unwrap();
    let (exclusive, isolated, refused) = (set("2-3"), CpuSet::new(), BTreeSet::new());
    let input = IsolationInput {
        options: ALL,
        exclusive: &exclusive,
        isolated: &isolated,
        online: &kernel.online,
    };
    let mut values = KnobValues {
        kinds: [KnobKind::PacketSteering].into(),
        ..KnobValues::default()
    };
    values.unreadable.insert(receive(0), "why".to_owned());
    let plan = plan(&input, &refused, &values, &note);
    // Queue 0 cannot be read, queue 1 is gone with its device, and interrupts were not read at all.
    assert_eq!(
        plan.ahead.entries().keys().collect::<Vec<_>>(),
        [&Knob::Irq(1), &receive(0)]
    );
    assert_eq!(plan.writes, []);
}

#[test]
fn work_is_never_sent_to_offline_cpus_only() {
    let mut kernel = KnobKernel::new(&[(Knob::Irq(1), "2,8-15"), (transmit(0), "2,8-15")]);
    kernel.run(ALL, "2");
    assert_eq!(kernel.holds(&Knob::Irq(1)), "0-1,3-7");
    assert_eq!(kernel.holds(&transmit(0)), "2,8-15");
}

#[test]
fn options_are_off_and_unknown_ones_refused() {
    let read = |text: &str| serde_json::from_str::<CpuIsolationOptions>(text);
    assert_eq!(read("{}").unwrap(), CpuIsolationOptions::default());
    assert!(!CpuIsolationOptions::default().any());
    assert!(read(r#"{"packetSteering":true}"#).unwrap().packet_steering);
    assert!(read(r#"{"irq":true}"#).is_err());
}

fn cpus() -> impl Strategy<Value = CpuSet> {
    any::<u8>().prop_map(|bits| (0..8).filter(|bit| bits & (1 << bit) != 0).collect())
}

#[derive(Debug, Clone)]
enum IsolationEvent {
    /// Owners change, and Pinfold may crash after some steps.
    Turn(CpuSet, [bool; 5], usize),
    /// Another program turns a knob.
    Other(usize, CpuSet),
    /// A driver sets up an interrupt.
    Born(u32),
}

fn happening() -> impl Strategy<Value = IsolationEvent> {
    let crash = prop_oneof![3 => Just(usize::MAX), 2 => 0_usize..12];
    prop_oneof![
        // CPU 0 is reserved, because real machines always have a reserved CPU, too.
        4 => (cpus(), any::<[bool; 5]>(), crash)
            .prop_map(|(cpus, on, crash)| IsolationEvent::Turn(cpus.difference(&set("0")), on, crash)),
        1 => (0_usize..9, cpus()).prop_map(|(knob, cpus)| IsolationEvent::Other(knob, cpus)),
        1 => (10_u32..13).prop_map(IsolationEvent::Born),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// After any history with crashes at any step, the knobs obey the options. A release leaves each knob as the last
    /// foreign writer left it, and no record.
    #[test]
    fn any_history_can_be_undone(
        values in proptest::collection::vec(cpus(), 9),
        managed in proptest::collection::btree_set(0_usize..3, 0..2),
        history in proptest::collection::vec(happening(), 0..12),
    ) {
        let knobs = [
            Knob::Irq(1), Knob::Irq(2), Knob::Irq(3), Knob::NewIrqs, Knob::Workqueues,
            receive(0), transmit(0), transmit(1), Knob::Slice("system.slice".to_owned()),
        ];
        let mut kernel = KnobKernel::new(&[]);
        for (knob, cpus) in knobs.iter().zip(values) {
            // Only packet steering can be off, with an empty set.
            let off = cpus.is_empty() && knob.kind() != KnobKind::PacketSteering;
            kernel.knobs.insert(knob.clone(), if off { kernel.online.clone() } else { cpus });
        }
        kernel.managed = managed.into_iter().map(|index| knobs[index].clone()).collect();
        let mut will = kernel.knobs.clone();
        // The values that Pinfold wrote and that a foreign program may write by chance, too.
        let mut written: BTreeMap<Knob, BTreeSet<CpuSet>> = BTreeMap::new();
        for happening in history {
            match happening {
                IsolationEvent::Turn(exclusive, [irqs, workqueues, packet_steering, system_slices, isolated], crash) => {
                    let options = CpuIsolationOptions { irqs, workqueues, packet_steering, system_slices };
                    kernel.isolated = if isolated { set("0-3") } else { CpuSet::new() };
                    let before = kernel.clone();
                    kernel.turn(options, &exclusive, crash);
                    for (knob, cpus) in &kernel.knobs {
                        if before.knobs[knob] != *cpus {
                            written.entry(knob.clone()).or_default().insert(cpus.clone());
                        }
                    }
                    // After a crash between record and write, the record names values that were never written.
                    for (knob, entry) in KnobRecord::parse(kernel.note.as_deref()).unwrap().entries() {
                        written.entry(knob.clone()).or_default().extend(entry.written.iter().cloned());
                    }
                    if crash == usize::MAX {
                        prop_assert_eq!(kernel.plan(options, &exclusive).writes, vec![]);
                        let after = kernel.note.clone();
                        kernel.turn(options, &exclusive, usize::MAX);
                        prop_assert_eq!(&kernel.note, &after);
                        for (knob, cpus) in &kernel.knobs {
                            let quiet = options.wants(knob.kind()) && !kernel.managed.contains(knob);
                            let kept = cpus.is_disjoint(&exclusive) || matches!(knob, Knob::Transmit { .. });
                            prop_assert!(!quiet || kept, "{} on {} of {}", knob, cpus, exclusive);
                        }
                    }
                    if crash != usize::MAX {
                        // The refusals were known only to the process that crashed.
                        kernel.refused.clear();
                    }
                }
                IsolationEvent::Other(index, cpus) => {
                    let knob = &knobs[index];
                    let off = cpus.is_empty() && knob.kind() != KnobKind::PacketSteering;
                    // A foreign write with exactly Pinfold's value cannot be distinguished from Pinfold's write.
                    let by = |knob| written.get(knob).is_some_and(|written| written.contains(&cpus));
                    let chance = by(knob) || matches!(knob, Knob::Irq(_)) && by(&Knob::NewIrqs);
                    if !off && !chance && !kernel.managed.contains(knob) {
                        kernel.knobs.insert(knob.clone(), cpus.clone());
                        will.insert(knob.clone(), cpus);
                        written.remove(knob);
                    }
                }
                IsolationEvent::Born(irq) => {
                    let knob = Knob::Irq(irq);
                    let cpus = kernel.knobs[&Knob::NewIrqs].clone();
                    if !kernel.knobs.contains_key(&knob) {
                        kernel.knobs.insert(knob.clone(), cpus);
                        will.insert(knob, will[&Knob::NewIrqs].clone());
                    }
                }
            }
        }
        kernel.run(CpuIsolationOptions::default(), "");
        prop_assert_eq!(&kernel.knobs, &will);
        prop_assert_eq!(&kernel.note, &None);
    }
}
