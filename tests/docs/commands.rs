//! The reference of commands: the help of the program.

use std::fmt::Write;
use std::process::{Command, Stdio};

use crate::generated;

const PAGE: &str = "docs/reference/commands.md";

/// The help of a command, without values from this process's environment.
fn help(command: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PINFOLD_") {
            program.env_remove(name);
        }
    }
    // Without a terminal and these variables, lines have at most 100 characters.
    for name in [
        "KUBECONFIG",
        "NODE_NAME",
        "POD_NAMESPACE",
        "COLUMNS",
        "LINES",
    ] {
        program.env_remove(name);
    }
    let output = program
        .args(command)
        .arg("--help")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "pinfold {command:?} --help");
    String::from_utf8(output.stdout).unwrap()
}

/// Adds the help of a command and of its subcommands.
fn add<'a>(page: &mut String, command: &'a clap::Command, path: &[&'a str]) {
    let mut title = vec!["pinfold"];
    title.extend(path);
    write!(page, "## {}\n\n```text\n", title.join(" ")).unwrap();
    for line in help(path).lines() {
        writeln!(page, "{}", line.trim_end()).unwrap();
    }
    page.push_str("```\n\n");
    for subcommand in command.get_subcommands() {
        if subcommand.is_hide_set() || subcommand.get_name() == "help" {
            continue;
        }
        let mut path = path.to_vec();
        path.push(subcommand.get_name());
        add(page, subcommand, &path);
    }
}

#[test]
fn the_page_has_the_help_of_every_command() {
    let mut page = String::new();
    add(&mut page, &pinfold::cli::command(), &[]);
    generated::same(PAGE, &page);
}
