//! Closing direct connections that are older than steering: kube-apiserver is another process,
//! clients are another host (a namespace of their own), kube-apiserver itself, and mvp.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use mvp_user::{
    config::Cidr,
    steer::{
        Family, SteerOptions, Steering,
        existing::{Class, DrainOptions, Drainer, Report},
        listen::Listeners,
        listeners::{Listener, Watcher, Whose},
    },
};
use nix::{
    sched::{CloneFlags, unshare},
    unistd::gettid,
};

use crate::support::{API, Mvp, PORT, Process, bound, in_namespace, ip, patient, refresh};

const IDLE: Duration = Duration::from_millis(300);
const SERVER: &str = "10.8.0.1:6443";

/// Runs `act` on another host: a thread in its own namespace, joined by a veth pair, with the
/// address 10.8.0.2; this namespace gets 10.8.0.1.
fn on_another_host<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let (send_id, id) = mpsc::channel();
    let (send_go, go) = mpsc::channel::<()>();
    let host = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        send_id.send(gettid()).unwrap();
        go.recv().unwrap();
        ip("addr add 10.8.0.2/24 dev far");
        ip("link set far up");
        act()
    });
    let id = id.recv().unwrap();
    ip("link add near type veth peer name far");
    ip(&format!("link set far netns {id}"));
    ip("addr add 10.8.0.1/24 dev near");
    ip("link set near up");
    send_go.send(()).unwrap();
    host
}

/// A connection whose last word was the server's.
fn connect(target: &str) -> TcpStream {
    let target: SocketAddr = target.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

/// Plays kube-apiserver: answers one byte a moment after the connection, then only listens; and
/// keeps a connection to itself.
#[test]
#[ignore = "the child process of other tests"]
fn child_that_serves() {
    if std::env::var_os("MVP_KERNEL_CHILD").is_none() {
        return;
    }
    let listener = TcpListener::bind("[::]:6443").unwrap();
    let itself = TcpStream::connect("127.0.0.1:6443").unwrap();
    writeln!(std::io::stdout(), "\nready").unwrap();
    while let Ok((mut stream, _)) = listener.accept() {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            if stream.write_all(&[API]).is_ok() {
                while stream.read(&mut [0]).is_ok_and(|n| n > 0) {}
            }
        });
    }
    drop(itself);
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    match stream.read_exact(&mut [0]) {
        Ok(()) => panic!("the server says nothing more"),
        Err(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
        ),
    }
}

fn local(watcher: &Watcher) -> Vec<Listener> {
    let of_local = watcher
        .listeners()
        .iter()
        .filter(|(_, whose)| *whose == Whose::Local);
    of_local.map(|(listener, _)| listener.clone()).collect()
}

fn drain(drainer: &mut Drainer, local: &[Listener], force: bool) -> Report {
    drain_while(drainer, local, force, || true)
}

fn drain_while(
    drainer: &mut Drainer,
    local: &[Listener],
    force: bool,
    keep_on: impl Fn() -> bool,
) -> Report {
    let options = DrainOptions { idle: IDLE, force };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true) // The pace is a unit test's affair.
        .build()
        .unwrap()
        .block_on(drainer.drain(local, options, keep_on))
        .unwrap()
}

/// kube-apiserver, mvp, and another host whose connections are older than mvp's steering and idle long enough to be closed.
struct Older<T> {
    local: Vec<Listener>,
    done: mpsc::Sender<()>,
    host: thread::JoinHandle<T>,
    _mvp: Mvp,
    _api: Process,
}

impl<T: Send + 'static> Older<T> {
    /// The host makes its connections with `open`, and tells with `look` what became of them.
    fn connections<C>(
        open: impl FnOnce() -> C + Send + 'static,
        look: impl FnOnce(C) -> T + Send + 'static,
    ) -> Self {
        let api = Process::start("existing::child_that_serves");
        let mvp = Mvp::start(&patient());
        let mut watcher = Watcher::new(PORT).unwrap();
        let (send, ready) = mpsc::channel();
        let (done, wait) = mpsc::channel::<()>();
        let host = on_another_host(move || {
            let connections = open();
            send.send(()).unwrap();
            wait.recv().unwrap();
            look(connections)
        });
        ready.recv_timeout(Duration::from_secs(10)).unwrap();
        thread::sleep(IDLE * 2);
        refresh(&mut watcher, &mvp);
        Self {
            local: local(&watcher),
            done,
            host,
            _mvp: mvp,
            _api: api,
        }
    }

    /// What became of them.
    fn seen(self) -> T {
        self.done.send(()).unwrap();
        self.host.join().unwrap()
    }
}

