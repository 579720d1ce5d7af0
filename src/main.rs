//! The `pinfold` program: everything is in the library, see its documentation.

use std::process::ExitCode;

fn main() -> ExitCode {
    pinfold::cli::main()
}
