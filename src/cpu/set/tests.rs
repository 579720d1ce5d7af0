use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn hash(set: &CpuSet) -> u64 {
    let mut hasher = DefaultHasher::new();
    set.hash(&mut hasher);
    hasher.finish()
}

/// The kernel's mask of a set, with at least the given number of words.
fn mask(cpus: &BTreeSet<u32>, at_least: u32) -> String {
    let words = cpus
        .last()
        .map_or(0, |last| last / 32 + 1)
        .max(at_least)
        .max(1);
    let word = |index: u32| {
        (0..32)
            .filter(|bit| cpus.contains(&(index * 32 + bit)))
            .fold(0u32, |w, bit| w | 1 << bit)
    };
    (0..words)
        .rev()
        .map(|index| format!("{:08x}", word(index)))
        .collect::<Vec<_>>()
        .join(",")
}

#[test]
fn a_set_and_its_noun_agree() {
    assert_eq!(
        ["3", "2-3", ""].map(|list| set(list).in_words()),
        ["CPU 3", "CPUs 2-3", "no CPUs"]
    );
    assert_eq!([0, 1, 2].map(cpu_count), ["0 CPUs", "1 CPU", "2 CPUs"]);
}

#[test]
fn a_list_is_read_and_printed_in_its_shortest_form() {
    for (text, printed, count) in [
        ("", "", 0),
        ("\n", "", 0),
        ("0", "0", 1),
        ("0-3,8,10-11\n", "0-3,8,10-11", 7),
        ("3,2,1", "1-3", 3),
        ("0-1,2-3", "0-3", 4),
        ("5,5,4-6", "4-6", 3),
        ("7-7", "7", 1),
        ("0,1", "0-1", 2),
        ("63-64", "63-64", 2),
        ("007", "7", 1),
        ("  1,3 \t\n", "1,3", 2),
        ("0-8191", "0-8191", 8192),
    ] {
        let cpus = set(text);
        assert_eq!(cpus.to_string(), printed, "{text:?}");
        assert_eq!(cpus.len(), count, "{text:?}");
        assert_eq!(cpus.is_empty(), count == 0, "{text:?}");
    }
}

#[test]
fn a_malformed_list_is_refused_with_its_reason() {
    use ParseCpuSetError::{Backwards, EmptyItem, NotANumber, TooLarge};
    type Kind = fn(&ParseCpuSetError) -> bool;
    let cases: [(Kind, &[&str]); 4] = [
        (
            |e| matches!(e, EmptyItem { .. }),
            &[",", "1,", ",1", "1,,2"],
        ),
        (
            |e| matches!(e, NotANumber { .. }),
            &[
                "a", "-", "-1", "1-", "1--2", "1-2-3", "+1", "1 ,2", "1, 2", "0x1", "1.5", "1\n2",
                "1;2", "٣", "all", "1\u{0}",
            ],
        ),
        (|e| matches!(e, Backwards { .. }), &["3-1", "0,8191-0"]),
        (
            |e| matches!(e, TooLarge { .. }),
            &[
                "8192",
                "0-8192",
                "4294967295",
                "4294967296",
                "99999999999999999999999",
            ],
        ),
    ];
    for (is_kind, lists) in cases {
        for list in lists {
            let error = list.parse::<CpuSet>().unwrap_err();
            assert!(is_kind(&error), "{list:?} gave {error:?}");
            assert!(
                error.to_string().contains(&format!("{:?}", list.trim())),
                "{error} does not hold {list:?}"
            );
        }
    }
}

/// The examples of the kernel's own parser of lists, and some of its refusals.
#[test]
fn a_part_of_each_group_of_a_range_is_read() {
    for (list, same) in [
        ("0-15:2/4", "0-1,4-5,8-9,12-13"),
        ("2-31:1/4", "2,6,10,14,18,22,26,30"),
        ("0-3:4/4,9", "0-3,9"),
        ("0-2:1/4", "0"),
        ("5-5:1/8191,7-10:3/3", "5,7-10"),
    ] {
        assert_eq!(set(list), set(same), "{list}");
    }
    for list in [
        "0-15:",
        "0-15:2",
        "0-15:2/",
        "0-15:/4",
        "0-15:5/4",
        "0-15:0/4",
        "0-15:0/0",
        "0-15:1/0",
        "0-15:2/4/2",
        "0-15:2/4:1/2",
        "3:1/2",
        ":1/2",
        "0-15:-1/4",
        "0-15:1/8192",
        "0-15:+1/4",
    ] {
        assert!(list.parse::<CpuSet>().is_err(), "{list}");
    }
    let error = "0-15:5/4".parse::<CpuSet>().unwrap_err().to_string();
    assert!(error.contains("0-15:2/4 means"), "{error}");
}

#[test]
fn a_mask_is_read() {
    for (text, list) in [
        ("00000000,0000ffff\n", "0-15"),
        ("3", "0-1"),
        ("fffff", "0-19"),
        (
            "0000,00000000,000000ff,ff000000,00000000,00000000",
            "88-103",
        ),
        ("FFFFFFFF,00000000", "32-63"),
        ("0", ""),
        ("1,0", "32"),
    ] {
        assert_eq!(CpuSet::from_mask(text).unwrap(), set(list), "{text:?}");
    }
    // Beyond the largest id, a 0 bit is allowed and a 1 bit is an error.
    let wide = format!("00000000,{}1", "00000000,".repeat(256));
    assert_eq!(CpuSet::from_mask(&wide).unwrap(), set("0"));
    let error = CpuSet::from_mask(&wide.replacen('0', "1", 1)).unwrap_err();
    assert!(
        matches!(error, ParseCpuSetError::MaskTooLarge { .. }),
        "{error:?}"
    );
    let last = format!("80000000{}", ",00000000".repeat(255));
    assert_eq!(CpuSet::from_mask(&last).unwrap(), set("8191"));
}

