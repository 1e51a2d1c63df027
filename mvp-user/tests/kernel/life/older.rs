//! What clients lose when connections older than steering are closed: clients that are idle between requests, that watch,
//! that exec, and that write slowly, all over live connections to the server itself when skew appears.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bench::{
    client::{Client, Connection},
    standin::{Action, Fault, Handle, On, Release},
};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::sleep,
};

use super::{
    load::ask,
    world::{Daemon, NEW, PODS, World, in_world, killed},
};

const IDLE_CLIENTS: u64 = 6;
const WATCHES: u64 = 4;
const EXECS: u64 = 2;
const WRITERS: u64 = 2;
/// Connections that wait: of so many a drain closes one a second.
const HELD: u64 = 20;
/// A write through a webhook.
const SLOW: &str = "/api/v1/namespaces/default/configmaps";

/// What became of one kind of client.
#[derive(Debug, Default)]
struct Kind {
    /// Connections that were closed under it.
    cut: AtomicU64,
    /// Requests that were answered.
    answered: AtomicU64,
    /// Requests, or events of a watch, that it did not get although it did what clients do.
    lost: AtomicU64,
}

fn note_one(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// All of them.
#[derive(Debug, Default)]
struct Kinds {
    idle: Kind,
    watch: Kind,
    exec: Kind,
    write: Kind,
    /// Names that some watch has seen, one set each.
    events: Mutex<Vec<BTreeSet<String>>>,
    stop: AtomicBool,
}

/// A GET every few seconds on one connection, as a controller that resyncs.
async fn idle(client: Client, to: std::net::SocketAddr, all: Arc<Kinds>) {
    let mut connection: Option<Connection> = None;
    while !all.stop.load(Ordering::Relaxed) {
        let closed = match &connection {
            Some(Connection::Http2(send)) => send.is_closed(),
            Some(Connection::Http1(send)) => send.is_closed(),
            None => false,
        };
        if closed {
            note_one(&all.idle.cut);
            connection = None;
        }
        match ask(&client, &mut connection, to, PODS).await {
            Ok(200) => note_one(&all.idle.answered),
            _ => note_one(&all.idle.lost),
        }
        sleep(Duration::from_secs(8)).await;
    }
}

/// A reflector: lists, watches from there, and lists again when the watch breaks.
async fn watch(client: Client, to: std::net::SocketAddr, all: Arc<Kinds>, number: usize) {
    let note = |names: Vec<String>| {
        let mut events = all.events.lock().unwrap();
        events[number].extend(names);
    };
    let name = |object: &serde_json::Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    while !all.stop.load(Ordering::Relaxed) {
        let Ok(mut connection) = client.connect(to).await else {
            note_one(&all.watch.lost);
            continue;
        };
        let list = client.request("GET", PODS, &[], "").unwrap();
        let Ok(list) = connection.send(list).await else {
            note_one(&all.watch.lost);
            continue;
        };
        let list = list.json().unwrap();
        note(
            list["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(&name)
                .collect(),
        );
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let path = format!("{PODS}?watch=1&resourceVersion={version}");
        let request = client.request("GET", &path, &[], "").unwrap();
        let mut answer = connection.start(request).await.unwrap();
        let mut text = Vec::new();
        while let Some(Ok(frame)) = answer.body_mut().frame().await {
            text.extend_from_slice(frame.data_ref().unwrap());
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let event: serde_json::Value = serde_json::from_slice(&line).unwrap();
                note(vec![name(&event["object"])]);
                note_one(&all.watch.answered);
            }
        }
        note_one(&all.watch.cut);
    }
}

/// `kubectl exec` with nobody at the keyboard.
async fn exec(client: Client, to: std::net::SocketAddr, all: Arc<Kinds>) {
    let mut stream = client.tls(to).await.unwrap();
    let request = format!(
        "POST {PODS}/p/exec?command=sh&stdin=true HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\n\
         upgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 2048];
    let length = stream.read(&mut answer).await.unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 101"));
    note_one(&all.exec.answered);
    // Nothing more comes by itself.
    drop(stream.read(&mut answer).await);
    if !all.stop.load(Ordering::Relaxed) {
        note_one(&all.exec.cut);
    }
}

/// Writes that take 5 s each, one after another; never sent again, because they may have been done.
async fn write(client: Client, to: std::net::SocketAddr, all: Arc<Kinds>) {
    let mut connection = client.connect(to).await.unwrap();
    let mut number = 0;
    while !all.stop.load(Ordering::Relaxed) {
        number += 1;
        let body = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"generateName":"slow-{number}-"}}}}"#
        );
        let json = [("content-type", "application/json")];
        let request = client.request("POST", SLOW, &json, body).unwrap();
        match connection.send(request).await {
            Ok(answer) if answer.status == 201 => note_one(&all.write.answered),
            _ => {
                note_one(&all.write.cut);
                note_one(&all.write.lost);
                connection = client.connect(to).await.unwrap();
            }
        }
        // Its connection may be closed between two writes as anybody's: that costs nothing.
        if let Connection::Http2(send) = &connection
            && send.is_closed()
        {
            connection = client.connect(to).await.unwrap();
        }
    }
}

