//! Clients that do not stop: 500 new connections a second, some of them whole requests over TLS, and a few that keep
//! their connection and ask again and again, as controllers do.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bench::client::{Client, Connection};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::world::World;

/// New connections a second.
const RATE: u32 = 500;
/// Every so many of them is a whole request.
const WHOLE: u64 = 40;
/// So many whole requests at once at most: a machine that is busy with other things is asked less, not later.
const AT_ONCE: usize = 50;
/// Longest wait for an answer, and for a connect.
const PATIENCE: Duration = Duration::from_secs(10);

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// When it began.
    pub(crate) at: Instant,
    /// How long it took.
    pub(crate) took: Duration,
    /// Its status, or what went wrong.
    pub(crate) outcome: Result<u16, String>,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// New connections a second that there should have been.
    rate: u32,
    /// Connections that were made.
    pub(crate) opened: u64,
    /// Connects that were refused or lost, and how.
    pub(crate) refused: Vec<String>,
    /// When connections were reset in the very moment of their birth: they reached somebody who died.
    pub(crate) reset: Vec<Instant>,
    /// Requests, each on a connection of its own.
    pub(crate) fresh: Vec<Asked>,
    /// Requests of clients that keep their connections.
    pub(crate) steady: Vec<Asked>,
}

impl Seen {
    /// Requests by outcome, for people.
    pub(crate) fn summary<'a>(asked: impl IntoIterator<Item = &'a Asked> + 'a) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for each in asked {
            let name = match &each.outcome {
                Ok(status) => status.to_string(),
                Err(error) => error.clone(),
            };
            *counts.entry(name).or_default() += 1;
        }
        format!("{counts:?}")
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Asked> {
        self.fresh.iter().chain(&self.steady)
    }

    /// Demands that no connect was refused, and that there were as many as there should be.
    #[track_caller]
    pub(crate) fn none_refused(&self, during: Duration) {
        assert_eq!(self.refused, Vec::<String>::new(), "of {}", self.opened);
        assert_eq!(self.reset, Vec::<Instant>::new(), "of {}", self.opened);
        // The machine may be busy; a tenth of the rate still shows it.
        let least = during.as_secs_f64() * f64::from(self.rate) / 10.0;
        assert!(
            self.opened as f64 > least,
            "{} connections in {during:?}",
            self.opened
        );
    }

    /// Demands that every request was answered with this status.
    #[track_caller]
    pub(crate) fn all_answered(&self, status: u16) {
        let wrong = |asked: &&Asked| asked.outcome != Ok(status);
        assert!(!self.fresh.is_empty() && !self.steady.is_empty());
        assert_eq!(
            self.all().filter(wrong).count(),
            0,
            "on new connections {}, on kept ones {}",
            Self::summary(&self.fresh),
            Self::summary(&self.steady)
        );
    }
}

/// The clients; they end with [`Load::stop`].
pub(crate) struct Load<'a> {
    world: &'a World,
    start: Instant,
    seen: Arc<Mutex<Seen>>,
    stop: tokio::sync::watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl<'a> Load<'a> {
    /// From the clients' host to a server's address.
    pub(crate) fn start(world: &'a World, to: SocketAddr, path: &'static str) -> Self {
        Self::at_rate(world, to, path, RATE)
    }

    /// The same with so many new connections a second.
    pub(crate) fn at_rate(world: &'a World, to: SocketAddr, path: &'static str, rate: u32) -> Self {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let seen = Arc::<Mutex<Seen>>::default();
        seen.lock().unwrap().rate = rate;
        // A storm is a storm in everything; minutes of it would only show how fast a debug build is.
        let pause = Duration::from_millis(if rate < RATE { 100 } else { 20 });
        let mut tasks = Vec::new();
        {
            let (client, seen, stopped) = (world.admin.clone(), Arc::clone(&seen), stopped.clone());
            tasks.push(world.outside.start(async move {
                let mut running = JoinSet::new();
                let room = Arc::new(Semaphore::new(AT_ONCE));
                let mut ticks = interval(Duration::from_secs(1) / rate);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
                let mut number = 0_u64;
                while !*stopped.borrow() {
                    ticks.tick().await;
                    number += 1;
                    let (client, seen) = (client.clone(), Arc::clone(&seen));
                    let whole = number.is_multiple_of(WHOLE);
                    if whole && let Ok(slot) = Arc::clone(&room).try_acquire_owned() {
                        running.spawn(async move {
                            fresh(client, to, path, seen).await;
                            drop(slot);
                        });
                    } else {
                        running.spawn(knock(to, seen));
                    }
                    while running.try_join_next().is_some() {}
                }
                while running.join_next().await.is_some() {}
            }));
        }
        for client in [&world.admin, &world.admin, &world.admin_h1] {
            let (client, seen, stopped) = (client.clone(), Arc::clone(&seen), stopped.clone());
            tasks.push(world.outside.start(async move {
                let mut connection = None;
                while !*stopped.borrow() {
                    let at = Instant::now();
                    let outcome = ask(&client, &mut connection, to, path).await;
                    let asked = Asked {
                        at,
                        took: at.elapsed(),
                        outcome,
                    };
                    seen.lock().unwrap().steady.push(asked);
                    sleep(pause).await;
                }
            }));
        }
        Self {
            world,
            start: Instant::now(),
            seen,
            stop,
            tasks,
        }
    }

    /// Ends asking, waits for what was asked, and tells what was seen, and for how long.
    pub(crate) fn stop(self) -> (Seen, Duration) {
        let during = self.start.elapsed();
        self.stop.send_replace(true);
        let tasks = self.tasks;
        self.world.outside.run(async move {
            for task in tasks {
                task.await.unwrap();
            }
        });
        let seen = self.seen.lock().unwrap().clone();
        (seen, during)
    }
}

