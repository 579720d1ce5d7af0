//! The configuration file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfold::agent::config::Config;
use pinfold_fuzz::text;

fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(error) => return assert!(!format!("{error:#}").is_empty()),
    };
    let printed = config.to_yaml().expect("what was read can be printed");
    match Config::parse(&printed) {
        Ok(again) => assert_eq!(again, config, "printed as:\n{printed}"),
        Err(error) => panic!("what was printed can't be read: {error:#}\n{printed}"),
    }
});
