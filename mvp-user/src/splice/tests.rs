//! The engine between real sockets over loopback, by both ways: what arrives is compared byte by byte.
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "real time on real sockets, on threads of their own"
)]

use std::{
    io::{self, Read as _, Write as _},
    net::{self, Shutdown},
    sync::{LazyLock, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use socket2::SockRef;

use super::{Count, End, Way, join, pipe};

const MIB: usize = 1024 * 1024;

/// Nothing over loopback pauses that long, even on a busy machine.
const STALL: Duration = Duration::from_secs(30);

/// What is sent, over and over: of an odd length, so that no lost or doubled block goes unseen.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut pattern: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(MIB / 8)
    .flatten()
    .collect();
    pattern.truncate(MIB - 3);
    pattern
});

fn pattern(offset: usize) -> &'static [u8] {
    &PATTERN[offset % PATTERN.len()..]
}

/// The outer ends of one tunnel.
struct Ends {
    client: net::TcpStream,
    upstream: net::TcpStream,
}

/// How one tunnel ended: spliced and copied bytes.
#[derive(Debug)]
struct Outcome {
    end: io::Result<()>,
    up: (u64, u64),
    down: (u64, u64),
}

/// The thread that joins.
struct Engine {
    thread: JoinHandle<Vec<Outcome>>,
    id: i32,
}

impl Engine {
    fn outcomes(self) -> Vec<Outcome> {
        self.thread.join().unwrap()
    }

    fn outcome(self) -> Outcome {
        self.outcomes().pop().unwrap()
    }

