//! What the process is allowed, what it keeps, and what it tells systemd: the real binary, looked at from outside.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixDatagram,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    process::Command,
    time::{Duration, Instant},
};

use bench::standin::Release;
use nix::sys::signal::Signal;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::world::{Daemon, NEW, PODS, in_world, killed};

/// A line of `/proc/PID/status`.
fn line(mvp: &Daemon, thread: &str, name: &str) -> String {
    let path = format!("/proc/{}/task/{thread}/status", mvp.pid());
    let text = fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

fn capabilities(mvp: &Daemon, thread: &str, name: &str) -> CapabilitySet {
    let bits = u64::from_str_radix(&line(mvp, thread, name), 16).unwrap();
    CapabilitySet::from_bits_retain(bits)
}

#[test]
fn after_the_start_no_thread_holds_more_than_later_work_needs() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(2, "on");
        let mut allowed = CapabilitySet::NET_ADMIN | CapabilitySet::DAC_READ_SEARCH;
        let old =
            aya::util::KernelVersion::current().unwrap() < aya::util::KernelVersion::new(5, 19, 0);
        if old {
            allowed |= CapabilitySet::BPF;
        }
        let tasks = fs::read_dir(format!("/proc/{}/task", mvp.pid())).unwrap();
        let threads: Vec<String> = tasks
            .map(|task| task.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(threads.len() >= 3, "{threads:?}");
        for thread in &threads {
            for set in ["CapEff", "CapPrm", "CapBnd"] {
                let held = capabilities(&mvp, thread, set);
                assert!(allowed.contains(held), "{set} {held:?}");
            }
            for set in ["CapInh", "CapAmb"] {
                assert_eq!(capabilities(&mvp, thread, set), CapabilitySet::empty());
            }
            assert_eq!(line(&mvp, thread, "NoNewPrivs"), "1");
        }
        // The control socket is root's alone.
        let socket = fs::metadata(&mvp.socket).unwrap();
        assert_eq!(
            (socket.permissions().mode() & 0o777, socket.uid()),
            (0o600, 0)
        );
        fs::set_permissions(world.file("."), fs::Permissions::from_mode(0o755)).unwrap();
        let nobody = |uid| {
            Command::new(env!("CARGO_BIN_EXE_mvp"))
                .args(["status", "--control-socket"])
                .arg(&mvp.socket)
                .uid(uid)
                .output()
        };
        // Where a stranger may not even run the binary, that is refusal enough.
        let answered = nobody(65534).is_ok_and(|output| output.status.success());
        assert!(!answered);
        // A signal that dumps core elsewhere dumps none.
        let limits = fs::read_to_string(format!("/proc/{}/limits", mvp.pid())).unwrap();
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        assert_eq!(
            core.unwrap().split_whitespace().nth(4),
            Some("0"),
            "{limits}"
        );
        let mut mvp = mvp;
        mvp.signal(Signal::SIGABRT);
        let status = mvp.ended(Duration::from_secs(5));
        assert_eq!(status.signal(), Some(Signal::SIGABRT as i32));
        assert!(!status.core_dumped());
    });
}

#[test]
fn two_capabilities_are_enough_for_a_whole_life() {
    in_world(|world| {
        let mut old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let flags = ["--steer=always", "--drain-idle=1s"];
        // As the DaemonSet starts it: everything else is dropped, from the bounding set too.
        let mut mvp = world.mvp_confined(&world.node, &flags, || {
            let kept = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
            for capability in CapabilitySet::all().iter() {
                if !kept.contains(capability) {
                    // Some kernels know fewer: then there is nothing to remove.
                    remove_capability_from_bounding_set(capability).unwrap_or_default();
                }
            }
        });
        mvp.settled(2, "on");
        let to = world.node.server();
        assert_eq!(world.get(to, NEW), Ok(200));
        // Maps are written, files are read again, listeners are looked at again, the state is written.
        mvp.say(&["steer", "percent", "0"]).unwrap();
        assert_eq!(world.get(to, NEW), Ok(404));
        mvp.say(&["steer", "percent", "100"]).unwrap();
        mvp.say(&["steer", "off"]).unwrap();
        mvp.settled(2, "off");
        mvp.say(&["steer", "on"]).unwrap();
        let issued = world.new_certificate(&world.node);
        old.set_certificate(&issued).unwrap();
        old = killed(&world.node, old);
        mvp.until("local is down", |status| {
            status["servers"][0]["health"] == "down"
        });
        assert_eq!(world.get(to, PODS), Ok(200));
        drop(old);
        let _old = world.serve(&world.node, Release::V1_34);
        mvp.settled(2, "on");
        assert_eq!(world.get(to, NEW), Ok(200));
        mvp.signal(Signal::SIGTERM);
        assert!(mvp.ended(Duration::from_secs(15)).success());
        let log = mvp.log();
        assert!(
            !log.contains("ERROR") && !log.contains("ermission"),
            "{log}"
        );
    });
}

/// What the service manager is told until `wanted` comes.
fn told(manager: &UnixDatagram, wanted: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while !all.iter().any(|line| line == wanted) {
        let length = manager
            .recv(&mut buffer)
            .unwrap_or_else(|error| panic!("no {wanted}: {error}; {all:?}"));
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        all.extend(text.lines().map(str::to_owned));
    }
    all
}

#[test]
fn systemd_is_told_of_start_steering_life_and_stop() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let path = world.file("notify.sock");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut mvp = world.mvp_as(&world.node, "mvp", &["--steer=always"], |command| {
            command
                .env("NOTIFY_SOCKET", &path)
                .env("WATCHDOG_USEC", "1000000");
        });
        told(&manager, "READY=1");
        told(&manager, "STATUS=steering on: always");
        told(&manager, "WATCHDOG=1");
        told(&manager, "WATCHDOG=1");
        // While it stands still there is no sign of life.
        mvp.signal(Signal::SIGSTOP);
        manager
            .set_read_timeout(Some(Duration::from_millis(700)))
            .unwrap();
        let mut buffer = [0; 256];
        // What was on its way, and then nothing.
        let silent = (0..10).any(|_| manager.recv(&mut buffer).is_err());
        assert!(silent, "signs of life go on");
        mvp.signal(Signal::SIGCONT);
        manager
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        told(&manager, "WATCHDOG=1");
        mvp.signal(Signal::SIGTERM);
        told(&manager, "STOPPING=1");
        assert!(mvp.ended(Duration::from_secs(15)).success());
    });
}

/// As with a serving certificate that has expired, or that `--peer-ca-file` does not know yet.
#[test]
fn an_mvp_that_cannot_answer_itself_is_not_started_again() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let path = world.file("notify.sock");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let flags = ["--steer=always", "--peer-server-name=nobody.example"];
        let mvp = world.mvp_as(&world.node, "mvp", &flags, |command| {
            command
                .env("NOTIFY_SOCKET", &path)
                .env("WATCHDOG_USEC", "1000000");
        });
        told(&manager, "READY=1");
        // Longer than a thread may give no sign of life.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(12) {
            told(&manager, "WATCHDOG=1");
        }
        mvp.say(&["probe", "live"]).unwrap();
        let problems = mvp.say(&["probe", "ready"]).unwrap_err();
        assert!(problems.contains("self-request: no answer"), "{problems}");
        assert!(mvp.log().contains("mvp does not answer itself"));
    });
}
