//! The clients of a rolling upgrade: each belongs to one node and goes on until it is told to stop. Half of the readers
//! keep their connection, as controllers do; the others connect anew for every request, as scripts do.

use std::{cell::RefCell, collections::BTreeSet, net::SocketAddr, rc::Rc};

use anyhow::{Context as _, Result};
use bench::client::{Answer, Client, Connection};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep, timeout};

use super::ledger::{Anomaly, Ledger};
use crate::demo::{
    kinds,
    probe::{self, Outcome},
};

/// Pause of a client between two requests.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for an answer; then it counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest obedience to `Retry-After` before the single retry.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a broken watch may take to be resumed.
const RESUME_WITHIN: Duration = Duration::from_secs(10);
/// Where the objects are that the clients create and watch: served by every server.
pub(crate) const OBJECTS: &str = "/api/v1/namespaces/default/configmaps";

/// A client's place.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// Name of its node.
    pub(crate) node: String,
    /// Where it connects.
    pub(crate) to: SocketAddr,
    /// As whom.
    pub(crate) client: Client,
    /// What it reports to.
    pub(crate) ledger: Rc<Ledger>,
}

/// What a reader reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Read {
    Common,
    New,
    Old,
    Discovery,
}

impl Read {
    const ALL: [Self; 4] = [Self::Common, Self::New, Self::Old, Self::Discovery];

    const fn path(self) -> &'static str {
        match self {
            Self::Common => "/api/v1/namespaces/default/pods",
            Self::New => kinds::NEW_KIND,
            Self::Old => kinds::OLD_KIND,
            Self::Discovery => "/apis",
        }
    }

    /// Whether a server that served it was there all the time between `begun` and now.
    fn served(self, ledger: &Ledger, begun: Instant) -> bool {
        match self {
            Self::Common | Self::Discovery => true,
            Self::New => ledger.new_since.get().is_some_and(|since| begun >= since),
            Self::Old => ledger.old_until.get().is_none(),
        }
    }
}

/// A connection that is kept between requests, or not.
struct Line {
    seat: Seat,
    kept: Option<Connection>,
    keeps: bool,
}

impl Line {
    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        // As every client library does: a connection that the server has ended is not used again.
        let usable = match &self.kept {
            Some(Connection::Http2(send)) => !send.is_closed(),
            Some(Connection::Http1(send)) => !send.is_closed(),
            None => false,
        };
        let mut connection = match self.kept.take() {
            Some(connection) if usable => connection,
            _ => self.seat.client.connect(self.seat.to).await?,
        };
        let request = self
            .seat
            .client
            .request(method, path, headers, body.to_owned())?;
        let answer = connection.send(request).await?;
        if self.keeps {
            self.kept = Some(connection);
        }
        Ok(answer)
    }

    /// Asks within the patience, and counts.
    async fn counted(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (Outcome, Result<Answer>) {
        let asked = timeout(PATIENCE, self.ask(method, path, headers, body)).await;
        let answer = asked.unwrap_or_else(|late| Err(late.into()));
        let outcome = Outcome::from(&answer);
        self.seat.ledger.asked(outcome);
        (outcome, answer)
    }
}

/// Lists kinds and reads discovery, one after the other.
pub(crate) async fn read(seat: Seat, keeps: bool) {
    let ledger = Rc::clone(&seat.ledger);
    let mut line = Line {
        seat,
        kept: None,
        keeps,
    };
    for read in Read::ALL.into_iter().cycle() {
        if ledger.over.get() {
            return;
        }
        let begun = Instant::now();
        let (first, answer) = read_once(&mut line, read).await;
        let last = if fine(first) {
            first
        } else {
            sleep(retry_after(&answer)).await;
            line.kept = None;
            let (second, _) = read_once(&mut line, read).await;
            // What nobody serves yet, or any more, cannot fail to be read.
            if !fine(second) && read.served(&ledger, begun) {
                let what = format!("{} {read:?}: {first}, again {second}", line.seat.node);
                ledger.saw(Anomaly::FailedRead, &what);
            }
            second
        };
        if last == Outcome::Status(404) && read.served(&ledger, begun) {
            ledger.saw(
                Anomaly::FalseNotFound,
                &format!("{} {read:?}", line.seat.node),
            );
        }
        sleep(PAUSE).await;
    }
}

async fn read_once(line: &mut Line, read: Read) -> (Outcome, Result<Answer>) {
    let headers: &[(&str, &str)] = if read == Read::Discovery {
        &[("accept", probe::V2)]
    } else {
        &[]
    };
    let begun = Instant::now();
    let (outcome, answer) = line.counted("GET", read.path(), headers, "").await;
    if let (Read::Discovery, Ok(answer)) = (read, &answer)
        && outcome == Outcome::Status(200)
        && Read::New.served(&line.seat.ledger, begun)
        && !String::from_utf8_lossy(&answer.body).contains("MutatingAdmissionPolicyBinding")
    {
        line.seat
            .ledger
            .saw(Anomaly::HalfDiscovery, &line.seat.node);
    }
    (outcome, answer)
}

