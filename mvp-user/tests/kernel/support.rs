//! Network namespaces, servers that say who they are, and clients that tell whom they reached.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    panic::resume_unwind,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use mvp_ebpf::Outcome;
use mvp_user::steer::{
    Family, Heartbeat, SteerOptions, Steering, Switch, Verdict,
    listen::Listeners,
    listeners::{Listener, Watcher, Whose},
};
use nix::{
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use socket2::{Domain, Protocol, Socket, Type};

/// The steered port in every test.
pub(crate) const PORT: u16 = 6443;
/// What the stand-in for kube-apiserver answers.
pub(crate) const API: u8 = b'A';
/// What mvp's listeners answer.
pub(crate) const MVP: u8 = b'M';

/// Runs a test on a thread in a fresh network namespace with loopback up and the addresses
/// 10.9.0.1, 10.9.0.2, `fd09::1` and `fd09::2`. Without root it says so and returns, or fails when
/// `MVP_KERNEL_TESTS=require`.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            let require = std::env::var("MVP_KERNEL_TESTS").is_ok_and(|v| v == "require");
            assert!(
                !require,
                "kernel tests are required, but no network namespace can be made: {error}"
            );
            eprintln!("skipped: cannot make a network namespace: {error}");
            return;
        }
        ip("link set lo up");
        for address in ["10.9.0.1/32", "10.9.0.2/32"] {
            ip(&format!("addr add {address} dev lo"));
        }
        for address in ["fd09::1/128", "fd09::2/128"] {
            ip(&format!("addr add {address} dev lo nodad"));
        }
        // Routes of new IPv6 addresses appear a moment later.
        for address in ["[::1]:1", "[fd09::1]:1", "[fd09::2]:1"] {
            let address: SocketAddr = address.parse().unwrap();
            eventually(Duration::from_secs(2), || {
                TcpStream::connect(address)
                    .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            });
        }
        test();
    })
    .join();
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Runs iproute2's `ip` in the namespace of this thread.
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}

/// How a server binds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bind {
    /// As given; an IPv6 wildcard takes IPv4 too.
    Plain(&'static str),
    /// With `IPV6_V6ONLY`.
    V6Only(&'static str),
}

/// A server that answers each connection with one byte.
pub(crate) struct Server {
    listener: TcpListener,
    accepting: thread::JoinHandle<()>,
}

impl Server {
    pub(crate) fn start(bind: Bind, answer: u8) -> Self {
        Self::listen(bind, answer, false)
    }

    /// With `SO_REUSEPORT`: a wildcard and an address of one port side by side.
    pub(crate) fn sharing(bind: Bind, answer: u8) -> Self {
        Self::listen(bind, answer, true)
    }

    fn listen(bind: Bind, answer: u8, share: bool) -> Self {
        let (text, v6only) = match bind {
            Bind::Plain(text) => (text, false),
            Bind::V6Only(text) => (text, true),
        };
        let address: SocketAddr = text.parse().unwrap();
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )
        .unwrap();
        if address.is_ipv6() {
            socket.set_only_v6(v6only).unwrap();
        }
        socket.set_reuse_address(true).unwrap();
        socket.set_reuse_port(share).unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(128).unwrap();
        let listener: TcpListener = socket.into();
        let accepting = answer_all(&listener, answer);
        Self {
            listener,
            accepting,
        }
    }

    /// Closes the listener.
    pub(crate) fn stop(self) {
        shut(&self.listener);
        self.accepting.join().unwrap();
    }
}

/// Makes a socket listen no more although a thread waits in accept.
pub(crate) fn shut(listener: &TcpListener) {
    let socket = socket2::SockRef::from(listener);
    socket.shutdown(std::net::Shutdown::Both).unwrap();
}

/// Answers every connection with one byte, on a thread of its own, until the listener ends.
pub(crate) fn answer_all(listener: &TcpListener, answer: u8) -> thread::JoinHandle<()> {
    listener.set_nonblocking(false).unwrap();
    let listener = listener.try_clone().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            // The client may be gone already; that is its affair.
            drop(stream.write_all(&[answer]));
        }
    })
}

/// A stand-in for a running mvp: listeners, one beating thread, the program attached.
pub(crate) struct Mvp {
    pub(crate) steering: Steering,
    pub(crate) listeners: Listeners,
    pub(crate) heartbeat: Heartbeat,
}

impl Mvp {
    pub(crate) fn start(options: &SteerOptions) -> Self {
        Self::start_answering(options, MVP)
    }

    pub(crate) fn start_answering(options: &SteerOptions, answer: u8) -> Self {
        let steering = Steering::attach(options).unwrap_or_else(|error| panic!("{error}"));
        let listeners = Listeners::bind().unwrap();
        let (v4, v6) = (
            listeners.v4.as_ref().unwrap(),
            listeners.v6.as_ref().unwrap(),
        );
        answer_all(v4, answer);
        answer_all(v6, answer);
        steering.set_listener(Family::V4, v4).unwrap();
        steering.set_listener(Family::V6, v6).unwrap();
        steering.set_switch(Switch::On).unwrap();
        let heartbeat = steering.heartbeat().unwrap();
        Self {
            steering,
            listeners,
            heartbeat,
        }
    }

