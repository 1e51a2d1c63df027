//! HTTP/2 frame boundaries around hyper: lets the stand-in send a GOAWAY with the last stream that Go's server would name (the
//! highest it has seen) and ignore later streams, which hyper's own graceful shutdown does not do. Frames pass unchanged otherwise.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: usize = 24;
const HEADER: usize = 9;
const HEADERS_FRAME: u8 = 1;
const PUSH_PROMISE_FRAME: u8 = 5;
const GOAWAY_FRAME: u8 = 7;
const CONTINUATION_FRAME: u8 = 9;
const END_HEADERS: u8 = 4;

/// What the rest of the stand-in may ask of a connection.
#[derive(Debug, Default)]
pub(crate) struct GoAway(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Highest stream the client has opened.
    highest: u32,
    /// Frames to put between hyper's.
    inject: VecDeque<u8>,
    /// Streams above are ignored.
    last: Option<u32>,
    /// The next new stream is not processed: GOAWAY names the one before it.
    refuse_next: bool,
    /// Reads end here.
    eof: bool,
    wakers: Vec<Waker>,
}

impl State {
    fn go_away(&mut self) {
        if self.last.is_some() {
            return;
        }
        self.last = Some(self.highest);
        let mut frame = vec![0, 0, 8, GOAWAY_FRAME, 0, 0, 0, 0, 0];
        frame.extend(self.highest.to_be_bytes());
        frame.extend([0; 4]);
        self.inject.extend(frame);
        self.wake();
    }

    fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

impl GoAway {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends GOAWAY (`NO_ERROR`) naming the highest stream seen; once.
    pub(crate) fn send(&self) {
        self.lock().go_away();
    }

    /// The next new stream is answered by GOAWAY only.
    pub(crate) fn refuse_next(&self) {
        self.lock().refuse_next = true;
    }

    /// Ends reading, so that hyper closes the connection in an orderly way.
    pub(crate) fn finish(&self) {
        let mut state = self.lock();
        state.eof = true;
        state.wake();
    }
}

/// The client's half: what is dropped and what is not.
#[derive(Debug, Default)]
struct Inbound {
    preface: usize,
    header: Vec<u8>,
    /// Bytes left of the present frame's payload.
    payload: usize,
    dropping: bool,
}

impl Inbound {
    fn feed(&mut self, mut bytes: &[u8], state: &mut State, out: &mut VecDeque<u8>) {
        while !bytes.is_empty() {
            if self.preface < PREFACE {
                let take = bytes.len().min(PREFACE - self.preface);
                out.extend(&bytes[..take]);
                self.preface += take;
                bytes = &bytes[take..];
            } else if self.payload > 0 {
                let take = bytes.len().min(self.payload);
                if !self.dropping {
                    out.extend(&bytes[..take]);
                }
                self.payload -= take;
                bytes = &bytes[take..];
            } else {
                let take = bytes.len().min(HEADER - self.header.len());
                self.header.extend(&bytes[..take]);
                bytes = &bytes[take..];
                if self.header.len() == HEADER {
                    self.frame(state, out);
                }
            }
        }
    }

    fn frame(&mut self, state: &mut State, out: &mut VecDeque<u8>) {
        let header = std::mem::take(&mut self.header);
        self.payload = length(&header);
        let stream = u32::from_be_bytes([header[5] & 0x7f, header[6], header[7], header[8]]);
        if header[3] == HEADERS_FRAME && stream > state.highest {
            if state.refuse_next {
                state.go_away();
            }
            if state.last.is_none() {
                state.highest = stream;
            }
        }
        self.dropping = state.last.is_some_and(|last| stream > last);
        if !self.dropping {
            out.extend(header);
        }
    }
}

fn length(header: &[u8]) -> usize {
    usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2])
}

/// hyper's half: where one frame ends and another may be put.
#[derive(Debug, Default)]
struct Outbound {
    header: Vec<u8>,
    payload: usize,
    /// A header block is open: only CONTINUATION may follow.
    open_block: bool,
}

impl Outbound {
    fn boundary(&self) -> bool {
        self.header.is_empty() && self.payload == 0 && !self.open_block
    }

    /// How many of `bytes` there are until the next boundary (all of them, if they do not reach one).
    fn until_boundary(&self, bytes: &[u8]) -> usize {
        let mut copy = Self {
            header: self.header.clone(),
            payload: self.payload,
            open_block: self.open_block,
        };
        for at in 1..=bytes.len() {
            copy.feed(&bytes[at - 1..at]);
            if copy.boundary() {
                return at;
            }
        }
        bytes.len()
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.payload > 0 {
                let take = bytes.len().min(self.payload);
                self.payload -= take;
                bytes = &bytes[take..];
                continue;
            }
            let take = bytes.len().min(HEADER - self.header.len());
            self.header.extend(&bytes[..take]);
            bytes = &bytes[take..];
            if self.header.len() == HEADER {
                let header = std::mem::take(&mut self.header);
                self.payload = length(&header);
                if matches!(
                    header[3],
                    HEADERS_FRAME | PUSH_PROMISE_FRAME | CONTINUATION_FRAME
                ) {
                    self.open_block = header[4] & END_HEADERS == 0;
                }
            }
        }
    }
}

/// The stream that hyper gets.
#[derive(Debug)]
pub(crate) struct Frames<T> {
    inner: T,
    control: Arc<GoAway>,
    inbound: Inbound,
    outbound: Outbound,
    /// Bytes for hyper that did not fit.
    ready: VecDeque<u8>,
    scratch: Box<[u8]>,
}

impl<T> Frames<T> {
    pub(crate) fn new(inner: T, control: Arc<GoAway>) -> Self {
        Self {
            inner,
            control,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            ready: VecDeque::new(),
            scratch: vec![0; 16 * 1024].into_boxed_slice(),
        }
    }
}

impl<T: AsyncWrite + Unpin> Frames<T> {
    /// Writes what is to be injected, if a boundary allows it. Ready: nothing is left to inject now.
    fn poll_inject(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wrote = false;
        loop {
            if !self.outbound.boundary() {
                return Poll::Ready(Ok(()));
            }
            let chunk: Vec<u8> = self.control.lock().inject.iter().copied().collect();
            if chunk.is_empty() {
                break;
            }
            let count = ready!(Pin::new(&mut self.inner).poll_write(cx, &chunk))?;
            self.control.lock().inject.drain(..count);
            wrote = true;
        }
        if wrote {
            Pin::new(&mut self.inner).poll_flush(cx)
        } else {
            Poll::Ready(Ok(()))
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Frames<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if let Poll::Ready(Err(error)) = this.poll_inject(cx) {
                return Poll::Ready(Err(error));
            }
            if !this.ready.is_empty() {
                let (front, _) = this.ready.as_slices();
                let take = front.len().min(buffer.remaining());
                buffer.put_slice(&front[..take]);
                this.ready.drain(..take);
                return Poll::Ready(Ok(()));
            }
            {
                let mut state = this.control.lock();
                if state.eof {
                    return Poll::Ready(Ok(()));
                }
                if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    state.wakers.push(cx.waker().clone());
                }
            }
            let mut read = ReadBuf::new(&mut this.scratch);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let mut state = this.control.lock();
            this.inbound
                .feed(read.filled(), &mut state, &mut this.ready);
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Frames<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_inject(cx))?;
        let waiting = !this.control.lock().inject.is_empty();
        let limit = if waiting {
            this.outbound.until_boundary(bytes)
        } else {
            bytes.len()
        };
        let count = ready!(Pin::new(&mut this.inner).poll_write(cx, &bytes[..limit]))?;
        this.outbound.feed(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_inject(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
