//! The control socket: JSON lines, one [`Command`] a line, one [`Answer`] back. For tests and demos whose servers are processes.

use std::{path::Path, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
};

use super::{Connection, Fault, Handle, Limits, Phase, Protocols, Rule, Seen, User, Writes};

/// What can be asked of a running server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// [`Handle::fault`].
    Fault(Fault),
    /// [`Handle::clear_faults`].
    ClearFaults,
    /// [`Handle::requests`].
    Requests,
    /// [`Handle::take_requests`].
    TakeRequests,
    /// [`Handle::connections`].
    Connections,
    /// [`Handle::open_connections`].
    OpenConnections,
    /// [`Handle::keep_log`].
    KeepLog(bool),
    /// [`Handle::silence`].
    Silence(bool),
    /// [`Handle::freeze_custom_resources`].
    FreezeCustomResources(bool),
    /// [`Handle::refuse`].
    Refuse(bool),
    /// [`Handle::reset_connections`].
    ResetConnections,
    /// [`Handle::go_away`].
    GoAway,
    /// [`Handle::refuse_next_stream`].
    RefuseNextStream(bool),
    /// [`Handle::cut_after`].
    CutAfter(Option<u32>),
    /// [`Handle::set_limits`].
    Limits(Limits),
    /// [`Handle::set_protocols`].
    Protocols(Protocols),
    /// [`Handle::set_rules`].
    Rules(Vec<Rule>),
    /// Adds a bearer token.
    Token {
        /// The token.
        token: String,
        /// Whose it is.
        user: User,
    },
    /// [`Handle::phase`].
    Phase,
    /// [`super::Store::writes`].
    Writes(String),
    /// [`Handle::loopback_counts`].
    Loopback,
}

/// What a command gives back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// Not done, and why.
    Failed(String),
    /// Requests.
    Requests(Vec<Seen>),
    /// Connections.
    Connections(Vec<Connection>),
    /// A number.
    Count(usize),
    /// The phase.
    Phase(Phase),
    /// Writes of a key.
    Writes(Writes),
    /// How often the server reached itself, and how often not.
    Loopback(u64, u64),
}

/// Serves the socket until dropped.
pub async fn serve(handle: Arc<Handle>, path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        connections.spawn(converse(Arc::clone(&handle), stream));
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(handle: Arc<Handle>, stream: UnixStream) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        match stream.read_line(&mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let answer = match serde_json::from_str(&line) {
            Ok(command) => obey(&handle, command).await,
            Err(error) => Answer::Failed(format!("this is no command: {error}")),
        };
        let mut text = serde_json::to_vec(&answer).unwrap_or_default();
        text.push(b'\n');
        if stream.get_mut().write_all(&text).await.is_err() {
            return;
        }
    }
}

async fn obey(handle: &Handle, command: Command) -> Answer {
    let done = |result: anyhow::Result<()>| match result {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Failed(format!("{error:#}")),
    };
    match command {
        Command::Fault(fault) => handle.fault(fault),
        Command::ClearFaults => handle.clear_faults(),
        Command::Requests => return Answer::Requests(handle.requests()),
        Command::TakeRequests => return Answer::Requests(handle.take_requests()),
        Command::Connections => return Answer::Connections(handle.connections()),
        Command::OpenConnections => return Answer::Count(handle.open_connections()),
        Command::KeepLog(on) => handle.keep_log(on),
        Command::Silence(on) => handle.silence(on),
        Command::FreezeCustomResources(on) => handle.freeze_custom_resources(on),
        Command::Refuse(on) => return done(handle.refuse(on).await),
        Command::ResetConnections => handle.reset_connections(),
        Command::GoAway => handle.go_away(),
        Command::RefuseNextStream(on) => handle.refuse_next_stream(on),
        Command::CutAfter(bytes) => handle.cut_after(bytes),
        Command::Limits(limits) => handle.set_limits(limits),
        Command::Protocols(protocols) => return done(handle.set_protocols(protocols)),
        Command::Rules(rules) => handle.set_rules(rules),
        Command::Token { token, user } => {
            return done(handle.set_authentication(|known| drop(known.tokens.insert(token, user))));
        }
        Command::Loopback => {
            let (answers, failures) = handle.loopback_counts();
            return Answer::Loopback(answers, failures);
        }
        Command::Phase => return Answer::Phase(handle.phase()),
        Command::Writes(key) => {
            return match handle.store().writes(&key).await {
                Ok(writes) => Answer::Writes(writes),
                Err(error) => Answer::Failed(error.to_string()),
            };
        }
    }
    Answer::Done
}

/// Sends one command to the socket at `path`.
pub async fn command(path: &Path, command: &Command) -> anyhow::Result<Answer> {
    let mut stream = BufReader::new(UnixStream::connect(path).await?);
    let mut text = serde_json::to_vec(command)?;
    text.push(b'\n');
    stream.get_mut().write_all(&text).await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}
