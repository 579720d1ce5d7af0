//! Bytes from a container runtime's socket: frames, messages in the frames, and calls in the messages.
//!
//! The first byte is the size of the chunks. The size must not change the result.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfold::nri::PluginRequest;
use pinfold::nri::framing::{
    self, Demux, MessageDecoder, OversizedFrame, RpcMessage, RpcRequest, RpcResponse,
};
use pinfold_fuzz::says_why;
use prost::Message;

/// The messages on the two channels up to the first invalid frame, and the error.
fn read<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
) -> (Vec<(u32, RpcMessage)>, Option<OversizedFrame>) {
    let (mut demux, mut decoders) = (
        Demux::default(),
        [MessageDecoder::default(), MessageDecoder::default()],
    );
    let mut messages = Vec::new();
    for mut part in parts {
        loop {
            let piece = match demux.next(&mut part) {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            };
            assert!(!piece.bytes.is_empty());
            let decoder = match piece.channel {
                framing::PLUGIN_CHANNEL => &mut decoders[0],
                framing::RUNTIME_CHANNEL => &mut decoders[1],
                _ => continue,
            };
            let mut bytes = piece.bytes;
            while let Some(frame) = decoder.next(&mut bytes) {
                messages.push((piece.channel, frame));
            }
            assert!(bytes.is_empty());
        }
        assert!(part.is_empty());
    }
    (messages, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&length, data)) = data.split_first() else {
        return;
    };
    let (messages, error) = read([data].into_iter());
    assert_eq!(
        read(data.chunks(usize::from(length).max(1))),
        (messages.clone(), error)
    );
    if let Some(error) = error {
        says_why(&error);
    }
    // Decoded messages, encoded and decoded again, stay equal.
    let mut encoded = Vec::new();
    let mut short = Vec::new();
    for (channel, frame) in &messages {
        let Ok(data) = &frame.data else { continue };
        let message =
            framing::encode_message(frame.stream, frame.kind, data).expect("it is not too long");
        framing::append_frames(*channel, &message, &mut encoded);
        short.push((*channel, frame.clone()));
        if let Ok(request) = RpcRequest::decode(data.as_slice())
            && let Err(error) =
                PluginRequest::read(&request.service, &request.method, &request.payload)
        {
            says_why(&error);
        }
        if let Ok(response) = RpcResponse::decode(data.as_slice()) {
            // Decoding the result must not panic.
            let _ = response.into_result();
        }
    }
    assert_eq!(read([encoded.as_slice()].into_iter()), (short, None));
});
