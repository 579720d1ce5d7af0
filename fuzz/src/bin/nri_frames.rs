//! What comes over a container runtime's socket: frames, messages in them, calls in those.
//!
//! The first byte says in how long parts the rest arrives; that must make no difference.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfold::nri::PluginRequest;
use pinfold::nri::framing::{
    self, Demux, MessageDecoder, OversizedFrame, RpcMessage, RpcRequest, RpcResponse,
};
use pinfold_fuzz::says_why;
use prost::Message;

/// The messages on the two channels, up to a frame that makes no sense; and whether the stream may end here.
fn read<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
) -> (Vec<(u32, RpcMessage)>, Option<OversizedFrame>) {
    let (mut demux, mut decoders) = (
        Demux::default(),
        [MessageDecoder::default(), MessageDecoder::default()],
    );
    let mut found = Vec::new();
    for mut part in parts {
        loop {
            let piece = match demux.next(&mut part) {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            };
            assert!(!piece.bytes.is_empty());
            let decoder = match piece.channel {
                framing::PLUGIN_CHANNEL => &mut decoders[0],
                framing::RUNTIME_CHANNEL => &mut decoders[1],
                _ => continue,
            };
            let mut bytes = piece.bytes;
            while let Some(frame) = decoder.next(&mut bytes) {
                found.push((piece.channel, frame));
            }
            assert!(bytes.is_empty());
        }
        assert!(part.is_empty());
    }
    (found, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&length, data)) = data.split_first() else {
        return;
    };
    let (found, error) = read([data].into_iter());
    assert_eq!(
        read(data.chunks(usize::from(length).max(1))),
        (found.clone(), error)
    );
    if let Some(error) = error {
        says_why(&error);
    }
    // What was read can be sent, and is read again as it was.
    let mut sent = Vec::new();
    let mut short = Vec::new();
    for (channel, frame) in &found {
        let Ok(data) = &frame.data else { continue };
        let message =
            framing::encode_message(frame.stream, frame.kind, data).expect("it is not too long");
        framing::append_frames(*channel, &message, &mut sent);
        short.push((*channel, frame.clone()));
        if let Ok(request) = RpcRequest::decode(data.as_slice())
            && let Err(error) =
                PluginRequest::read(&request.service, &request.method, &request.payload)
        {
            says_why(&error);
        }
        if let Ok(response) = RpcResponse::decode(data.as_slice()) {
            // Its result may be either; it must be one.
            let _ = response.into_result();
        }
    }
    assert_eq!(read([sent.as_slice()].into_iter()), (short, None));
});
