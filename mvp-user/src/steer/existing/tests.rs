//! Which connections may be closed, and how fast.

use super::{
    super::{listeners, sockdiag::Traffic},
    *,
};

const IDLE: Duration = Duration::from_secs(5);
const API: u64 = 100;
const CLIENT: u64 = 200;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// An idle connection from another host.
fn idle() -> Entry {
    let mut entry = Entry::between("10.0.0.1:6443", "10.0.0.9:50000");
    entry.inode = 7;
    entry.cgroup = Some(API);
    entry.traffic = Some(Traffic {
        unacknowledged: 0,
        last_sent: seconds(6),
        last_received: seconds(7),
    });
    entry
}

fn listener(address: &str, both_families: bool) -> Listener {
    Listener {
        cgroup: Some(API),
        ..listeners::tests::listener(address, both_families)
    }
}

fn node() -> Node {
    Node {
        exempt_source: Some(Ipv4Addr::new(127, 77, 86, 80)),
        own: HashSet::from([42]),
        local: vec![listener("[::]:6443", true)],
        cgroups: HashSet::from([API]),
        clients: HashMap::new(),
        twin: false,
    }
}

fn with_client(entry: &Entry, inode: u32, cgroup: Option<u64>) -> Node {
    let (server, client) = entry.ends();
    let mut node = node();
    node.clients.insert((client, server), (inode, cgroup));
    node
}

#[test]
fn an_idle_direct_connection_is_a_candidate() {
    assert_eq!(class(&idle(), &node(), IDLE), Class::Candidate);
}

#[test]
fn whatever_speaks_against_idleness_makes_it_busy() {
    let traffic = |change: fn(&mut Traffic)| {
        let mut entry = idle();
        change(entry.traffic.as_mut().unwrap());
        entry
    };
    let waiting = traffic(|t| t.last_sent = seconds(8));
    let spoke = traffic(|t| t.last_sent = seconds(4));
    let heard = traffic(|t| t.last_received = seconds(5));
    let in_flight = traffic(|t| t.unacknowledged = 1);
    let mut unread = idle();
    unread.receive_queue = 1;
    let mut unsent = idle();
    unsent.send_queue = 1;
    let mut unknown = idle();
    unknown.traffic = None;
    for entry in [waiting, spoke, heard, in_flight, unread, unsent, unknown] {
        assert_eq!(class(&entry, &node(), IDLE), Class::Busy, "{entry:?}");
    }
}

#[test]
fn connections_of_mvp_are_never_touched() {
    let mut steered = idle();
    steered.inode = 42;
    assert_eq!(class(&steered, &node(), IDLE), Class::Mvp);
    let mut upstream = Entry::between("127.0.0.1:6443", "127.77.86.80:40000");
    upstream.inode = 7;
    assert_eq!(class(&upstream, &node(), IDLE), Class::Mvp);
    let upstream = idle();
    let node = with_client(&upstream, 42, Some(CLIENT));
    assert_eq!(class(&upstream, &node, IDLE), Class::Mvp);
    // Of one with another exempt source, in another pod.
    let mut before = Entry::between("127.0.0.1:6443", "127.0.0.77:40000");
    (before.inode, before.cgroup) = (7, Some(API));
    before.traffic = idle().traffic;
    let node = with_client(&before, 9, Some(CLIENT));
    assert_eq!(class(&before, &node, IDLE), Class::Mvp);
    // To a server that listens at one IPv6 address; as anybody else on the node comes.
    for (server, client, wanted) in [
        ("[fd00::1]:6443", "[::1]:40000", Class::Mvp),
        ("[fd00::1]:6443", "[fd00::1]:40000", Class::Candidate),
        ("[::1]:6443", "[fd00::1]:40000", Class::Mvp),
    ] {
        let mut before = Entry::between(server, client);
        (before.inode, before.cgroup) = (7, Some(API));
        before.traffic = idle().traffic;
        let node = with_client(&before, 9, Some(CLIENT));
        assert_eq!(class(&before, &node, IDLE), wanted, "{client}");
    }
}