/// An answer that a client can go on with. 404 is one (true or false is another question).
fn fine(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Status(200 | 404))
}

fn retry_after(answer: &Result<Answer>) -> Duration {
    let seconds = answer
        .as_ref()
        .ok()
        .and_then(|answer| answer.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok());
    seconds
        .map_or(Duration::ZERO, Duration::from_secs)
        .min(LONGEST_RETRY_AFTER)
}

/// Creates objects, each marked with a number of its own; never twice.
pub(crate) async fn write(seat: Seat) {
    let ledger = Rc::clone(&seat.ledger);
    let mut line = Line {
        seat,
        kept: None,
        keeps: true,
    };
    for number in 0_u64.. {
        if ledger.over.get() {
            return;
        }
        let mark = format!("{}-{number}", line.seat.node);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"generateName": "rolling-", "labels": {"rolling": "yes", "write": mark}}});
        let json = [("content-type", "application/json")];
        let (outcome, answer) = line
            .counted("POST", OBJECTS, &json, &object.to_string())
            .await;
        let name = answer
            .ok()
            .and_then(|answer| Some(answer.json().ok()?["metadata"]["name"].as_str()?.to_owned()));
        match (outcome, name) {
            (Outcome::Status(201), Some(name)) => {
                ledger.created.borrow_mut().insert(name);
            }
            _ => ledger.saw(Anomaly::FailedWrite, &format!("{mark}: {outcome}")),
        }
        if outcome == Outcome::Status(404) {
            ledger.saw(Anomaly::FalseNotFound, &format!("{mark}: create"));
        }
        sleep(PAUSE).await;
    }
}

/// Names that a watch has shown.
pub(crate) type Shown = Rc<RefCell<BTreeSet<String>>>;

/// Watches the objects for ever; a watch that ends is resumed where it was.
#[expect(clippy::infinite_loop, reason = "the crowd ends its watchers")]
pub(crate) async fn watch(seat: Seat, shown: Shown) {
    let mut from: Option<String> = None;
    let mut broken: Option<Instant> = Some(Instant::now());
    let mut reported = false;
    loop {
        let ended = watch_once(&seat, &shown, &mut from, &mut broken).await;
        let what = ended.map_or_else(|error| format!("{error:#}"), |()| "ended".to_owned());
        if broken.is_none() {
            seat.ledger.note(&format!("{}: watch: {what}", seat.node));
            reported = false;
        }
        let since = *broken.get_or_insert_with(Instant::now);
        if since.elapsed() > RESUME_WITHIN && !reported {
            reported = true;
            seat.ledger.saw(
                Anomaly::LostWatch,
                &format!("{}: not resumed: {what}", seat.node),
            );
        }
        sleep(PAUSE).await;
    }
}

async fn watch_once(
    seat: &Seat,
    shown: &Shown,
    from: &mut Option<String>,
    broken: &mut Option<Instant>,
) -> Result<()> {
    if from.is_none() {
        let path = format!("{OBJECTS}?labelSelector=rolling%3Dyes");
        let listed = timeout(PATIENCE, seat.client.once(seat.to, "GET", &path)).await;
        let listed = listed.unwrap_or_else(|late| Err(late.into()));
        seat.ledger.asked(Outcome::from(&listed));
        let listed = listed?;
        anyhow::ensure!(listed.status == 200, "list: {}", listed.status);
        let listed = listed.json()?;
        for item in listed["items"].as_array().into_iter().flatten() {
            note(shown, item);
        }
        *from = listed["metadata"]["resourceVersion"]
            .as_str()
            .map(str::to_owned);
    }
    let version = from.clone().unwrap_or_default();
    let path = format!(
        "{OBJECTS}?watch=true&labelSelector=rolling%3Dyes&resourceVersion={version}&timeoutSeconds=600"
    );
    let begin = async {
        let mut connection = seat.client.connect(seat.to).await?;
        let answer = connection
            .start(seat.client.request("GET", &path, &[], Bytes::new())?)
            .await?;
        // The connection lives as long as its sender.
        Ok::<_, anyhow::Error>((connection, answer))
    };
    let begun = timeout(PATIENCE, begin)
        .await
        .unwrap_or_else(|late| Err(late.into()));
    seat.ledger.asked(match &begun {
        Ok((_, answer)) => Outcome::Status(answer.status().as_u16()),
        Err(error) => Outcome::of(error),
    });
    let (_connection, answer) = begun?;
    anyhow::ensure!(answer.status() == 200, "watch: {}", answer.status());
    *broken = None;
    let mut body = answer.into_body();
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            read.extend_from_slice(&data);
        }
        while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = read.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).context("an event that is no JSON")?;
            if event["type"] == "ERROR" {
                *from = None;
                anyhow::bail!("{}", event["object"]["message"]);
            }
            note(shown, &event["object"]);
            if let Some(version) = event["object"]["metadata"]["resourceVersion"].as_str() {
                *from = Some(version.to_owned());
            }
        }
    }
    Ok(())
}

fn note(shown: &Shown, object: &Value) {
    if let Some(name) = object["metadata"]["name"].as_str() {
        shown.borrow_mut().insert(name.to_owned());
    }
}
