//! What it costs to move bytes from one TCP connection to another (`mvp_user::splice`), inside the kernel and by copying: CPU time
//! of the thread that does it, for each MiB. The connections' other ends are threads of their own.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mvp_user::splice::{Count, End, Way, join};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;

const MIB: usize = 1 << 20;

fn moving(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("splice");
    group.throughput(Throughput::Bytes(MIB as u64));
    for (name, way) in [("spliced", Way::Spliced), ("copied", Way::Copied)] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| spent(way, count));
        });
    }
}

/// CPU time of this thread while so many MiB go from a client to an upstream.
fn spent(way: Way, mebibytes: u64) -> Duration {
    let (mut client, inner_client) = pair();
    let (mut upstream, inner_upstream) = pair();
    let sender = thread::spawn(move || {
        let block = vec![0; MIB];
        for _ in 0..mebibytes {
            client.write_all(&block).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        // Until the upstream has ended too.
        client.read_to_end(&mut Vec::new()).unwrap()
    });
    let receiver = thread::spawn(move || {
        let mut buffer = vec![0; MIB];
        while upstream.read(&mut buffer).unwrap() > 0 {}
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (up, down) = (Count::default(), Count::default());
    let begun = cpu();
    runtime.block_on(async {
        let ends = [inner_client, inner_upstream].map(|stream| End {
            stream: tokio::net::TcpStream::from_std(stream).unwrap(),
            early: Bytes::new(),
            tls: false,
        });
        let [client, upstream] = ends;
        join(client, upstream, &up, &down, way).await.unwrap();
    });
    let spent = cpu().checked_sub(begun).unwrap();
    sender.join().unwrap();
    receiver.join().unwrap();
    // Where the kernel cannot splice, this is another benchmark.
    let moved = match way {
        Way::Spliced => up.spliced.get(),
        Way::Copied => up.copied.get(),
    };
    assert_eq!(moved, mebibytes * MIB as u64);
    spent
}

/// Both ends of a connection; the second is for tokio.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

fn cpu() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

criterion_group!(benches, moving);
criterion_main!(benches);
