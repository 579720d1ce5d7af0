//! The build of the program: version, commit and Cargo features.

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, from the variable `PINFOLD_COMMIT` at build time; `unknown` without a value.
pub const COMMIT: &str = match option_env!("PINFOLD_COMMIT") {
    Some(commit) if !commit.is_empty() => commit,
    _ => "unknown",
};

/// Each Cargo feature by name, and whether the build has it.
const FEATURES: [(&str, bool); 9] = [
    ("bench", cfg!(feature = "bench")),
    ("demo", cfg!(feature = "demo")),
    ("experiments", cfg!(feature = "experiments")),
    ("lab", cfg!(feature = "lab")),
    ("man", cfg!(feature = "man")),
    ("portforward", cfg!(feature = "portforward")),
    ("reclaim", cfg!(feature = "reclaim")),
    ("sandbox", cfg!(feature = "sandbox")),
    ("top", cfg!(feature = "top")),
];

/// Version, commit and features, a line each.
pub fn description() -> String {
    format!("{VERSION}\ncommit: {COMMIT}\nfeatures: {}", features())
}

/// The names of the build's Cargo features, separated by commas; `none` without a feature.
pub fn features() -> String {
    let enabled = FEATURES.iter().filter(|(_, is_enabled)| *is_enabled);
    let names: Vec<&str> = enabled.map(|(name, _)| *name).collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cargo_feature_is_in_the_list() {
        let manifest = include_str!("../../Cargo.toml");
        let (_, table) = manifest.split_once("\n[features]\n").unwrap();
        let (table, _) = table.split_once("\n[").unwrap();
        let mut declared: Vec<&str> = table
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| Some(line.split_once(" = ")?.0))
            // The feature runtime-wrapper builds another program.
            .filter(|name| !["default", "runtime-wrapper"].contains(name))
            .collect();
        declared.sort_unstable();
        assert_eq!(FEATURES.map(|(name, _)| name).to_vec(), declared);
    }
}
