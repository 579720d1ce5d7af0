//! The programs that the kernel runs for each packet, compiled from `program.c`.
//!
//! The instructions are for little-endian machines. A big-endian machine's kernel refuses the
//! programs.

use super::super::Direction;

const INGRESS: &[u8] = include_bytes!("ingress.bin");
const EGRESS: &[u8] = include_bytes!("egress.bin");

// The placeholders of `program.c`, as operands of 32 bits: the maps, and the levels of the two
// cgroups in a key, which are `TREE_DEPTH + 1` and `TREE_DEPTH + 2`, as added by the compiler.
const COUNTS: u64 = 0x706d_0001;
const TIMERS: u64 = 0x706d_0002;
const OUTER_LEVEL: u64 = 0x706d_0011;
const INNER_LEVEL: u64 = 0x706d_0012;

/// The code of the instruction that loads 64 bits. Its second word has no code, and holds the upper
/// half of the operand.
const WIDE_LOAD: u64 = 0x18;
const SECOND_WORD: u64 = 0;

/// The mark of a wide load whose operand is the descriptor of a map (`BPF_PSEUDO_MAP_FD`).
const MAP_DESCRIPTOR: u64 = 1 << 12;

/// The instructions of a program for a tree that is `depth` levels below the root cgroup. `maps`
/// holds the descriptors of the counts and of the timers.
pub(super) fn program(maps: [i32; 2], depth: usize, direction: Direction) -> Vec<u64> {
    let [counts, timers] = maps;
    // A cgroup's depth is always far below the limit of `i32`.
    let level = |below: usize| i32::try_from(depth + below).unwrap_or(i32::MAX);
    let value = |placeholder: u64| match placeholder {
        COUNTS => Some(counts),
        TIMERS => Some(timers),
        OUTER_LEVEL => Some(level(1)),
        INNER_LEVEL => Some(level(2)),
        _ => None,
    };
    let compiled = match direction {
        Direction::Ingress => INGRESS,
        Direction::Egress => EGRESS,
    };
    let (words, _) = compiled.as_chunks();
    let instruction = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        let (operation, operand) = (word & 0xffff_ffff, word >> 32);
        let Some(value) = value(operand) else {
            return word;
        };
        let mark = match operation & 0xff {
            SECOND_WORD => return 0,
            WIDE_LOAD => MAP_DESCRIPTOR,
            _ => 0,
        };
        u64::from(value.cast_unsigned()) << 32 | operation | mark
    };
    words.iter().map(instruction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_levels_replace_the_placeholders() {
        let of = |depth, direction| program([5, 6], depth, direction);
        for (direction, compiled, timers) in [
            (Direction::Ingress, INGRESS, 0),
            (Direction::Egress, EGRESS, 2),
        ] {
            let filled = of(3, direction);
            assert_eq!(filled.len() * 8, compiled.len());
            let number = |instruction: u64| {
                let equal = |word: &&u64| **word == instruction;
                filled.iter().filter(equal).count()
            };
            // Loads of a map into the first argument.
            assert_eq!(number(0x0000_0005_0000_1118), 4);
            assert_eq!(number(0x0000_0006_0000_1118), timers);
            // Levels as the second argument.
            assert_eq!(number(0x0000_0004_0000_02b7), 1);
            assert_eq!(number(0x0000_0005_0000_02b7), 1);
            assert!(filled.iter().all(|word| word >> 48 != 0x706d));
            assert_ne!(of(1, direction), filled);
        }
        assert!(INGRESS.len() < EGRESS.len() && EGRESS.len() < 200 * 8);
    }
}
