//! The store across processes: JSON lines over a unix socket, one connection per operation in flight.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
};

use super::{Backend, Event, Op, Store, StoreError, Stored, Writes};

/// How long a poll for changes waits at the far side before it answers with nothing.
const POLL: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
struct Wire {
    key: String,
    revision: u64,
    value: Value,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireEvent {
    object: Wire,
    previous: Option<Wire>,
    deleted: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Object(Option<Wire>),
    Objects(Vec<Wire>, u64),
    Writes(Writes),
    Events(Vec<WireEvent>, u64),
    Refused(StoreError),
}

impl From<&Stored> for Wire {
    fn from(stored: &Stored) -> Self {
        Self {
            key: stored.key.clone(),
            revision: stored.revision,
            value: stored.value.clone(),
        }
    }
}

impl From<Wire> for Arc<Stored> {
    fn from(wire: Wire) -> Self {
        let json = Bytes::from(wire.value.to_string());
        Self::new(Stored {
            key: wire.key,
            revision: wire.revision,
            value: wire.value,
            json,
        })
    }
}

#[derive(Debug)]
pub(super) struct Client {
    path: PathBuf,
    idle: Mutex<Vec<BufReader<UnixStream>>>,
}

impl Client {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            idle: Mutex::default(),
        }
    }

    async fn call(&self, op: &Op) -> Result<Reply, StoreError> {
        let unreachable = |error: &dyn std::fmt::Display| {
            StoreError::Unreachable(format!("{}: {error}", self.path.display()))
        };
        let kept = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => BufReader::new(
                UnixStream::connect(&self.path)
                    .await
                    .map_err(|error| unreachable(&error))?,
            ),
        };
        let mut line = serde_json::to_vec(op).map_err(|error| unreachable(&error))?;
        line.push(b'\n');
        connection
            .get_mut()
            .write_all(&line)
            .await
            .map_err(|error| unreachable(&error))?;
        let mut answer = Vec::new();
        let read = connection
            .read_until(b'\n', &mut answer)
            .await
            .map_err(|error| unreachable(&error))?;
        if read == 0 {
            return Err(unreachable(&"the connection was closed"));
        }
        let reply = serde_json::from_slice(&answer).map_err(|error| unreachable(&error))?;
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
        match reply {
            Reply::Refused(error) => Err(error),
            reply => Ok(reply),
        }
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Arc<Stored>>, StoreError> {
        match self
            .call(&Op::Get {
                key: key.to_owned(),
            })
            .await?
        {
            Reply::Object(object) => Ok(object.map(Into::into)),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<(Vec<Arc<Stored>>, u64), StoreError> {
        match self
            .call(&Op::List {
                prefix: prefix.to_owned(),
            })
            .await?
        {
            Reply::Objects(objects, revision) => {
                Ok((objects.into_iter().map(Into::into).collect(), revision))
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn write(&self, op: Op) -> Result<Arc<Stored>, StoreError> {
        match self.call(&op).await? {
            Reply::Object(Some(object)) => Ok(object.into()),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn writes(&self, key: &str) -> Result<Writes, StoreError> {
        match self
            .call(&Op::Writes {
                key: key.to_owned(),
            })
            .await?
        {
            Reply::Writes(writes) => Ok(writes),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn changes(
        &self,
        prefix: &str,
        after: u64,
    ) -> Result<(Vec<Event>, u64), StoreError> {
        match self
            .call(&Op::Poll {
                prefix: prefix.to_owned(),
                after,
            })
            .await?
        {
            Reply::Events(events, revision) => {
                let events = events.into_iter().map(|event| Event {
                    revision: event.object.revision,
                    object: event.object.into(),
                    previous: event.previous.map(Into::into),
                    deleted: event.deleted,
                });
                Ok((events.collect(), revision))
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(reply: &Reply) -> StoreError {
    StoreError::Unreachable(format!(
        "the store gave an answer to another question: {reply:?}"
    ))
}

/// Serves `store` at `path` until dropped.
pub(super) async fn serve(store: Store, path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        connections.spawn(converse(store.clone(), stream));
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(store: Store, stream: UnixStream) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match stream.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let Ok(op) = serde_json::from_slice::<Op>(&line) else {
            return;
        };
        let reply = answer(&store, op).await.unwrap_or_else(Reply::Refused);
        let Ok(mut text) = serde_json::to_vec(&reply) else {
            return;
        };
        text.push(b'\n');
        if stream.get_mut().write_all(&text).await.is_err() {
            return;
        }
    }
}

async fn answer(store: &Store, op: Op) -> Result<Reply, StoreError> {
    Ok(match op {
        Op::Get { key } => Reply::Object(store.get(&key).await?.as_deref().map(Into::into)),
        Op::List { prefix } => {
            let (objects, revision) = store.list(&prefix).await?;
            Reply::Objects(
                objects.iter().map(|object| (&**object).into()).collect(),
                revision,
            )
        }
        Op::Create { key, object } => {
            Reply::Object(Some((&*store.create(&key, object).await?).into()))
        }
        Op::Update {
            key,
            object,
            expected,
        } => Reply::Object(Some((&*store.update(&key, object, expected).await?).into())),
        Op::Delete {
            key,
            expected,
            last,
        } => Reply::Object(Some((&*store.delete(&key, expected, last).await?).into())),
        Op::Writes { key } => Reply::Writes(store.writes(&key).await?),
        Op::Poll { prefix, after } => {
            let before = match &store.0 {
                Backend::Memory(memory) => memory.revision().max(after),
                Backend::Remote(_) => after,
            };
            match tokio::time::timeout(POLL, store.changes(&prefix, after)).await {
                Ok(changes) => {
                    let (events, revision) = changes?;
                    let events = events.iter().map(|event| WireEvent {
                        object: (&*event.object).into(),
                        previous: event.previous.as_deref().map(Into::into),
                        deleted: event.deleted,
                    });
                    Reply::Events(events.collect(), revision)
                }
                // Nothing came: what had happened when the wait began is known to be without interest.
                Err(_) => Reply::Events(Vec::new(), before),
            }
        }
    })
}
