//! Instructions of the kernel's BPF machine, put together here: a program of a few dozen needs no compiler on the machine that
//! builds Pinfold, and no file beside the binary.

/// One of the machine's registers. The first holds what a call returns, the next five its arguments, which a call destroys;
/// the last is the end of the stack, of 512 bytes, and can't be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are numbers")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// A jump whose target is still to come.
#[derive(Debug)]
#[must_use = "a jump that never lands goes to the next instruction"]
pub struct Jump(usize);

/// A program as it grows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assembly {
    instructions: Vec<Instruction>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    value: i32,
}

// The codes, as Documentation/bpf/standardization/instruction-set.rst puts them together from classes, sizes and modes.
const ADD: u8 = 0x07;
const ADD_REGISTER: u8 = 0x0f;
const SUBTRACT: u8 = 0x1f;
const AND: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const SHIFT_RIGHT: u8 = 0x77;
const SHIFT_RIGHT_SIGNED: u8 = 0xc7;
const FROM_NETWORK: u8 = 0xdc;
const SET: u8 = 0xb7;
const COPY: u8 = 0xbf;
const LOAD_8: u8 = 0x71;
const LOAD_32: u8 = 0x61;
const LOAD_64: u8 = 0x79;
const LOAD_WIDE: u8 = 0x18;
const STORE_64: u8 = 0x7b;
const STORE_VALUE_64: u8 = 0x7a;
const ATOMIC_64: u8 = 0xdb;
const JUMP: u8 = 0x05;
const JUMP_IF: u8 = 0x15;
const JUMP_UNLESS: u8 = 0x55;
const JUMP_IF_ABOVE_SIGNED: u8 = 0x65;
const JUMP_IF_LESS_REGISTER: u8 = 0xad;
const JUMP_UNLESS_REGISTER: u8 = 0x5d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// In a wide load: the value is the descriptor of a map.
const OF_MAP: u8 = 1;

// === impl Assembly ===

