//! What a Prometheus is asked about runs, in PromQL.
//!
//! Counters are asked by `increase` alone, which sees through resets. An agent that two Prometheus scrape, or two jobs of one,
//! has each series twice: what agrees in all but that is counted once (`max by`). What is summed up is answered by `instance`,
//! so that [`SeenJob`](super::SeenJob) can tell two agents from one that is scraped as two targets. Only the steps, whose metric is
//! the user's, are not: a program that is scraped under two instances counts twice.

use std::fmt::Write;

/// Labels of the scraper, which say nothing about the scraped pod.
const SCRAPER: &str = "job, service, endpoint, prometheus, prometheus_replica";

/// How many seconds Prometheus looks back for a series' last sample.
const LOOKS_BACK: u64 = 300;

/// The shortest step of a subquery, in seconds; few scrape more often.
const SHORTEST_STEP: u64 = 15;

/// About how many steps of a subquery lie between two points.
const SUBSTEPS: u64 = 48;

/// Which tasks a report is about; what is not given is not asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// The namespace.
    pub namespace: Option<String>,
    /// The training job.
    pub job: Option<String>,
    /// The scene of the nodes' labels.
    pub scene: Option<String>,
    /// The case of the nodes' labels.
    pub case: Option<String>,
}

/// A measure of a task over a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Bytes sent by the task's own interfaces.
    Sent,
    /// Bytes received by the task's own interfaces.
    Received,
    /// Bytes sent by the task's sockets.
    SocketSent,
    /// Bytes received by the task's sockets.
    SocketReceived,
    /// Seconds of CPU.
    Cpu,
    /// Periods under a quota.
    Periods,
    /// Periods in which the quota ran out.
    ThrottledPeriods,
    /// Seconds in which threads waited for a CPU.
    RunDelay,
    /// Voluntary context switches.
    Voluntary,
    /// Involuntary context switches.
    Involuntary,
    /// Seconds in which others ran on the task's exclusive CPUs.
    Interference,
    /// Instructions.
    Instructions,
    /// Misses of the last-level cache.
    LlcMisses,
    /// The most exclusive CPUs that it had at a time.
    ExclusiveCpus,
    /// The most threads that it had at a time.
    Threads,
    /// How many threads its CPUs call for.
    ThreadsExpected,
    /// Steps, from a metric that the user names.
    Steps,
}

/// What the labels of a family say about a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskLabel {
    /// Its exclusive CPUs as a list.
    Cpus,
    /// The agent's verdict on the thread count.
    ThreadsVerdict,
    /// Why it should have exclusive CPUs and hasn't.
    NotPinned,
}

// === impl Measure ===

impl Measure {
    /// All measures.
    pub const ALL: [Self; 17] = [
        Self::Sent,
        Self::Received,
        Self::SocketSent,
        Self::SocketReceived,
        Self::Cpu,
        Self::Periods,
        Self::ThrottledPeriods,
        Self::RunDelay,
        Self::Voluntary,
        Self::Involuntary,
        Self::Interference,
        Self::Instructions,
        Self::LlcMisses,
        Self::ExclusiveCpus,
        Self::Threads,
        Self::ThreadsExpected,
        Self::Steps,
    ];

    /// The metric family, the labels that identify a series of a pod, and further matchers; `None` for steps, whose metric the user
    /// names.
    fn family(self) -> Option<(&'static str, &'static str, &'static str)> {
        const INTERFACE: &str = "namespace, pod, interface, instance";
        const POD: &str = "namespace, pod, instance";
        const CONTAINER: &str = "namespace, pod, container, instance";
        Some(match self {
            Self::Sent => ("pinfold_pod_network_transmit_bytes_total", INTERFACE, ""),
            Self::Received => ("pinfold_pod_network_receive_bytes_total", INTERFACE, ""),
            Self::SocketSent => ("pinfold_pod_network_socket_transmit_bytes_total", POD, ""),
            Self::SocketReceived => ("pinfold_pod_network_socket_receive_bytes_total", POD, ""),
            Self::Cpu => ("pinfold_container_cpu_usage_seconds_total", CONTAINER, ""),
            Self::Periods => ("pinfold_container_cpu_periods_total", CONTAINER, ""),
            Self::ThrottledPeriods => (
                "pinfold_container_cpu_throttled_periods_total",
                CONTAINER,
                "",
            ),
            Self::RunDelay => (
                "pinfold_container_cpu_run_delay_seconds_total",
                CONTAINER,
                "",
            ),
            Self::Voluntary => (
                "pinfold_container_context_switches_total",
                CONTAINER,
                ",kind=\"voluntary\"",
            ),
            Self::Involuntary => (
                "pinfold_container_context_switches_total",
                CONTAINER,
                ",kind=\"involuntary\"",
            ),
            Self::Interference => (
                "pinfold_container_interference_cpu_seconds_total",
                CONTAINER,
                "",
            ),
            Self::Instructions => ("pinfold_container_instructions_total", CONTAINER, ""),
            Self::LlcMisses => ("pinfold_container_llc_misses_total", CONTAINER, ""),
            Self::ExclusiveCpus => ("pinfold_container_cpus_assigned", CONTAINER, ""),
            Self::Threads => ("pinfold_container_threads", CONTAINER, ""),
            Self::ThreadsExpected => ("pinfold_container_threads_expected", CONTAINER, ""),
            Self::Steps => return None,
        })
    }

