//! A [`Price`]: all the numbers that a placement is judged by, except its ids, in one that adds and compares.
//!
//! Each number has 14 bits, the most important the highest. No sum leaves its bits: none counts more than the
//! machine's CPUs, at most 8,192.

/// Sums of what groups cost, compared from the most important number to the least.
pub(super) type Price = u128;

/// More than any placement costs; only ever compared, never added to.
pub(super) const NEVER: Price = Price::MAX;

const WIDTH: u32 = 14;

/// One core held in part.
pub(super) const STRANGER: Price = 1 << (8 * WIDTH);
/// One NUMA node touched.
pub(super) const NUMA: Price = 1 << (7 * WIDTH);
/// One socket touched.
pub(super) const SOCKET: Price = 1 << (6 * WIDTH);
/// One LLC touched.
pub(super) const LLC: Price = 1 << (5 * WIDTH);
/// One entirely free NUMA node touched.
pub(super) const FREE_NUMA: Price = 1 << (4 * WIDTH);
/// One entirely free LLC touched.
pub(super) const FREE_LLC: Price = 1 << (3 * WIDTH);
/// One entirely free core touched.
pub(super) const FREE_CORE: Price = 1 << (2 * WIDTH);
/// One free CPU in a NUMA node touched. The CPUs taken are as many in every placement, so this ranks by what remains.
pub(super) const LEFT_IN_NUMA: Price = 1 << WIDTH;
/// One free CPU in an LLC touched.
pub(super) const LEFT_IN_LLC: Price = 1;

/// A count as a factor of a price.
pub(super) fn times(count: usize) -> Price {
    count as Price
}
