//! Files of the repository that are generated from the code.

/// Requires that a file of the repository holds this text. With `PINFOLD_RENEW=1` the file is written instead.
pub(crate) fn same(path: &str, text: &str) {
    let file = crate::yaml::here(path);
    if std::env::var_os("PINFOLD_RENEW").is_some_and(|value| value == "1") {
        std::fs::write(&file, text).unwrap();
        return;
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = there
        .lines()
        .zip(text.lines())
        .position(|(old, new)| old != new);
    let at = differs.unwrap_or_else(|| there.lines().count().min(text.lines().count()));
    let line = |text: &str| text.lines().nth(at).unwrap_or("(its end)").to_owned();
    assert!(
        there == text,
        "{path} is not what the code makes. Line {}:\n- {}\n+ {}\n\
         If that is meant: PINFOLD_RENEW=1 cargo test --test metrics, then look at git diff",
        at + 1,
        line(&there),
        line(text)
    );
}
