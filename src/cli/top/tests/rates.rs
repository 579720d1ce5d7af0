//! Sequences of responses.

use super::*;

#[test]
fn rates_need_two_looks_at_one_thing() {
    let mut state = two_samples();
    let figures = |state: &TopState, pod: &str| {
        let row = state
            .rows
            .iter()
            .find(|row| row.key.pod.as_str() == pod)
            .unwrap();
        (row.total.usage, row.receive, row.total.interference_share())
    };
    assert_eq!(
        figures(&state, "ps-0"),
        (Some(0.5), Some(524_288.0), Some(0.125))
    );
    assert_eq!(
        figures(&state, "worker-2"),
        (Some(0.0), Some(0.0), None),
        "nothing is less than not known"
    );
    assert_eq!(
        figures(&state, "worker-10"),
        (None, None, None),
        "a counter that went back tells nothing"
    );
    // A restarted agent: counters may begin anywhere.
    state.record((
        0,
        at(5),
        answer(&status(&job()), &metrics(8, &[("ps-0", 9.0)])),
    ));
    state.arrange();
    assert_eq!(figures(&state, "ps-0"), (None, None, None));
    state.record((
        0,
        at(6),
        answer(&status(&job()), &metrics(8, &[("ps-0", 10.0)])),
    ));
    state.arrange();
    assert_eq!(figures(&state, "ps-0").0, Some(1.0));
    // A restarted container counts from zero, under the same name.
    let mut again = job();
    again[2]["cgroup"] = json!("kubepods/ps-0/another");
    state.record((
        0,
        at(7),
        answer(&status(&again), &metrics(8, &[("ps-0", 11.0)])),
    ));
    state.arrange();
    assert_eq!(
        figures(&state, "ps-0"),
        (None, Some(1_048_576.0), None),
        "its pod is the same"
    );
    let mut another = job();
    another[2]["uid"] = json!("another");
    state.record((
        0,
        at(8),
        answer(&status(&another), &metrics(8, &[("ps-0", 12.0)])),
    ));
    state.arrange();
    assert_eq!(
        figures(&state, "ps-0"),
        (None, None, None),
        "and so it is not"
    );
}

/// The counter grows when the agent is sure of the time, so it may grow faster than time passes.
#[test]
fn interference_is_never_more_than_all_of_the_time() {
    let mut state = two_samples();
    state.record((
        0,
        at(4),
        answer(&status(&job()), &metrics(7, &[("ps-0", 100.0)])),
    ));
    state.arrange();
    let mut rows = state.rows.iter();
    let row = rows.find(|row| row.key.pod.as_str() == "ps-0").unwrap();
    assert_eq!(row.total.interference_share(), Some(1.0));
}

#[test]
fn rates_are_means_over_some_seconds() {
    let mut state = state(&["node-1"]);
    for second in 0..30u32 {
        // Scrapes that share a collection make a counter up to a second old.
        let count = f64::from(second - second % 2);
        state.record((
            0,
            at(u64::from(second) * 2),
            answer(&status(&job()), &metrics(7, &[("ps-0", count)])),
        ));
        state.arrange();
        let usage = state.rows[0].total.usage;
        if second > 4 {
            assert!((0.3..=0.7).contains(&usage.unwrap()), "{second}: {usage:?}");
        }
    }
    // After a long gap, rates are means over the gap.
    state.record((0, at(60), Err("away".to_owned())));
    state.record((
        0,
        at(158),
        answer(&status(&job()), &metrics(7, &[("ps-0", 78.0)])),
    ));
    state.arrange();
    assert_eq!(state.rows[0].total.usage, Some(0.5));
}

