//! A large document that is kept compressed, for a client that does not take gzip: unpacked piece by piece as it is read, so
//! that a hundred slow readers hold a hundred pieces and not a hundred documents.

use std::{
    io::{Cursor, Read as _},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::body::BodyError;

/// Bytes unpacked at a time: some hundred microseconds of work.
const PIECE: usize = 64 << 10;

/// The document as it was before it was compressed.
pub(super) struct Unpacked {
    gzip: GzDecoder<Cursor<Bytes>>,
    left: usize,
}

impl Unpacked {
    /// `gzip` holds `length` bytes.
    pub(super) fn new(gzip: Bytes, length: usize) -> Self {
        Self {
            gzip: GzDecoder::new(Cursor::new(gzip)),
            left: length,
        }
    }
}

impl HttpBody for Unpacked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; self.left.min(PIECE)];
        let unpacked = self.gzip.read_exact(&mut piece);
        Poll::Ready(Some(match unpacked {
            Ok(()) => {
                self.left -= piece.len();
                Ok(Frame::data(piece.into()))
            }
            Err(error) => Err(error.into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::discovery::answer::compress;

    #[tokio::test]
    async fn what_was_compressed_comes_out_in_pieces_and_whole() {
        let document: Vec<u8> = (0..300_000_u32).flat_map(u32::to_be_bytes).collect();
        let gzip = compress(&document).unwrap();
        let mut body = Unpacked::new(gzip.clone(), document.len());
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE);
            whole.extend_from_slice(&piece);
            let left = (document.len() - whole.len()) as u64;
            assert_eq!(body.size_hint().exact(), Some(left));
        }
        assert!(whole == document);
        // Damaged, it never looks complete.
        let half = gzip.slice(..gzip.len() / 2);
        let body = Unpacked::new(half, document.len());
        assert!(body.collect().await.is_err());
    }
}
