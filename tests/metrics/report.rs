//! `pinfold scene report`: of made series with known answers, of answers that were recorded, and of a real demo.

#[path = "report/fake.rs"]
mod fake;
#[path = "report/made.rs"]
mod made;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use pinfold::experiment::series::{
    Measure, QueriedPods, Subject, TaskLabel, cases, presence, whether,
};
use serde_json::Value;

use self::fake::Fake;
use self::made::series;
use crate::prometheus::{Demo, Prometheus};
use crate::renewed::same;
use crate::rules::known;

const ANSWERS: &str = "tests/data/report/answers.json";
const TEXT: &str = "tests/data/report/report.md";

/// The fixed time of all cases, so that the recorded answers fit the requests.
const SPAN: [&str; 4] = [
    "--from",
    "2025-11-22T09:50:00Z",
    "--to",
    "2025-11-22T12:00:00Z",
];

fn pinfold(url: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    command
        .args(["scene", "report", "--prometheus", url])
        .args(args)
        .env_remove("PINFOLD_PROMETHEUS");
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The report as JSON.
fn json(url: &str, args: &[&str]) -> Value {
    let (code, out, error) = pinfold(url, &[args, &["-o", "json"]].concat());
    assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
    serde_json::from_str(&out).unwrap()
}

/// Within half a percent: `increase` extrapolates to the ends of the time.
fn near(value: &Value, wanted: f64) {
    let value = value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number, {wanted} is wanted"));
    assert!(
        (value - wanted).abs() <= 0.005 * wanted.abs(),
        "{value} is not {wanted}"
    );
}

/// The kinds of the findings that were seen in a run.
fn kinds<'a>(report: &'a Value, run: &str) -> Vec<&'a str> {
    let is_seen = |seen: &Value| seen["group"] == run && seen["seen"] != 0;
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|finding| finding["seen"].as_array().unwrap().iter().any(is_seen))
        .map(|finding| finding["kind"].as_str().unwrap())
        .collect()
}

/// The only element of a list that has these values.
fn one<'a>(report: &'a Value, list: &str, wanted: &[(&str, &str)]) -> &'a Value {
    let all = report[list].as_array().unwrap().iter();
    let mut found = all.filter(|one| wanted.iter().all(|(key, value)| one[*key] == *value));
    let first = found.next();
    let first = first.unwrap_or_else(|| panic!("{list} has no {wanted:?}: {:#}", report[list]));
    assert!(found.next().is_none(), "{list} has several {wanted:?}");
    first
}

/// A value that a task or role has in the only run.
fn median<'a>(of: &'a Value, key: &str) -> &'a Value {
    assert_eq!(of[key]["values"], 1, "{key}: {of:#}");
    &of[key]["median"]
}

#[test]
fn it_asks_for_families_that_there_are() {
    let subject = Subject {
        scene: Some("1".to_owned()),
        ..Subject::default()
    };
    known(&cases(&subject, 60), &BTreeSet::new());
    known(&presence(&subject, 15), &BTreeSet::new());
    // Where a name ends is not told by a colon.
    known(
        &presence(&subject, 100).replace("[100s:15s]", "[100s]"),
        &BTreeSet::new(),
    );
    known(&whether(&subject, 100), &BTreeSet::new());
    let names = ["p"];
    let pods = QueriedPods {
        namespace: "n",
        names: &names,
        steps: None,
    };
    let asked: Vec<String> = Measure::ALL
        .iter()
        .filter_map(|measure| pods.total(*measure, 60))
        .chain(TaskLabel::ALL.map(|label| pods.label(label, 60)))
        .chain([pods.peers(60)])
        .collect();
    assert_eq!(
        asked.len(),
        Measure::ALL.len() - 1 + TaskLabel::ALL.len() + 1,
        "all but steps, whose metric is the user's"
    );
    asked
        .iter()
        .for_each(|query| known(query, &BTreeSet::new()));
}

