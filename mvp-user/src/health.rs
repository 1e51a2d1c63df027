//! How local and every peer are (design 5.4), and whether they authenticate what mvp forwards (design 4.3).
//!
//! [`run`] keeps two loops per server in the side room: the *probe* asks `/readyz` over a fresh verified connection and
//! feeds a pure state machine (`vitals`); the *proof* asks "who am I?" as the marker user. [`Prober`] is the handle of
//! the data threads: they report what traffic showed and share one proof when a 401 may be meant for mvp.
//! Not for what a server serves (`peers`), nor for what its state means for a request (`route`).

use std::{
    collections::HashMap,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use http::StatusCode;
use prometheus_client::registry::Registry;
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    api::ServerId,
    table::{Health, Membership, Proof, Server, Table},
    upstream::Dialer,
};

pub mod link;
mod metrics;
pub mod proof;
pub mod vitals;

use link::{Answer, Link, LinkError, Marker};
use proof::Verdict;
use vitals::{Decided, Seen, Vitals};

/// How often local is probed, and every server that is not up (design 3).
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// How often a peer that is up, or has been unwell for [`PATIENCE`], is probed: traffic tells more, and sooner.
const PEER_PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// How often a departed peer is probed: nothing is sent to it, but it may come back as another version.
const DEPARTED_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a peer that is not up is probed as often as local.
const PATIENCE: Duration = Duration::from_mins(1);
/// A server that takes longer to shake hands is down (design 5.4); one that takes longer to answer is not ready.
const SILENCE: Duration = Duration::from_secs(2);
/// How often a proven server is asked again (design 4.3).
const PROOF_INTERVAL: Duration = Duration::from_secs(30);
/// How often a server is asked again while its proof is withdrawn.
const REFUSED_INTERVAL: Duration = Duration::from_secs(2);
/// How often a server is asked again after a proof that decided nothing.
const UNDECIDED_INTERVAL: Duration = Duration::from_secs(5);
/// Proofs of one server start at most this often (design 4.3).
const PROOF_SPACING: Duration = Duration::from_secs(1);
/// How long one proof may take.
const PROOF_WITHIN: Duration = Duration::from_secs(3);
/// Looks that [`Prober::look_now`] asks for begin at most this often.
const LOOK_SPACING: Duration = Duration::from_millis(100);
/// How long [`Prober::prove_now`] waits at most: the spacing and one proof.
const PROVE_NOW_WITHIN: Duration = Duration::from_secs(5);
/// No report is waiting.
const NO_REPORT: u8 = u8::MAX;

/// The handle of the data threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Prober {
    table: Arc<Table>,
    wards: Arc<DashMap<ServerId, Arc<Ward>>>,
    metrics: metrics::Metrics,
}

/// What the two loops of one server and the data threads share.
#[derive(Debug)]
struct Ward {
    /// Wakes the probe.
    probe: Notify,
    /// Wakes the proof.
    prove: Notify,
    /// A [`Health`] that was reported and not taken in yet, or [`NO_REPORT`].
    report: AtomicU8,
    /// The last proof that was tried.
    rounds: watch::Sender<Round>,
    /// When the last look that is over began.
    looks: watch::Sender<Option<Instant>>,
}

/// One try to prove identity forwarding.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// When it began; none: never tried.
    began: Option<Instant>,
    /// Its own result; none: undecided.
    result: Option<Proof>,
    /// The last decided result.
    decided: Option<Decided>,
}

/// What the side room's loops need.
#[derive(Debug)]
pub struct Probing {
    /// Opens connections.
    pub dialer: Arc<Dialer>,
    /// Names of the headers that carry an identity.
    pub marker: Marker,
}

impl Ward {
    fn new() -> Self {
        Self {
            probe: Notify::new(),
            prove: Notify::new(),
            report: AtomicU8::new(NO_REPORT),
            rounds: watch::Sender::default(),
            looks: watch::Sender::default(),
        }
    }
}

impl Prober {
    /// A handle for the servers of `table`; [`run`] makes it work.
    pub fn new(table: Arc<Table>) -> Self {
        Self {
            table,
            wards: Arc::default(),
            metrics: metrics::Metrics::default(),
        }
    }

