//! What happens to local, and how full mvp is, while 500 connections a second arrive.

use std::{
    io::Write as _,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use bench::standin::Release;

use super::{
    load::{Load, Seen},
    world::{NEW, PODS, World, in_world, killed, restarted},
};

/// Another program on the node, which says the same to everybody.
fn stranger(world: &World, address: &'static str, words: &'static [u8]) -> TcpListener {
    world.node.run(async move {
        let listener = TcpListener::bind(address).unwrap();
        let other = listener.try_clone().unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = other.accept() {
                drop(stream.write_all(words));
            }
        });
        listener
    })
}

#[test]
fn a_restart_of_the_api_server_refuses_no_connect_and_fails_no_read() {
    in_world(|world| {
        let mut old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(2, "on");
        let load = Load::start(world, world.node.server(), PODS);
        thread::sleep(Duration::from_millis(500));
        old = killed(&world.node, old);
        thread::sleep(Duration::from_secs(1));
        let _old = restarted(&world.node, old);
        mvp.settled(2, "on");
        thread::sleep(Duration::from_millis(500));
        let (seen, during) = load.stop();
        seen.none_refused(during);
        seen.all_answered(200);
        eprintln!(
            "local restarted: {} connections, {}",
            seen.opened,
            Seen::summary(seen.all())
        );
    });
}

/// The certificate that a client is shown.
fn shown(world: &World) -> Vec<u8> {
    let (client, to) = (world.admin.clone(), world.node.server());
    world.outside.run(async move {
        let stream = client.tls(to).await.unwrap();
        let chain = stream.get_ref().1.peer_certificates().unwrap();
        chain[0].to_vec()
    })
}

#[test]
fn new_certificates_are_shown_at_once_and_nothing_fails() {
    in_world(|world| {
        let old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(2, "on");
        let load = Load::start(world, world.node.server(), NEW);
        thread::sleep(Duration::from_millis(500));
        let issued = world.new_certificate(&world.node);
        // kube-apiserver reads its files once a minute, so that for a while the two differ.
        let changed = Instant::now();
        while shown(world) != issued.der.to_vec() {
            assert!(changed.elapsed() < Duration::from_secs(10), "{}", mvp.log());
            thread::sleep(Duration::from_millis(50));
        }
        thread::sleep(Duration::from_millis(2500));
        old.set_certificate(&issued).unwrap();
        thread::sleep(Duration::from_millis(2500));
        let (seen, during) = load.stop();
        seen.none_refused(during);
        seen.all_answered(200);
        assert_eq!(mvp.status()["steering"]["state"], "on");
        eprintln!(
            "certificates: {} connections, {}",
            seen.opened,
            Seen::summary(seen.all())
        );
    });
}

#[test]
fn an_api_server_that_has_gone_leaves_its_port_to_another_program_and_gets_it_back() {
    in_world(|world| {
        let old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(2, "on");
        let load = Load::start(world, world.node.server(), PODS);
        thread::sleep(Duration::from_millis(300));
        let old = killed(&world.node, old);
        // Longer than between two looks at who listens: the key stays.
        thread::sleep(Duration::from_millis(2500));
        let (seen, during) = load.stop();
        seen.none_refused(during);
        seen.all_answered(200);

        let listener = stranger(world, "0.0.0.0:6443", b"H");
        let reached = || {
            let to = world.node.server();
            world.outside.run(async move {
                use tokio::io::AsyncReadExt as _;
                let mut stream = tokio::net::TcpStream::connect(to).await.unwrap();
                let byte = tokio::time::timeout(Duration::from_millis(300), stream.read_u8());
                byte.await
                    .is_ok_and(|byte| byte.is_ok_and(|byte| byte == b'H'))
            })
        };
        let start = Instant::now();
        while !reached() {
            assert!(start.elapsed() < Duration::from_secs(8), "{}", mvp.log());
        }
        crate::support::shut(&listener);
        drop(listener);
        let _old = restarted(&world.node, old);
        mvp.settled(2, "on");
        let start = Instant::now();
        while world.get(world.node.server(), NEW) != Ok(200) {
            assert!(start.elapsed() < Duration::from_secs(8), "{}", mvp.log());
            thread::sleep(Duration::from_millis(100));
        }
    });
}

#[test]
fn steering_is_off_and_says_why_where_another_program_has_every_address_of_the_port() {
    in_world(|world| {
        let old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(2, "on");
        let old = killed(&world.node, old);
        let listener = stranger(world, "[::]:6443", b"HTTP/1.0 400 Bad Request\r\n\r\n");
        mvp.until("it says that nothing is steered", |status| {
            status["steering"]["state"] == "off" && status["steering"]["why"] == "no_listener"
        });
        crate::support::shut(&listener);
        drop(listener);
        let _old = restarted(&world.node, old);
        mvp.settled(2, "on");
        assert_eq!(world.get(world.node.server(), NEW), Ok(200));
    });
}

#[test]
fn an_mvp_at_nine_tenths_of_its_bound_lets_new_connections_pass_until_there_is_room() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &["--steer=always", "--max-connections=200"]);
        mvp.settled(2, "on");
        let (client, to) = (world.admin.clone(), world.node.server());
        let held = world.outside.run(async move {
            let mut held = Vec::new();
            for _ in 0..185 {
                held.push(client.connect(to).await.unwrap());
            }
            held
        });
        mvp.until("it is full", |status| status["steering"]["state"] == "full");
        let from = Instant::now();
        let load = Load::start(world, to, NEW);
        thread::sleep(Duration::from_secs(1));
        let until = Instant::now();
        let (seen, during) = load.stop();
        seen.none_refused(during);
        let direct = |asked: &&super::load::Asked| asked.at > from && asked.at < until;
        let direct: Vec<_> = seen.fresh.iter().filter(direct).collect();
        assert!(
            direct.len() > 2 && direct.iter().all(|asked| asked.outcome == Ok(404)),
            "{}",
            Seen::summary(direct)
        );
        assert!(mvp.lookups("full") > 100);
        drop(held);
        mvp.settled(2, "on");
        assert_eq!(world.get(to, NEW), Ok(200));
    });
}
