//! Series of a made cluster with known answers: two scenes with two cases each, 10 minutes of each case, scraped each 15 s.

use std::collections::BTreeMap;
use std::fmt::Write;

/// 2025-11-22T10:00:00Z.
pub(crate) const START: u32 = 1_763_805_600;

/// How long each case was run.
pub(crate) const LONG: u32 = 600;

const SCRAPES: u32 = 15;

/// What one container does each second.
#[derive(Clone, Copy, Default)]
struct Does {
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
        let kind = if family.ends_with("_total") { "counter" } else { "gauge" };
        let name = family.trim_end_matches("_total");
        let lines = self.families.entry(family).or_insert_with(|| format!("# TYPE {name} {kind}\n"));
        writeln!(lines, "{family}{{{labels}}} {value} {at}").unwrap();
    }

    /// A pod for the time of its case.
    fn pod(&mut self, place: &Place<'_>, role: &str, index: u32, does: Does) {
        let pod = format!("namespace=\"train\",pod=\"wide-deep-{role}-{index}\",{}", place.target);
        let container = format!("{pod},container=\"tensorflow\"");
        let socket_only = place.case == "1" && place.scene == "2" && role == "ps";
        for second in (0..=LONG).step_by(SCRAPES as usize) {
            let at = place.start + second;
            let seen = f64::from(second);
            // For two minutes nobody scraped.
            if place.scene == "2" && place.case == "2" && (240..360).contains(&second) {
                continue;
            }
            let info = format!(
                "{pod},uid=\"u{role}{index}\",training_job=\"wide-deep\",role=\"{role}\",replica_index=\"{index}\""
            );
            self.sample("pinfold_pod_info", &info, 1.0, at);
            if !socket_only {
                // Two interfaces, which add up.
                for (interface, part) in [("eth0", 0.75), ("eth1", 0.25)] {
                    let labels = format!("{pod},interface=\"{interface}\"");
                    let of = |rate: f64| 1e6 + part * rate * seen;
                    self.sample("pinfold_pod_network_transmit_bytes_total", &labels, of(does.sent), at);
                    self.sample("pinfold_pod_network_receive_bytes_total", &labels, of(does.received), at);
                }
            }
            if place.scene == "2" && place.case == "1" {
                // Scraped by two that don't know of each other.
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
            // A container that was begun anew after half of the time counts from 0.
            let anew = place.scene == "1" && place.case == "2" && index == 0 && second > LONG / 2;
            let since = if anew { seen - f64::from(LONG / 2) } else { seen };
            self.sample("pinfold_container_cpu_usage_seconds_total", &container, does.cpu * since, at);
            self.sample("pinfold_container_cpu_periods_total", &container, 10.0 * since, at);
            self.sample(
                "pinfold_container_cpu_throttled_periods_total",
                &container,
                does.throttled * since,
                at,
            );
            if does.steps > 0.0 {
                let labels = format!("namespace=\"train\",pod=\"wide-deep-{role}-{index}\",mode=\"train\"");
                self.sample("train_steps_total", &labels, does.steps * seen, at);
            }
        }
    }
}

/// Where a pod runs.
struct Place<'a> {
    scene: &'a str,
    case: &'a str,
    start: u32,
    target: String,
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
        let place = |kind: &str, index: u32| Place {
            scene,
            case,
            start,
            target: format!(
                "node=\"n-{scene}-{case}-{kind}{index}\",instance=\"10.{scene}.{case}.{index}{kind}:9630\""
            ),
        };
        for (index, sent) in (0..).zip(servers) {
            // In scene 2 servers have nodes of their own.
            let kinds: &[&str] = if scene == "1" { &[""] } else { &["worker", "ps"] };
            for kind in kinds {
                let slot = format!(
                    "plan=\"p\",scene=\"{scene}\",case=\"{case}\",type=\"{kind}\",index=\"{index}\",{}",
                    place(kind, index).target
                );
                for second in (0..=LONG).step_by(SCRAPES as usize) {
                    all.sample("pinfold_scene_info", &slot, 1.0, start + second);
                }
            }
            let busy = Does { sent: *sent, received: *sent / 2.0, cpu: sent / 5e6, ..Does::default() };
            all.pod(&place(kinds.last().unwrap(), index), "ps", index, busy);
            for worker in [2 * index, 2 * index + 1] {
                let throttled = if scene == "1" && case == "1" { 2.0 } else { 0.0 };
                let does = Does { sent: 1e6, received: 1e6, cpu: 0.9, throttled, steps };
                all.pod(&place(kinds[0], index), "worker", worker, does);
            }
        }
        // Somebody else's job, on a node without a slot.
        let labels = "namespace=\"else\",pod=\"o-0\",training_job=\"other\",role=\"worker\",instance=\"10.9.9.9:9630\"";
        for second in (0..=LONG).step_by(SCRAPES as usize) {
            all.sample("pinfold_pod_info", labels, 1.0, start + second);
        }
    }
    all.families.into_values().collect::<String>() + "# EOF\n"
}