#[test]
fn masks_are_read_as_they_are_written() {
    assert_eq!(CpuSet::new().to_mask(), "00000000");
    assert_eq!(set("0-3,33").to_mask(), "00000002,0000000f");
    for list in ["", "0", "31-32", "0-127,8191"] {
        let cpus = set(list);
        assert_eq!(CpuSet::from_mask(&cpus.to_mask()).unwrap(), cpus);
    }
}

#[test]
fn a_malformed_mask_is_refused() {
    for text in [
        "",
        "\n",
        ",",
        "ff,",
        ",ff",
        "ff,,ff",
        "0xff",
        "+ff",
        "-1",
        "g",
        "f f",
        "000000001",
        "0-3",
    ] {
        let error = CpuSet::from_mask(text).unwrap_err();
        assert!(
            matches!(error, ParseCpuSetError::NotAMaskWord { .. }),
            "{text:?} gave {error:?}"
        );
    }
}

#[test]
fn an_id_that_linux_does_not_have_is_never_in_a_set() {
    let mut cpus = CpuSet::new();
    assert!(!cpus.insert(MAX_CPU + 1) && !cpus.insert(u32::MAX));
    assert!(cpus.is_empty() && !cpus.contains(u32::MAX) && !cpus.remove(u32::MAX));
    assert!(cpus.insert(MAX_CPU) && cpus.contains(MAX_CPU));
}

#[test]
fn json_is_the_list() {
    let cpus = set("0-3,8");
    assert_eq!(serde_json::to_string(&cpus).unwrap(), r#""0-3,8""#);
    assert_eq!(serde_json::from_str::<CpuSet>(r#""0-3,8""#).unwrap(), cpus);
    let error = serde_json::from_str::<CpuSet>(r#""3-0""#).unwrap_err();
    assert!(error.to_string().contains("runs backwards"), "{error}");
}

#[test]
fn order_is_that_of_the_ids() {
    let mut sets: Vec<CpuSet> = ["1", "0,5", "", "0-1", "0"].map(set).to_vec();
    sets.sort();
    assert_eq!(
        sets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["", "0", "0-1", "0,5", "1"]
    );
}

/// Sets with gaps and runs, up to the largest id.
fn cpus() -> impl Strategy<Value = BTreeSet<u32>> {
    prop_oneof![
        btree_set(0..200u32, 0..60),
        btree_set(0..=MAX_CPU, 0..20),
        (0..=MAX_CPU, 0..300u32)
            .prop_map(|(start, len)| (start..=MAX_CPU.min(start + len)).collect()),
    ]
}

proptest! {
    #[test]
    fn list_and_mask_and_json_round_trip(model in cpus(), words in 1..=300u32) {
        let set: CpuSet = model.iter().copied().collect();
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(&set.to_string().parse::<CpuSet>().unwrap(), &set);
        prop_assert_eq!(&CpuSet::from_mask(&mask(&model, words)).unwrap(), &set);
        prop_assert_eq!(&serde_json::from_str::<CpuSet>(&serde_json::to_string(&set).unwrap()).unwrap(), &set);
        prop_assert_eq!(set.len(), model.len());
        prop_assert_eq!(set.first(), model.first().copied());
    }

    #[test]
    fn operations_are_those_of_the_model(a in cpus(), b in cpus()) {
        let [x, y]: [CpuSet; 2] = [&a, &b].map(|m| m.iter().copied().collect());
        let same = |set: CpuSet, model: Vec<u32>| set == model.into_iter().collect();
        prop_assert!(same(x.union(&y), a.union(&b).copied().collect()));
        prop_assert!(same(x.intersection(&y), a.intersection(&b).copied().collect()));
        prop_assert!(same(x.difference(&y), a.difference(&b).copied().collect()));
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
        prop_assert!(x.intersection(&y).is_subset(&x) && x.is_subset(&x.union(&y)) && x.difference(&y).is_disjoint(&y));
        prop_assert_eq!(x.cmp(&y), a.iter().cmp(b.iter()));
        prop_assert_eq!(x == y, a == b);
    }

    #[test]
    fn equal_sets_compare_and_hash_alike_however_they_came_to_be(steps in vec((any::<bool>(), 0..300u32), 0..80)) {
        let (mut set, mut model) = (CpuSet::new(), BTreeSet::new());
        for (add, cpu) in steps {
            if add {
                prop_assert_eq!(set.insert(cpu), model.insert(cpu));
            } else {
                prop_assert_eq!(set.remove(cpu), model.remove(&cpu));
            }
            prop_assert_eq!(set.contains(cpu), add);
        }
        let fresh: CpuSet = model.iter().copied().collect();
        prop_assert_eq!(hash(&set), hash(&fresh));
        prop_assert_eq!(set, fresh);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9a-f,\\-:/ \n]{0,12}") {
        if let Ok(set) = text.parse::<CpuSet>() {
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
        // The parser may refuse the mask, but must not panic.
        let _ = CpuSet::from_mask(&text);
    }
}
