//! The multiplexer: two byte streams over one socket, as pieces that name their stream.
//!
//! A frame is a header of eight bytes, the channel and the payload's length, both big-endian, and the payload. A payload is
//! any part of its channel's stream: where one frame ends and the next begins says nothing about messages. So nothing is
//! gathered here; what arrives is passed on at once, whoever gathers messages has their bound.

use super::ttrpc;

/// The channel on which the runtime calls the plugin.
pub const PLUGIN: u32 = 1;

/// The channel on which the plugin calls the runtime.
pub const RUNTIME: u32 = 2;

/// The length of a frame's header.
pub const HEADER: usize = 8;

/// The longest payload: one message of the longest kind.
pub const LONGEST: usize = ttrpc::HEADER + ttrpc::LONGEST;

/// The longest first frame of a message. The runtimes' reader takes a frame in one read or not at all, and its buffer for
/// a message's begin is this long.
const FIRST: usize = 4096;

/// A frame that nobody who speaks this protocol sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a frame of {length} bytes on channel {channel}, more than the {LONGEST} of the longest message"
)]
pub struct Oversized {
    /// Its channel.
    pub channel: u32,
    /// Its length.
    pub length: usize,
}

/// A part of a channel's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The channel.
    pub channel: u32,
    /// The bytes, at least one.
    pub bytes: &'a [u8],
}

/// Takes a socket's stream apart.
#[derive(Debug, Clone, Default)]
pub struct Demux {
    header: [u8; HEADER],
    /// How much of the header is there.
    filled: usize,
    /// The frame's channel, and how much of its payload is still to come.
    channel: u32,
    left: usize,
}

// === impl Demux ===

impl Demux {
    /// The next piece of `bytes`, which are shortened by what was taken; `None` when they are used up.
    ///
    /// # Errors
    /// A frame is longer than any message: what follows makes no sense.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, Oversized> {
        loop {
            if self.left > 0 {
                let (piece, rest) = bytes.split_at(self.left.min(bytes.len()));
                *bytes = rest;
                self.left -= piece.len();
                let piece = Piece {
                    channel: self.channel,
                    bytes: piece,
                };
                return Ok((!piece.bytes.is_empty()).then_some(piece));
            }
            self.filled += fill(self.header.get_mut(self.filled..), bytes);
            if self.filled < HEADER {
                return Ok(None);
            }
            self.filled = 0;
            let [a, b, c, d, e, f, g, h] = self.header;
            self.channel = u32::from_be_bytes([a, b, c, d]);
            let length = usize::try_from(u32::from_be_bytes([e, f, g, h])).unwrap_or(usize::MAX);
            if length > LONGEST {
                return Err(Oversized {
                    channel: self.channel,
                    length,
                });
            }
            self.left = length;
        }
    }

    /// Whether the stream may end here: nothing of a frame is missing.
    pub fn is_between_frames(&self) -> bool {
        self.filled == 0 && self.left == 0
    }
}

/// Copies as much as fits from the front of `bytes`, which are shortened by it; how much it was.
pub(super) fn fill(into: Option<&mut [u8]>, bytes: &mut &[u8]) -> usize {
    let into = into.unwrap_or_default();
    let length = into.len().min(bytes.len());
    let (from, rest) = bytes.split_at(length);
    into.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    *bytes = rest;
    length
}

/// Appends a message to what is to be sent, in frames that the runtimes' reader takes.
pub fn frame(channel: u32, message: &[u8], into: &mut Vec<u8>) {
    let (first, rest) = message.split_at(message.len().min(FIRST));
    for payload in [first, rest]
        .into_iter()
        .filter(|payload| !payload.is_empty())
    {
        into.extend_from_slice(&channel.to_be_bytes());
        // No message is longer than four MiB.
        into.extend_from_slice(
            &u32::try_from(payload.len())
                .unwrap_or(u32::MAX)
                .to_be_bytes(),
        );
        into.extend_from_slice(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes on each channel of a stream that arrives in these parts.
    fn channels<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<(u32, Vec<u8>)> {
        let mut demux = Demux::default();
        let mut all: Vec<(u32, Vec<u8>)> = Vec::new();
        for mut part in parts {
            while let Some(piece) = demux.next(&mut part).unwrap() {
                match all
                    .iter_mut()
                    .find(|(channel, _)| *channel == piece.channel)
                {
                    Some((_, bytes)) => bytes.extend_from_slice(piece.bytes),
                    None => all.push((piece.channel, piece.bytes.to_vec())),
                }
            }
            assert!(part.is_empty());
        }
        assert!(demux.is_between_frames());
        all
    }

    #[test]
    fn frames_arrive_whole_merged_and_in_single_bytes() {
        let long: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut stream = Vec::new();
        frame(PLUGIN, b"one", &mut stream);
        frame(RUNTIME, &long, &mut stream);
        frame(7, b"", &mut stream);
        frame(PLUGIN, b"two", &mut stream);
        let expected = vec![(PLUGIN, b"onetwo".to_vec()), (RUNTIME, long)];
        assert_eq!(channels([stream.as_slice()]), expected);
        assert_eq!(channels(stream.chunks(1)), expected);
        assert_eq!(channels(stream.chunks(4095)), expected);
    }

    #[test]
    fn a_message_begins_with_a_frame_that_the_runtimes_buffer_holds() {
        for (length, frames) in [
            (1, vec![1]),
            (4096, vec![4096]),
            (4097, vec![4096, 1]),
            (20_000, vec![4096, 15_904]),
        ] {
            let (mut stream, mut lengths) = (Vec::new(), Vec::new());
            frame(PLUGIN, &vec![7; length], &mut stream);
            let mut rest = stream.as_slice();
            while let Some((header, payload)) = rest.split_first_chunk::<HEADER>() {
                let length = u32::from_be_bytes(header[4..].try_into().unwrap()) as usize;
                lengths.push(length);
                rest = &payload[length..];
            }
            assert_eq!(lengths, frames);
        }
    }

    #[test]
    fn an_empty_frame_is_nothing_and_a_frame_too_long_is_an_error() {
        let mut empty = [0, 0, 0, 1, 0, 0, 0, 0].as_slice();
        assert_eq!(Demux::default().next(&mut empty), Ok(None));
        let mut longest = [0, 0, 0, 1, 0, 0x40, 0, 10].as_slice();
        assert_eq!(Demux::default().next(&mut longest), Ok(None));
        let mut longer = [0, 0, 0, 9, 0, 0x40, 0, 11].as_slice();
        let error = Demux::default().next(&mut longer).unwrap_err();
        assert_eq!(
            error,
            Oversized {
                channel: 9,
                length: LONGEST + 1
            }
        );
    }
}
