//! [`CpuSet`]: a set of CPU ids, in and out of the kernel's list format.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest CPU id allowed in a set, which is the limit of Linux (`CONFIG_NR_CPUS` is at most
/// 8192).
pub const MAX_CPU: u32 = 8191;

const BITS: u32 = 64;

/// A set of CPU ids between 0 and [`MAX_CPU`].
///
/// The text form is the kernel's list format, such as `0-3,8,10-11`, and empty for the empty set. A
/// text may also take a part of each group of a range, as the kernel's own parser allows:
/// `0-15:2/4` are the first two of each four CPUs. Equal sets compare, hash and print alike.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// Bit `i` of word `w` stands for CPU `64 * w + i`; the last word is never zero.
    words: Vec<u64>,
}

/// Numbers that are no CPU ids, for example of interrupts, written like a [`CpuSet`].
#[derive(Debug, Clone, Copy)]
pub struct NumberList<'a>(pub &'a BTreeSet<u32>);

/// Why a text is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseCpuSetError {
    /// Two commas in a row, or a comma at the start or end.
    #[error(
        "empty item in CPU list {list:?}: write ids and ranges separated by single commas, like 0-3,8"
    )]
    EmptyItem {
        /// The whole list.
        list: String,
    },
    /// An item that is neither an id nor a range.
    #[error("{item:?} in CPU list {list:?} is not a CPU id or a range: write something like 0-3,8")]
    NotANumber {
        item: String,
        /// The whole list.
        list: String,
    },
    #[error(
        "{item:?} in CPU list {list:?} is not a valid stride: write RANGE:USED/GROUP with USED from 1 to GROUP; 0-15:2/4 means \
         the first two of every four CPUs"
    )]
    BadStride {
        item: String,
        /// The whole list.
        list: String,
    },
    /// A range with an end before the start.
    #[error("range {item:?} in CPU list {list:?} runs backwards: write the smaller id first")]
    Backwards {
        item: String,
        /// The whole list.
        list: String,
    },
    /// A word of a mask that does not consist of one to eight hexadecimal digits.
    #[error(
        "{word:?} in CPU mask {mask:?} is not a word of up to eight hexadecimal digits, as in 00000000,0000ffff"
    )]
    NotAMaskWord {
        word: String,
        /// The whole mask.
        mask: String,
    },
    /// A mask with a bit beyond [`MAX_CPU`].
    #[error("CPU mask {mask:?} has a bit beyond CPU {MAX_CPU}, the largest that Linux has")]
    MaskTooLarge {
        /// The whole mask.
        mask: String,
    },
    /// An id beyond [`MAX_CPU`].
    #[error(
        "CPU id in {item:?} of CPU list {list:?} is larger than {MAX_CPU}, the largest that Linux has"
    )]
    TooLarge {
        item: String,
        /// The whole list.
        list: String,
    },
}

/// A number of CPUs: `1 CPU`, `3 CPUs`.
pub fn cpu_count(count: usize) -> String {
    format!("{count} CPU{}", if count == 1 { "" } else { "s" })
}

// === impl CpuSet ===

impl CpuSet {
    /// The CPUs with their noun: `CPU 3`, `CPUs 2-3`, `no CPUs`.
    pub fn in_words(&self) -> String {
        match self.len() {
            0 => "no CPUs".to_owned(),
            1 => format!("CPU {self}"),
            _ => format!("CPUs {self}"),
        }
    }

    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the kernel's mask format, which old kernels have instead of lists: words of 32 bits in
    /// hexadecimal, the highest first, as in `00000000,0000ffff`. White space around the whole mask
    /// is allowed.
    ///
    /// # Errors
    ///
    /// [`ParseCpuSetError::NotAMaskWord`] and [`ParseCpuSetError::MaskTooLarge`].
    pub fn from_mask(text: &str) -> Result<Self, ParseCpuSetError> {
        let mask = text.trim();
        let mut set = Self::new();
        for (word, base) in mask.split(',').rev().zip((0u32..).step_by(32)) {
            // `from_str_radix` takes a leading plus sign; the kernel does not.
            let digits =
                (1..=8).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_hexdigit());
            let Some(bits) = u32::from_str_radix(word, 16).ok().filter(|_| digits) else {
                return Err(ParseCpuSetError::NotAMaskWord {
                    word: word.to_owned(),
                    mask: mask.to_owned(),
                });
            };
            // The kernel's configuration decides the width of a mask, so the words beyond the
            // largest id may be zero.
            if bits != 0 && base > MAX_CPU {
                return Err(ParseCpuSetError::MaskTooLarge {
                    mask: mask.to_owned(),
                });
            }
            set.extend(
                (0..32)
                    .filter(|bit| bits & (1 << bit) != 0)
                    .map(|bit| base + bit),
            );
        }
        Ok(set)
    }

    /// Writes the kernel's mask format, which [`CpuSet::from_mask`] reads.
    pub fn to_mask(&self) -> String {
        let low = u64::from(u32::MAX);
        let mut halves: Vec<u64> = self
            .words
            .iter()
            .flat_map(|word| [word & low, word >> 32])
            .collect();
        if halves.last().is_none_or(|half| *half == 0) {
            halves.pop();
        }
        if halves.is_empty() {
            halves.push(0);
        }
        let words: Vec<String> = halves
            .iter()
            .rev()
            .map(|half| format!("{half:08x}"))
            .collect();
        words.join(",")
    }

    /// Adds a CPU, and returns whether it was new. An id beyond [`MAX_CPU`] is not added.
    pub fn insert(&mut self, cpu: u32) -> bool {
        if cpu > MAX_CPU {
            return false;
        }
        let (word, bit) = place(cpu);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let slot = &mut self.words[word];
        let new = *slot & bit == 0;
        *slot |= bit;
        new
    }

    /// Removes a CPU, and returns whether the set contained it.
    pub fn remove(&mut self, cpu: u32) -> bool {
        let (word, bit) = place(cpu);
        let Some(slot) = self.words.get_mut(word) else {
            return false;
        };
        let there = *slot & bit != 0;
        *slot &= !bit;
        self.trim();
        there
    }

    pub fn contains(&self, cpu: u32) -> bool {
        let (word, bit) = place(cpu);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest CPU id.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0u32..).flat_map(|(&word, index)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                Some(index * BITS + bit)
            })
        })
    }

    /// CPUs in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) = if self.words.len() >= other.words.len() {
            (self, other)
        } else {
            (other, self)
        };
        let mut words = long.words.clone();
        for (word, more) in words.iter_mut().zip(&short.words) {
            *word |= more;
        }
        Self { words }
    }

    /// CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::trimmed(
            self.words
                .iter()
                .zip(&other.words)
                .map(|(a, b)| a & b)
                .collect(),
        )
    }

    /// CPUs in `self` and not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut words = self.words.clone();
        for (word, less) in words.iter_mut().zip(&other.words) {
            *word &= !less;
        }
        Self::trimmed(words)
    }

    /// Whether `other` contains every CPU of `self`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words.len() <= other.words.len()
            && self
                .words
                .iter()
                .zip(&other.words)
                .all(|(a, b)| a & !b == 0)
    }

    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & b == 0)
    }

    fn trimmed(words: Vec<u64>) -> Self {
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

fn place(cpu: u32) -> (usize, u64) {
    ((cpu / BITS) as usize, 1 << (cpu % BITS))
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl PartialOrd for CpuSet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Sets compare as ascending lists of ids: `0,5` comes before `1`.
impl Ord for CpuSet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.iter().cmp(other.iter())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.iter())
    }
}