    /// Whether it only grows. Of the others the greatest value of a time counts.
    pub fn is_counter(self) -> bool {
        !matches!(
            self,
            Self::ExclusiveCpus | Self::Threads | Self::ThreadsExpected
        )
    }
}

// === impl TaskLabel ===

impl TaskLabel {
    pub const ALL: [Self; 3] = [Self::Cpus, Self::ThreadsVerdict, Self::NotPinned];

    /// The metric family, whose value is 1 where it holds, and the label.
    pub fn family(self) -> (&'static str, &'static str) {
        match self {
            Self::Cpus => ("pinfold_container_cpuset_info", "cpus"),
            Self::ThreadsVerdict => ("pinfold_container_threads_verdict", "verdict"),
            Self::NotPinned => ("pinfold_pod_not_pinned", "reason"),
        }
    }
}

/// The name of a metric, perhaps with matchers of its own: `train_steps_total{mode="train"}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepMetric {
    name: String,
    matchers: String,
}

// === impl StepMetric ===

impl std::str::FromStr for StepMetric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = match text.find('{') {
            Some(at) => text.split_at(at),
            None => (text, "{}"),
        };
        let matchers = rest
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let start = |letter: char| letter.is_ascii_alphabetic() || letter == '_' || letter == ':';
        let letter = |letter: char| start(letter) || letter.is_ascii_digit();
        match matchers {
            Some(matchers) if name.starts_with(start) && name.chars().all(letter) => {
                Ok(Self { name: name.to_owned(), matchers: matchers.trim().trim_end_matches(',').to_owned() })
            }
            _ => Err(
                "write the name of a counter of steps with the labels namespace and pod, like train_steps_total or \
                 train_steps_total{mode=\"train\"}"
                    .to_owned(),
            ),
        }
    }
}

impl std::fmt::Display for StepMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.matchers.as_str() {
            "" => f.write_str(&self.name),
            matchers => write!(f, "{}{{{matchers}}}", self.name),
        }
    }
}

/// A label's value as PromQL writes a text.
fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for letter in value.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            '\n' => text.push_str("\\n"),
            _ => text.push(letter),
        }
    }
    text.push('"');
    text
}

/// A pattern that matches exactly the given names.
fn one_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut pattern = String::new();
    for name in names {
        if !pattern.is_empty() {
            pattern.push('|');
        }
        for letter in name.chars() {
            // A pattern allows a backslash only before punctuation.
            if letter.is_ascii_punctuation() && !matches!(letter, '-' | '_') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
    }
    quoted(&pattern)
}

fn matchers<const N: usize>(wanted: [(&str, Option<&String>); N]) -> String {
    let given = wanted
        .into_iter()
        .filter_map(|(label, value)| value.map(|value| (label, quoted(value))));
    given
        .map(|(label, value)| format!("{label}={value}"))
        .collect::<Vec<_>>()
        .join(",")
}

/// Which scenes and cases nodes were labelled for within so many seconds.
pub fn cases(subject: &Subject, seconds: u64) -> String {
    let chosen = matchers([
        ("scene", subject.scene.as_ref()),
        ("case", subject.case.as_ref()),
    ]);
    format!("group by (scene, case) (last_over_time(pinfold_scene_info{{{chosen}}}[{seconds}s]))")
}

fn info(subject: &Subject) -> String {
    let mut chosen = matchers([("namespace", subject.namespace.as_ref())]);
    if !chosen.is_empty() {
        chosen.push(',');
    }
    match &subject.job {
        Some(job) => chosen += &format!("training_job={}", quoted(job)),
        None => chosen += "training_job!=\"\"",
    }
    format!("pinfold_pod_info{{{chosen}}}")
}

