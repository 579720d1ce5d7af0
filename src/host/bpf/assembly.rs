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
const SET: u8 = 0xb7;
const COPY: u8 = 0xbf;
const LOAD_32: u8 = 0x61;
const LOAD_WIDE: u8 = 0x18;
const STORE_64: u8 = 0x7b;
const STORE_VALUE_64: u8 = 0x7a;
const ATOMIC_64: u8 = 0xdb;
const JUMP: u8 = 0x05;
const JUMP_IF_ZERO: u8 = 0x15;
const JUMP_UNLESS_ZERO: u8 = 0x55;
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

    /// `to = map`, by the map's descriptor.
    pub fn map(&mut self, to: Register, descriptor: i32) {
        self.push(LOAD_WIDE, to as u8, OF_MAP, 0, descriptor);
        self.push(0, 0, 0, 0, 0);
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

    /// Goes on elsewhere.
    pub fn jump(&mut self) -> Jump {
        self.push(JUMP, 0, 0, 0, 0);
        Jump(self.instructions.len() - 1)
    }

    /// Goes on elsewhere if a register is 0.
    pub fn jump_if_zero(&mut self, register: Register) -> Jump {
        self.push(JUMP_IF_ZERO, register as u8, 0, 0, 0);
        Jump(self.instructions.len() - 1)
    }

    /// Goes on elsewhere if a register is not 0.
    pub fn jump_unless_zero(&mut self, register: Register) -> Jump {
        self.push(JUMP_UNLESS_ZERO, register as u8, 0, 0, 0);
        Jump(self.instructions.len() - 1)
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
        self.instructions.iter().flat_map(|instruction| instruction.bytes()).collect()
    }

    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.instructions.push(Instruction { code, to, from, offset, value });
    }
}

// === impl Instruction ===

impl Instruction {
    fn bytes(self) -> [u8; 8] {
        let registers =
            if cfg!(target_endian = "little") { self.from << 4 | self.to } else { self.to << 4 | self.from };
        let [offset, value] = [self.offset.to_ne_bytes().to_vec(), self.value.to_ne_bytes().to_vec()];
        let mut bytes = [self.code, registers, 0, 0, 0, 0, 0, 0];
        let rest = offset.into_iter().chain(value);
        bytes.iter_mut().skip(2).zip(rest).for_each(|(byte, new)| *byte = new);
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
        assert_eq!(one(|a| a.add(R2, -16)), [0x07, 2, 0, 0, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(one(|a| a.load_32(R2, R6, 164)), [0x61, 0x62, 0xa4, 0, 0, 0, 0, 0]);
        assert_eq!(one(|a| a.store_64(R10, -8, R0)), [0x7b, 0x0a, 0xf8, 0xff, 0, 0, 0, 0]);
        assert_eq!(one(|a| a.store_value_64(R10, -8, 0)), [0x7a, 0x0a, 0xf8, 0xff, 0, 0, 0, 0]);
        assert_eq!(one(|a| a.atomic_add_64(R0, 8, R1)), [0xdb, 0x10, 8, 0, 0, 0, 0, 0]);
        assert_eq!(one(|a| a.call(83)), [0x85, 0, 0, 0, 83, 0, 0, 0]);
        assert_eq!(one(Assembly::exit), [0x95, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(one(|a| a.map(R1, 7)), [0x18, 0x11, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
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
            a.land(end);
            a.exit();
        });
        let offsets: Vec<(u8, u8)> = program.chunks(8).map(|bytes| (bytes[0], bytes[2])).collect();
        assert_eq!(offsets, [(0x15, 3), (0x18, 0), (0, 0), (0x05, 1), (0x55, 0), (0x95, 0)]);
    }
}