/// Connects, and leaves a moment later without a word.
async fn knock(to: SocketAddr, seen: Arc<Mutex<Seen>>) {
    match timeout(PATIENCE, TcpStream::connect(to)).await {
        Ok(Ok(stream)) => {
            seen.lock().unwrap().opened += 1;
            sleep(Duration::from_millis(30)).await;
            // A reset, so that no TIME_WAIT uses the ports up.
            let now = Some(Duration::ZERO);
            socket2::SockRef::from(&stream).set_linger(now).unwrap();
        }
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionReset => {
            seen.lock().unwrap().reset.push(Instant::now());
        }
        Ok(Err(error)) => seen.lock().unwrap().refused.push(error.to_string()),
        Err(_late) => seen.lock().unwrap().refused.push("late".to_owned()),
    }
}

/// One request on a connection of its own.
async fn fresh(client: Client, to: SocketAddr, path: &'static str, seen: Arc<Mutex<Seen>>) {
    let at = Instant::now();
    let outcome = ask(&client, &mut None, to, path).await;
    let mut seen = seen.lock().unwrap();
    match &outcome {
        Err(error) if error.contains("refused") => seen.refused.push(error.clone()),
        _ => seen.opened += 1,
    }
    seen.fresh.push(Asked {
        at,
        took: at.elapsed(),
        outcome,
    });
}

/// One request as Go's client sends a GET: on the connection that it has, and again on a new one if that one ended before
/// the server looked at it.
pub(crate) async fn ask(
    client: &Client,
    connection: &mut Option<Connection>,
    to: SocketAddr,
    path: &str,
) -> Result<u16, String> {
    let asked = async {
        loop {
            let kept = connection.is_some();
            let open = match connection {
                Some(open) => open,
                None => connection.insert(client.connect(to).await?),
            };
            match open.send(client.request("GET", path, &[], "")?).await {
                Ok(answer) => return anyhow::Ok(answer.status.as_u16()),
                Err(error) => {
                    *connection = None;
                    if !(is_sent_away(&error) || kept && is_unprocessed(&error)) {
                        return Err(error);
                    }
                }
            }
        }
    };
    match timeout(PATIENCE, asked).await {
        Ok(Ok(status)) => Ok(status),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_late) => {
            *connection = None;
            Err("no answer".to_owned())
        }
    }
}

/// The server said that it did not look at the stream.
fn is_sent_away(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<h2::Error>().is_some_and(|error| {
            error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR)
                || error.reason() == Some(h2::Reason::REFUSED_STREAM)
                || error.reason() == Some(h2::Reason::NO_ERROR)
        })
    })
}

/// What Go's transport sends again on a connection that it had kept: it ended before the request was looked at.
fn is_unprocessed(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let hyper = cause.downcast_ref::<hyper::Error>().is_some_and(|error| {
            error.is_canceled() || error.is_closed() || error.is_incomplete_message()
        });
        let broken = cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| matches!(error.kind(), ErrorKind::NotConnected));
        hyper || broken
    })
}
