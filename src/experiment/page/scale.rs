//! [`Scale`]: where a value is on an axis, and the round numbers beside it.

/// The ends of an axis within its drawing, in percent, so that dots and words at the ends have room.
const EDGES: (f64, f64) = (2.0, 97.0);

/// Round ratios, those first that an axis rather has than others.
const RATIOS: [f64; 23] = [
    1.0, 1.1, 0.9, 1.2, 0.8, 1.5, 0.5, 2.0, 0.2, 5.0, 0.1, 10.0, 0.02, 50.0, 0.05, 20.0, 0.3, 3.0,
    0.7, 1.3, 0.95, 1.05, 0.6,
];

/// The room of a mark on an axis of ratios, as a part of the axis, so that the words of two marks don't meet on a phone.
const ROOM: f64 = 0.15;

/// About how many marks an axis has.
const MARKS: usize = 5;

/// An axis.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    /// Whether equal ratios have equal distances.
    logarithmic: bool,
    pub(super) marks: Vec<f64>,
}

// === impl Scale ===

impl Scale {
    /// A scale for values from 0, which begins at 0 unless that would press the values together.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        let (least, greatest) = ends(values).unwrap_or((0.0, 1.0));
        if least < 0.6 * greatest || greatest <= 0.0 {
            return Self::from_zero(greatest);
        }
        let step = round_step((greatest - least).max(0.02 * greatest) / 3.0);
        let (low, high) = (
            (least / step - 0.2).floor() * step,
            (greatest / step + 0.2).ceil() * step,
        );
        Self {
            low,
            high,
            logarithmic: false,
            marks: marks(low, high, step),
        }
    }

    /// A scale that begins at 0.
    pub(super) fn from_zero(greatest: f64) -> Self {
        let greatest = if greatest > 0.0 && greatest.is_finite() {
            greatest
        } else {
            1.0
        };
        let step = round_step(greatest / MARKS as f64);
        let high = (greatest / step).ceil() * step;
        Self {
            low: 0.0,
            high,
            logarithmic: false,
            marks: marks(0.0, high, step),
        }
    }

    /// A scale for ratios above 0, with 1 in it.
    pub(super) fn of_ratios(ratios: impl Iterator<Item = f64>) -> Self {
        let ratios = ratios.filter(|ratio| *ratio > 0.0).chain([0.96, 1.04]);
        let (least, greatest) = ends(ratios).unwrap_or((0.9, 1.1));
        let (low, high) = (least.max(0.01) * 0.98, greatest.min(100.0) * 1.02);
        let room = (high / low).ln() * ROOM;
        let mut kept: Vec<f64> = Vec::new();
        for mark in RATIOS {
            let is_free = kept.iter().all(|one| (mark / one).ln().abs() >= room);
            if is_free && (low..=high).contains(&mark) {
                kept.push(mark);
            }
        }
        kept.sort_by(f64::total_cmp);
        Self {
            low,
            high,
            logarithmic: true,
            marks: kept,
        }
    }

    /// Where a value is, in percent of the width; values outside are at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        let part = if part.is_finite() {
            part.clamp(0.0, 1.0)
        } else {
            0.0
        };
        EDGES.0 + part * (EDGES.1 - EDGES.0)
    }

    pub(super) fn begins_at_zero(&self) -> bool {
        self.low == 0.0
    }

    /// Where a value is on an upright axis of this height.
    pub(super) fn above(&self, value: f64, height: f64) -> f64 {
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        if part.is_finite() {
            height * (1.0 - part)
        } else {
            height
        }
    }
}

/// A mark in words: as few digits as the marks need to differ.
pub(super) fn mark(value: f64) -> String {
    match value.abs() {
        large if large >= 1e9 => format!("{} G", short(value / 1e9)),
        large if large >= 1e6 => format!("{} M", short(value / 1e6)),
        large if large >= 1e4 => format!("{} k", short(value / 1e3)),
        _ => short(value),
    }
}

fn short(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    format!("{rounded}")
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|value| value.is_finite());
    let ends = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |ends, value| {
        (ends.0.min(value), ends.1.max(value))
    });
    (ends.0 <= ends.1).then_some(ends)
}

/// The least of 1, 2 and 5 times a power of ten that is not below `value`: where a scale can end.
pub(crate) fn round_step(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let step = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

fn marks(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step).round();
    let mut marks = Vec::new();
    // A step is never much smaller than a tenth of the axis.
    for number in 0..=20 {
        let value = (first + f64::from(number)) * step;
        if value <= high + step / 1e3 {
            marks.push(value);
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_a_round_number() {
        for (value, top) in [
            (0.0, 1.0),
            (f64::NAN, 1.0),
            (0.7, 1.0),
            (1.0, 1.0),
            (1.1, 2.0),
            (34.0, 50.0),
            (9e6, 1e7),
        ] {
            assert!(
                (round_step(value) - top).abs() < 1e-9 * top,
                "{value}: {}",
                round_step(value)
            );
        }
    }

    #[test]
    fn marks_are_round_and_within_the_axis() {
        let marks = |values: &[f64]| Scale::of(values.iter().copied()).marks;
        assert_eq!(marks(&[3.0, 41.0]), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!(marks(&[812.0, 850.0]), [800.0, 820.0, 840.0, 860.0]);
        assert_eq!(marks(&[]).first(), Some(&0.0));
        assert_eq!(marks(&[0.0]).first(), Some(&0.0));
        assert_eq!(marks(&[f64::NAN, f64::INFINITY]).first(), Some(&0.0));
        let ratios = Scale::of_ratios([0.9, 1.3].into_iter());
        assert!(
            ratios.marks.contains(&1.0) && ratios.marks.len() <= 8,
            "{ratios:?}"
        );
        assert_eq!(
            [mark(0.30000000000000004), mark(20_000.0), mark(2.5e6)],
            ["0.3", "20 k", "2.5 M"]
        );
    }

    proptest::proptest! {
        #[test]
        fn every_value_has_a_place(values in proptest::collection::vec(0.0..1e12_f64, 0..20)) {
            for scale in [Scale::of(values.iter().copied()), Scale::of_ratios(values.iter().copied())] {
                for value in values.iter().chain(&scale.marks) {
                    let at = scale.at(*value);
                    proptest::prop_assert!((EDGES.0..=EDGES.1).contains(&at), "{at}");
                }
                proptest::prop_assert!((1..=21).contains(&scale.marks.len()), "{scale:?}");
            }
        }
    }
}
