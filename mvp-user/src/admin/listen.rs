//! The doors of `admin`: the control socket, that root alone may use, and the TCP port for metrics and probes. Both
//! bounded in connections and time, so that nobody who reaches them can exhaust the process.

use std::{
    convert::Infallible,
    fs, io,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use axum::Router;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    task::JoinSet,
};
use tower::ServiceExt as _;

/// Directory of the control sockets.
pub const DIRECTORY: &str = "/run/mvp";
/// Name of the link to the newest ready process's socket.
pub const NEWEST: &str = "mvp.sock";
/// Connections at once, at each door.
const AT_ONCE: usize = 32;
/// A connection may last so long; every answer is short.
const LASTS: Duration = Duration::from_mins(1);
/// Head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// After accept failed for lack of descriptors.
const BREATH: Duration = Duration::from_millis(200);

/// The control socket.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// The link that points at it once it is announced; none for a socket that `--control-socket` puts elsewhere.
    link: Option<PathBuf>,
    /// The only user beside root: who runs this process, in tests.
    own: u32,
}

impl Control {
    /// Binds `path`, or `/run/mvp/<pid>.sock`, for root only. A socket that nobody listens on any more is replaced. In
    /// `/run/mvp` a socket of any name is announced: containers that share the directory do not share process ids.
    pub fn bind(path: Option<&Path>) -> io::Result<Self> {
        match path {
            Some(path) => Self::bind_at(path.to_owned(), link_for(path, Path::new(DIRECTORY))),
            None => Self::bind_in(Path::new(DIRECTORY)),
        }
    }

