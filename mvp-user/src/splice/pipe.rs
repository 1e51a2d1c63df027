//! Pipes to splice through, and each thread's few spare ones. Not for waiting: nothing here blocks.

use std::{cell::RefCell, io, os::fd::OwnedFd};

use rustix::{
    io::{Errno, retry_on_intr},
    pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice},
};
use tokio::net::TcpStream;

/// What a pipe shall hold. The kernel grants it within `/proc/sys/fs/pipe-max-size` (1 MiB), and to an unprivileged user
/// only up to `pipe-user-pages-soft` in all; else pipes stay at 64 KiB or less.
const SIZE: usize = 256 * 1024;

/// Spare pipes of a thread.
const SPARE: usize = 16;

thread_local! {
    static POOL: RefCell<Vec<Ends>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

/// A pipe on loan. Goes back to its thread's pool when it is empty, and is closed with its bytes when it is not.
#[derive(Debug)]
pub(super) struct Pipe {
    /// `None` only while it is dropped.
    ends: Option<Ends>,
    held: usize,
}

impl Pipe {
    /// A spare pipe, or a new one.
    pub(super) fn lease() -> io::Result<Self> {
        let spare = POOL.with_borrow_mut(Vec::pop);
        let ends = match spare {
            Some(ends) => ends,
            None => Ends::open()?,
        };
        Ok(Self {
            ends: Some(ends),
            held: 0,
        })
    }

    /// Bytes inside.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Takes what the socket has, up to the pipe's size; 0 at the sender's end. For an empty pipe.
    pub(super) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let ends = self.ends()?;
        let moved = retry_on_intr(|| splice(from, None, &ends.write, None, ends.size, FLAGS))?;
        self.held += moved;
        Ok(moved)
    }

    /// Gives the socket what it takes of [`Pipe::held`].
    pub(super) fn drain(&mut self, to: &TcpStream) -> io::Result<usize> {
        let ends = self.ends()?;
        let moved = retry_on_intr(|| splice(&ends.read, None, to, None, self.held, FLAGS))?;
        self.held = self.held.saturating_sub(moved);
        Ok(moved)
    }

    /// Reads what is inside, where it cannot be spliced out.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ends = self.ends()?;
        let read = retry_on_intr(|| rustix::io::read(&ends.read, &mut *buffer))?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.held = self.held.saturating_sub(read);
        Ok(read)
    }

    fn ends(&self) -> Result<&Ends, Errno> {
        self.ends.as_ref().ok_or(Errno::BADF)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        if self.held > 0 {
            return;
        }
        // The pool is gone when its thread ends.
        let kept = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < SPARE {
                pool.push(ends);
            }
        });
        if kept.is_err() {
            tracing::trace!("A pipe outlived its thread's pool");
        }
    }
}

/// Nothing waits in the kernel; pages move where they can (splice(2)).
const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

impl Ends {
    fn open() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let size = match fcntl_setpipe_size(&write, SIZE) {
            Ok(size) => size,
            Err(_refused) => fcntl_getpipe_size(&write)?,
        };
        Ok(Self { read, write, size })
    }
}

/// How many pipes this thread has in reserve.
#[cfg(test)]
pub(super) fn spare() -> usize {
    POOL.with_borrow(Vec::len)
}