fn pod(world: &World, name: &str) {
    let body = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}"}}}}"#);
    let (client, to) = (world.admin.clone(), world.peer.server());
    let status = world.outside.run(async move {
        let json = [("content-type", "application/json")];
        let made = client.once_with(to, "POST", PODS, &json, body).await;
        made.unwrap().status
    });
    assert_eq!(status, 201);
}

/// What mvp says of how many it has closed.
fn sent_home(world: &World) -> u64 {
    let metrics = world.metrics(&world.node);
    let name = "mvp_older_connections_closed_total ";
    let closed = metrics.lines().find_map(|line| line.strip_prefix(name));
    closed.unwrap().parse().unwrap()
}

/// Servers that differ, connections to the node's own that have answered once, and an mvp that steers and is younger.
fn older(world: &World, flags: &[&str]) -> ([Handle; 2], Vec<Connection>, Daemon) {
    let servers = [
        world.serve(&world.node, Release::V1_34),
        world.serve(&world.peer, Release::V1_36),
    ];
    let (client, to) = (world.admin.clone(), world.node.server());
    let held = world.outside.run(async move {
        let mut held = Vec::new();
        for _ in 0..HELD {
            let mut open = None;
            assert_eq!(ask(&client, &mut open, to, PODS).await, Ok(200));
            held.extend(open);
        }
        held
    });
    let mvp = world.mvp(&world.node, &[&["--steer=always"][..], flags].concat());
    mvp.settled(2, "on");
    mvp.until("older connections are counted", |status| {
        status["steering"]["older_connections"].as_u64() == Some(HELD)
    });
    (servers, held, mvp)
}

fn closed(held: &[Connection]) -> usize {
    let is_closed = |connection: &&Connection| match connection {
        Connection::Http1(send) => send.is_closed(),
        Connection::Http2(send) => send.is_closed(),
    };
    held.iter().filter(is_closed).count()
}

#[test]
fn leave_closes_no_older_connection_however_idle_and_whatever_the_deadline() {
    in_world(|world| {
        let flags = [
            "--existing=leave",
            "--drain-idle=1s",
            "--existing-deadline=1s",
        ];
        let (_servers, held, mvp) = older(world, &flags);
        // After ten seconds the difference is proven; a drain would have closed four by then.
        thread::sleep(Duration::from_secs(16));
        assert_eq!((closed(&held), sent_home(world)), (0, 0), "{}", mvp.log());
        let counted = mvp.status()["steering"]["older_connections"].as_u64();
        assert_eq!(counted, Some(HELD));
        let to = world.node.server();
        assert_eq!(world.get(to, NEW), Ok(200), "new ones are steered");
    });
}

#[test]
fn the_deadline_closes_busy_older_connections_and_nothing_does_before() {
    in_world(|world| {
        let start = Instant::now();
        // None is ever idle for so long. Proven after ten seconds, they would be closed if they were.
        let flags = ["--drain-idle=1h", "--existing-deadline=20s"];
        let (_servers, held, mvp) = older(world, &flags);
        while closed(&held) < 3 {
            assert!(start.elapsed() < Duration::from_secs(90), "{}", mvp.log());
            thread::sleep(Duration::from_millis(100));
        }
        let after = start.elapsed();
        assert!(after > Duration::from_secs(20), "after {after:?}");
    });
}