    /// Time on a processor so far.
    fn cpu(&self) -> Duration {
        let path = format!("/proc/self/task/{}/schedstat", self.id);
        let text = std::fs::read_to_string(path).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    /// The share of a processor that is used during `time`.
    fn load(&self, time: Duration) -> f64 {
        let (cpu, clock) = (self.cpu(), Instant::now());
        thread::sleep(time);
        self.cpu().checked_sub(cpu).unwrap().as_secs_f64() / clock.elapsed().as_secs_f64()
    }
}

/// Two ends of a connection.
fn pair() -> (net::TcpStream, net::TcpStream) {
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let one = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    one.set_read_timeout(Some(STALL)).unwrap();
    one.set_write_timeout(Some(STALL)).unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

/// Tunnels of one thread.
fn engine(
    count: usize,
    way: Way,
    early: [&'static [u8]; 2],
    setup: fn(&Inner),
) -> (Vec<Ends>, Engine) {
    let (ends, inner): (Vec<_>, Vec<_>) = (0..count)
        .map(|_| {
            let ((client, inner_client), (upstream, inner_upstream)) = (pair(), pair());
            let inner = Inner {
                client: inner_client,
                upstream: inner_upstream,
            };
            setup(&inner);
            (Ends { client, upstream }, inner)
        })
        .unzip();
    let (send, receive) = mpsc::channel();
    let thread = thread::spawn(move || {
        send.send(rustix::thread::gettid().as_raw_nonzero().get())
            .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let tunnels = inner.into_iter().map(async |inner| {
            let end = |stream, early| End {
                stream: tokio::net::TcpStream::from_std(stream).unwrap(),
                early: Bytes::from_static(early),
                tls: false,
            };
            let (up, down) = (Count::default(), Count::default());
            let (client, upstream) = (end(inner.client, early[0]), end(inner.upstream, early[1]));
            let end = join(client, upstream, &up, &down, way).await;
            Outcome {
                end,
                up: (up.spliced.get(), up.copied.get()),
                down: (down.spliced.get(), down.copied.get()),
            }
        });
        runtime.block_on(async { futures_util::future::join_all(tunnels).await })
    });
    let id = receive.recv().unwrap();
    (ends, Engine { thread, id })
}

/// The engine's own sockets.
struct Inner {
    client: net::TcpStream,
    upstream: net::TcpStream,
}

fn one(way: Way) -> (Ends, Engine) {
    let (mut ends, engine) = engine(1, way, [b"", b""], |_| ());
    (ends.pop().unwrap(), engine)
}

fn send(mut to: &net::TcpStream, bytes: usize, segment: usize) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes {
        let next = pattern(sent);
        let next = &next[..next.len().min(segment).min(bytes - sent)];
        to.write_all(next)?;
        sent += next.len();
    }
    Ok(())
}

/// Reads up to `bytes` or the end; how many came.
fn receive(mut from: &net::TcpStream, start: usize, bytes: usize) -> io::Result<usize> {
    let mut buffer = vec![0; 64 * 1024];
    let mut received = 0;
    while received < bytes {
        let most = buffer.len().min(bytes - received);
        let read = from.read(&mut buffer[..most])?;
        if read == 0 {
            break;
        }
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            let wanted = pattern(start + received);
            let compared = rest.len().min(wanted.len());
            assert!(
                rest[..compared] == wanted[..compared],
                "other bytes than were sent, near {received}"
            );
            received += compared;
            rest = &rest[compared..];
        }
    }
    Ok(received)
}

/// Sends `bytes` both ways at once, with an end behind, and checks what arrives.
fn exchange(ends: &Ends, bytes: usize) {
    thread::scope(|scope| {
        for (from, to) in [
            (&ends.client, &ends.upstream),
            (&ends.upstream, &ends.client),
        ] {
            scope.spawn(move || {
                send(from, bytes, usize::MAX).unwrap();
                from.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || assert_eq!(receive(to, 0, usize::MAX).unwrap(), bytes));
        }
    });
}

fn check(outcome: Outcome, way: Way, bytes: usize) {
    outcome.end.unwrap();
    let count = match way {
        Way::Spliced => (bytes as u64, 0),
        Way::Copied => (0, bytes as u64),
    };
    assert_eq!((outcome.up, outcome.down), (count, count));
}

#[test]
fn what_arrives_is_what_was_sent_by_either_way() {
    for way in [Way::Spliced, Way::Copied] {
        for bytes in [0, 1, 64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, MIB, 64 * MIB] {
            let (ends, engine) = one(way);
            exchange(&ends, bytes);
            check(engine.outcome(), way, bytes);
        }
    }
}

#[test]
#[ignore = "1 GiB each way takes a while: ask for it by --ignored"]
fn a_gibibyte_arrives_as_it_was_sent() {
    for way in [Way::Spliced, Way::Copied] {
        let (ends, engine) = one(way);
        exchange(&ends, 1024 * MIB);
        check(engine.outcome(), way, 1024 * MIB);
    }
}

#[test]
fn ten_tunnels_of_one_thread_keep_their_bytes_apart() {
    for way in [Way::Spliced, Way::Copied] {
        let (ends, engine) = engine(10, way, [b"", b""], |_| ());
        thread::scope(|scope| {
            for ends in &ends {
                scope.spawn(|| exchange(ends, 4 * MIB + 1));
            }
        });
        for outcome in engine.outcomes() {
            check(outcome, way, 4 * MIB + 1);
        }
    }
}

#[test]
fn small_segments_wait_for_a_slow_reader_without_work_and_then_all_arrive() {
    const SEGMENT: usize = 1460;
    // More than the buffers on the way take: since Linux 6.16 a receive buffer grows to 32 MiB.
    const BYTES: usize = 64 * MIB;
    for way in [Way::Spliced, Way::Copied] {
        let (ends, engine) = one(way);
        ends.client.set_nodelay(true).unwrap();
        SockRef::from(&ends.upstream)
            .set_recv_buffer_size(32 * 1024)
            .unwrap();
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                send(&ends.client, BYTES, SEGMENT).unwrap();
                ends.client.shutdown(Shutdown::Write).unwrap();
            });
            let first = receive(&ends.upstream, 0, MIB).unwrap();
            assert_eq!(first, MIB);
            // Buffers fill up; from then on, nothing moves.
            thread::sleep(Duration::from_secs(1));
            let load = engine.load(Duration::from_secs(2));
            assert!(
                load < 0.02,
                "{way:?} keeps {load} of a processor busy while nothing moves"
            );
            assert!(!sender.is_finished(), "the sender is not held back");
            let rest = receive(&ends.upstream, first, usize::MAX).unwrap();
            assert_eq!(first + rest, BYTES);
        });
        ends.upstream.shutdown(Shutdown::Write).unwrap();
        let outcome = engine.outcome();
        outcome.end.unwrap();
        assert_eq!(outcome.up.0 + outcome.up.1, BYTES as u64);
    }
}

#[test]
fn an_idle_tunnel_costs_nothing() {
    let (ends, engine) = one(Way::Spliced);
    send(&ends.client, 1, 1).unwrap();
    assert_eq!(receive(&ends.upstream, 0, 1).unwrap(), 1);
    let load = engine.load(Duration::from_secs(1));
    assert!(load < 0.02, "{load} of a processor");
    drop(ends);
    engine.outcome().end.unwrap();
}

