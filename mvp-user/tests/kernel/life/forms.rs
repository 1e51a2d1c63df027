//! The real mvp before a kube-apiserver that listens on one address only, in one family only, or beside another program on
//! the port; and clients that name it in every way.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use bench::standin::Release;

use super::world::{Host, NEW, PODS, World, in_world};

/// One GET of what only the peer has, from a host; none: refused.
fn ask(world: &World, from: &Host, to: &str) -> Option<u16> {
    let (client, to): (_, SocketAddr) = (world.admin.clone(), to.parse().unwrap());
    from.run(async move {
        match client.once(to, "GET", NEW).await {
            Ok(answer) => Some(answer.status.as_u16()),
            Err(error) if format!("{error:#}").contains("refused") => None,
            Err(error) => panic!("{to}: {error:#}"),
        }
    })
}

#[test]
fn a_server_on_one_ipv4_address_is_steered_there_and_refused_where_it_does_not_listen() {
    in_world(|world| {
        let builder = world
            .builder(&world.node, Release::V1_34)
            .bind(world.node.server());
        let _old = world.node.run(async { builder.start().await.unwrap() });
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(
            &world.node,
            &["--steer=always", "--local=https://10.8.0.1:6443"],
        );
        mvp.settled(2, "on");
        assert_eq!(ask(world, &world.outside, "10.8.0.1:6443"), Some(200));
        assert_eq!(ask(world, &world.node, "10.8.0.1:6443"), Some(200));
        assert_eq!(ask(world, &world.node, "[::ffff:10.8.0.1]:6443"), Some(200));
        for nowhere in ["127.0.0.1:6443", "[::1]:6443"] {
            assert_eq!(ask(world, &world.node, nowhere), None);
        }
        assert_eq!(ask(world, &world.outside, "[fd08::1]:6443"), None);
    });
}

#[test]
fn a_server_in_ipv6_only_is_steered_and_its_clients_are_known_by_their_addresses() {
    in_world(|world| {
        let builder = world
            .builder(&world.node, Release::V1_34)
            .bind(world.node.server_v6())
            .advertise(world.node.server_v6());
        let old = world.node.run(async { builder.start().await.unwrap() });
        let builder = world
            .builder(&world.peer, Release::V1_36)
            .bind(world.peer.server_v6())
            .advertise(world.peer.server_v6());
        let new = world.peer.run(async { builder.start().await.unwrap() });
        let mvp = world.mvp(
            &world.node,
            &[
                "--steer=always",
                "--local=https://[fd08::1]:6443",
                "--advertise-address=fd08::1",
            ],
        );
        mvp.settled(2, "on");
        assert_eq!(ask(world, &world.outside, "[fd08::1]:6443"), Some(200));
        assert_eq!(ask(world, &world.node, "[fd08::1]:6443"), Some(200));
        assert_eq!(ask(world, &world.outside, "10.8.0.1:6443"), None);
        assert_eq!(world.get(world.node.server_v6(), PODS), Ok(200));
        assert!(
            mvp.lookups("exempt_source") > 0,
            "mvp's own connections to local"
        );
        let requests = new.requests();
        let forwarded: Vec<_> = requests
            .iter()
            .filter(|seen| seen.path() == NEW)
            .flat_map(|seen| seen.header("x-forwarded-for"))
            .collect();
        assert_eq!(forwarded, ["fd08::3", "fd08::1"]);
        let (reached, not) = old.loopback_counts();
        assert!(
            reached > 0 && not == 0,
            "it reaches itself: {reached}, {not}"
        );
    });
}

#[test]
fn two_mvps_before_a_server_in_ipv6_only_do_not_send_each_other_in_circles() {
    no_circle("[fd08::1]:6443");
}

#[test]
fn two_mvps_before_a_server_at_the_ipv6_loopback_do_not_either() {
    no_circle("[::1]:6443");
}

fn no_circle(at: &str) {
    in_world(|world| {
        let builder = world
            .builder(&world.node, Release::V1_34)
            .bind(at.parse().unwrap())
            .advertise(world.node.server_v6());
        let _old = world.node.run(async { builder.start().await.unwrap() });
        let builder = world
            .builder(&world.peer, Release::V1_36)
            .bind(world.peer.server_v6())
            .advertise(world.peer.server_v6());
        let _new = world.peer.run(async { builder.start().await.unwrap() });
        let local = format!("--local=https://{at}");
        let flags = [
            "--steer=always",
            local.as_str(),
            "--advertise-address=fd08::1",
        ];
        // As during a replacement: the next one steers before the one before is told to end.
        let both = ["mvp", "next"].map(|name| world.mvp_as(&world.node, name, &flags, |_| {}));
        for mvp in &both {
            mvp.settled(2, "on");
        }
        thread::sleep(Duration::from_secs(3));
        for mvp in &both {
            let status = mvp.status();
            assert_eq!(status["servers"][0]["health"], "up", "{}", mvp.log());
            assert!(
                status["connections"]["open"].as_u64() < Some(50),
                "{status}"
            );
        }
        assert_eq!(ask(world, &world.node, at), Some(200));
    });
}

#[test]
fn every_name_of_a_server_on_the_wildcard_leads_to_mvp() {
    in_world(|world| {
        let old = world.serve(&world.node, Release::V1_34);
        let new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(2, "on");
        for to in [
            "127.0.0.1:6443",
            "[::ffff:127.0.0.1]:6443",
            "10.8.0.1:6443",
            "[::ffff:10.8.0.1]:6443",
            "[::1]:6443",
            "[fd08::1]:6443",
        ] {
            assert_eq!(ask(world, &world.node, to), Some(200), "{to}");
        }
        for to in ["10.8.0.1:6443", "[fd08::1]:6443"] {
            assert_eq!(ask(world, &world.outside, to), Some(200), "{to}");
        }
        let requests = new.requests();
        let mapped = requests
            .iter()
            .flat_map(|seen| seen.header("x-forwarded-for"))
            .any(|address| address.contains("ffff"));
        assert!(!mapped, "an IPv4 client has an IPv4 address");
        let (reached, not) = old.loopback_counts();
        assert!(
            reached > 0 && not == 0,
            "it reaches itself: {reached}, {not}"
        );
    });
}

#[test]
fn a_load_balancer_on_a_virtual_address_of_the_port_is_left_alone_and_named() {
    in_world(|world| {
        world.node.ip("addr add 10.8.0.77/24 dev br0");
        let listener = world
            .node
            .run(async { TcpListener::bind("10.8.0.77:6443").unwrap() });
        let other = listener.try_clone().unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = other.accept() {
                drop(stream.write_all(b"H"));
            }
        });
        let builder = world
            .builder(&world.node, Release::V1_34)
            .bind(world.node.server());
        let _old = world.node.run(async { builder.start().await.unwrap() });
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(
            &world.node,
            &["--steer=always", "--local=https://10.8.0.1:6443"],
        );
        mvp.settled(2, "on");
        let before = mvp.lookups("pass_key");
        let byte = world.outside.run(async {
            let address: SocketAddr = "10.8.0.77:6443".parse().unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            byte
        });
        assert_eq!(&byte, b"H");
        assert!(mvp.lookups("pass_key") > before);
        assert_eq!(ask(world, &world.outside, "10.8.0.1:6443"), Some(200));
        assert!(mvp.log().contains("10.8.0.77:6443"), "{}", mvp.log());
        crate::support::shut(&listener);
    });
}
