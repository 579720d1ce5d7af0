//! The programs that the kernel runs for each packet.
//!
//! What TCP does is told by the packets themselves, too, where they leave: it needs no second place to be attached to, no
//! types of the kernel's own (BTF), nothing set in each socket, and sees connections that are older than the programs.
//! A tracepoint of the kernel tells only what is sent again, without a cgroup and to GPL programs alone; a program for
//! socket operations is told more, but not the cgroup, and of those connections only that were made in its time and whose
//! flags nobody else has set meanwhile.
//!
//! A segment is one that is sent again by the kernel's own rule for its counters (`OutSegs`): it takes part of the numbers up to
//! `snd_nxt`, which moves on after what is new has left. The timer that runs out raises a number in the socket before it has
//! something sent again; that number, and the first byte that is not acknowledged, are kept for the sockets to which it has
//! happened, so that each time is counted once.

use super::super::bpf::{Assembly, Direction, Jump, Register};
use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};

// Helpers of the kernel, by their numbers in `enum bpf_func_id`.
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const LOAD_BYTES: i32 = 26;
const SOCKET_COOKIE: i32 = 46;
const ANCESTOR_CGROUP_ID: i32 = 83;
const TCP_SOCKET: i32 = 96;

// Where a packet has them, in `struct __sk_buff`.
const LENGTH: i16 = 0;
const SEGMENTS: i16 = 164;
const SOCKET: i16 = 168;

// Where TCP's part of a socket has them, in `struct bpf_tcp_sock`.
const NEXT: i16 = 20;
const UNACKNOWLEDGED: i16 = 24;
const RESENT: i16 = 52;
const TIMEOUTS: i16 = 108;

/// TCP, by its number in IP's header; and options for each hop.
const TCP: i32 = 6;
const EACH_HOP: i32 = 0;

// What is where on the stack: a key and a value of the counts, what was read of a header and of the socket, a key and a value of
// what is kept of sockets.
const KEY: i16 = -16;
const VALUE: i16 = KEY - 8 * 7;
const BYTES: i16 = VALUE - 24;
const NEXT_WAS: i16 = BYTES - 8;
const COOKIE: i16 = NEXT_WAS - 8;
const KEPT: i16 = COOKIE - 16;

/// Which of an entry's numbers, by their places in it: bytes and packets; of TCP what was sent, sent again, and how often a timer
/// ran out.
const fn places(direction: Direction) -> [i16; 2] {
    match direction {
        Direction::Ingress => [0, 8],
        Direction::Egress => [16, 24],
    }
}
const SENT: i16 = 32;
const SENT_AGAIN: i16 = 40;
const RAN_OUT: i16 = 48;

/// Adds a packet to the entry of the two cgroups below a tree of this depth, and lets it pass.
pub(super) fn program(counts: i32, kept: i32, depth: usize, direction: Direction) -> Assembly {
    let mut assembly = Assembly::default();
    let a = &mut assembly;
    a.copy(R6, R1);
    for (step, place) in [(1, KEY), (2, KEY + 8)] {
        a.copy(R1, R6);
        // The depth of a cgroup's path is never near that.
        a.set(R2, i32::try_from(depth + step).unwrap_or(i32::MAX));
        a.call(ANCESTOR_CGROUP_ID);
        a.store_64(R10, place, R0);
    }
    a.load_32(R7, R6, LENGTH);
    // One that is neither cut nor put together may say 0.
    a.load_32(R8, R6, SEGMENTS);
    let several = a.jump_unless_zero(R8);
    a.set(R8, 1);
    a.land(several);
    find(a, counts, KEY);
    let known = a.jump_unless_zero(R0);
    for place in (VALUE..KEY).step_by(8) {
        a.store_value_64(R10, place, 0);
    }
    a.map(R1, counts);
    a.copy(R2, R10);
    a.add(R2, KEY.into());
    a.copy(R3, R10);
    a.add(R3, VALUE.into());
    // Unless it is there: another CPU may have been faster, and what it counts must stay.
    a.set(R4, 1);
    a.call(MAP_UPDATE);
    find(a, counts, KEY);
    let made = a.jump_unless_zero(R0);
    a.store_value_64(R10, KEY, 0);
    a.store_value_64(R10, KEY + 8, 0);
    find(a, counts, KEY);
    let none = a.jump_if_zero(R0);
    a.land(known);
    a.land(made);
    // Atomic although the CPU's own: an interrupt may send and receive in the middle of this program.
    let [bytes, packets] = places(direction);
    a.atomic_add_64(R0, bytes, R7);
    a.atomic_add_64(R0, packets, R8);
    if direction == Direction::Egress {
        segments(a, kept);
    }
    a.land(none);
    a.set(R0, 1);
    a.exit();
    assembly
}