#[test]
fn letters_stay_with_their_owners() {
    let mut state = two_samples();
    let letters = |state: &TopState| -> Vec<(String, Option<char>)> {
        state
            .rows
            .iter()
            .map(|row| (row.key.pod.to_string(), row.letter))
            .collect()
    };
    let before = letters(&state);
    assert_eq!(
        before,
        [
            ("ps-0".into(), Some('b')),
            ("worker-2".into(), None),
            ("worker-10".into(), Some('a'))
        ]
    );
    let mut next = status(&[
        job().remove(2),
        container("aaa", "worker", Some("1")),
        container("bbb", "worker", Some("4")),
    ]);
    next["unknownOwners"] =
        json!([{"cgroup": "kubepods/podx", "namespace": "", "pod": "", "cpus": "5"}]);
    state.record((0, at(5), answer(&next, "")));
    state.arrange();
    let after = letters(&state);
    assert!(after.contains(&("ps-0".into(), Some('b'))), "{after:?}");
    let mut given: Vec<char> = after.iter().filter_map(|(_, letter)| *letter).collect();
    given.sort_unstable();
    assert_eq!(
        given,
        ['a', 'b', 'c', 'd'],
        "the letter of who is gone is given again"
    );
    let drawn = on_screen(&state, 80, 24);
    assert!(
        drawn.contains("owns CPUs") || drawn.contains("unknown"),
        "{drawn}"
    );
}

#[test]
fn more_owners_than_letters_share_a_sign() {
    let all: Vec<Value> = (0..80)
        .map(|number| container(&format!("w-{number}"), "worker", Some(&number.to_string())))
        .collect();
    let mut big = status(&all);
    big["online"] = json!("0-127");
    big["layout"] = Value::Null;
    big.as_object_mut().unwrap().remove("layout");
    let mut state = state(&["node-1"]);
    state.record((0, at(1), answer(&big, "")));
    state.arrange();
    let letters: std::collections::HashSet<char> =
        state.rows.iter().filter_map(|row| row.letter).collect();
    assert_eq!(letters.len(), 61);
    assert!(on_screen(&state, 150, 30).contains("++++"));
}

#[test]
fn containers_of_a_pod_are_added_up() {
    let mut sidecar = container("ps-0", "ps", None);
    sidecar["container"] = json!("sidecar");
    sidecar["note"] = json!("stays in the shared pool");
    let mut init = container("ps-0", "ps", Some("2-3"));
    init["container"] = json!("init");
    (init["running"], init["observed"], init["effective"]) =
        (json!(false), Value::Null, Value::Null);
    let mut state = state(&["node-1"]);
    state.record((
        0,
        at(1),
        answer(&status(&[init, job().remove(2), sidecar]), ""),
    ));
    state.arrange();
    let row = &state.rows[0];
    assert_eq!(
        (state.rows.len(), row.total.threads, row.containers.len()),
        (1, Some(10), 3)
    );
    assert_eq!(
        row.total
            .assigned
            .as_ref()
            .map(ToString::to_string)
            .as_deref(),
        Some("2-3")
    );
    assert_eq!(row.notes, ["stays in the shared pool"]);
    let drawn = on_screen(&state, 80, 24);
    assert!(
        drawn.contains("\nr... a.a.\n"),
        "an init container in its pod's CPUs is no second owner\n{drawn}"
    );
    press(&mut state, "c");
    let drawn = on_screen(&state, 80, 24);
    assert!(
        drawn.contains("   sidecar") && drawn.contains("   init"),
        "{drawn}"
    );
}

#[test]
fn a_pod_of_the_same_name_does_not_inherit_numbers() {
    let mut gone = job().remove(2);
    (gone["uid"], gone["running"], gone["observed"]) = (json!("before"), json!(false), Value::Null);
    (gone["assigned"], gone["effective"]) = (Value::Null, Value::Null);
    let both = status(&[gone, job().remove(2)]);
    let mut state = state(&["node-1"]);
    for second in [1, 2] {
        let count = f64::from(u32::try_from(second).unwrap());
        state.record((
            0,
            at(second),
            answer(&both, &metrics(7, &[("ps-0", count)])),
        ));
    }
    state.arrange();
    let figures: Vec<(bool, Option<f64>, Option<f64>)> = state
        .rows
        .iter()
        .map(|row| (row.total.running, row.total.usage, row.receive))
        .collect();
    assert_eq!(
        figures,
        [(true, Some(1.0), Some(1_048_576.0)), (false, None, None)]
    );
}
