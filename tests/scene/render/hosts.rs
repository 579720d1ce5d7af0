//! The addresses of thousands of tasks: written once, and never longer than Linux passes to a program.

use pinfold::experiment::{Rendered, Slice, WorkloadFormat, render};
use pinfold::scene::ScenePlan;
use serde_json::Value;

use super::render::{faults, full, pods, request, started};
use super::{SMALL, plan};

/// The longest argument on Linux, zero byte included (MAX_ARG_STRLEN).
const LONGEST: usize = 131_072;

/// A server with the given number of workers, and a parameter server.
fn crowded(workers: u32) -> ScenePlan {
    let mut plan = plan(SMALL);
    let scene = &mut plan.spec.scenes[0];
    scene.groups[0]
        .per_node
        .insert("worker".to_owned(), workers);
    scene.cases[0].nodes.insert("w".to_owned(), 1);
    plan
}

fn last(workers: u32, args: &[&str]) -> Result<Rendered, String> {
    let mut job = full();
    job.args = args.iter().map(|&text| text.to_owned()).collect();
    let slice = Slice {
        role: Some("worker".to_owned()),
        from: Some(workers - 1),
        to: None,
    };
    let rendered = render(&request(
        &crowded(workers),
        ("2", "1"),
        &job,
        WorkloadFormat::Native,
        &slice,
    ));
    rendered.map_err(|faults| faults.to_string())
}

/// The largest rendered case.
fn largest(args: &[&str]) -> u32 {
    let (mut works, mut fails) = (1, 20_000);
    while fails - works > 1 {
        let middle = works + (fails - works) / 2;
        match last(middle, args) {
            Ok(_) => works = middle,
            Err(_) => fails = middle,
        }
    }
    works
}

#[test]
fn a_text_that_no_program_gets_is_refused_and_the_one_before_it_is_not() {
    let address = ",\"wide-deep-s2-c1-worker-99999.wide-deep-s2-c1:2222\"".len();
    for (args, what, more) in [
        (&[][..], "TF_CONFIG would have 128 KiB", address),
        (
            &["--all=$(WORKER_HOSTS),$(PS_HOSTS),$(WORKER_HOSTS)"],
            "a text of args would have 128 KiB",
            2 * address,
        ),
    ] {
        let most = largest(args);
        let objects = last(most, args).unwrap().objects;
        let (env, words) = started(&objects, &pods(&objects)[0].template);
        let variables = env.iter().map(|(name, value)| name.len() + 1 + value.len());
        let longest = variables
            .chain(words.iter().map(String::len))
            .max()
            .unwrap();
        assert!(
            (LONGEST - more..LONGEST).contains(&longest),
            "{most}: {longest}"
        );
        let refused = last(most + 1, args).unwrap_err();
        assert!(
            refused.contains(what) && refused.contains("choose a case with fewer tasks"),
            "{refused}"
        );
    }
    // A case too large to count is refused.
    assert!(
        last(u32::MAX, &[])
            .unwrap_err()
            .contains("choose a case with fewer tasks")
    );
}

#[test]
fn thousands_of_tasks_share_one_list() {
    let job = full();
    let plan = crowded(2000);
    let whole = render(&request(
        &plan,
        ("2", "1"),
        &job,
        WorkloadFormat::Native,
        &Slice::default(),
    ))
    .unwrap()
    .objects;
    let lists: Vec<&Value> = whole
        .iter()
        .filter(|one| one["kind"] == "ConfigMap")
        .collect();
    assert_eq!((lists.len(), whole.len()), (1, 1 + 1 + 1 + 1 + 2001));
    assert_eq!(faults(lists[0]), Vec::<String>::new());
    assert_eq!(lists[0]["metadata"]["namespace"], "train");
    let others = whole.iter().filter(|one| one["kind"] != "ConfigMap");
    assert!(others.map(|one| one.to_string().len()).max().unwrap() < 8 << 10);
    // A slice has the list of hosts, and its tasks know all tasks.
    let slice = Slice {
        role: Some("worker".to_owned()),
        from: Some(1999),
        to: None,
    };
    let part = render(&request(
        &plan,
        ("2", "1"),
        &job,
        WorkloadFormat::Native,
        &slice,
    ))
    .unwrap()
    .objects;
    assert!(part.iter().all(|object| whole.contains(object)));
    let (env, _) = started(&part, &pods(&part)[0].template);
    let config: Value = serde_json::from_str(&env["TF_CONFIG"]).unwrap();
    let all: Vec<&str> = config["cluster"]["worker"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one.as_str().unwrap())
        .collect();
    assert_eq!(
        (all.len(), all[1999]),
        (2000, "wide-deep-s2-c1-worker-1999.wide-deep-s2-c1:2222")
    );
    assert_eq!(
        (env["WORKER_HOSTS"].as_str(), &config["task"]["index"]),
        (&*all.join(","), &1999.into())
    );
}