#[test]
fn idle_connections_of_other_hosts_are_closed_and_all_others_kept() {
    in_namespace(|| {
        let older = Older::connections(
            || {
                let idle = connect(SERVER);
                let mut waiting = connect(SERVER);
                waiting.write_all(b"?").unwrap(); // An answer is under way.
                (idle, waiting)
            },
            |(mut idle, mut waiting)| (is_closed(&mut idle), is_closed(&mut waiting)),
        );
        let upstream = bound("127.77.86.80:0");
        upstream
            .connect(&"127.0.0.1:6443".parse::<SocketAddr>().unwrap().into())
            .unwrap();
        thread::sleep(IDLE * 2); // As idle as the others.
        assert_eq!(older.local.len(), 1);
        let mut drainer = Drainer::new(PORT, [127, 77, 86, 80].into()).unwrap();
        let report = drain(&mut drainer, &older.local, false);
        let wanted = Report {
            closed: 1,
            forced: 0,
            left: 1,
            spared: 1, // kube-apiserver's own
        };
        assert_eq!(report, wanted);
        // The deadline has passed: the busy one goes too, and still nothing of this node.
        let report = drain(&mut drainer, &older.local, true);
        assert_eq!(
            (report.closed, report.forced, report.left, report.spared),
            (1, 1, 0, 1)
        );
        let classes = drainer.survey(&older.local, IDLE).unwrap();
        let count = |wanted| classes.iter().filter(|(_, class)| *class == wanted).count();
        assert_eq!(
            count(Class::Own),
            1,
            "kube-apiserver's own connection lives"
        );
        assert!(count(Class::Mvp) >= 1, "and so does mvp's");
        assert_eq!(older.seen(), (true, true));
    });
}

#[test]
fn connections_of_clients_that_are_not_steered_are_kept() {
    in_namespace(|| {
        let older = Older::connections(|| connect(SERVER), |mut idle| is_closed(&mut idle));
        let network = |last: u8, length: u8| Cidr {
            address: [10, 8, 0, last].into(),
            length,
        };
        let (exempt, canary) = (vec![network(0, 24)], vec![network(4, 30)]);
        for options in [
            SteerOptions {
                exempt,
                ..patient()
            },
            SteerOptions {
                canary,
                ..patient()
            },
            SteerOptions {
                percent: 0,
                ..patient()
            },
        ] {
            let steering = Arc::new(Steering::attach(&options).unwrap());
            let drainer = Drainer::new(PORT, [127, 77, 86, 80].into()).unwrap();
            let mut drainer = drainer.for_clients_of(Arc::clone(&steering));
            let report = drain(&mut drainer, &older.local, true);
            assert_eq!((report.closed, report.left), (0, 0), "{options:?}");
            // Chosen again, as `mvp steer percent` does.
            steering.set_exempt(&[]).unwrap();
            steering.set_canary(&[network(2, 32)]).unwrap();
            steering.set_percent(100).unwrap();
            let classes = drainer.survey(&older.local, IDLE).unwrap();
            let count = classes.iter().filter(|(_, it)| *it == Class::Candidate);
            assert_eq!(count.count(), 1, "{options:?}");
        }
        assert!(!older.seen(), "it lives");
    });
}

#[test]
fn a_drain_stops_when_steering_goes_off() {
    in_namespace(|| {
        let older = Older::connections(
            || [(); 4].map(|()| connect(SERVER)),
            |mut all| all.each_mut().map(is_closed),
        );
        let mut drainer = Drainer::new(PORT, [127, 77, 86, 80].into()).unwrap();
        let asked = AtomicU32::new(0);
        let two = || asked.fetch_add(1, Ordering::Relaxed) < 2;
        let report = drain_while(&mut drainer, &older.local, false, two);
        assert_eq!((report.closed, report.left), (2, 2));
        let closed = older.seen().into_iter().filter(|closed| *closed);
        assert_eq!(closed.count(), 2);
    });
}

#[test]
fn steered_connections_are_told_from_direct_ones() {
    in_namespace(|| {
        let _api = Process::start("existing::child_that_serves");
        let mvp = Mvp::steering_all();
        let mut watcher = Watcher::new(PORT).unwrap();
        refresh(&mut watcher, &mvp);
        let held = Listeners::bind().unwrap().v4.unwrap();
        held.set_nonblocking(false).unwrap();
        mvp.steering.set_listener(Family::V4, &held).unwrap();
        let (done, wait) = mpsc::channel::<()>();
        let host = on_another_host(move || {
            let target: SocketAddr = SERVER.parse().unwrap();
            let mut steered = TcpStream::connect(target).unwrap();
            wait.recv().unwrap();
            is_closed(&mut steered)
        });
        let accepted = held.accept().unwrap();
        let mut drainer = Drainer::new(PORT, [127, 77, 86, 80].into()).unwrap();
        let local = local(&watcher);
        let report = drain(&mut drainer, &local, true);
        assert_eq!((report.closed, report.left), (0, 0));
        let classes = drainer.survey(&local, IDLE).unwrap();
        let of_mvp = classes.iter().filter(|(_, class)| *class == Class::Mvp);
        assert_eq!(of_mvp.count(), 1, "{classes:?}");
        done.send(()).unwrap();
        assert!(!host.join().unwrap());
        drop(accepted);
    });
}

#[test]
fn without_a_listener_of_the_api_server_nothing_is_closed() {
    in_namespace(|| {
        let mut drainer = Drainer::new(PORT, [127, 77, 86, 80].into()).unwrap();
        assert_eq!(drain(&mut drainer, &[], true), Report::default());
    });
}
