//! How long tasks of a cgroup have waited for a resource.

use std::time::Duration;

use super::{Cgroups, Version, file};

/// Resources whose pressure the kernel counts.
pub const RESOURCES: [&str; 3] = ["cpu", "io", "memory"];

/// Time in which tasks of a cgroup waited, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressure {
    /// At least one of them.
    pub some: Duration,
    /// All of them at once; `None` where the kernel does not say.
    pub full: Option<Duration>,
}

// === impl Cgroups ===

impl Cgroups {
    /// Why no cgroup's pressure is counted here; `None` where it is.
    pub fn no_pressure(&self) -> Option<&'static str> {
        match self.version {
            Version::V1 => Some("cgroup v1 counts no pressure"),
            Version::V2 => {
                // The root of a hierarchy may lack files that every cgroup below it has; older kernels have files that can't be
                // read while nothing is counted.
                let below = self.children("").unwrap_or_default().into_iter().next();
                let counted = |path: &str| {
                    let text =
                        file::read_value_optional(&self.root().join(path).join("cpu.pressure"));
                    text.is_ok_and(|text| text.is_some_and(|text| parse(&text).is_some()))
                };
                let counted = counted("") || below.is_some_and(|child| counted(&child));
                (!counted).then_some("the kernel counts no pressure: boot it with psi=1")
            }
        }
    }
}

pub(super) fn parse(text: &str) -> Option<Pressure> {
    let total = |kind: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let total = line
            .split(' ')
            .find_map(|field| field.strip_prefix("total="))?;
        Some(Duration::from_micros(total.parse().ok()?))
    };
    Some(Pressure {
        some: total("some")?,
        full: total("full"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_and_nonsense_is_nothing() {
        let text = "some avg10=0.00 avg60=0.12 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let (some, full) = (Duration::from_micros(1500), Some(Duration::from_micros(7)));
        assert_eq!(parse(text), Some(Pressure { some, full }));
        // Before Linux 5.13 nothing is said of all tasks and the CPU.
        assert_eq!(
            parse("some avg10=0.00 total=1500"),
            Some(Pressure { some, full: None })
        );
        for nonsense in [
            "",
            "some",
            "some total=",
            "some total=-1",
            "something total=1",
            "full total=1",
        ] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }
}
