//! The kernel's answers about TCP connections. In a pod's namespace, processes of the pod can write to the socket, too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfold::host::netlink::diag::read;
use pinfold_fuzz::says_why;

/// The size of a message's header and of the shortest answer about a connection.
const SHORTEST: usize = 16 + 72;

fuzz_target!(|data: &[u8]| {
    // The first message has the sequence number of the request.
    let sequence = data
        .get(8..12)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u32::from_ne_bytes);
    let mut connections = Vec::new();
    let last = match read(data, sequence, &mut connections) {
        Ok(last) => last,
        Err(error) => return says_why(&error),
    };
    assert!(connections.len() <= data.len() / SHORTEST);
    // An answer in two parts gives the same connections.
    if !last && data.len().is_multiple_of(4) {
        let mut twice = Vec::new();
        assert!(
            !read(&[data, data].concat(), sequence, &mut twice).expect("each half can be read")
        );
        assert_eq!(twice, [&*connections, &*connections].concat());
    }
});
