//! Reading protobuf's wire format: fields with their numbers, one after the other, from bytes of unknown origin.

/// Why bytes are no protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It ends in the middle of a field.
    #[error("the message ends in the middle of a field: it was cut off on its way")]
    Truncated,
    /// A number of more than 64 bits.
    #[error("the message holds a number of more than 64 bits")]
    Number,
    /// A field of a kind that isn't in use any more, or never was.
    #[error("the message holds a field of wire type {0}: this is no protobuf message of version 3")]
    Kind(u64),
}

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// A number or a truth value.
    Varint(u64),
    /// A string, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// Four or eight bytes, which no message here uses.
    Fixed,
}

/// Yields the fields of a message as number and value; after an error there is nothing more.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), WireError> {
        let key = varint(&mut self.rest)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = varint(&mut self.rest)?;
                Value::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            other => return Err(WireError::Kind(other)),
        };
        Ok((key >> 3, value))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<(u64, Value<'a>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// The numbers of a packed field.
pub(super) fn packed(mut bytes: &[u8]) -> impl Iterator<Item = Result<u64, WireError>> + '_ {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let number = varint(&mut bytes);
        if number.is_err() {
            bytes = &[];
        }
        Some(number)
    })
}

/// Seven bits per byte, the lowest first; the highest bit says that more follow.
fn varint(bytes: &mut &[u8]) -> Result<u64, WireError> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(WireError::Truncated)?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return Err(WireError::Number);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(WireError::Number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_of_all_kinds() {
        let message = [
            0x08, 0x96, 0x01, // field 1: 150
            0x12, 0x02, b'h', b'i', // field 2: "hi"
            0x1d, 1, 2, 3, 4, // field 3: four bytes
            0x21, 1, 2, 3, 4, 5, 6, 7, 8, // field 4: eight bytes
            0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, // field 5: −1
        ];
        let fields: Result<Vec<_>, _> = Reader::new(&message).collect();
        let expected = vec![
            (1, Value::Varint(150)),
            (2, Value::Bytes(b"hi")),
            (3, Value::Fixed),
            (4, Value::Fixed),
            (5, Value::Varint(u64::MAX)),
        ];
        assert_eq!(fields.unwrap(), expected);
    }

    #[test]
    fn what_is_no_message() {
        let error = |bytes: &[u8]| Reader::new(bytes).find_map(Result::err).unwrap();
        assert_eq!(error(&[0x0b]), WireError::Kind(3));
        assert_eq!(error(&[0x12, 0x05, b'h']), WireError::Truncated);
        assert_eq!(
            error(&[
                0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01
            ]),
            WireError::Truncated
        );
        assert_eq!(
            error(&[
                0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02
            ]),
            WireError::Number
        );
        assert_eq!(error(&[0x80; 11]), WireError::Number);
        assert_eq!(
            packed(&[0x05, 0x80]).collect::<Vec<_>>(),
            [Ok(5), Err(WireError::Truncated)]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let read = Reader::new(&bytes).count();
            prop_assert!(read <= bytes.len());
            let _ = super::super::parse_list(&bytes);
        }
    }
}
