//! Beside other `sk_lookup` programs, attached before and after, and the hand-over from one mvp
//! process to the next.

use mvp_ebpf::Outcome;
use mvp_user::steer::{SteerOptions, Switch, Verdict};

use crate::support::{
    API, Bind, CLOSED_WITHIN, MVP, Mvp, Server, eventually, in_namespace, patient, reach,
    reach_from,
};

const OTHER: u8 = b'C';

/// Another program that steers the same port to a socket of its own.
fn other() -> Mvp {
    let other = Mvp::start_answering(&patient(), OTHER);
    other.key("0.0.0.0:6443", Verdict::Steer);
    other.key("[::]:6443", Verdict::Steer);
    other
}

#[test]
fn a_program_attached_before_keeps_its_choice() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let other = other();
        let mvp = Mvp::steering_all();
        for target in ["127.0.0.1:6443", "[::1]:6443"] {
            let who = mvp.expect(Outcome::AlreadySelected, 1, || {
                other.expect(Outcome::Steered, 1, || reach(target))
            });
            assert_eq!(who, Some(OTHER));
        }
        other.steering.set_switch(Switch::Off).unwrap();
        let who = mvp.expect(Outcome::Steered, 1, || reach("127.0.0.1:6443"));
        assert_eq!(who, Some(MVP), "it passes, so mvp steers");
    });
}

#[test]
fn a_program_attached_after_sees_that_mvp_has_chosen() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        let other = other();
        let who = other.expect(Outcome::AlreadySelected, 1, || {
            mvp.expect(Outcome::Steered, 1, || reach("127.0.0.1:6443"))
        });
        assert_eq!(who, Some(MVP));
        mvp.steering.set_switch(Switch::Full).unwrap();
        let who = mvp.expect(Outcome::Full, 1, || reach("127.0.0.1:6443"));
        assert_eq!(who, Some(OTHER));
    });
}

#[test]
fn each_of_two_lets_the_other_s_connections_pass() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        let other = other();
        for (source, target) in [
            ("127.77.86.80:0", "127.0.0.1:6443"),
            ("127.77.86.80:0", "10.9.0.1:6443"),
            ("[::1]:0", "[fd09::1]:6443"),
            ("[fd09::1]:0", "[::1]:6443"),
        ] {
            let who = mvp.expect(Outcome::ExemptSource, 1, || {
                other.expect(Outcome::ExemptSource, 1, || reach_from(source, target))
            });
            assert_eq!(who, Some(API), "{source} {target}");
        }
        // As anybody else on the node comes.
        for target in ["[fd09::1]:6443", "[::1]:6443"] {
            let who = mvp.expect(Outcome::Steered, 1, || reach(target));
            assert_eq!(who, Some(MVP), "{target}");
        }
    });
}

#[test]
fn two_with_different_exempt_sources_make_no_circle() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let old = Mvp::steering_all();
        let options = SteerOptions {
            exempt_source: [127, 0, 0, 77].into(),
            ..patient()
        };
        let new = Mvp::start_answering(&options, OTHER);
        new.key("0.0.0.0:6443", Verdict::Steer);
        // The old one takes the new one's, which come by the usual source from there; and those neither takes.
        let from = |source| reach_from(source, "127.0.0.1:6443");
        assert_eq!(from("127.0.0.77:0"), Some(MVP));
        for _ in 0..2 {
            let who = new.expect(Outcome::ExemptCidr, 1, || {
                old.expect(Outcome::ExemptSource, 1, || from("127.77.86.80:0"))
            });
            assert_eq!(who, Some(API));
            // Whatever else is exempt.
            new.steering.set_exempt(&[]).unwrap();
        }
    });
}

#[test]
fn the_next_process_takes_over_when_the_one_before_detaches() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let old = Mvp::steering_all();
        let new = other();
        assert_eq!(
            reach("127.0.0.1:6443"),
            Some(MVP),
            "the old one still has it"
        );
        old.steering.detach().unwrap();
        old.steering.detach().unwrap();
        eventually(CLOSED_WITHIN, || {
            let who = reach("127.0.0.1:6443");
            assert_ne!(who, Some(API), "there is no moment between");
            who == Some(OTHER)
        });
        let who = new.expect(Outcome::Steered, 1, || reach("127.0.0.1:6443"));
        assert_eq!(who, Some(OTHER));
        drop(new);
        eventually(CLOSED_WITHIN, || reach("127.0.0.1:6443") == Some(API));
    });
}
