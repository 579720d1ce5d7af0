//! Series of a made cluster with known answers: two scenes with two cases each, 10 minutes of each case, scraped each 15 s;
//! with whatever happens in one: a restart, a move, a gap, two who scrape, servers that wait.

use std::collections::BTreeMap;
use std::fmt::Write;

/// 2025-11-22T10:00:00Z.
pub(crate) const START: u32 = 1_763_805_600;

/// How long each case was run.
pub(crate) const LONG: u32 = 600;

const SCRAPES: u32 = 15;

/// The counts of a container per second.
#[derive(Clone, Copy, Default)]
struct ContainerRates {
    sent: f64,
    received: f64,
    cpu: f64,
    throttled: f64,
    steps: f64,
}

#[derive(Default)]
struct Series {
    families: BTreeMap<&'static str, String>,
}

impl Series {
    fn sample(&mut self, family: &'static str, labels: &str, value: f64, at: u32) {
        let kind = if family.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        let name = family.trim_end_matches("_total");
        let lines = self
            .families
            .entry(family)
            .or_insert_with(|| format!("# TYPE {name} {kind}\n"));
        writeln!(lines, "{family}{{{labels}}} {value} {at}").unwrap();
    }

    /// A pod that exists during a case.
    fn pod(&mut self, place: &PodPlace<'_>, role: &str, index: u32, does: ContainerRates) {
        let pod = format!(
            "namespace=\"train\",pod=\"wide-deep-{role}-{index}\",{}",
            place.target
        );
        let container = format!("{pod},container=\"tensorflow\"");
        let socket_only = place.case == "1" && place.scene == "2" && role == "ps";
        for at in place.scrapes(role) {
            let second = at.saturating_sub(place.start).min(LONG);
            // A container that moved to or from the node exists for half of the time, and counts from 0.
            let half = LONG / 2;
            let seen = match place.half {
                PodPeriod::First if second > half => continue,
                PodPeriod::Second if second <= half => continue,
                PodPeriod::Second => f64::from(second - half),
                _ => f64::from(second),
            };
            // Two minutes without a scrape.
            if place.scene == "2" && place.case == "2" && (240..360).contains(&second) {
                continue;
            }
            // Pods of the same name in other cases and places are other pods.
            let uid = format!("{}{}{role}{index}{:?}", place.scene, place.case, place.half);
            let info = format!(
                "{pod},uid=\"{uid}\",training_job=\"wide-deep\",role=\"{role}\",replica_index=\"{index}\""
            );
            self.sample("pinfold_pod_info", &info, 1.0, at);
            if !socket_only {
                // Two interfaces, which add up.
                for (interface, part) in [("eth0", 0.75), ("eth1", 0.25)] {
                    let labels = format!("{pod},interface=\"{interface}\"");
                    let of = |rate: f64| 1e6 + part * rate * seen;
                    self.sample(
                        "pinfold_pod_network_transmit_bytes_total",
                        &labels,
                        of(does.sent),
                        at,
                    );
                    self.sample(
                        "pinfold_pod_network_receive_bytes_total",
                        &labels,
                        of(does.received),
                        at,
                    );
                }
            }
            if place.scene == "2" && place.case == "1" {
                // Two independent servers scrape the node.
                for replica in ["a", "b"] {
                    let labels = format!("{pod},prometheus_replica=\"{replica}\"");
                    self.sample(
                        "pinfold_pod_network_socket_transmit_bytes_total",
                        &labels,
                        does.sent * seen,
                        at,
                    );
                    self.sample(
                        "pinfold_pod_network_socket_receive_bytes_total",
                        &labels,
                        does.received * seen,
                        at,
                    );
                }
            }
            // A container that restarted after half of the time counts from 0.
            let anew = place.scene == "1" && place.case == "2" && index == 0 && second > LONG / 2;
            let since = if anew {
                seen - f64::from(LONG / 2)
            } else {
                seen
            };
            self.sample(
                "pinfold_container_cpu_usage_seconds_total",
                &container,
                does.cpu * since,
                at,
            );
            self.sample(
                "pinfold_container_cpu_periods_total",
                &container,
                10.0 * since,
                at,
            );
            self.sample(
                "pinfold_container_cpu_throttled_periods_total",
                &container,
                does.throttled * since,
                at,
            );
            if does.steps > 0.0 {
                // With two scrape jobs, each job has separate series.
                for job in if place.scene == "2" && place.case == "1" {
                    &["a", "b"][..]
                } else {
                    &["a"]
                } {
                    let labels = format!(
                        "namespace=\"train\",pod=\"wide-deep-{role}-{index}\",mode=\"train\",job=\"{job}\""
                    );
                    if !place.again {
                        self.sample("train_steps_total", &labels, does.steps * seen, at);
                    }
                }
            }
        }
    }
}

/// When a pod is in a place.
#[derive(Debug, Clone, Copy)]
enum PodPeriod {
    Both,
    First,
    Second,
}

