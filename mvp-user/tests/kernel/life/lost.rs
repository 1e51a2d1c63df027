//! mvp dies, stops, wedges or starves while 500 connections a second arrive: none is refused, and within two seconds the
//! server itself answers (its false 404 is its signature).

use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use bench::standin::{Handle, Release};
use nix::{
    sys::{
        ptrace,
        signal::Signal,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use super::{
    load::{Load, Seen},
    world::{Daemon, NEW, World, in_world},
};

/// Design 2: so long may steering go on after the last sign of life; and what a busy machine adds.
const DIRECT_WITHIN: Duration = Duration::from_millis(2300);

fn plant(world: &World) -> ([Handle; 2], Daemon) {
    let servers = [
        world.serve(&world.node, Release::V1_34),
        world.serve(&world.peer, Release::V1_36),
    ];
    let mvp = world.mvp(&world.node, &["--steer=always"]);
    mvp.settled(2, "on");
    (servers, mvp)
}

/// What was asked from `from` on was answered by the server itself, on new connections.
#[track_caller]
fn direct_from(seen: &Seen, from: Instant, until: Instant) {
    let later: Vec<_> = seen
        .fresh
        .iter()
        .filter(|asked| asked.at > from && asked.at < until)
        .collect();
    assert!(later.len() > 2, "{} requests", later.len());
    assert!(
        later.iter().all(|asked| asked.outcome == Ok(404)),
        "{}",
        Seen::summary(later)
    );
}

#[test]
fn kill_9_refuses_no_connect_and_resets_only_what_mvp_held() {
    in_world(|world| {
        let (_servers, mvp) = plant(world);
        // Another connection to the server, past mvp.
        mvp.say(&["steer", "off"]).unwrap();
        mvp.settled(2, "off");
        let (client, to) = (world.admin.clone(), world.node.server());
        let mut direct = world
            .outside
            .run(async move { client.connect(to).await.unwrap() });
        mvp.say(&["steer", "on"]).unwrap();
        mvp.settled(2, "on");
        let load = Load::start(world, to, NEW);
        thread::sleep(Duration::from_secs(1));
        let killed = Instant::now();
        mvp.signal(Signal::SIGKILL);
        thread::sleep(Duration::from_millis(1500));
        let (seen, during) = load.stop();
        assert_eq!(seen.refused, Vec::<String>::new(), "of {}", seen.opened);
        assert!(
            seen.opened > 400,
            "{} connections in {during:?}",
            seen.opened
        );
        let late = |at: &&Instant| **at > killed + Duration::from_millis(200);
        assert_eq!(seen.reset.iter().filter(late).count(), 0);
        // What began before was at mvp, or on its way to it; the rest went to the server.
        let wrong: Vec<_> = seen
            .all()
            .filter(|asked| match asked.outcome {
                Ok(200) => false,
                Ok(404) => asked.at < killed - Duration::from_millis(200),
                _ => asked.at > killed + Duration::from_millis(200),
            })
            .collect();
        assert!(wrong.is_empty(), "{}", Seen::summary(wrong));
        direct_from(&seen, killed + Duration::from_millis(200), Instant::now());
        let request = world.admin.request("GET", NEW, &[], "").unwrap();
        let answer = world
            .outside
            .run(async move { direct.send(request).await.unwrap() });
        assert_eq!(answer.status, 404, "it was not mvp's and still works");
        eprintln!(
            "kill -9: {} connections, {}",
            seen.opened,
            Seen::summary(seen.all())
        );
    });
}

#[test]
fn a_stopped_mvp_is_passed_within_two_seconds_and_goes_on_afterwards() {
    in_world(|world| {
        let (_servers, mvp) = plant(world);
        let load = Load::start(world, world.node.server(), NEW);
        thread::sleep(Duration::from_millis(500));
        mvp.signal(Signal::SIGSTOP);
        let stopped = Instant::now();
        thread::sleep(DIRECT_WITHIN + Duration::from_secs(1));
        let until = Instant::now();
        mvp.signal(Signal::SIGCONT);
        mvp.settled(2, "on");
        thread::sleep(Duration::from_secs(1));
        assert_eq!(world.get(world.node.server(), NEW), Ok(200));
        let (seen, during) = load.stop();
        seen.none_refused(during);
        direct_from(&seen, stopped + DIRECT_WITHIN, until);
        // What it held while it was stopped was answered late, not lost.
        let lost = seen.all().filter(|asked| asked.outcome.is_err()).count();
        assert_eq!(lost, 0, "{}", Seen::summary(seen.all()));
        eprintln!(
            "stopped: {} connections, {}",
            seen.opened,
            Seen::summary(seen.all())
        );
    });
}

/// Threads that stand still while it lives; only this thread can let them go on.
struct Frozen(Vec<Pid>);

impl Frozen {
    /// Those of these names.
    fn threads(mvp: &Daemon, names: &[&str]) -> Self {
        let tasks = fs::read_dir(format!("/proc/{}/task", mvp.pid())).unwrap();
        let mut frozen = Vec::new();
        for task in tasks {
            let task = task.unwrap();
            let name = fs::read_to_string(task.path().join("comm")).unwrap();
            if names.contains(&name.trim()) {
                let thread = Pid::from_raw(task.file_name().to_str().unwrap().parse().unwrap());
                ptrace::seize(thread, ptrace::Options::empty()).unwrap();
                ptrace::interrupt(thread).unwrap();
                waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
                frozen.push(thread);
            }
        }
        assert_eq!(frozen.len(), names.len(), "{names:?}");
        Self(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for thread in &self.0 {
            ptrace::detach(*thread, None).unwrap();
        }
    }
}

#[test]
fn one_wedged_thread_or_all_of_them_is_passed_within_two_seconds() {
    in_world(|world| {
        let (_servers, mvp) = plant(world);
        // One of two that carry connections; both, as in a deadlock; the one that learns and answers the control socket.
        let cases: [&[&str]; 3] = [&["data-1"], &["data-0", "data-1"], &["mvp"]];
        for names in cases {
            let load = Load::start(world, world.node.server(), NEW);
            thread::sleep(Duration::from_millis(300));
            let frozen = Frozen::threads(&mvp, names);
            let from = Instant::now();
            thread::sleep(DIRECT_WITHIN + Duration::from_millis(500));
            let until = Instant::now();
            drop(frozen);
            mvp.settled(2, "on");
            let (seen, during) = load.stop();
            seen.none_refused(during);
            direct_from(&seen, from + DIRECT_WITHIN, until);
            let first = seen
                .fresh
                .iter()
                .filter(|asked| asked.at > from && asked.outcome == Ok(404))
                .map(|asked| asked.at - from)
                .min();
            eprintln!(
                "{names:?} wedged: direct after {first:?}, {}",
                Seen::summary(seen.all())
            );
            assert_eq!(
                world.get(world.node.server(), NEW),
                Ok(200),
                "steered again"
            );
        }
    });
}

/// A process that gets next to no CPU time while it lives: a control group with a quota of 1 ms in a second.
struct Starved {
    pid: Pid,
    group: PathBuf,
    root: PathBuf,
}

impl Starved {
    fn process(pid: Pid) -> Self {
        let name = format!("mvp-starved-{pid}");
        let second = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
        let (root, limits): (_, &[(&str, &str)]) = match second {
            Ok(controllers) if controllers.contains("cpu") => {
                let control = "/sys/fs/cgroup/cgroup.subtree_control";
                fs::write(control, "+cpu").unwrap();
                ("/sys/fs/cgroup", &[("cpu.max", "1000 1000000")])
            }
            _ => (
                "/sys/fs/cgroup/cpu",
                &[
                    ("cpu.cfs_period_us", "1000000"),
                    ("cpu.cfs_quota_us", "1000"),
                ],
            ),
        };
        let root = PathBuf::from(root);
        let group = root.join(name);
        fs::create_dir(&group).unwrap_or_else(|error| {
            panic!(
                "starving a process needs a cpu control group ({}): {error}",
                root.display()
            )
        });
        let starved = Self { pid, group, root };
        for (file, value) in limits {
            fs::write(starved.group.join(file), value).unwrap();
        }
        fs::write(starved.group.join("cgroup.procs"), pid.to_string()).unwrap();
        starved
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        // A process that has ended by now has left its group by itself.
        drop(fs::write(
            self.root.join("cgroup.procs"),
            self.pid.to_string(),
        ));
        let gone = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(20));
            fs::remove_dir(&self.group).is_ok()
        });
        assert!(gone, "{} stays", self.group.display());
    }
}

#[test]
fn an_mvp_that_starves_of_cpu_time_is_passed_within_two_seconds() {
    in_world(|world| {
        let (_servers, mvp) = plant(world);
        let load = Load::start(world, world.node.server(), NEW);
        thread::sleep(Duration::from_millis(500));
        let starved = Starved::process(mvp.pid());
        let from = Instant::now();
        thread::sleep(DIRECT_WITHIN + Duration::from_secs(1));
        let until = Instant::now();
        drop(starved);
        mvp.settled(2, "on");
        let (seen, during) = load.stop();
        seen.none_refused(during);
        direct_from(&seen, from + DIRECT_WITHIN, until);
        assert_eq!(world.get(world.node.server(), NEW), Ok(200));
        eprintln!(
            "starved: {} connections, {}",
            seen.opened,
            Seen::summary(seen.all())
        );
    });
}