#[test]
fn draining_older_connections_costs_idle_clients_and_watches_nothing() {
    in_world(|world| {
        let old = world.serve(&world.node, Release::V1_34);
        let two = world.serve(&world.peer, Release::V1_34);
        old.fault(Fault {
            on: On::path(SLOW).method("POST"),
            action: Action::Delay(5000),
            times: None,
        });
        let flags = ["--steer=auto", "--steer-off-delay=2s", "--drain-idle=1s"];
        let mvp = world.mvp(&world.node, &flags);
        mvp.settled(2, "off");
        mvp.until("it is calm", |status| {
            status["steering"]["why"] == "no_skew"
        });
        pod(world, "p");

        let all = Arc::<Kinds>::default();
        all.events
            .lock()
            .unwrap()
            .resize(WATCHES as usize, BTreeSet::new());
        let to = world.node.server();
        let mut clients = Vec::new();
        for number in 0..IDLE_CLIENTS.max(WATCHES) {
            let (client, h1, all) = (
                || world.admin.clone(),
                world.admin_h1.clone(),
                || Arc::clone(&all),
            );
            if number < IDLE_CLIENTS {
                clients.push(world.outside.start(idle(client(), to, all())));
            }
            if number < WATCHES {
                let number = usize::try_from(number).unwrap();
                clients.push(world.outside.start(watch(client(), to, all(), number)));
            }
            if number < EXECS {
                clients.push(world.outside.start(exec(h1, to, all())));
            }
            if number < WRITERS {
                clients.push(world.outside.start(write(client(), to, all())));
            }
        }
        thread::sleep(Duration::from_secs(1));
        drop(killed(&world.peer, two));
        let _new = world.serve(&world.peer, Release::V1_36);
        mvp.until("it steers", |status| status["steering"]["state"] == "on");
        mvp.until("older connections are counted", |status| {
            status["steering"]["older_connections"].as_u64()
                == Some(IDLE_CLIENTS + WATCHES + EXECS + WRITERS)
        });
        let start = Instant::now();
        let mut made = BTreeSet::from(["p".to_owned()]);
        while !mvp
            .log()
            .contains("Connections older than steering were sent home")
        {
            assert!(start.elapsed() < Duration::from_secs(60), "{}", mvp.log());
            let name = format!("p{}", made.len());
            pod(world, &name);
            made.insert(name);
            thread::sleep(Duration::from_secs(5));
        }
        let drained = start.elapsed();
        thread::sleep(Duration::from_secs(4));
        all.stop.store(true, Ordering::Relaxed);
        let seen = all.events.lock().unwrap().clone();
        for (number, seen) in seen.iter().enumerate() {
            for name in made.difference(seen) {
                note_one(&all.watch.lost);
                eprintln!("watch {number} never saw {name}");
            }
        }
        let left = mvp.status()["steering"]["older_connections"].as_u64();
        for (name, kind) in [
            ("idle", &all.idle),
            ("watch", &all.watch),
            ("exec", &all.exec),
            ("slow write", &all.write),
        ] {
            eprintln!("drained {name}: {kind:?}");
        }
        eprintln!("drain: began and ended within {drained:?}, left {left:?}");
        for client in clients {
            client.abort();
        }
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        assert!(
            get(&all.idle.cut) + get(&all.watch.cut) > 0,
            "somebody was sent home"
        );
        assert_eq!((get(&all.idle.lost), get(&all.watch.lost)), (0, 0));
        // The server owes them an answer: it is the client that spoke last.
        assert_eq!(get(&all.write.lost), 0, "of {}", get(&all.write.answered));
        assert!(get(&all.write.answered) > 0);
        // mvp counts what it closes, and says what is left.
        let closed = sent_home(world);
        let cut = [&all.idle, &all.watch, &all.exec, &all.write].map(|kind| get(&kind.cut));
        assert!(closed >= cut.iter().sum(), "{closed} closed, {cut:?} cut");
        assert_eq!(world.get(to, NEW), Ok(200), "who comes back sees the whole");
    });
}