#[test]
fn connections_of_an_mvp_that_is_replaced_are_spared_where_nothing_tells_them() {
    let mut upstream = Entry::between("127.77.86.80:40000", "127.0.0.1:6443");
    upstream.inode = 9;
    for (cgroup, twin) in [(None, true), (Some(API), true), (Some(CLIENT), false)] {
        upstream.cgroup = cgroup;
        assert_eq!(is_of_twin(&upstream, &node()), twin, "{cgroup:?}");
    }
    let mut blind = node();
    blind.cgroups.clear();
    assert!(is_of_twin(&upstream, &blind));
    // This process's own, and anybody's that is not mvp.
    upstream.inode = 42;
    assert!(!is_of_twin(&upstream, &blind));
    let mut other = Entry::between("10.0.0.1:40000", "10.0.0.1:6443");
    other.inode = 9;
    assert!(!is_of_twin(&other, &blind));
    let mut node = node();
    node.twin = true;
    assert_eq!(class(&idle(), &node, IDLE), Class::Own);
}

#[test]
fn connections_to_other_programs_and_unaccepted_ones_are_not_direct() {
    let mut other = idle();
    other.cgroup = Some(CLIENT);
    assert_eq!(class(&other, &node(), IDLE), Class::Other);
    let mut waiting = idle();
    waiting.inode = 0;
    assert_eq!(class(&waiting, &node(), IDLE), Class::Other);
}

#[test]
fn a_program_on_a_virtual_address_of_the_port_is_told_by_that_where_cgroups_are_all_alike() {
    let mut balanced = Entry::between("10.0.0.77:6443", "10.0.0.9:50000");
    balanced.inode = 8;
    balanced.cgroup = Some(API);
    balanced.traffic = idle().traffic;
    let at = |address, both| Node {
        local: vec![listener(address, both)],
        ..node()
    };
    for (address, both, wanted) in [
        ("10.0.0.1:6443", false, Class::Other),
        ("[::]:6443", false, Class::Other),
        ("10.0.0.77:6443", false, Class::Candidate),
        ("0.0.0.0:6443", false, Class::Candidate),
        ("[::]:6443", true, Class::Candidate),
    ] {
        let found = class(&balanced, &at(address, both), IDLE);
        assert_eq!(found, wanted, "{address} {both}");
    }
}

#[test]
fn a_local_client_is_closed_only_when_it_is_provably_not_the_api_server() {
    let entry = idle();
    for (cgroup, wanted) in [
        (Some(API), Class::Own),
        (None, Class::Own),
        (Some(CLIENT), Class::Candidate),
    ] {
        let node = with_client(&entry, 9, cgroup);
        assert_eq!(class(&entry, &node, IDLE), wanted, "{cgroup:?}");
    }
    // Without the cgroup of the listener nothing can be told.
    let mut blind = with_client(&entry, 9, Some(CLIENT));
    blind.cgroups.clear();
    assert_eq!(class(&entry, &blind, IDLE), Class::Own);
}

#[test]
fn a_local_client_whose_socket_is_gone_is_spared() {
    for (server, client) in [
        ("127.0.0.1:6443", "127.0.0.1:50000"),
        ("[::ffff:127.0.0.1]:6443", "[::ffff:127.0.0.1]:50000"),
        ("10.0.0.1:6443", "10.0.0.1:50000"),
        ("[::1]:6443", "[::1]:50000"),
    ] {
        let mut entry = Entry::between(server, client);
        entry.inode = 7;
        entry.traffic = idle().traffic;
        assert_eq!(class(&entry, &node(), IDLE), Class::Own, "{client}");
    }
}

#[test]
fn the_pace_keeps_both_bounds() {
    assert_eq!(pace(10_000), Duration::from_millis(50));
    assert_eq!(pace(400), Duration::from_millis(50));
    assert_eq!(pace(100), Duration::from_millis(200));
    assert_eq!(pace(1), seconds(20));
    assert_eq!(pace(0), seconds(20));
}

#[test]
fn the_sockets_of_this_process_are_found() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stat = rustix::fs::fstat(&listener).unwrap();
    let inode = u32::try_from(stat.st_ino).unwrap();
    assert!(own_inodes().unwrap().contains(&inode));
    drop(listener);
}
