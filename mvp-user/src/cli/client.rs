//! Asks a running mvp: one HTTP/1.1 request over the control socket.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::UnixStream;

use crate::admin::{
    listen::{DIRECTORY, NEWEST},
    wire::Problem,
};

/// `mvp check` proves identity forwarding to every server first.
const WITHIN: Duration = Duration::from_mins(1);
/// No answer is larger: 500 CRDs are 1 MiB of routes.
const LARGEST: usize = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// Nobody listens.
    #[error("no mvp answers at {}: {}", path.display(), nobody(error))]
    Nobody {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It said no.
    #[error("{0}")]
    Refused(String),
    /// The conversation broke off.
    #[error("the control socket broke off: {0}")]
    Broken(String),
    /// The answer is not what it should be.
    #[error("the answer of the control socket cannot be read: {0}")]
    Answer(serde_json::Error),
    /// No answer in time.
    #[error("mvp did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// Man pages.
    #[error("cannot write man pages into {}: {error}", directory.display())]
    Man {
        /// Where to.
        directory: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The status page's address cannot be had.
    #[error("--listen {address}: {error}")]
    Listen {
        /// What was asked for.
        address: std::net::SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// This process has no room for a runtime.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

/// A control socket to ask at.
#[derive(Debug)]
pub(super) struct Client {
    path: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// See [`socket`].
    pub(super) fn new(path: Option<&Path>) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClientError::Runtime)?;
        let path = socket(path);
        Ok(Self { path, runtime })
    }

    /// The body of a good answer.
    pub(super) fn get(&self, path: &str) -> Result<Bytes, ClientError> {
        self.ask(Method::GET, path, Bytes::new())
    }

    /// Orders something.
    pub(super) fn post(&self, path: &str, body: &impl Serialize) -> Result<Bytes, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::Answer)?;
        self.ask(Method::POST, path, body.into())
    }

    fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ClientError> {
        self.runtime.block_on(async {
            let asking = converse(&self.path, method, path, body);
            tokio::time::timeout(WITHIN, asking)
                .await
                .unwrap_or(Err(ClientError::TimedOut(WITHIN)))
        })
    }
}

/// The body of a good answer, awaited at most `within`.
pub(super) async fn get(socket: &Path, path: &str, within: Duration) -> Result<Bytes, ClientError> {
    let asking = converse(socket, Method::GET, path, Bytes::new());
    tokio::time::timeout(within, asking)
        .await
        .unwrap_or(Err(ClientError::TimedOut(within)))
}

async fn converse(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Bytes, ClientError> {
    let broken = |error: &dyn std::error::Error| ClientError::Broken(error.to_string());
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| ClientError::Nobody {
            path: socket.to_owned(),
            error,
        })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broken(&error))?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "mvp")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|error| broken(&error))?;
    let answer = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| broken(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST)
            .collect()
            .await
            .map_err(|error| broken(&*error))?
            .to_bytes();
        Ok((status, body))
    };
    // The connection must be driven while the answer is awaited. It may end first, with the answer whole.
    let mut answer = std::pin::pin!(answer);
    let (status, body) = tokio::select! {
        biased;
        answer = answer.as_mut() => answer?,
        ended = connection => match ended {
            Ok(()) => answer.await?,
            Err(error) => return Err(broken(&error)),
        },
    };
    if status.is_success() {
        return Ok(body);
    }
    Err(match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => ClientError::Refused(problem.error),
        Err(_) if status == StatusCode::NOT_FOUND => {
            ClientError::Refused(format!("this mvp does not know {path}"))
        }
        Err(_) => ClientError::Refused(String::from_utf8_lossy(&body).trim().to_owned()),
    })
}

/// What to do about it.
fn nobody(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no such socket; is `mvp run` running on this node? (in a pod: kubectl -n kube-system exec POD -- /mvp ...)"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => "only root may ask; use sudo".to_owned(),
        io::ErrorKind::ConnectionRefused => {
            "nobody listens there; mvp has ended, or this is not its socket".to_owned()
        }
        _ => error.to_string(),
    }
}

/// `path`, or the socket of the newest ready mvp; while none is ready, of any that answers.
pub(super) fn socket(path: Option<&Path>) -> PathBuf {
    path.map_or_else(|| newest(Path::new(DIRECTORY)), Path::to_owned)
}

/// The link to the newest ready process; if it leads nowhere, the youngest socket that somebody listens at.
fn newest(directory: &Path) -> PathBuf {
    let link = directory.join(NEWEST);
    let answers = |path: &Path| std::os::unix::net::UnixStream::connect(path).is_ok();
    if answers(&link) {
        return link;
    }
    let mut sockets: Vec<_> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == "sock") && *path != link)
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .collect();
    sockets.sort();
    sockets
        .into_iter()
        .rev()
        .map(|(_, path)| path)
        .find(|path| answers(path))
        .unwrap_or(link)
}

/// A path with a query whose values may be anything.
pub(super) struct Query {
    text: String,
    first: bool,
}

impl Query {
    pub(super) fn of(path: &str) -> Self {
        Self {
            text: path.to_owned(),
            first: true,
        }
    }

    pub(super) fn add(&mut self, name: &str, value: &str) {
        let value =
            percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC);
        let separator = if self.first { '?' } else { '&' };
        self.first = false;
        self.text.push(separator);
        self.text.push_str(name);
        self.text.push('=');
        self.text.extend(value);
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}