/// A real Prometheus holds the series, and the report has the original values.
#[test]
fn made_series_in_a_real_prometheus_have_known_answers() {
    if !crate::gate::meant_for_this_machine("prometheus and promtool of Debian's package") {
        return;
    }
    let prometheus = Prometheus::holding(&series());
    let (recorder, kept) = Fake::recording(prometheus.address);
    let url = recorder.url();
    let steps = ["--step-metric", "train_steps_total{mode=\"train\"}"];
    let report = json(&url, &[&SPAN[..], &steps].concat());
    let conditions = report["conditions"].as_array().unwrap().iter();
    let names: Vec<&str> = conditions
        .map(|run| run["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "scene 1 case 1",
            "scene 1 case 2",
            "scene 2 case 1",
            "scene 2 case 2"
        ]
    );
    assert_eq!(report["title"], "Training of train/wide-deep");
    let fact = |name| one(&report, "subject", &[("name", name)])["value"].as_str();
    let seen = fact("scene 1 case 2").unwrap();
    assert!(
        seen.ends_with(
            "(10 min), 4 workers and 2 parameter servers on 2 nodes, scraped every 15.0 s"
        ),
        "{seen}"
    );
    for (at, run) in names.iter().enumerate() {
        let large = at % 2 == 1;
        let role = |role: &str| one(&report, "roles", &[("group", run), ("role", role)]);
        let (workers, rate, sent) = match large {
            false => (2.0, 5.0, [2e6].as_slice()),
            true => (4.0, if at == 1 { 4.0 } else { 4.1 }, [7e6, 1e6].as_slice()),
        };
        near(&role("worker")["tasks"], workers);
        near(
            &report["conditions"][at]["runs"][0]["value"],
            workers * rate,
        );
        // A container begun anew and a worker that moved (scene 1 case 2) and a gap (scene 2 case 2) lose nothing, and an
        // agent that is scraped by two names (scene 1 case 1) counts once.
        near(median(role("worker"), "cpusUsed"), 0.9);
        // Two interfaces are added, but two scrapers are not (scene 2 case 1). Server time before and after the workers is
        // not part of the run (scene 2 case 2).
        for (index, sent) in sent.iter().enumerate() {
            let task = format!("ps {index}");
            let task = one(&report, "tasks", &[("group", run), ("task", &task)]);
            near(median(task, "sentBytesPerSecond"), *sent);
            near(median(task, "receivedBytesPerSecond"), sent / 2.0);
            if large {
                near(median(task, "shareOfServers"), sent / 8e6);
                near(median(task, "shareOfServersCpu"), sent / 8e6);
            } else {
                assert_eq!(task["shareOfServers"], Value::Null, "a single server");
            }
        }
        let worker = one(&report, "tasks", &[("group", run), ("task", "worker 1")]);
        near(median(worker, "sentBytesPerSecond"), 1e6);
        near(median(worker, "stepsPerSecond"), rate);
        let throttled = if at == 0 { 0.2 } else { 0.0 };
        near(median(role("worker"), "throttledShare"), throttled);
        // Each simulated worker makes the same number of steps, as with a global counter.
        let expected: &[&str] = match (at, large) {
            (0, _) => &["sharedSteps", "throttled"],
            (_, true) => &["sharedSteps", "hotServer"],
            _ => &["sharedSteps"],
        };
        assert_eq!(kinds(&report, run), expected, "{run}");
    }
    let hot = one(&report, "findings", &[("kind", "hotServer")]);
    let share =
        &one(hot, "figures", &[("name", "share of the servers' bytes")])["summary"]["median"];
    near(share, 7.0 / 8.0);
    let moved = one(
        &report,
        "tasks",
        &[("group", "scene 1 case 2"), ("task", "worker 3")],
    );
    assert_eq!(
        moved["nodes"],
        serde_json::json!(["n-1-2-0"]),
        "the last one"
    );
    let warnings: Vec<&str> = report["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|warning| warning.as_str().unwrap())
        .collect();
    assert_eq!(
        warnings,
        [
            "scene 1 case 2: 10.1.2.0:9630, 10.1.2.1:9630 were not scraped after 2025-11-22T10:40:00Z, so the job may have gone on; its \
             figures are about the time before",
            "scene 2 case 2: there are no samples for 2 min of the run; only the counters' growth over that time is known",
        ]
    );
    let curves = report["speedup"].as_array().unwrap();
    assert_eq!(curves.len(), 2);
    for (curve, efficiency) in curves.iter().zip([0.8, 0.82]) {
        near(&curve["points"][1]["efficiency"], efficiency);
    }
    let pairs = report["others"].as_array().unwrap();
    assert_eq!(pairs.len(), 2, "case 1 and case 2");
    near(&pairs[1]["ratios"][0], 1.025);
    let said = pairs[1]["sentence"].as_str().unwrap();
    assert!(said.contains("ps 0 is hot in both"), "{said}");

    // Ten minutes are found in three days, too: between two looks are 18.
    let days = json(
        &url,
        &[
            "--from",
            "2025-11-20T00:00:00Z",
            "--to",
            "2025-11-23T00:00:00Z",
            "--scene",
            "1",
            steps[0],
            steps[1],
        ],
    );
    for (run, sent) in [("scene 1 case 1", 2e6), ("scene 1 case 2", 7e6)] {
        let server = one(&days, "tasks", &[("group", run), ("task", "ps 0")]);
        near(median(server, "sentBytesPerSecond"), sent);
    }
    // All cases as one run of a hundred minutes, in which pods of the same name were in many places; what `increase` adds for
    // the time around ten minutes is up to a scrape's time.
    let all = json(
        &url,
        &[
            "--run",
            &format!("name=all,from={},to={}", SPAN[1], SPAN[3]),
            "--job",
            "wide-deep",
            steps[0],
            steps[1],
        ],
    );
    let hundred_minutes = 6000.0;
    let rate = all["conditions"][0]["runs"][0]["value"].as_f64().unwrap();
    let wanted = 600.0 * (2.0 * 5.0 + 4.0 * 4.0 + 2.0 * 5.0 + 4.0 * 4.1) / hundred_minutes;
    assert!(
        (0.99..1.04).contains(&(rate / wanted)),
        "{rate} of {wanted}"
    );
    let worker = one(&all, "tasks", &[("task", "worker 0")]);
    let cpus = median(worker, "cpusUsed").as_f64().unwrap();
    assert!((0.86..0.94).contains(&cpus), "{cpus} while it was there");
    assert!(
        all["warnings"]
            .to_string()
            .contains("there are no samples for"),
        "{all}"
    );

    // Without steps, the servers' traffic decides.
    let by_bytes = json(&url, &[&SPAN[..], &["--scene", "1"]].concat());
    near(&by_bytes["speedup"][0]["points"][1]["efficiency"], 2.0);
    assert_eq!(
        by_bytes["measure"],
        "bytes sent by the parameter servers per second"
    );
    // Part of a case, named: the job goes on after it.
    let half = format!(
        "name=half,scene=1,case=1,from=2025-11-22T10:00:00Z,to={}",
        "2025-11-22T10:05:00Z"
    );
    let half = json(&url, &["--run", &half, "--job", "wide-deep"]);
    let server = one(&half, "tasks", &[("task", "ps 0")]);
    near(median(server, "sentBytesPerSecond"), 2e6);
    let cut = "the job was still there at the end of the time range";
    assert!(half["warnings"].to_string().contains(cut), "{half}");
    let (code, _, error) = pinfold(
        &url,
        &[
            "--run",
            "name=x,from=2025-11-22T10:00:00Z,to=2025-11-22T10:05:00Z",
        ],
    );
    assert_eq!(code, Some(2));
    assert!(
        error.contains("several jobs ran, else/other, train/wide-deep: choose one with --job"),
        "{error}"
    );
    // An invalid metric, and a missing metric.
    let (code, _, error) = pinfold(&url, &[&SPAN[..], &["--step-metric", "a{b}"]].concat());
    assert_eq!(code, Some(2));
    assert!(
        error.contains("400 Bad Request, bad_data") && error.contains("a{namespace="),
        "{error}"
    );
    let lacks = json(
        &url,
        &[&SPAN[..], &["--case", "1", "--step-metric", "nobody_total"]].concat(),
    );
    let missing = lacks["warnings"].to_string();
    assert!(missing.contains("no series of nobody_total"), "{missing}");
    for (args, says) in [
        (
            &["--case", "9"][..],
            "labelled for case 9 between 2025-11-22T09:50:00Z and 2025-11-22T12:00:00Z; the time range has scene 1 case 1, scene 1 case 2, scene 2",
        ),
        (
            &["--job", "nobody", "--case", "1"],
            "the time range has no training pod",
        ),
    ] {
        let (code, out, error) = pinfold(&url, &[&SPAN[..], args].concat());
        assert_eq!((code, out.as_str()), (Some(1), ""), "{error}");
        assert!(error.contains(says) && error.contains(&url), "{error}");
    }

    if std::env::var_os("PINFOLD_RENEW").is_some() {
        kept.lock().unwrap().clear();
        json(&url, &[&SPAN[..], &steps, &["--case", "2"]].concat());
        let kept = kept.lock().unwrap();
        let line = |(target, body): (&String, &String)| {
            let body: Value = serde_json::from_str(body).unwrap();
            format!("{}: {body}", Value::from(target.as_str()))
        };
        let lines: Vec<String> = kept.iter().map(line).collect();
        same(ANSWERS, &format!("{{\n{}\n}}\n", lines.join(",\n")));
    }
    prometheus.stop();
}

/// Recorded answers of a real Prometheus: the same text on every machine.
#[test]
fn recorded_answers_make_the_same_report() {
    let text = std::fs::read_to_string(crate::yaml::here(ANSWERS)).unwrap();
    let answers: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    let fake = Fake::recorded(
        answers
            .into_iter()
            .map(|(target, body)| (target, body.to_string()))
            .collect(),
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a/b");
    let args = [
        "--case",
        "2",
        "--step-metric",
        "train_steps_total{mode=\"train\"}",
        "--out",
        out.to_str().unwrap(),
    ];
    let (code, printed, error) = pinfold(&fake.url(), &[&SPAN[..], &args].concat());
    assert_eq!((code, error.as_str()), (Some(0), ""));
    same(
        TEXT,
        &printed.replace(&fake.url(), "http://prometheus:9090"),
    );
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    assert_eq!(read("report.md"), printed);
    let json: Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(json["conditions"].as_array().unwrap().len(), 2);
    // A new file replaces the old file completely. A failed write leaves the old file.
    let files = || {
        let names = std::fs::read_dir(&out)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<BTreeSet<String>>()
    };
    let page = read("report.html");
    assert!(
        page.starts_with("<!doctype html>") && page.contains("ps 0 is hot"),
        "{page}"
    );
    let all = ["report.html", "report.json", "report.md"].map(str::to_owned);
    assert_eq!(
        pinfold(&fake.url(), &[&SPAN[..], &args].concat()).0,
        Some(0)
    );
    assert_eq!(files(), BTreeSet::from(all.clone()));
    std::fs::write(out.join("report.md"), "before").unwrap();
    std::fs::remove_file(out.join("report.json")).unwrap();
    std::fs::create_dir(out.join("report.json")).unwrap();
    let (code, printed, error) = pinfold(&fake.url(), &[&SPAN[..], &args].concat());
    assert_eq!((code, printed.as_str()), (Some(2), ""), "{error}");
    assert!(error.contains("a/b/report.json is a folder"), "{error}");
    assert_eq!(read("report.md"), "before");
    assert_eq!(files(), BTreeSet::from(all));
    // A request without a record is refused, and the error names the request.
    let (code, _, error) = pinfold(&fake.url(), &[&SPAN[..], &["--case", "1"]].concat());
    assert_eq!(code, Some(2));
    assert!(
        error.contains("/api/v1/query refused the query: 404") && error.contains("case=\"1\""),
        "{error}"
    );
}

/// The guide shows lines of the report, wrapped.
#[test]
fn the_guide_shows_what_is_printed() {
    let read = |path: &str| std::fs::read_to_string(crate::yaml::here(path)).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (guide, report) = (
        read("docs/guides/scenes-from-plan-to-report.md"),
        read(TEXT),
    );
    let shown = guide
        .split("```text\n- scene 2 case 2 has")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .map(|rest| format!("- scene 2 case 2 has{rest}"))
        .unwrap();
    let report = words(&report);
    // A wrapped line continues with two spaces or without a mark; an empty line ends a paragraph.
    let parts: Vec<String> = shown
        .split("\n\n")
        .map(words)
        .filter(|part| !part.is_empty() && part != "…")
        .collect();
    assert!(parts.len() > 3, "{parts:?}");
    for part in parts {
        assert!(report.contains(&part), "{TEXT} has no {part:?}");
    }
}

const EMPTY: &str = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;

#[test]
fn answers_that_no_prometheus_gives_are_named_with_the_query() {
    let good = |result: &str| {
        format!(r#"{{"status":"success","data":{{"resultType":"vector","result":{result}}}}}"#)
    };
    for (status, body, code, says) in [
        (
            200,
            EMPTY.to_owned(),
            1,
            "the time range has no training pod",
        ),
        (
            200,
            "<html>login</html>".to_owned(),
            2,
            "is not a Prometheus server: expected value",
        ),
        (
            200,
            r#"{"status":"success","data":{"resultType":"string","result":[1,"a"]}}"#.to_owned(),
            2,
            "of type string",
        ),
        (
            200,
            good(r#"[{"metric":{},"value":[1,"x"]}]"#),
            2,
            "\"x\" is not a number",
        ),
        (
            200,
            good(r#"[{"metric":{},"histogram":[1,{}]}]"#),
            2,
            "histograms",
        ),
        (
            302,
            String::new(),
            2,
            "refused the query: 302 Found, the server redirects to https://login",
        ),
        (
            200,
            " ".repeat((64 << 20) + 1),
            2,
            "has more than 64 MiB: limit the report",
        ),
        (
            401,
            "who are you?".to_owned(),
            2,
            "refused the query: 401 Unauthorized: who are you?",
        ),
        (
            422,
            r#"{"status":"error","errorType":"execution","error":"too many samples"}"#.to_owned(),
            2,
            "execution: too many samples",
        ),
        (
            503,
            "Service Unavailable".to_owned(),
            2,
            "refused the query: 503",
        ),
        (500, EMPTY.to_owned(), 2, "refused the query: 500"),
    ] {
        let told = body.clone();
        let fake = Fake::start(move |_| (status, told.clone()));
        let (found, out, error) = pinfold(&fake.url(), &["--last", "5m"]);
        let body = body.trim();
        assert_eq!(
            (found, out.as_str()),
            (Some(code), ""),
            "{status} {body}: {error}"
        );
        assert!(
            error.contains(says) && error.contains(&fake.url()),
            "{status} {body}: {error}"
        );
        assert!(
            error.contains("query: ") && error.contains("pinfold_"),
            "{status} {body}: {error}"
        );
    }
    // No server on the port, and a server that does not answer.
    let address = std::net::TcpListener::bind(crate::prometheus::port()).unwrap();
    let silent = address.local_addr().unwrap();
    let (code, _, error) = pinfold(&format!("http://{silent}"), &["--timeout", "1s"]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("gave no answer within 1 s: raise --timeout (query: group by"),
        "{error}"
    );
    drop(address);
    let (code, _, error) = pinfold(&format!("http://{silent}/prefix/"), &[]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("/prefix/api/v1/query: ") && error.contains("refused"),
        "{error}"
    );
}

#[test]
fn the_question_is_asked_as_it_should_be() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let many: Vec<String> =
        (0..200).map(|at| format!(r#"{{"metric":{{"namespace":"t","training_job":"j","pod":"a-long-name-{at}","role":"worker"}},"values":[[T,"T"],[U,"U"]]}}"#)).collect();
    let many = many.join(",");
    let first = std::sync::OnceLock::new();
    let fake = Fake::start(move |asked| {
        if !asked.head.contains("authorization: bearer s3cret\r\n")
            || !asked.target.starts_with("/p/api/v1/")
        {
            return (403, format!("{}{}", asked.target, asked.head));
        }
        // A query with two hundred names is too long for a URL.
        if (asked.method == "POST") != asked.target.contains("a-long-name-7") {
            return (414, asked.target.clone());
        }
        let seen = asked
            .target
            .split("start=")
            .nth(1)
            .and_then(|rest| rest.split('.').next())
            .and_then(|at| at.parse::<u64>().ok())
            // The times of the first report stay.
            .map(|at| *first.get_or_init(|| at));
        match (
            asked.target.contains("/query_range"),
            asked.target.contains("pod_info"),
            seen,
        ) {
            (true, true, Some(at)) => {
                let result = many
                    .replace('T', &(at + 10).to_string())
                    .replace('U', &(at + 40).to_string());
                (
                    200,
                    format!(
                        r#"{{"status":"success","data":{{"resultType":"matrix","result":[{result}]}},"warnings":["mind the gap"]}}"#
                    ),
                )
            }
            _ => (200, EMPTY.to_owned()),
        }
    });
    let args = ["--token-file", token.to_str().unwrap(), "--last", "5m"];
    let report = json(&format!("{}/p", fake.url()), &args);
    assert_eq!(report["tasks"].as_array().unwrap().len(), 200);
    assert_eq!(
        report["roles"][0]["cpusUsed"],
        Value::Null,
        "nothing is known of them"
    );
    assert_eq!(report["warnings"][0], "Prometheus warns: mind the gap");
}

#[test]
fn bad_input_is_refused_before_anybody_is_asked() {
    // No server listens on the port, so a request would fail.
    let url = "http://127.0.0.1:1";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let (two_lines, word) = (folder.path().join("lines"), folder.path().join("word"));
    std::fs::write(&two_lines, "a:b\nc:d\n").unwrap();
    std::fs::write(&word, "word\n").unwrap();
    let below = format!("{file}/x");
    for (url, args, says) in [
        (
            "prometheus:9090",
            &[][..],
            "is not the URL of a Prometheus server",
        ),
        ("ftp://p", &[], "the scheme is neither http nor https"),
        ("http://u:hunter-2@p", &[], "--token-file"),
        (
            "u:hunter-2@p:9090",
            &[],
            "is not the URL of a Prometheus server",
        ),
        ("http://p/?x=1", &[], "the URL has a query"),
        ("", &[], "is not the URL of a Prometheus server"),
        (
            url,
            &["--from", "yesterday"],
            "write a time in the format of RFC 3339",
        ),
        (
            url,
            &[
                "--from",
                "2025-11-22T10:00:00Z",
                "--to",
                "2025-11-22T10:00:00Z",
            ],
            "is not after its start",
        ),
        (url, &["--last", "5"], "last 5: write a time like 90s"),
        (url, &["--last", "0s"], "last 0s"),
        (
            url,
            &["--last", "5m", "--from", "2025-11-22T10:00:00Z"],
            "cannot be used with",
        ),
        (
            url,
            &["--run", "scene=1"],
            "--run scene=1: the run has no name",
        ),
        (url, &["--run", "name=a,when=now"], "when is unknown"),
        (url, &["--run", "name=a,b"], "\"b\" is not KEY=VALUE"),
        (url, &["--run", "name="], "name has no value"),
        (url, &["--run", "name=a,name=b"], "name is given twice"),
        (
            url,
            &["--run", "name=a,from=2025-11-22T10:00:00Z,last=5m"],
            "has both from and last",
        ),
        (
            url,
            &["--run", "name=a", "--run", "name=a"],
            "another run has the name a",
        ),
        (
            url,
            &["--step-metric", "rate(x[1m])"],
            "write the name of a counter of steps",
        ),
        (
            url,
            &["--token-file", "/nowhere/token"],
            "the token file /nowhere/token: ",
        ),
        (url, &["--token-file", file], "the file is empty"),
        (
            url,
            &["--token-file", "Cargo.toml"],
            "the token file Cargo.toml: the file has more than one line or word",
        ),
        (
            url,
            &["--token-file", "/dev/zero"],
            "the token file /dev/zero: the file has more than 4 MiB",
        ),
        (
            url,
            &["--user-file", two_lines.to_str().unwrap()],
            "the file has more than one line",
        ),
        (
            url,
            &["--user-file", word.to_str().unwrap()],
            "write name:password into the file",
        ),
        (
            url,
            &["--user-file", file, "--token-file", file],
            "cannot be used with",
        ),
        (
            url,
            &["--ca-file", "Cargo.toml"],
            "the certificate authority's file Cargo.toml: ",
        ),
        (
            url,
            &["--ca-file", "/nowhere/ca"],
            "the certificate authority's file /nowhere/ca: ",
        ),
        (url, &["--out", below.as_str()], "can't make the folder"),
    ] {
        let (code, out, error) = pinfold(url, args);
        assert_eq!(
            (code, out.as_str()),
            (Some(2), ""),
            "{url} {args:?}: {error}"
        );
        assert!(error.contains(says), "{url} {args:?}: {error}");
        assert!(
            !error.contains("hunter-2") && !error.contains("(query: "),
            "{url} {args:?}: {error}"
        );
    }
}

/// Prometheus' own access control: TLS, and a user with a password.
#[test]
fn a_prometheus_that_lets_not_everybody_in_is_asked() {
    if !crate::gate::meant_for_this_machine("prometheus and openssl of Debian's packages") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (prometheus, authority) = Prometheus::guarded();
    std::fs::write(path("user"), "reader:let me in\n").unwrap();
    std::fs::write(path("other"), "reader:let me out\n").unwrap();
    let url = format!("https://{}", prometheus.address);
    let (user, other) = (path("user"), path("other"));
    for (url, args, code, says) in [
        (
            &url,
            &["--ca-file", &authority, "--user-file", &user][..],
            1,
            "the time range has no training pod",
        ),
        (
            &url,
            &["--ca-file", &authority, "--user-file", &other],
            2,
            "refused the query: 401 Unauthorized",
        ),
        (
            &url,
            &["--ca-file", &authority],
            2,
            "refused the query: 401 Unauthorized",
        ),
        (&url, &["--user-file", &user], 2, "can't reach https://"),
        (
            &url.replace("https", "http"),
            &["--user-file", &user],
            2,
            "refused the query: 400 Bad Request: Client sent an HTTP request to an HTTPS server",
        ),
    ] {
        let (found, out, error) = pinfold(url, args);
        assert_eq!((found, out.as_str()), (Some(code), ""), "{args:?}: {error}");
        assert!(
            error.contains(says) && !error.contains("let me"),
            "{args:?}: {error}"
        );
    }
    let (_, _, error) = pinfold(&url, &["--user-file", &user]);
    assert!(error.to_lowercase().contains("certificate"), "{error}");
    prometheus.stop();
}

/// The slices of a demo, which a second target assigns to a case of two scenes.
#[test]
fn a_demo_is_reported_of() {
    if !crate::gate::meant_for_this_machine("root, cgroups, and prometheus of Debian's package") {
        return;
    }
    let began = Instant::now();
    let told = Fake::start(move |_| {
        let steps = 10.0 * began.elapsed().as_secs_f64();
        let text = format!(
            "# TYPE pinfold_scene_info gauge\n\
             pinfold_scene_info{{plan=\"p\",scene=\"1\",case=\"2\",type=\"\",index=\"0\"}} 1\n\
             # TYPE train_steps_total counter\n\
             train_steps_total{{namespace=\"demo\",pod=\"worker-0\"}} {steps}\n"
        );
        (200, text)
    });
    let demo = Demo::start();
    let prometheus = Prometheus::scraping(demo.address, Some(told.address));
    let url = format!("http://{}", prometheus.address);
    // Not from the start: the demo may have waited for the end of an earlier demo.
    let scraped = Instant::now();
    let deadline = scraped + Duration::from_secs(150);
    let wanted = "increase(pinfold_pod_network_transmit_bytes_total{pod=\"ps-0\"}[20s]) > 1e5";
    while !prometheus.has_data(wanted) || scraped.elapsed() < Duration::from_secs(30) {
        assert!(Instant::now() < deadline, "no traffic");
        std::thread::sleep(Duration::from_millis(500));
    }
    let args = [
        "--last",
        "10m",
        "--case",
        "2",
        "--step-metric",
        "train_steps_total",
    ];
    let report = json(&url, &args);
    assert_eq!(report["conditions"][0]["name"], "scene 1 case 2");
    assert_eq!(report["title"], "Training of demo/demo");
    let task = |name: &str| one(&report, "tasks", &[("task", name)]);
    let (ps, worker) = (task("ps 0"), task("worker 0"));
    assert_eq!(worker["nodes"][0], "n1");
    let steps = median(worker, "stepsPerSecond").as_f64().unwrap();
    assert!(
        (steps - 10.0).abs() < 1.0,
        "{steps} steps a second, 10 were counted"
    );
    for (task, key) in [
        (ps, "sentBytesPerSecond"),
        (ps, "receivedBytesPerSecond"),
        (worker, "cpusUsed"),
        (worker, "sentBytesPerSecond"),
    ] {
        let value = median(task, key).as_f64();
        assert!(value.is_some_and(|value| value > 0.0), "{key}: {task:#}");
    }
    let text = pinfold(&url, &args).1;
    println!("{text}");
    assert!(
        text.contains("# Training of demo/demo\n") && text.contains("scene 1 case 2"),
        "{text}"
    );
    let log = demo.stop() + &prometheus.stop();
    assert!(!log.contains("panicked"), "{log}");
}