/// Where a pod runs.
struct PodPlace<'a> {
    scene: &'a str,
    case: &'a str,
    start: u32,
    target: String,
    half: PodPeriod,
    /// Whether a second target reports the same series under another name.
    again: bool,
}

// === impl PodPlace ===

impl PodPlace<'_> {
    /// When it is scraped. In scene 2 case 2 servers wait for five minutes before the workers come, and stay for ten.
    fn scrapes(&self, role: &str) -> impl Iterator<Item = u32> {
        let waits = self.scene == "2" && self.case == "2" && role == "ps";
        let (before, after) = if waits { (300, 600) } else { (0, 0) };
        // Two targets are not scraped at the same time.
        let shift = if self.again { 2 } else { 0 };
        (self.start - before + shift..=self.start + LONG + after + shift).step_by(SCRAPES as usize)
    }
}

/// Everything, in OpenMetrics.
pub(crate) fn series() -> String {
    let mut all = Series::default();
    // Steps a second of a worker; bytes that each server sends.
    let cases: [(&str, &str, f64, &[f64]); 4] = [
        ("1", "1", 5.0, &[2e6]),
        ("1", "2", 4.0, &[7e6, 1e6]),
        ("2", "1", 5.0, &[2e6]),
        ("2", "2", 4.1, &[7e6, 1e6]),
    ];
    for (at, (scene, case, steps, servers)) in (0..).zip(cases) {
        let start = START + 1800 * at;
        let named = |node: &str, host: &str| format!("node=\"n-{node}\",instance=\"{host}:9630\"");
        let place = |kind: &str, index: u32| PodPlace {
            scene,
            case,
            start,
            target: named(
                &format!("{scene}-{case}-{kind}{index}"),
                &format!("10.{scene}.{case}.{index}{kind}"),
            ),
            half: PodPeriod::Both,
            again: false,
        };
        // The same agent, also scraped under its name.
        let by_name = |kind: &str, index: u32| PodPlace {
            target: named(
                &format!("{scene}-{case}-{kind}{index}"),
                &format!("by-name-{index}{kind}"),
            ),
            again: true,
            ..place(kind, index)
        };
        let twice = scene == "1" && case == "1";
        for (index, sent) in (0..).zip(servers) {
            // In scene 2, servers run on separate nodes.
            let kinds: &[&str] = if scene == "1" {
                &[""]
            } else {
                &["worker", "ps"]
            };
            for kind in kinds {
                let mut places = vec![place(kind, index)];
                places.extend(twice.then(|| by_name(kind, index)));
                for place in places {
                    // The agents are scraped after the run, too; in scene 1 case 2 that was forgotten.
                    let is_lost = scene == "1" && case == "2";
                    let after = if is_lost { 0 } else { 120 };
                    for at in (start - 300..=start + LONG + after).step_by(SCRAPES as usize) {
                        let shift = if place.again { 2 } else { 0 };
                        all.sample("up", &place.target, 1.0, at + shift);
                    }
                    let slot = format!(
                        "plan=\"p\",scene=\"{scene}\",case=\"{case}\",type=\"{kind}\",index=\"{index}\",{}",
                        place.target
                    );
                    for at in place.scrapes("ps") {
                        all.sample("pinfold_scene_info", &slot, 1.0, at);
                    }
                }
            }
            let busy = ContainerRates {
                sent: *sent,
                received: *sent / 2.0,
                cpu: sent / 5e6,
                ..ContainerRates::default()
            };
            all.pod(&place(kinds.last().unwrap(), index), "ps", index, busy);
            if twice {
                all.pod(&by_name(kinds.last().unwrap(), index), "ps", index, busy);
            }
            for worker in [2 * index, 2 * index + 1] {
                let throttled = if twice { 2.0 } else { 0.0 };
                let does = ContainerRates {
                    sent: 1e6,
                    received: 1e6,
                    cpu: 0.9,
                    throttled,
                    steps,
                };
                // In scene 1 case 2 the last worker moves to the first server's node.
                if scene == "1" && worker == 3 {
                    all.pod(
                        &PodPlace {
                            half: PodPeriod::First,
                            ..place(kinds[0], index)
                        },
                        "worker",
                        worker,
                        does,
                    );
                    all.pod(
                        &PodPlace {
                            half: PodPeriod::Second,
                            ..place(kinds[0], 0)
                        },
                        "worker",
                        worker,
                        does,
                    );
                    continue;
                }
                all.pod(&place(kinds[0], index), "worker", worker, does);
                if twice {
                    all.pod(&by_name(kinds[0], index), "worker", worker, does);
                }
            }
        }
        // A job outside of the scenes, on a node without a slot.
        let labels = "namespace=\"else\",pod=\"o-0\",training_job=\"other\",role=\"worker\",instance=\"10.9.9.9:9630\"";
        for second in (0..=LONG).step_by(SCRAPES as usize) {
            all.sample("pinfold_pod_info", labels, 1.0, start + second);
        }
    }
    all.families.into_values().collect::<String>() + "# EOF\n"
}
