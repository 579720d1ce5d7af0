//! Everything that Pinfold prints about pods: the output and the errors of commands, the log, Events.
//!
//! Whatever a manifest holds, no character of it may act on a terminal or begin a line of its own.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pinfold::cli::printed::printed;
use pinfold::cpu::{Cpu, Topology};
use pinfold::text::terminal::{escape, escape_json, escape_lines, is_unsafe};
use pinfold_fuzz::text;

/// A machine with enough CPUs for some pods.
static MACHINE: LazyLock<Topology> = LazyLock::new(|| {
    let cpu = |id| Cpu {
        id,
        ..Cpu::default()
    };
    Topology {
        online: (0..16).collect(),
        cpus: (0..16).map(cpu).collect(),
        ..Topology::default()
    }
});

fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    assert!(!escape(text).contains(is_unsafe));
    assert_eq!(escape_lines(text).lines().count(), text.lines().count());
    assert!(!escape_json(text).contains(|c| is_unsafe(c) && !matches!(c, '\n' | '\r' | '\t')));
    for (printed, lines) in printed(text, &MACHINE) {
        let unsafe_char = printed.chars().find(|&c| is_unsafe(c) && c != '\n');
        assert_eq!(unsafe_char, None, "{printed:?}");
        assert_eq!(printed.lines().count(), lines, "{printed:?}");
    }
});