    /// Binds `<pid>.sock` in `directory`, to be linked from `mvp.sock` there.
    pub fn bind_in(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!("{}.sock", std::process::id()));
        Self::bind_at(path, Some(directory.join(NEWEST)))
    }

    fn bind_at(path: PathBuf, link: Option<PathBuf>) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("control socket {}: {error}", path.display()),
            )
        };
        if let Some(directory) = path.parent()
            && !directory.as_os_str().is_empty()
        {
            // Nobody else may look in: the socket has its final permissions only a moment after it is bound.
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .map_err(named)?;
        }
        match std::os::unix::net::UnixStream::connect(&path) {
            Ok(_) => {
                let error = io::Error::from(io::ErrorKind::AddrInUse);
                return Err(named(error));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(&path).map_err(named)?;
            }
            Err(_) => {}
        }
        if link.is_some() {
            sweep(path.parent());
        }
        let listener = UnixListener::bind(&path).map_err(named)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(named)?;
        Ok(Self {
            listener,
            path,
            link,
            own: rustix::process::geteuid().as_raw(),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This process is ready: `mvp.sock` now leads here. Replaced in one step, so that it always leads somewhere.
    pub(super) fn announce(&self) {
        let Some(link) = &self.link else {
            return;
        };
        // Named after the socket, not after the process: in a container every mvp is process 1.
        let new = self.path.with_extension("new");
        let target = self.path.file_name().map_or(self.path.as_path(), Path::new);
        let done = fs::remove_file(&new)
            .or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
            .and_then(|()| symlink(target, &new))
            .and_then(|()| fs::rename(&new, link));
        if let Err(error) = done {
            tracing::warn!(link = %link.display(), %error, "cannot announce the control socket");
        }
    }

    /// Answers whoever is root, for ever.
    #[expect(clippy::infinite_loop, reason = "ends with the task that it is in")]
    pub(super) async fn serve(&self, router: Router) {
        let mut visits = JoinSet::new();
        loop {
            make_room(&mut visits).await;
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let uid = stream.peer_cred().map(|it| it.uid());
                    match uid {
                        Ok(uid) if uid == 0 || uid == self.own => {
                            visits.spawn(visit(stream, router.clone()));
                        }
                        _ => tracing::warn!(?uid, "control socket: only root is answered"),
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "control socket: accept failed");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }
}

/// Removes the sockets of processes that could not do it themselves.
fn sweep(directory: Option<&Path>) {
    let entries = directory.and_then(|directory| fs::read_dir(directory).ok());
    for path in entries.into_iter().flatten().flatten().map(|it| it.path()) {
        let is_socket = fs::symlink_metadata(&path)
            .is_ok_and(|it| std::os::unix::fs::FileTypeExt::is_socket(&it.file_type()));
        if is_socket
            && path.extension().is_some_and(|it| it == "sock")
            && std::os::unix::net::UnixStream::connect(&path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::debug!(socket = %path.display(), %error, "a left over socket stays");
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(link) = &self.link
            && fs::read_link(link).is_ok_and(|to| Some(to.as_os_str()) == self.path.file_name())
        {
            drop(fs::remove_file(link));
        }
        drop(fs::remove_file(&self.path));
    }
}

/// The TCP port of `/metrics`, `/livez`, `/readyz`.
#[derive(Debug)]
pub struct Exposed {
    listener: TcpListener,
}

impl Exposed {
    /// Binds with `SO_REUSEPORT`: while one process replaces another, both listen.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let bound = || {
            let socket = socket2::Socket::new(
                socket2::Domain::for_address(address),
                socket2::Type::STREAM,
                Some(socket2::Protocol::TCP),
            )?;
            socket.set_reuse_address(true)?;
            socket.set_reuse_port(true)?;
            socket.set_nonblocking(true)?;
            socket.bind(&address.into())?;
            socket.listen(64)?;
            TcpListener::from_std(socket.into())
        };
        bound()
            .map(|listener| Self { listener })
            .map_err(|error: io::Error| {
                io::Error::new(error.kind(), format!("--metrics-listen {address}: {error}"))
            })
    }

    /// Where it is.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers everybody, for ever.
    #[expect(clippy::infinite_loop, reason = "ends with the task that it is in")]
    pub(super) async fn serve(&self, router: Router) {
        let mut visits = JoinSet::new();
        loop {
            make_room(&mut visits).await;
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    visits.spawn(visit(stream, router.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "metrics: accept failed");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }
}

/// The link in `directory` to a socket in it; none for one elsewhere, or in the place of the link.
fn link_for(path: &Path, directory: &Path) -> Option<PathBuf> {
    let link = directory.join(NEWEST);
    (path.parent() == Some(directory) && path != link).then_some(link)
}

async fn make_room(visits: &mut JoinSet<()>) {
    while visits.try_join_next().is_some() {}
    while visits.len() >= AT_ONCE {
        visits.join_next().await;
    }
}

async fn visit(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let service =
        router.map_request(|request: hyper::Request<Incoming>| request.map(axum::body::Body::new));
    let service = service.map_err(|never: Infallible| never);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    // A visitor that leaves early is no news.
    match tokio::time::timeout(LASTS, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "admin: connection"),
        Err(_) => tracing::debug!("admin: connection took too long"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_share_a_directory_and_the_newest_ready_one_is_linked() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let directory = tempfile::tempdir().unwrap();
        let bind = |name: &str| {
            let path = directory.path().join(name);
            let link = link_for(&path, directory.path());
            Control::bind_at(path, link).unwrap()
        };
        let (old, new) = (bind("mvp-aaaaa.sock"), bind("mvp-bbbbb.sock"));
        let newest = directory.path().join(NEWEST);
        old.announce();
        new.announce();
        assert_eq!(fs::read_link(&newest).unwrap(), Path::new("mvp-bbbbb.sock"));
        drop(old);
        assert!(newest.exists(), "the old one takes only its own link along");
        drop(new);
        assert!(fs::read_link(&newest).is_err());
        assert_eq!(
            link_for(Path::new("/tmp/x.sock"), Path::new(DIRECTORY)),
            None
        );
        assert_eq!(
            link_for(&Path::new(DIRECTORY).join(NEWEST), Path::new(DIRECTORY)),
            None
        );
    }
}