impl Assembly {
    /// `to = from`
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(COPY, to as u8, from as u8, 0, 0);
    }

    /// `to = value`
    pub fn set(&mut self, to: Register, value: i32) {
        self.push(SET, to as u8, 0, 0, value);
    }

    /// `to += value`
    pub fn add(&mut self, to: Register, value: i32) {
        self.push(ADD, to as u8, 0, 0, value);
    }

    /// `to += from`
    pub fn add_register(&mut self, to: Register, from: Register) {
        self.push(ADD_REGISTER, to as u8, from as u8, 0, 0);
    }

    /// `to -= from`
    pub fn subtract(&mut self, to: Register, from: Register) {
        self.push(SUBTRACT, to as u8, from as u8, 0, 0);
    }

    /// `to &= value`
    pub fn and(&mut self, to: Register, value: i32) {
        self.push(AND, to as u8, 0, 0, value);
    }

    /// `to <<= bits`
    pub fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(SHIFT_LEFT, to as u8, 0, 0, bits);
    }

    /// `to >>= bits`, with zeros from the left.
    pub fn shift_right(&mut self, to: Register, bits: i32) {
        self.push(SHIFT_RIGHT, to as u8, 0, 0, bits);
    }

    /// Makes the lower 32 bits of a register, read as a number with a sign, one of 64 bits.
    pub fn extend_sign_32(&mut self, to: Register) {
        self.shift_left(to, 32);
        self.push(SHIFT_RIGHT_SIGNED, to as u8, 0, 0, 32);
    }

    /// Makes the lower 32 bits of a register, in the order of the network, a number.
    pub fn from_network_32(&mut self, to: Register) {
        self.push(FROM_NETWORK, to as u8, 0, 0, 32);
    }

    /// `to = map`, by the map's descriptor.
    pub fn map(&mut self, to: Register, descriptor: i32) {
        self.push(LOAD_WIDE, to as u8, OF_MAP, 0, descriptor);
        self.push(0, 0, 0, 0, 0);
    }

    /// `to = *(base + offset)`, 8 bits.
    pub fn load_8(&mut self, to: Register, base: Register, offset: i16) {
        self.push(LOAD_8, to as u8, base as u8, offset, 0);
    }

    /// `to = *(base + offset)`, 64 bits.
    pub fn load_64(&mut self, to: Register, base: Register, offset: i16) {
        self.push(LOAD_64, to as u8, base as u8, offset, 0);
    }

    /// `to = *(base + offset)`, 32 bits.
    pub fn load_32(&mut self, to: Register, base: Register, offset: i16) {
        self.push(LOAD_32, to as u8, base as u8, offset, 0);
    }

    /// `*(base + offset) = from`, 64 bits.
    pub fn store_64(&mut self, base: Register, offset: i16, from: Register) {
        self.push(STORE_64, base as u8, from as u8, offset, 0);
    }

    /// `*(base + offset) = value`, 64 bits.
    pub fn store_value_64(&mut self, base: Register, offset: i16, value: i32) {
        self.push(STORE_VALUE_64, base as u8, 0, offset, value);
    }

    /// `*(base + offset) += from`, 64 bits, whoever else adds to it meanwhile.
    pub fn atomic_add_64(&mut self, base: Register, offset: i16, from: Register) {
        self.push(ATOMIC_64, base as u8, from as u8, offset, 0);
    }

    /// Calls one of the kernel's helpers by its number.
    pub fn call(&mut self, helper: i32) {
        self.push(CALL, 0, 0, 0, helper);
    }

    /// Jumps.
    pub fn jump(&mut self) -> Jump {
        self.branch(JUMP, 0, 0, 0)
    }

    /// Goes on elsewhere if a register is 0.
    pub fn jump_if_zero(&mut self, register: Register) -> Jump {
        self.jump_if(register, 0)
    }

    /// Goes on elsewhere if a register is not 0.
    pub fn jump_unless_zero(&mut self, register: Register) -> Jump {
        self.jump_unless(register, 0)
    }

    /// Goes on elsewhere if a register holds this.
    pub fn jump_if(&mut self, register: Register, value: i32) -> Jump {
        self.branch(JUMP_IF, register as u8, 0, value)
    }

    /// Goes on elsewhere if a register holds something else than this.
    pub fn jump_unless(&mut self, register: Register, value: i32) -> Jump {
        self.branch(JUMP_UNLESS, register as u8, 0, value)
    }

    /// Goes on elsewhere if a register, read as a number with a sign, is above this.
    pub fn jump_if_above_signed(&mut self, register: Register, value: i32) -> Jump {
        self.branch(JUMP_IF_ABOVE_SIGNED, register as u8, 0, value)
    }

    /// Goes on elsewhere if the one register is less than the other.
    pub fn jump_if_less(&mut self, one: Register, other: Register) -> Jump {
        self.branch(JUMP_IF_LESS_REGISTER, one as u8, other as u8, 0)
    }

    /// Goes on elsewhere if two registers differ.
    pub fn jump_unless_same(&mut self, one: Register, other: Register) -> Jump {
        self.branch(JUMP_UNLESS_REGISTER, one as u8, other as u8, 0)
    }

    /// What comes next is where a jump goes to.
    #[allow(clippy::needless_pass_by_value, reason = "a jump lands once")]
    pub fn land(&mut self, jump: Jump) {
        let over = self.instructions.len().saturating_sub(jump.0 + 1);
        if let Some(instruction) = self.instructions.get_mut(jump.0) {
            // The kernel takes no program that is long enough for another distance, and refuses a jump out of one.
            instruction.offset = i16::try_from(over).unwrap_or(i16::MAX);
        }
    }

    /// Ends the program; the first register is its answer.
    pub fn exit(&mut self) {
        self.push(EXIT, 0, 0, 0, 0);
    }

    /// The program as this machine's kernel reads it: eight bytes for each instruction.
    pub fn bytes(&self) -> Vec<u8> {
        self.instructions
            .iter()
            .flat_map(|instruction| instruction.bytes())
            .collect()
    }

    fn branch(&mut self, code: u8, to: u8, from: u8, value: i32) -> Jump {
        self.push(code, to, from, 0, value);
        Jump(self.instructions.len() - 1)
    }

    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.instructions.push(Instruction {
            code,
            to,
            from,
            offset,
            value,
        });
    }
}

// === impl Instruction ===

