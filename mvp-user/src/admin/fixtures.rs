//! A [`State`] with three servers, for the tests of `admin` and of `cli`.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use clap::{Args as _, Command, FromArgMatches as _};
use tokio::{sync::watch, time::Instant};

use super::{
    Daemon, Process, State, Taken,
    wire::{Connections, Steering},
};
use crate::{
    api::{GroupVersion, Gvr, ServerId, Verb, Verbs},
    config::{Flags, SteerMode, resolve},
    health::Prober,
    peers::Learner,
    table::{Catalogue, Freshness, Health, Membership, Proof, Served, Server, Table},
    tls::fixtures::Pki,
};

/// Does as it is told.
#[derive(Default)]
pub(crate) struct Puppet {
    pub(crate) mode: Mutex<Option<SteerMode>>,
    pub(crate) percent: AtomicU8,
    pub(crate) draining: AtomicBool,
    pub(crate) stuck: AtomicBool,
    pub(crate) full: AtomicBool,
    /// Its requests to itself get no answer.
    pub(crate) mute: AtomicBool,
    /// Orders are taken and not carried out.
    pub(crate) idle: AtomicBool,
    /// The number of the last order that was.
    pub(crate) carried_out: watch::Sender<u64>,
}

impl Daemon for Puppet {
    fn steering(&self) -> Steering {
        let mode = *self.mode.lock().unwrap();
        let mode = match mode {
            Some(SteerMode::Always) => "always",
            Some(SteerMode::Never) => "never",
            _ => "auto",
        };
        let (state, why) = match mode {
            _ if self.full.load(Ordering::Relaxed) => ("full", "full"),
            "never" => ("off", "never"),
            _ => ("on", "skew"),
        };
        Steering {
            mode: mode.to_owned(),
            state: state.to_owned(),
            why: why.to_owned(),
            detail: String::new(),
            since: 61,
            percent: 100 - self.percent.load(Ordering::Relaxed),
            lookups: [("steered".to_owned(), 12), ("off".to_owned(), 3)].into(),
            older_connections: Some(2),
        }
    }

    fn set_mode(&self, mode: SteerMode) -> Result<Taken, String> {
        let number = *self.carried_out.borrow() + 1;
        if !self.idle.load(Ordering::Relaxed) {
            *self.mode.lock().unwrap() = Some(mode);
            self.carried_out.send_replace(number);
        }
        Ok(Taken::new(number, self.carried_out.subscribe()))
    }

    fn set_percent(&self, percent: u8) -> Result<(), String> {
        if percent == 13 {
            return Err("this mvp does not steer".to_owned());
        }
        self.percent.store(100 - percent, Ordering::Relaxed);
        Ok(())
    }

    fn beats(&self) -> Vec<Duration> {
        let stuck = self.stuck.load(Ordering::Relaxed);
        vec![
            Duration::from_millis(120),
            Duration::from_secs(if stuck { 11 } else { 0 }),
        ]
    }

    fn answered_itself(&self) -> Option<Duration> {
        let mute = self.mute.load(Ordering::Relaxed);
        Some(Duration::from_secs(if mute { 12 } else { 0 }))
    }

    fn connections(&self) -> Connections {
        Connections {
            open: 7,
            bound: 20_000,
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// What a test holds.
pub(crate) struct Stage {
    pub(crate) state: Arc<State>,
    pub(crate) puppet: Arc<Puppet>,
    pub(crate) peers: Vec<Arc<Server>>,
    /// The files that are in use.
    pub(crate) pki: Pki,
}

fn catalogue(version: &str, resources: &[(&str, &str, &str, &[&str])]) -> Arc<Catalogue> {
    let verbs = Verb::ALL.into_iter().fold(Verbs::NONE, Verbs::with);
    let mut catalogue = Catalogue::new(
        Arc::default(),
        version.into(),
        Freshness::Fresh,
        Instant::now(),
        1,
    );
    for (group, version, resource, subresources) in resources {
        catalogue
            .group_versions
            .insert(GroupVersion::new(group, version));
        let mut served = Served {
            verbs,
            ..Served::default()
        };
        for subresource in *subresources {
            let verbs = Verbs::NONE.with(Verb::Get).with(Verb::Patch);
            served.subresources.insert((*subresource).into(), verbs);
        }
        catalogue
            .resources
            .insert(Gvr::new(group, version, resource), served);
    }
    Arc::new(catalogue)
}

impl Stage {
    /// Local is 1.34, 10.0.0.2 is 1.36, 10.0.0.3 is 1.34 and has left.
    pub(crate) fn new() -> Self {
        let pki = Pki::new();
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let local = Arc::new(Server::new(ServerId::Local, address("127.0.0.1:6443")));
        let peers: Vec<_> = ["10.0.0.2:6443", "10.0.0.3:6443"]
            .map(|text| Arc::new(Server::new(ServerId::Peer(address(text)), address(text))))
            .into();
        let table = Arc::new(Table::new(Arc::clone(&local)));
        table.set_peers(peers.clone());
        table.set_ready(true);
        for server in std::iter::once(&local).chain(&peers) {
            server.set_health(Health::Up);
            server.set_proof(Proof::Proven);
        }
        peers[0].name.store(Some(Arc::new("cp-2".to_owned())));
        peers[1].set_membership(Membership::Departed);
        let old: &[(&str, &str, &str, &[&str])] = &[
            ("", "v1", "pods", &["status"]),
            ("apps", "v1", "deployments", &["scale"]),
        ];
        let new: &[(&str, &str, &str, &[&str])] = &[
            ("", "v1", "pods", &["status", "resize"]),
            ("apps", "v1", "deployments", &["scale"]),
            ("new.k8s.io", "v1", "things", &[]),
        ];
        table.publish(ServerId::Local, catalogue("v1.34.0", old));
        table.publish(peers[0].id, catalogue("v1.36.0", new));
        table.publish(peers[1].id, catalogue("v1.34.0", old));
        let tls = pki.load();
        let words = [
            "mvp".to_owned(),
            "--kubeadm-manifest=".to_owned(),
            format!("--tls-cert-file={}", pki.path("apiserver.crt").display()),
            format!(
                "--tls-private-key-file={}",
                pki.path("apiserver.key").display()
            ),
            format!("--peer-ca-file={}", pki.path("ca.crt").display()),
        ];
        let matches = Flags::augment_args(Command::new("mvp"))
            .try_get_matches_from(words)
            .unwrap();
        let resolved =
            resolve(&Flags::from_arg_matches(&matches).unwrap(), |_| Vec::new()).unwrap();
        let puppet = Arc::new(Puppet::default());
        let state = Arc::new(State {
            tls,
            learner: Learner::new(Arc::clone(&table)),
            prober: Prober::new(Arc::clone(&table)),
            table,
            config: Arc::new(resolved.config),
            settings: resolved.settings,
            flags: resolved.flags,
            traffic: Arc::default(),
            daemon: Arc::clone(&puppet) as Arc<dyn Daemon>,
            process: Process::begin(),
        });
        Self {
            state,
            puppet,
            peers,
            pki,
        }
    }
}
