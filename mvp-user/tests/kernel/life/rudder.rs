//! Changing what is steered while mvp runs, by the control socket, and the flags that choose clients: the counters show
//! the real share.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use bench::standin::{Handle, Release};

use super::world::{Daemon, NEW, World, in_world};

/// Client addresses: 10.8.0.100 to .199, and `fd08::1:100` to `:199`.
const CLIENTS: std::ops::Range<u16> = 100..200;

fn addresses(v6: bool) -> Vec<IpAddr> {
    let text = |n| {
        if v6 {
            format!("fd08::1:{n}")
        } else {
            format!("10.8.0.{n}")
        }
    };
    CLIENTS.map(|n| text(n).parse().unwrap()).collect()
}

fn give_addresses(world: &World) {
    for v6 in [false, true] {
        for address in addresses(v6) {
            let (length, nodad) = if v6 { (64, " nodad") } else { (24, "") };
            world
                .outside
                .ip(&format!("addr add {address}/{length} dev eth0{nodad}"));
        }
    }
}

/// An old server on the node and a new one on the peer; they do not ask themselves, for that would be counted too.
fn servers(world: &World) -> [Handle; 2] {
    [(&world.node, Release::V1_34), (&world.peer, Release::V1_36)].map(|(host, release)| {
        let builder = world.builder(host, release).loopback_client(false);
        host.run(async { builder.start().await.unwrap() })
    })
}

/// Connects once from each address, and tells from which ones mvp was reached: the look-ups that were steered.
fn steered(world: &World, mvp: &Daemon, from: &[IpAddr]) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for &source in from {
        let before = mvp.lookups("steered");
        connect(world, source);
        match mvp.lookups("steered") - before {
            0 => {}
            1 => found.push(source),
            more => panic!("{more} look-ups of one connection"),
        }
    }
    found
}

fn connect(world: &World, source: IpAddr) {
    let to = if source.is_ipv4() {
        world.node.server()
    } else {
        world.node.server_v6()
    };
    world.outside.run(async move {
        let socket = if source.is_ipv4() {
            tokio::net::TcpSocket::new_v4()
        } else {
            tokio::net::TcpSocket::new_v6()
        };
        let socket = socket.unwrap();
        socket.bind(SocketAddr::new(source, 0)).unwrap();
        let stream = socket.connect(to).await.unwrap();
        // A reset: what the server says afterwards would be looked up once more.
        let now = Some(Duration::ZERO);
        socket2::SockRef::from(&stream).set_linger(now).unwrap();
    });
}

#[test]
fn steering_is_switched_and_shared_out_at_run_time() {
    in_world(|world| {
        give_addresses(world);
        let _servers = servers(world);
        let mvp = world.mvp(&world.node, &["--steer=auto", "--steer-off-delay=1s"]);
        mvp.settled(2, "on");
        let to = world.node.server();
        for (word, status, state, mode) in [
            ("off", 404, "off", "never"),
            ("on", 200, "on", "always"),
            ("auto", 200, "on", "auto"),
        ] {
            let start = Instant::now();
            mvp.say(&["steer", word]).unwrap();
            // The answer comes when the kernel was told.
            assert_eq!(mvp.status()["steering"]["state"], state, "{word}");
            while world.get(to, NEW) != Ok(status) {
                assert!(
                    start.elapsed() < Duration::from_secs(2),
                    "{word}: {}",
                    mvp.log()
                );
                thread::sleep(Duration::from_millis(20));
            }
            let now = mvp.status();
            assert_eq!(now["steering"]["state"], state, "{word}");
            assert_eq!(now["steering"]["mode"], mode, "{word}");
            let said = mvp.say(&["steer", "status"]).unwrap();
            assert!(
                said.contains(state) && said.contains(mode),
                "{word}: {said}"
            );
        }
        // A fixed hash chooses, so the share of 200 addresses is known; and the counter shows it.
        for percent in [0, 30, 100] {
            mvp.say(&["steer", "percent", &percent.to_string()])
                .unwrap();
            assert_eq!(mvp.status()["steering"]["percent"], percent);
            let (mut all, mut wanted) = (Vec::new(), Vec::new());
            for v6 in [false, true] {
                all.extend(addresses(v6));
            }
            wanted.extend(all.iter().copied().filter(|address| {
                let (_, words) = mvp_ebpf::words(*address);
                mvp_ebpf::share(&words) < percent
            }));
            let counters = || (mvp.lookups("steered"), mvp.lookups("not_chosen"));
            let before = counters();
            for source in &all {
                connect(world, *source);
            }
            let after = counters();
            assert_eq!(after.0 - before.0, wanted.len() as u64, "{percent} %");
            // mvp itself asks itself past the steer; its watches reach the server by the exempt source.
            assert_eq!(
                after.1 - before.1,
                (all.len() - wanted.len()) as u64,
                "{percent} %"
            );
            eprintln!(
                "{percent} %: {} of {} addresses steered",
                wanted.len(),
                all.len()
            );
            let share = wanted.len() * 100 / all.len();
            assert!(
                share.abs_diff(percent as usize) <= 8,
                "{share} % for {percent} %"
            );
        }
        for wrong in [
            &["steer", "percent", "101"][..],
            &["steer", "percent", "-1"],
            &["steer", "sideways"],
        ] {
            assert!(mvp.say(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(mvp.status()["steering"]["percent"], 100);
    });
}

#[test]
fn networks_are_exempt_or_chosen_by_flags_in_both_families() {
    in_world(|world| {
        give_addresses(world);
        let _servers = servers(world);
        let mvp = world.mvp(
            &world.node,
            &[
                "--steer=always",
                "--steer-cidr=10.8.0.104/29,fd08::1:100/125",
                "--steer-cidr=10.8.0.150/32",
                "--exempt-cidr=10.8.0.106/31,fd08::1:106/128",
            ],
        );
        mvp.settled(2, "on");
        let of = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let v4 = of(&[
            "10.8.0.103",
            "10.8.0.104",
            "10.8.0.105",
            "10.8.0.106",
            "10.8.0.107",
            "10.8.0.111",
            "10.8.0.112",
            "10.8.0.150",
        ]);
        let wanted = of(&["10.8.0.104", "10.8.0.105", "10.8.0.111", "10.8.0.150"]);
        assert_eq!(steered(world, &mvp, &v4), wanted);
        let v6 = of(&[
            "fd08::1:103",
            "fd08::1:104",
            "fd08::1:106",
            "fd08::1:107",
            "fd08::1:108",
        ]);
        assert_eq!(
            steered(world, &mvp, &v6),
            of(&["fd08::1:103", "fd08::1:104", "fd08::1:107"])
        );
        assert_eq!(mvp.lookups("exempt_cidr"), 3);
    });
}
