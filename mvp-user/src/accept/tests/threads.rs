//! Several threads that accept from the same listener: which gets how many.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// A thread that accepts until it is told to stop.
struct Thread {
    stop: watch::Sender<bool>,
    /// How many connections it has got.
    got: Arc<AtomicUsize>,
    /// While the first is true, its event loop stands still, which the second tells.
    still: Arc<[AtomicBool; 2]>,
    handle: std::thread::JoinHandle<()>,
}

impl Thread {
    fn start(acceptor: &Arc<Acceptor>, listener: &std::net::TcpListener) -> Self {
        let (stop, stopped) = watch::channel(false);
        let got = Arc::new(AtomicUsize::new(0));
        let still = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let (acceptor, listener) = (Arc::clone(acceptor), listener.try_clone().unwrap());
        let (count, stands) = (Arc::clone(&got), Arc::clone(&still));
        let handle = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            LocalSet::new().block_on(&runtime, async move {
                tokio::task::spawn_local(async move {
                    loop {
                        sleep(Duration::from_millis(1)).await;
                        while stands[0].load(Ordering::Relaxed) {
                            stands[1].store(true, Ordering::Relaxed);
                            std::thread::yield_now();
                        }
                    }
                });
                let listener = TcpListener::from_std(listener).unwrap();
                let run = acceptor.run(vec![listener], stopped, move |connection| {
                    count.fetch_add(1, Ordering::Relaxed);
                    async move {
                        std::future::pending::<()>().await;
                        drop(connection);
                    }
                });
                drop(run.await);
            });
        });
        Self {
            stop,
            got,
            still,
            handle,
        }
    }

    fn got(&self) -> usize {
        self.got.load(Ordering::Relaxed)
    }
}

/// Both at once, for each lingers.
fn end(threads: [Thread; 2]) {
    for thread in &threads {
        thread.stop.send_replace(true);
    }
    for thread in threads {
        thread.handle.join().unwrap();
    }
}

/// An acceptor, two threads of it, and where to reach them.
fn two_threads() -> (Pki, [Thread; 2], SocketAddr) {
    let pki = Pki::new();
    let local = Server::new(ServerId::Local, "127.0.0.1:6443".parse().unwrap());
    let table = Arc::new(Table::new(Arc::new(local)));
    let acceptor = Acceptor::new(pki.load(), table, Bound::Steering(100), 6443);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let threads = [
        Thread::start(&acceptor, &listener),
        Thread::start(&acceptor, &listener),
    ];
    while acceptor.seats.count() < 2 {
        std::thread::yield_now();
    }
    (pki, threads, address)
}

async fn handshake(pki: &Pki, address: SocketAddr) -> tokio_rustls::client::TlsStream<TcpStream> {
    let config = Arc::new(pki.client(&TLS13, None, &[]));
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("kubernetes.default.svc").unwrap();
    let connect = TlsConnector::from(config).connect(name, stream);
    timeout(Duration::from_secs(5), connect)
        .await
        .unwrap()
        .unwrap()
}

/// Until the threads have got so many: a client may have shaken hands a moment earlier.
async fn all(threads: &[Thread; 2], wanted: usize) {
    let got = async {
        while threads.iter().map(Thread::got).sum::<usize>() < wanted {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(5), got).await.unwrap();
}

#[tokio::test]
async fn no_thread_has_all_connections_whoever_accepts_them() {
    let (pki, threads, address) = two_threads();
    // It comes first now and then and gets what the other one hands to it; so it has a third, less what is allowed.
    let mut clients = Vec::new();
    for _ in 0..90 {
        clients.push(handshake(&pki, address).await);
    }
    all(&threads, 90).await;
    let got = threads.each_ref().map(Thread::got);
    assert!(got.iter().all(|got| *got >= 24), "{got:?}");
    end(threads);
}

#[tokio::test]
async fn a_thread_that_stands_still_holds_up_no_new_client() {
    let (pki, threads, address) = two_threads();
    let still = Arc::clone(&threads[1].still);
    still[0].store(true, Ordering::Relaxed);
    while !still[1].load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    // From the 18th on it is asked to do it, and cannot.
    let mut clients = Vec::new();
    for _ in 0..30 {
        clients.push(handshake(&pki, address).await);
    }
    all(&threads, 30).await;
    assert_eq!(threads[1].got(), 0);
    still[0].store(false, Ordering::Relaxed);
    end(threads);
}