#[test]
fn an_end_of_one_side_leaves_the_other_direction_open() {
    for way in [Way::Spliced, Way::Copied] {
        for client_first in [true, false] {
            let (ends, engine) = one(way);
            let (asking, answering) = if client_first {
                (&ends.client, &ends.upstream)
            } else {
                (&ends.upstream, &ends.client)
            };
            send(asking, 70_000, usize::MAX).unwrap();
            asking.shutdown(Shutdown::Write).unwrap();
            // Everything and the end, before a byte goes back.
            assert_eq!(receive(answering, 0, usize::MAX).unwrap(), 70_000);
            thread::scope(|scope| {
                scope.spawn(|| {
                    send(answering, 3 * MIB, usize::MAX).unwrap();
                    answering.shutdown(Shutdown::Write).unwrap();
                });
                assert_eq!(receive(asking, 0, usize::MAX).unwrap(), 3 * MIB);
            });
            engine.outcome().end.unwrap();
        }
    }
}

#[test]
fn a_reset_of_one_side_is_a_reset_of_the_other() {
    for way in [Way::Spliced, Way::Copied] {
        for client_breaks in [true, false] {
            let (ends, engine) = one(way);
            let (breaking, left) = if client_breaks {
                (ends.client, ends.upstream)
            } else {
                (ends.upstream, ends.client)
            };
            send(&breaking, 100_000, usize::MAX).unwrap();
            assert_eq!(receive(&left, 0, 100_000).unwrap(), 100_000);
            SockRef::from(&breaking)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(breaking);
            let end = receive(&left, 100_000, usize::MAX).map_err(|error| error.kind());
            assert_eq!(end, Err(io::ErrorKind::ConnectionReset));
            engine.outcome().end.unwrap_err();
        }
    }
}

#[test]
fn a_receiver_that_leaves_ends_the_sender() {
    let (ends, engine) = one(Way::Spliced);
    let Ends { client, upstream } = ends;
    let sender = thread::spawn(move || send(&client, 64 * MIB, usize::MAX));
    assert_eq!(receive(&upstream, 0, MIB).unwrap(), MIB);
    SockRef::from(&upstream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(upstream);
    engine.outcome().end.unwrap_err();
    sender.join().unwrap().unwrap_err();
}

#[test]
fn early_bytes_come_first_and_count_as_copied() {
    for way in [Way::Spliced, Way::Copied] {
        let early: [&'static [u8]; 2] = [&PATTERN[..300], &PATTERN[..5]];
        let (mut ends, engine) = engine(1, way, early, |_| ());
        let ends = ends.pop().unwrap();
        assert_eq!(receive(&ends.upstream, 0, 300).unwrap(), 300);
        assert_eq!(receive(&ends.client, 0, 5).unwrap(), 5);
        exchange(&ends, 1000);
        let outcome = engine.outcome();
        outcome.end.unwrap();
        let (up, down) = match way {
            Way::Spliced => ((1000, 300), (1000, 5)),
            Way::Copied => ((0, 1300), (0, 1005)),
        };
        assert_eq!((outcome.up, outcome.down), (up, down));
    }
}

#[test]
fn where_the_kernel_does_not_splice_the_same_bytes_are_copied() {
    // splice(2): EINVAL for a target in append mode; the bytes are in the pipe by then.
    let (mut ends, engine) = engine(1, Way::Spliced, [b"", b""], |inner| {
        for socket in [&inner.client, &inner.upstream] {
            fcntl_setfl(socket, fcntl_getfl(socket).unwrap() | OFlags::APPEND).unwrap();
        }
    });
    exchange(&ends.pop().unwrap(), 3 * MIB);
    check(engine.outcome(), Way::Copied, 3 * MIB);
}

#[test]
fn a_pipe_is_used_again_only_if_it_is_empty() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let spare = pipe::spare();
        drop(pipe::Pipe::lease().unwrap());
        assert_eq!(pipe::spare(), spare + 1);
        let (outer, inner) = pair();
        let inner = tokio::net::TcpStream::from_std(inner).unwrap();
        send(&outer, 10, usize::MAX).unwrap();
        inner.readable().await.unwrap();
        let mut pipe = pipe::Pipe::lease().unwrap();
        assert_eq!(pipe.fill(&inner).unwrap(), 10);
        assert_eq!(
            pipe.fill(&inner).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(pipe);
        assert_eq!(pipe::spare(), spare);
    });
}