/// The selector of the slots, if the subject names a scene or a case.
fn slot(subject: &Subject) -> Option<String> {
    let wanted = [
        ("scene", subject.scene.as_ref()),
        ("case", subject.case.as_ref()),
    ];
    let chosen = matchers(wanted);
    (!chosen.is_empty()).then(|| format!("pinfold_scene_info{{{chosen}}}"))
}

/// Whether any of the tasks' pods was there, asked each `step` seconds: what lived between two points is seen, too. An answer
/// tells of the time from [`reaches_back`] seconds before it on.
pub fn whether(subject: &Subject, step: u64) -> String {
    let over = reaches_back(step);
    let info = format!("last_over_time({}[{over}s])", info(subject));
    match slot(subject) {
        Some(slot) => {
            let slot = format!("group by (instance) (last_over_time({slot}[{over}s]))");
            format!("count({info} * on (instance) group_left () {slot})")
        }
        None => format!("count({info})"),
    }
}

/// How far an answer to [`whether`] reaches back; enough for a pod and a slot that different scrapes tell of.
pub fn reaches_back(step: u64) -> u64 {
    step.max(LOOKS_BACK)
}

/// The tasks' pods, asked each `step` seconds; the value is when each was last scraped, the labels say what it is.
///
/// A pod and a slot belong together when the same agent, and so the same target, tells of both.
pub fn presence(subject: &Subject, step: u64) -> String {
    let mut query = format!("timestamp({})", info(subject));
    if let Some(slot) = slot(subject) {
        // A time times 1 stays the time.
        let _ = write!(
            query,
            " * on (instance) group_left () group by (instance) ({slot})"
        );
    }
    if step > SHORTEST_STEP {
        // The subquery also finds pods that lived between two points.
        query = format!(
            "max_over_time(({query})[{step}s:{}s])",
            (step / SUBSTEPS).max(SHORTEST_STEP)
        );
    }
    query
}

/// How often each target was scraped within so many seconds.
pub fn scrapes(targets: &[&str], seconds: u64) -> String {
    let targets = one_of(targets.iter().copied());
    format!("max by (instance) (count_over_time(up{{instance=~{targets}}}[{seconds}s]))")
}

/// When each target was scraped last with success, so that a pod that ended can be told from one whose agent was lost.
pub fn scraped(targets: &[&str]) -> String {
    let up = format!("up{{instance=~{}}}", one_of(targets.iter().copied()));
    format!("max by (instance) (timestamp({up}) and {up} == 1)")
}

/// The pods of a query.
#[derive(Debug, Clone, Copy)]
pub struct QueriedPods<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The names.
    pub names: &'a [&'a str],
    /// The metric of the steps.
    pub steps: Option<&'a StepMetric>,
}

// === impl QueriedPods ===