    /// Publishes how the servers are, and how proofs go.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry, Arc::clone(&self.table));
    }

    /// Traffic found that `server` is not up: true at once for every thread, and looked into at once. That one is up
    /// only probes can tell.
    pub fn report(&self, server: &Server, health: Health) {
        if health == Health::Up {
            return self.look(server.id);
        }
        let before = server.set_health(health);
        if let Some(ward) = self.ward(server.id) {
            ward.report.store(health as u8, Ordering::Release);
            ward.probe.notify_one();
        }
        if before != health {
            self.table.touch();
        }
    }

    /// Local's listening socket is another one than before: a new process, that counts as starting until `/readyz` is
    /// 200 and it proved identity forwarding (design 4.3).
    pub fn local_replaced(&self) {
        let local = Arc::clone(&self.table.members().local);
        self.report(&local, Health::Starting);
    }

    /// Looks at `server` at once, because something about it changed.
    pub fn look(&self, server: ServerId) {
        if let Some(ward) = self.ward(server) {
            ward.probe.notify_one();
        }
    }

    /// Waits for one look at `server` that began at `after` or later and has been taken in. It is shared by all who wait,
    /// and such looks begin at most every 100 ms, so that a scan of random paths costs a server that is down ten a
    /// second. The caller bounds the wait.
    pub async fn look_now(&self, server: &Server, after: Instant) {
        let Some(ward) = self.ward(server.id) else {
            return;
        };
        let mut looks = ward.looks.subscribe();
        loop {
            let last = *looks.borrow_and_update();
            if last.is_some_and(|began| began >= after) {
                return;
            }
            if let Some(last) = last {
                sleep_until(last + LOOK_SPACING).await;
            }
            if looks.has_changed().is_ok_and(|changed| changed) {
                continue;
            }
            ward.probe.notify_one();
            if looks.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether mvp's own identity forwarding is refused by `server`, asked by one proof that begins after this call and
    /// is shared by all who wait: [`Proof::Refused`] if it is, [`Proof::Proven`] if it is not, [`Proof::Unproven`] if
    /// that cannot be told within 5 s. Proofs of one server begin at most once a second.
    pub async fn prove_now(&self, server: &Server) -> Proof {
        let after = Instant::now();
        let Some(ward) = self.ward(server.id) else {
            return Proof::Unproven;
        };
        let mut rounds = ward.rounds.subscribe();
        let shared = async {
            loop {
                let round = *rounds.borrow_and_update();
                if round.began.is_some_and(|began| began >= after) {
                    return round.result.unwrap_or(Proof::Unproven);
                }
                ward.prove.notify_one();
                if rounds.changed().await.is_err() {
                    return Proof::Unproven;
                }
            }
        };
        timeout(PROVE_NOW_WITHIN, shared)
            .await
            .unwrap_or(Proof::Unproven)
    }

    fn ward(&self, id: ServerId) -> Option<Arc<Ward>> {
        self.wards.get(&id).map(|ward| Arc::clone(ward.value()))
    }
}

/// Probes every server of the table for ever. Runs in the side room, inside its `LocalSet`; dropping it stops everything.
pub async fn run(prober: Prober, probing: Probing) {
    let probing = Rc::new(probing);
    let mut changes = prober.table.changed.subscribe();
    let mut tasks = JoinSet::new();
    let mut running = HashMap::new();
    loop {
        let members = prober.table.members();
        let servers: Vec<_> = std::iter::once(&members.local)
            .chain(&members.peers)
            .map(Arc::clone)
            .collect();
        drop(members);
        // A peer that left and came back under the same address is another `Server`: its loops must write to the new one.
        running.retain(|id, (kept, abort): &mut (Arc<Server>, AbortHandle)| {
            let stays = servers.iter().any(|server| Arc::ptr_eq(server, kept));
            if !stays {
                abort.abort();
                prober.wards.remove(id);
            }
            stays
        });
        for server in servers {
            running.entry(server.id).or_insert_with(|| {
                let ward = Arc::new(Ward::new());
                prober.wards.insert(server.id, Arc::clone(&ward));
                let abort = tasks.spawn_local(attend(
                    prober.clone(),
                    Arc::clone(&server),
                    ward,
                    Rc::clone(&probing),
                ));
                (server, abort)
            });
        }
        while tasks.try_join_next().is_some() {}
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Both loops of one server.
async fn attend(prober: Prober, server: Arc<Server>, ward: Arc<Ward>, probing: Rc<Probing>) {
    tokio::join!(
        keep_probing(&prober.table, &server, &ward, &probing),
        keep_proof(&prober, &server, &ward, &probing),
    );
}

async fn keep_probing(table: &Table, server: &Server, ward: &Ward, probing: &Probing) {
    let mut vitals = Vitals::default();
    let mut unwell_since = None;
    loop {
        let began = Instant::now();
        let (seen, why) = look(server, probing).await;
        let now = Instant::now();
        // What traffic reported, through `report` or straight to the server, comes first.
        let reported = ward.report.swap(NO_REPORT, Ordering::AcqRel) != NO_REPORT;
        let known = server.health();
        if reported || (known != vitals.health() && known != Health::Up) {
            vitals.report(known, now);
        }
        let can_forward = probing.dialer.certificates().current().can_forward();
        let decided = last_word(ward.rounds.borrow().decided, can_forward, now);
        let before = vitals.health();
        let health = seen.map_or(known, |seen| vitals.observe(seen, began, now, decided));
        if seen.is_some() && server.set_health(health) != health {
            table.touch();
        }
        if seen.is_some() && before != health {
            info!(server = %server.id, address = %server.address, ?before, now = ?health, why, "Health changed");
        }
        let ready = seen == Some(Seen::Ready);
        if ready {
            server.set_latency(now - began);
        }
        ward.looks.send_replace(Some(began));
        if ready && vitals.wants_proof(decided) {
            ward.prove.notify_one();
        }
        if health == Health::Up {
            unwell_since = None;
        } else {
            unwell_since.get_or_insert(now);
        }
        let interval = match (server.id, server.membership()) {
            (ServerId::Local, _) => PROBE_INTERVAL,
            (_, Membership::Departed) => DEPARTED_PROBE_INTERVAL,
            _ if unwell_since.is_some_and(|since| now - since < PATIENCE) => PROBE_INTERVAL,
            _ => PEER_PROBE_INTERVAL,
        };
        tokio::select! {
            () = sleep_until(began + interval) => {}
            () = ward.probe.notified() => {}
        }
    }
}

/// The last decided proof. Without a front-proxy certificate (`--listen` alone) there is nothing to prove, and a server
/// that is ready again must not wait for it for ever.
const fn last_word(decided: Option<Decided>, can_forward: bool, now: Instant) -> Option<Decided> {
    if can_forward {
        decided
    } else {
        Some(Decided {
            began: now,
            proof: Proof::Unproven,
        })
    }
}

/// One look at `/readyz`, and words for the log. `None`: this node could not even ask (no descriptor or port is free), which
/// says nothing about the server; what is open to it goes on being used.
async fn look(server: &Server, probing: &Probing) -> (Option<Seen>, String) {
    let mut link = match Link::open(&probing.dialer, server, &probing.marker, SILENCE).await {
        Ok(link) => link,
        Err(LinkError::Dial(error)) if !error.is_the_servers() => {
            debug!(server = %server.id, %error, "This node cannot look");
            return (None, error.to_string());
        }
        Err(error) => return (Some(Seen::Unreachable), error.to_string()),
    };
    link.extend(SILENCE);
    match link.get("/readyz", "*/*", None).await {
        Ok(answer) => (Some(read_readyz(&answer)), answer.status.to_string()),
        // It shook hands: it lives, but does not answer in time.
        Err(LinkError::TimedOut) => (
            Some(Seen::NotReady { leaving: false }),
            LinkError::TimedOut.to_string(),
        ),
        Err(error) => (Some(Seen::Unreachable), error.to_string()),
    }
}

/// What an answer to `/readyz` says.
fn read_readyz(answer: &Answer) -> Seen {
    if answer.status == StatusCode::OK {
        return Seen::Ready;
    }
    let says = |words: &[u8]| answer.body.windows(words.len()).any(|part| part == words);
    let leaving = answer.status == StatusCode::TOO_MANY_REQUESTS
        || says(b"[-]shutdown")
        || says(b"shutting down");
    Seen::NotReady { leaving }
}

async fn keep_proof(prober: &Prober, server: &Server, ward: &Ward, probing: &Probing) {
    let mut generations = probing.dialer.certificates().generations();
    let mut last_began: Option<Instant> = None;
    let mut again = None;
    loop {
        let due = async {
            match again {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            // The probe saw it ready, or somebody waits in `prove_now`.
            () = ward.prove.notified() => {}
            Ok(()) = generations.changed() => {}
        }
        if let Some(last) = last_began {
            sleep_until(last + PROOF_SPACING).await;
        }
        let began = Instant::now();
        last_began = Some(began);
        let result = match ask(server, probing).await {
            Ok(Some(Verdict::Echoed)) => Some(Proof::Proven),
            Ok(Some(Verdict::Refused)) => Some(Proof::Refused),
            Ok(Some(Verdict::Absent | Verdict::Unknown)) => None,
            Ok(None) => {
                debug!(server = %server.id, "No front-proxy certificate: nothing to prove");
                None
            }
            Err(error) => {
                debug!(server = %server.id, %error, "Identity forwarding cannot be proven now");
                None
            }
        };
        prober.metrics.count(result);
        if let Some(proof) = result
            && server.set_proof(proof) != proof
        {
            match proof {
                Proof::Refused => {
                    warn!(server = %server.id, address = %server.address, "Identity forwarding is refused");
                }
                _ => {
                    info!(server = %server.id, address = %server.address, "Identity forwarding is proven");
                }
            }
            prober.table.touch();
        }
        ward.rounds.send_modify(|round| {
            *round = Round {
                began: Some(began),
                result,
                decided: result.map_or(round.decided, |proof| Some(Decided { began, proof })),
            };
        });
        again = Some(
            began
                + match result {
                    Some(Proof::Proven) => PROOF_INTERVAL,
                    Some(_) => REFUSED_INTERVAL,
                    None => UNDECIDED_INTERVAL,
                },
        );
        // A decided proof may be all that the probe waits for.
        if server.health() != Health::Up {
            ward.probe.notify_one();
        }
    }
}

/// Asks who we are; none where mvp has no front-proxy certificate.
async fn ask(server: &Server, probing: &Probing) -> Result<Option<Verdict>, LinkError> {
    let mut link = Link::open(&probing.dialer, server, &probing.marker, PROOF_WITHIN).await?;
    if !link.forwards() {
        return Ok(None);
    }
    proof::prove(&mut link).await.map(Some)
}

#[cfg(test)]
mod tests;
