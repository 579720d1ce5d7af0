//! A [`Price`]: all the numbers that a placement is judged by, except its ids, in one that adds and compares.
//!
//! Each number has bits of its own, the most important the highest. No sum leaves its bits: none counts more than the
//! machine's CPUs, at most 8,192, or the square of that, or a distance for each of them.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::Add;

/// Sums of what groups cost, compared from the most important number to the least.
///
/// `u128` has the numbers that the plain [`Request`](super::Request) is judged by, and is the quicker; [`WidePrice`] has all.
pub(super) trait Price: Copy + Ord + Debug + Add<Output = Self> + Sum {
    /// Whether there are prices for wishes: distances, unwanted CPUs, and groups by how many CPUs are taken.
    const HAS_PREFERENCES: bool;

    /// What costs nothing.
    const NOTHING: Self;
    /// More than any placement costs; only ever compared, never added to.
    const NEVER: Self;
    /// Still more than any placement costs; two of them can be added.
    const TOO_MUCH: Self;

    /// One CPU of the kind that the request would rather not have. 0 where no price tells.
    const UNWANTED: Self;
    /// One core held in part.
    const SPLIT_CORE: Self;
    /// One CPU one step away from the devices. 0 where no price tells.
    const DISTANCE: Self;
    /// One NUMA node touched; or the square of one CPU on a NUMA node, where a request is spread.
    const NUMA: Self;
    /// The same for a socket.
    const SOCKET: Self;
    /// The same for an LLC.
    const LLC: Self;
    /// One entirely free NUMA node touched.
    const FREE_NUMA: Self;
    /// One entirely free LLC touched.
    const FREE_LLC: Self;
    /// One entirely free core touched; or one CPU kept idle, where a request has one CPU of each core.
    const FREE_CORE: Self;
    /// One free CPU in a NUMA node touched. The CPUs taken are as many in every placement, so this ranks by what
    /// remains. Where a request is spread: one CPU on a NUMA node that has one free CPU less than the one with the most.
    const LEFT_IN_NUMA: Self;
    /// The same for an LLC.
    const LEFT_IN_LLC: Self;

    /// So many of it.
    fn times(self, count: usize) -> Self;

    /// The most that is less in the numbers up to this one, whatever the less important ones are.
    fn just_below(self) -> Self;

    /// What remains of a sum without one of its parts; none if that can't be a part of it.
    fn without(self, part: Self) -> Option<Self>;
}

/// The bits of one number of a `u128`.
const WIDTH: u32 = 14;

impl Price for u128 {
    const HAS_PREFERENCES: bool = false;

    const NOTHING: Self = 0;
    const NEVER: Self = Self::MAX;
    const TOO_MUCH: Self = Self::MAX >> 2;

    const UNWANTED: Self = 0;
    const SPLIT_CORE: Self = 1 << (8 * WIDTH);
    const DISTANCE: Self = 0;
    const NUMA: Self = 1 << (7 * WIDTH);
    const SOCKET: Self = 1 << (6 * WIDTH);
    const LLC: Self = 1 << (5 * WIDTH);
    const FREE_NUMA: Self = 1 << (4 * WIDTH);
    const FREE_LLC: Self = 1 << (3 * WIDTH);
    const FREE_CORE: Self = 1 << (2 * WIDTH);
    const LEFT_IN_NUMA: Self = 1 << WIDTH;
    const LEFT_IN_LLC: Self = 1;

    #[inline]
    fn times(self, count: usize) -> Self {
        self * count as Self
    }

    #[inline]
    fn just_below(self) -> Self {
        self - 1
    }

    #[inline]
    fn without(self, part: Self) -> Option<Self> {
        self.checked_sub(part)
    }
}

/// A price with room for all numbers: some in the high half, some in the low one, and no sum carries between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WidePrice {
    high: u128,
    low: u128,
}

// === impl WidePrice ===

impl WidePrice {
    const fn high(shift: u32) -> Self {
        Self {
            high: 1 << shift,
            low: 0,
        }
    }

    const fn low(shift: u32) -> Self {
        Self {
            high: 0,
            low: 1 << shift,
        }
    }
}

impl Price for WidePrice {
    const HAS_PREFERENCES: bool = true;

    const NOTHING: Self = Self { high: 0, low: 0 };
    const NEVER: Self = Self {
        high: u128::MAX,
        low: u128::MAX,
    };
    const TOO_MUCH: Self = Self {
        high: u128::MAX >> 2,
        low: 0,
    };

    // From the least to the most important, with widths of 28 bits for squares, 24 for distances and 14 for counts.
    const SOCKET: Self = Self::high(0);
    const NUMA: Self = Self::high(28);
    const DISTANCE: Self = Self::high(56);
    const SPLIT_CORE: Self = Self::high(80);
    const UNWANTED: Self = Self::high(94);

    const LEFT_IN_LLC: Self = Self::low(0);
    const LEFT_IN_NUMA: Self = Self::low(28);
    const FREE_CORE: Self = Self::low(56);
    const FREE_LLC: Self = Self::low(70);
    const FREE_NUMA: Self = Self::low(84);
    const LLC: Self = Self::low(98);

    #[inline]
    fn times(self, count: usize) -> Self {
        Self {
            high: self.high * count as u128,
            low: self.low * count as u128,
        }
    }

    #[inline]
    fn just_below(self) -> Self {
        match self.low.checked_sub(1) {
            Some(low) => Self {
                high: self.high,
                low,
            },
            None => Self {
                high: self.high - 1,
                low: u128::MAX >> 1,
            },
        }
    }

    #[inline]
    fn without(self, part: Self) -> Option<Self> {
        Some(Self {
            high: self.high.checked_sub(part.high)?,
            low: self.low.checked_sub(part.low)?,
        })
    }
}

impl Add for WidePrice {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self {
            high: self.high + other.high,
            low: self.low + other.low,
        }
    }
}

impl Sum for WidePrice {
    fn sum<I: Iterator<Item = Self>>(prices: I) -> Self {
        prices.fold(Self::NOTHING, Self::add)
    }
}