impl QueriedPods<'_> {
    /// The query for a measure over `seconds`, by pod and target; `None` for steps without a metric.
    pub fn total(&self, measure: Measure, seconds: u64) -> Option<String> {
        let own = self.matchers();
        let function = if measure.is_counter() {
            "increase"
        } else {
            "max_over_time"
        };
        let Some((family, labels, more)) = measure.family() else {
            let StepMetric { name, matchers } = self.steps?;
            let matchers = if matchers.is_empty() {
                own
            } else {
                format!("{own},{matchers}")
            };
            return Some(format!(
                "sum by (namespace, pod) (max without ({SCRAPER}) ({function}({name}{{{matchers}}}[{seconds}s])))"
            ));
        };
        let over_containers = if measure.is_counter() { "sum" } else { "max" };
        Some(format!(
            "{over_containers} by (namespace, pod, instance) (max by ({labels}) ({function}({family}{{{own}{more}}}[{seconds}s])))"
        ))
    }

    /// The query for the bytes to each other pod over `seconds`.
    pub fn peers(&self, seconds: u64) -> String {
        let own = self.matchers();
        format!(
            "sum by (pod, peer_pod, instance) (max by (pod, peer_namespace, peer_pod, instance) \
             (increase(pinfold_peer_transmit_bytes_total{{{own}}}[{seconds}s])))"
        )
    }

    /// The query for a label's values over `seconds`, each with the number of scrapes in which it held.
    pub fn label(&self, label: TaskLabel, seconds: u64) -> String {
        let (own, (family, name)) = (self.matchers(), label.family());
        format!("max by (pod, {name}) (sum_over_time({family}{{{own}}}[{seconds}s])) > 0")
    }

    fn matchers(&self) -> String {
        let namespace = quoted(self.namespace);
        let pods = one_of(self.names.iter().copied());
        format!("namespace={namespace},pod=~{pods}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_have_the_given_subject_with_any_letters() {
        let text = |text: &str| Some(text.to_owned());
        let job = Subject {
            job: text("a\"b\\c\n"),
            ..Subject::default()
        };
        assert_eq!(
            presence(&job, 15),
            r#"timestamp(pinfold_pod_info{training_job="a\"b\\c\n"})"#
        );
        assert_eq!(
            presence(&Subject::default(), 1),
            r#"timestamp(pinfold_pod_info{training_job!=""})"#
        );
        let all = Subject {
            namespace: text("t"),
            job: None,
            scene: text("2"),
            case: text("1"),
        };
        let joined = "timestamp(pinfold_pod_info{namespace=\"t\",training_job!=\"\"}) * on (instance) group_left () \
             group by (instance) (pinfold_scene_info{scene=\"2\",case=\"1\"})";
        assert_eq!(presence(&all, 15), joined);
        assert_eq!(
            presence(&all, 90),
            format!("max_over_time(({joined})[90s:15s])")
        );
        assert_eq!(
            presence(&all, 4800),
            format!("max_over_time(({joined})[4800s:100s])")
        );
        assert_eq!(
            whether(&all, 720),
            "count(last_over_time(pinfold_pod_info{namespace=\"t\",training_job!=\"\"}[720s]) * on (instance) group_left () \
             group by (instance) (last_over_time(pinfold_scene_info{scene=\"2\",case=\"1\"}[720s])))"
        );
        assert_eq!(
            whether(&Subject::default(), 1),
            "count(last_over_time(pinfold_pod_info{training_job!=\"\"}[300s]))"
        );
        assert_eq!(
            cases(
                &Subject {
                    case: text("1"),
                    ..Subject::default()
                },
                60
            ),
            "group by (scene, case) (last_over_time(pinfold_scene_info{case=\"1\"}[60s]))"
        );
    }

    #[test]
    fn queries_have_the_given_pods_with_any_letters() {
        let steps: StepMetric = "steps_total{mode=\"a\",}".parse().unwrap();
        let names = ["ps-0", "w.1", "ü–x"];
        let pods = QueriedPods {
            namespace: "t",
            names: &names,
            steps: Some(&steps),
        };
        assert_eq!(
            pods.total(Measure::Steps, 60).unwrap(),
            r#"sum by (namespace, pod) (max without (job, service, endpoint, prometheus, prometheus_replica) (increase(steps_total{namespace="t",pod=~"ps-0|w\\.1|ü–x",mode="a"}[60s])))"#
        );
        assert_eq!(
            QueriedPods {
                steps: None,
                ..pods
            }
            .total(Measure::Steps, 60),
            None
        );
        let own = r#"namespace="t",pod=~"ps-0|w\\.1|ü–x""#;
        assert_eq!(
            pods.total(Measure::Sent, 8).unwrap(),
            format!(
                "sum by (namespace, pod, instance) (max by (namespace, pod, interface, instance) \
                 (increase(pinfold_pod_network_transmit_bytes_total{{{own}}}[8s])))"
            )
        );
        assert_eq!(
            pods.total(Measure::Threads, 8).unwrap(),
            format!(
                "max by (namespace, pod, instance) (max by (namespace, pod, container, instance) \
                 (max_over_time(pinfold_container_threads{{{own}}}[8s])))"
            )
        );
        assert_eq!(
            pods.label(TaskLabel::NotPinned, 8),
            format!(
                "max by (pod, reason) (sum_over_time(pinfold_pod_not_pinned{{{own}}}[8s])) > 0"
            )
        );
        assert_eq!(
            scraped(&["10.0.0.1:9630", "n2"]),
            r#"max by (instance) (timestamp(up{instance=~"10\\.0\\.0\\.1\\:9630|n2"}) and up{instance=~"10\\.0\\.0\\.1\\:9630|n2"} == 1)"#
        );
    }

    #[test]
    fn a_metric_has_a_name() {
        for (text, shown) in [
            ("a:b_c9", "a:b_c9"),
            ("a{}", "a"),
            ("a{ b=\"c\" }", "a{b=\"c\"}"),
            ("_a{b=\"}\"}", "_a{b=\"}\"}"),
        ] {
            assert_eq!(text.parse::<StepMetric>().unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "9a",
            "a b",
            "rate(a[1m])",
            "a{b=\"c\"",
            "{a=\"b\"}",
            "a}",
        ] {
            assert!(
                wrong
                    .parse::<StepMetric>()
                    .unwrap_err()
                    .contains("train_steps_total"),
                "{wrong}"
            );
        }
    }
}