    /// Patient heartbeats and everything steered: what most tests want.
    pub(crate) fn steering_all() -> Self {
        let mvp = Self::start(&patient());
        mvp.key("0.0.0.0:6443", Verdict::Steer);
        mvp.key("[::]:6443", Verdict::Steer);
        mvp
    }

    pub(crate) fn key(&self, local: &str, verdict: Verdict) {
        self.steering
            .set_key(local.parse().unwrap(), verdict)
            .unwrap();
    }

    pub(crate) fn count(&self, outcome: Outcome) -> u64 {
        self.steering.counters().unwrap().get(outcome)
    }

    /// Runs `act`, and demands that this many look-ups ended in `outcome` and none elsewhere.
    #[track_caller]
    pub(crate) fn expect<T>(&self, outcome: Outcome, times: u64, act: impl FnOnce() -> T) -> T {
        let before = self.steering.counters().unwrap();
        let result = act();
        let after = self.steering.counters().unwrap();
        for each in Outcome::ALL {
            let wanted = if each == outcome { times } else { 0 };
            assert_eq!(
                after.get(each) - before.get(each),
                wanted,
                "counter {}",
                each.name()
            );
        }
        result
    }
}

/// An ignored test of this binary as a process of its own in this namespace; killed at the end, whatever happens.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Starts it and waits until it says that it is ready.
    pub(crate) fn start(test: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", test, "--nocapture"])
            .env("MVP_KERNEL_CHILD", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let ready = output
            .lines()
            .map_while(Result::ok)
            .any(|line| line == "ready");
        assert!(ready, "{test}");
        Self(child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Heartbeats that outlast any test.
pub(crate) fn patient() -> SteerOptions {
    SteerOptions {
        heartbeat_max_age: Duration::from_mins(10),
        ..SteerOptions::default()
    }
}

/// Whom a client reaches at an address; `None` when it is refused.
pub(crate) fn reach(to: &str) -> Option<u8> {
    read_answer(TcpStream::connect(to.parse::<SocketAddr>().unwrap()))
}

/// The same from a source address (port 0: any).
pub(crate) fn reach_from(from: &str, to: &str) -> Option<u8> {
    let socket = bound(from);
    let to: SocketAddr = to.parse().unwrap();
    read_answer(socket.connect(&to.into()).map(|()| socket.into()))
}

/// A client socket, bound and not connected.
pub(crate) fn bound(from: &str) -> Socket {
    let from: SocketAddr = from.parse().unwrap();
    let socket = Socket::new(Domain::for_address(from), Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.bind(&from.into()).unwrap();
    socket
}

/// The byte that the server answers.
pub(crate) fn read_answer(stream: std::io::Result<TcpStream>) -> Option<u8> {
    match stream {
        Ok(mut stream) => {
            stream
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let mut byte = [0];
            stream
                .read_exact(&mut byte)
                .expect("the server answers one byte");
            Some(byte[0])
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => None,
        Err(error) => panic!("connect: {error}"),
    }
}

/// Repeats until the condition holds; fails if it does not at a look that begins after `patience`: on a busy machine the look
/// before may be long ago. Returns how long it took.
#[track_caller]
pub(crate) fn eventually(patience: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    loop {
        let is_last = start.elapsed() >= patience;
        if holds() {
            return start.elapsed();
        }
        assert!(!is_last, "not within {patience:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Enough for what happens when something is closed. Not at once: other tests start programs, and between fork and exec those
/// have all that this process had open, too.
pub(crate) const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Whose a listener is, told by the byte it answers from the exempt source (the real judge does
/// a TLS handshake).
pub(crate) fn judge(steering: &Steering, listener: &Listener) -> Whose {
    let to = listener.dial_address();
    let socket = if to.is_ipv4() {
        bound("127.77.86.80:0")
    } else {
        let socket = bound("[::1]:0");
        let source = socket.local_addr().unwrap().as_socket().unwrap();
        steering.exempt_tuple(source).unwrap();
        socket
    };
    match read_answer(socket.connect(&to.into()).map(|()| socket.into())) {
        Some(API) => Whose::Local,
        Some(_) => Whose::Other,
        None => Whose::Unknown,
    }
}

/// Reads the listening sockets and writes the keys, as the daemon does every 2 s.
pub(crate) fn refresh(watcher: &mut Watcher, mvp: &Mvp) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let steering = &mvp.steering;
    runtime
        .block_on(watcher.refresh(steering, async |listener| judge(steering, listener)))
        .unwrap();
}