/// Adds a packet, if it is TCP's, to what was sent or sent again. With R0 the entry, R6 the packet, R7 its length, R8 how many
/// segments it stands for.
fn segments(a: &mut Assembly, kept: i32) {
    a.copy(R9, R0);
    a.load_64(R1, R6, SOCKET);
    let no_socket = a.jump_if_zero(R1);
    a.call(TCP_SOCKET);
    let no_tcp = a.jump_if_zero(R0);
    // The kernel counts what it sends again before that leaves; most sockets never have any.
    a.load_32(R1, R0, RESENT);
    let mut new = vec![a.jump_if_zero(R1)];
    a.load_32(R1, R0, NEXT);
    a.store_64(R10, NEXT_WAS, R1);
    a.load_32(R1, R0, UNACKNOWLEDGED);
    a.store_64(R10, KEPT, R1);
    a.load_32(R1, R0, TIMEOUTS);
    a.store_64(R10, KEPT + 8, R1);
    new.extend(end(a));
    a.load_64(R2, R10, NEXT_WAS);
    a.subtract(R1, R2);
    a.extend_sign_32(R1);
    new.push(a.jump_if_above_signed(R1, 0));
    a.atomic_add_64(R9, SENT_AGAIN, R8);
    let ends = timeouts(a, kept);
    new.into_iter().for_each(|jump| a.land(jump));
    a.atomic_add_64(R9, SENT, R8);
    for jump in ends.into_iter().chain([no_socket, no_tcp]) {
        a.land(jump);
    }
}

/// R1 = the number after the packet's last one; with jumps for a packet that takes none, or can't be read.
fn end(a: &mut Assembly) -> Vec<Jump> {
    let mut not = vec![load(a, None, 20)];
    a.load_8(R1, R10, BYTES);
    a.copy(R2, R1);
    a.shift_right(R2, 4);
    let six = a.jump_unless(R2, 4);
    a.load_8(R2, R10, BYTES + 9);
    not.push(a.jump_unless(R2, TCP));
    a.and(R1, 15);
    a.shift_left(R1, 2);
    let header = a.jump();
    a.land(six);
    a.load_8(R2, R10, BYTES + 6);
    a.set(R1, 40);
    let header_six = a.jump_if(R2, TCP);
    // A packet that is too long for its header has the length in such options, where Linux lets it be that long.
    not.push(a.jump_unless(R2, EACH_HOP));
    not.push(load(a, Some(R1), 8));
    a.load_8(R2, R10, BYTES);
    not.push(a.jump_unless(R2, TCP));
    a.set(R1, 48);
    a.land(header);
    a.land(header_six);
    a.subtract(R7, R1);
    not.push(load(a, Some(R1), 16));
    a.load_8(R1, R10, BYTES + 12);
    a.shift_right(R1, 4);
    a.shift_left(R1, 2);
    a.subtract(R7, R1);
    // A beginning and an end take a number each.
    a.load_8(R1, R10, BYTES + 13);
    a.copy(R2, R1);
    a.and(R2, 1);
    a.add_register(R7, R2);
    a.shift_right(R1, 1);
    a.and(R1, 1);
    a.add_register(R7, R1);
    not.push(a.jump_if_zero(R7));
    a.load_32(R1, R10, BYTES + 4);
    a.from_network_32(R1);
    a.add_register(R1, R7);
    not
}

/// Adds the times that the timer ran out since it was last looked at; with jumps to the end of all.
fn timeouts(a: &mut Assembly, kept: i32) -> Vec<Jump> {
    a.load_64(R7, R10, KEPT + 8);
    let none = a.jump_if_zero(R7);
    a.copy(R1, R6);
    a.call(SOCKET_COOKIE);
    a.store_64(R10, COOKIE, R0);
    find(a, kept, COOKIE);
    // How often it ran out before anybody counted is not known.
    let known = a.jump_unless_zero(R0);
    a.set(R7, 1);
    let first = a.jump();
    a.land(known);
    // Whenever something is acknowledged the kernel begins anew.
    a.load_64(R1, R0, 0);
    a.load_64(R2, R10, KEPT);
    let anew = a.jump_unless_same(R1, R2);
    a.load_64(R1, R0, 8);
    let again = a.jump_if_less(R7, R1);
    a.subtract(R7, R1);
    a.land(anew);
    a.land(again);
    a.land(first);
    let same = a.jump_if_zero(R7);
    a.atomic_add_64(R9, RAN_OUT, R7);
    a.map(R1, kept);
    a.copy(R2, R10);
    a.add(R2, COOKIE.into());
    a.copy(R3, R10);
    a.add(R3, KEPT.into());
    a.set(R4, 0);
    a.call(MAP_UPDATE);
    vec![none, same, a.jump()]
}

/// Reads so many bytes of the packet, from its beginning or from where a register says; with a jump for when there are not so
/// many.
fn load(a: &mut Assembly, from: Option<Register>, bytes: i32) -> Jump {
    match from {
        Some(from) => a.copy(R2, from),
        None => a.set(R2, 0),
    }
    a.copy(R1, R6);
    a.copy(R3, R10);
    a.add(R3, BYTES.into());
    a.set(R4, bytes);
    a.call(LOAD_BYTES);
    a.jump_unless_zero(R0)
}

fn find(a: &mut Assembly, map: i32, key: i16) {
    a.map(R1, map);
    a.copy(R2, R10);
    a.add(R2, key.into());
    a.call(MAP_LOOKUP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_short_and_the_same_each_time() {
        let of = |depth, direction| program(5, 6, depth, direction);
        let lengths =
            [Direction::Ingress, Direction::Egress].map(|way| of(1, way).bytes().len() / 8);
        assert!(
            lengths[0] < lengths[1] && lengths[1] < 200,
            "{lengths:?}: segments are judged where they leave"
        );
        assert_eq!(of(1, Direction::Egress), of(1, Direction::Egress));
        assert_ne!(of(1, Direction::Egress), of(2, Direction::Egress));
    }
}
