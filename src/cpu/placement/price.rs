//! [`Price`]: all numbers for the comparison of placements, except CPU ids, packed into a single
//! number with addition and order.
//!
//! Each number has its own bits, and the most important number has the highest. No sum overflows. A
//! number counts CPUs (at most 8,192), squares of a number of CPUs, or distances per CPU.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::Add;

/// A sum of prices of groups, compared from the most important number to the least.
///
/// `u128` holds the numbers for a [`Request`](super::Request) without preferences, and is faster;
/// [`WidePrice`] holds all numbers.
pub(super) trait Price: Copy + Ord + Debug + Add<Output = Self> + Sum {
    /// Whether the type has prices for preferences: distances, unwanted CPUs, and squares of CPUs
    /// taken from groups.
    const HAS_PREFERENCES: bool;

    const NOTHING: Self;
    /// Above every placement's price. Only compared, never added.
    const NEVER: Self;
    /// Above every placement's price. The sum of two does not overflow.
    const TOO_MUCH: Self;

    /// The price per unwanted CPU. 0 in a type without preferences.
    const UNWANTED: Self;
    const SPLIT_CORE: Self;
    /// The price per CPU and step of distance from the devices. 0 in a type without preferences.
    const DISTANCE: Self;
    /// The price per NUMA node touched. For [`Order::Spread`](super::Order::Spread), the unit of
    /// price, multiplied by the square of the number of CPUs taken on a NUMA node.
    const NUMA: Self;
    /// As `NUMA`, for a socket.
    const SOCKET: Self;
    /// As `NUMA`, for an LLC.
    const LLC: Self;
    /// The price per entirely free NUMA node touched.
    const FREE_NUMA: Self;
    /// The price per entirely free LLC touched.
    const FREE_LLC: Self;
    /// The price per entirely free core touched. For [`Cores::Single`](super::Cores::Single), the
    /// price per CPU kept idle.
    const FREE_CORE: Self;
    /// The price per free CPU in a NUMA node touched. All placements take the same number of CPUs,
    /// so the sum ranks by the remaining ones. For [`Order::Spread`](super::Order::Spread), the
    /// price per taken CPU and per free CPU by which its NUMA node lags behind the freest one.
    const LEFT_IN_NUMA: Self;
    /// As `LEFT_IN_NUMA`, for an LLC.
    const LEFT_IN_LLC: Self;

    fn times(self, count: usize) -> Self;

    /// A price below `self` that is at least as high as every placement's price below `self`.
    /// `self` has a single number above zero.
    fn just_below(self) -> Self;

    /// The price minus a part of it; none if the part does not fit into it.
    fn without(self, part: Self) -> Option<Self>;
}

/// The width in bits of each number in a `u128`.
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

/// A price with room for all numbers, in a high and a low half. No sum carries between the halves.
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

    // From the least to the most important. Squares take 28 bits, distances 24, counts 14.
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
