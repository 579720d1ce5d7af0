//! The kubelet's PodResources answer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfold::cpu::MAX_CPU;
use pinfold::host::pod_resources::parse_list;
use pinfold_fuzz::says_why;

fuzz_target!(|data: &[u8]| {
    let list = match parse_list(data) {
        Ok(list) => list,
        Err(error) => return says_why(&error),
    };
    for container in &list {
        let sets = container
            .devices
            .iter()
            .map(|device| &device.numa)
            .chain([&container.cpus]);
        assert!(
            sets.into_iter()
                .flat_map(|set| set.iter())
                .all(|id| id <= MAX_CPU)
        );
    }
    // A message may come in parts, and fields of a later kubelet are skipped.
    let later = [0x78, 0x01, 0x7a, 0x02, b'o', b'k'];
    let twice = [data, &later, data].concat();
    assert_eq!(
        parse_list(&twice).expect("two answers in one"),
        [list.clone(), list].concat()
    );
});