impl fmt::Display for NumberList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.0.iter().copied())
    }
}

/// Writes ascending numbers in the kernel's list format.
fn write_list(f: &mut fmt::Formatter<'_>, numbers: impl Iterator<Item = u32>) -> fmt::Result {
    let mut numbers = numbers.peekable();
    let mut comma = "";
    while let Some(start) = numbers.next() {
        let mut end = start;
        while let Some(next) = numbers.next_if(|&number| number == end + 1) {
            end = next;
        }
        if start == end {
            write!(f, "{comma}{start}")?;
        } else {
            write!(f, "{comma}{start}-{end}")?;
        }
        comma = ",";
    }
    Ok(())
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// Reads the kernel's list format. White space around the whole list is allowed, because the
    /// kernel's files end in a newline.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let list = text.trim();
        let mut set = Self::new();
        if list.is_empty() {
            return Ok(set);
        }
        for item in list.split(',') {
            if item.is_empty() {
                return Err(ParseCpuSetError::EmptyItem {
                    list: list.to_owned(),
                });
            }
            let (start, end, stride) = match item.split_once('-') {
                Some((start, rest)) => {
                    let (end, stride) = match rest.split_once(':') {
                        Some((end, stride)) => (end, Some(Stride::read(stride, item, list)?)),
                        None => (rest, None),
                    };
                    (id(start, item, list)?, id(end, item, list)?, stride)
                }
                None => {
                    let cpu = id(item, item, list)?;
                    (cpu, cpu, None)
                }
            };
            if end < start {
                return Err(ParseCpuSetError::Backwards {
                    item: item.to_owned(),
                    list: list.to_owned(),
                });
            }
            let takes = |cpu: &u32| stride.is_none_or(|stride| stride.takes(cpu - start));
            set.extend((start..=end).filter(takes));
        }
        Ok(set)
    }
}

/// The first `used` CPUs of each `group` CPUs of a range.
#[derive(Clone, Copy)]
struct Stride {
    used: u32,
    group: u32,
}

// === impl Stride ===

impl Stride {
    fn read(text: &str, item: &str, list: &str) -> Result<Self, ParseCpuSetError> {
        let bad = || ParseCpuSetError::BadStride {
            item: item.to_owned(),
            list: list.to_owned(),
        };
        let (used, group) = text.split_once('/').ok_or_else(bad)?;
        let (used, group) = (id(used, item, list)?, id(group, item, list)?);
        // The kernel takes 0 used CPUs, too, but nobody means an empty set by it.
        if (1..=group).contains(&used) {
            Ok(Self { used, group })
        } else {
            Err(bad())
        }
    }

    /// Whether the CPU at this place of the range, counted from 0, is taken.
    fn takes(self, place: u32) -> bool {
        place
            .checked_rem(self.group)
            .is_some_and(|place| place < self.used)
    }
}

fn id(text: &str, item: &str, list: &str) -> Result<u32, ParseCpuSetError> {
    let named = || (item.to_owned(), list.to_owned());
    // `u32::from_str` takes a leading plus sign; the kernel does not.
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        let (item, list) = named();
        return Err(ParseCpuSetError::NotANumber { item, list });
    }
    match text.parse::<u32>() {
        Ok(cpu) if cpu <= MAX_CPU => Ok(cpu),
        _ => {
            let (item, list) = named();
            Err(ParseCpuSetError::TooLarge { item, list })
        }
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