impl Instruction {
    fn bytes(self) -> [u8; 8] {
        let registers = if cfg!(target_endian = "little") {
            self.from << 4 | self.to
        } else {
            self.to << 4 | self.from
        };
        let [offset, value] = [
            self.offset.to_ne_bytes().to_vec(),
            self.value.to_ne_bytes().to_vec(),
        ];
        let mut bytes = [self.code, registers, 0, 0, 0, 0, 0, 0];
        let rest = offset.into_iter().chain(value);
        bytes
            .iter_mut()
            .skip(2)
            .zip(rest)
            .for_each(|(byte, new)| *byte = new);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Register::{R0, R1, R2, R6, R10};
    use super::*;

    fn one(write: impl FnOnce(&mut Assembly)) -> Vec<u8> {
        let mut assembly = Assembly::default();
        write(&mut assembly);
        assembly.bytes()
    }

    /// Against what other assemblers make of the same lines.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_written_as_the_kernel_reads_them() {
        assert_eq!(one(|a| a.copy(R6, R1)), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(one(|a| a.set(R0, 1)), [0xb7, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(
            one(|a| a.add(R2, -16)),
            [0x07, 2, 0, 0, 0xf0, 0xff, 0xff, 0xff]
        );
        assert_eq!(
            one(|a| a.load_32(R2, R6, 164)),
            [0x61, 0x62, 0xa4, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            one(|a| a.store_64(R10, -8, R0)),
            [0x7b, 0x0a, 0xf8, 0xff, 0, 0, 0, 0]
        );
        assert_eq!(
            one(|a| a.store_value_64(R10, -8, 0)),
            [0x7a, 0x0a, 0xf8, 0xff, 0, 0, 0, 0]
        );
        assert_eq!(
            one(|a| a.atomic_add_64(R0, 8, R1)),
            [0xdb, 0x10, 8, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            one(|a| a.load_8(R1, R10, -80)),
            [0x71, 0xa1, 0xb0, 0xff, 0, 0, 0, 0]
        );
        assert_eq!(
            one(|a| a.load_64(R1, R6, 168)),
            [0x79, 0x61, 0xa8, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            one(|a| a.add_register(R1, R2)),
            [0x0f, 0x21, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(one(|a| a.subtract(R1, R2)), [0x1f, 0x21, 0, 0, 0, 0, 0, 0]);
        assert_eq!(one(|a| a.and(R1, 15)), [0x57, 1, 0, 0, 15, 0, 0, 0]);
        assert_eq!(one(|a| a.shift_right(R1, 4)), [0x77, 1, 0, 0, 4, 0, 0, 0]);
        let both = [0x67, 1, 0, 0, 32, 0, 0, 0, 0xc7, 1, 0, 0, 32, 0, 0, 0];
        assert_eq!(one(|a| a.extend_sign_32(R1)), both);
        assert_eq!(one(|a| a.from_network_32(R1)), [0xdc, 1, 0, 0, 32, 0, 0, 0]);
        assert_eq!(one(|a| a.call(83)), [0x85, 0, 0, 0, 83, 0, 0, 0]);
        assert_eq!(one(Assembly::exit), [0x95, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            one(|a| a.map(R1, 7)),
            [0x18, 0x11, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn jumps_go_where_they_land() {
        let program = one(|a| {
            let none = a.jump_if_zero(R0);
            a.map(R1, 7);
            let end = a.jump();
            a.land(none);
            let next = a.jump_unless_zero(R1);
            a.land(next);
            let others = [
                a.jump_if(R1, 6),
                a.jump_unless(R1, 6),
                a.jump_if_above_signed(R1, 6),
                a.jump_if_less(R1, R2),
                a.jump_unless_same(R1, R2),
            ];
            a.land(end);
            others.into_iter().for_each(|jump| a.land(jump));
            a.exit();
        });
        let offsets: Vec<(u8, u8)> = program
            .chunks(8)
            .map(|bytes| (bytes[0], bytes[2]))
            .collect();
        let others = [(0x15, 4), (0x55, 3), (0x65, 2), (0xad, 1), (0x5d, 0)];
        let first = [(0x15, 3), (0x18, 0), (0, 0), (0x05, 6), (0x55, 0)];
        assert_eq!(offsets, [first.as_slice(), &others, &[(0x95, 0)]].concat());
    }
}
