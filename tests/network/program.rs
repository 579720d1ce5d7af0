//! The committed instructions of the BPF programs equal the compiler's output for the committed source.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::gate::meant_for_this_machine;

/// The compiler of Debian 12. Another version makes other instructions of the same source.
const CLANG: &str = "/usr/bin/clang-14";

/// `PINFOLD_RECORD=1` writes the instructions anew.
#[test]
fn the_committed_instructions_match_the_committed_source() {
    if !Path::new(CLANG).exists() {
        let needs = format!("{CLANG} of Debian's package clang-14");
        assert!(
            !meant_for_this_machine(&needs),
            "PINFOLD_KERNEL_TESTS=1 wants {needs}"
        );
        return;
    }
    let sources = crate::repository::here("src/host/bpf/sockets");
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("program.o");
    // The kernel's headers include headers of the architecture.
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let arguments = "-Wall -Wextra -Werror -O2 --target=bpfel -mcpu=v2 -c program.c -o";
    run(Command::new(CLANG)
        .current_dir(&sources)
        .arg(headers)
        .args(arguments.split(' '))
        .arg(&object));
    for section in ["ingress", "egress"] {
        let compiled = folder.path().join(section);
        // Debian's objcopy does not know the BPF machine, but still copies a section.
        run(Command::new("objcopy")
            .args(["-I", "elf64-little", "-O", "binary", "-j", section])
            .args([&object, &compiled]));
        let compiled = fs::read(compiled).unwrap();
        let committed = sources.join(format!("{section}.bin"));
        if std::env::var_os("PINFOLD_RECORD").is_some() {
            fs::write(&committed, &compiled).unwrap();
        }
        assert!(
            !compiled.is_empty() && fs::read(&committed).unwrap() == compiled,
            "{} differs from the output of {CLANG} for program.c: compile program.c with PINFOLD_RECORD=1",
            committed.display()
        );
    }
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
}
