//! What the kernel answers about TCP connections: in a pod's namespace others may write to the socket, too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfold::host::diag::read;
use pinfold_fuzz::says_why;

/// A message's header, and the shortest answer about a connection in it.
const SHORTEST: usize = 16 + 72;

fuzz_target!(|data: &[u8]| {
    // The first message is about the question that was asked.
    let sequence = data
        .get(8..12)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u32::from_ne_bytes);
    let mut found = Vec::new();
    let last = match read(data, sequence, &mut found) {
        Ok(last) => last,
        Err(error) => return says_why(&error),
    };
    assert!(found.len() <= data.len() / SHORTEST);
    // Two parts of an answer are as good as one.
    if !last && data.len().is_multiple_of(4) {
        let mut twice = Vec::new();
        assert!(
            !read(&[data, data].concat(), sequence, &mut twice).expect("each half can be read")
        );
        assert_eq!(twice, [&*found, &*found].concat());
    }
});
