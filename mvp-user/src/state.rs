//! The state file: what was learnt, so that a restarted mvp does not forget departed servers and can fail over when
//! local is down at its start (design 5.3).
//!
//! Addresses, names, discovery documents, what all servers share, and times; no secrets. What is read back is stale
//! knowledge: routes, 503s and addresses to try, never a reason to believe that servers differ now. A bad file is logged
//! and ignored: mvp then starts as if for the first time.

use std::{
    fs,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::api::discovery::GroupList;

/// Grows when the form changes; a file of another version is ignored.
const VERSION: u32 = 1;
/// The most that is read: dozens of servers with thousands of resources stay far below.
const LIMIT: u64 = 256 << 20;
/// No write takes so long: what is older beside the file was left by a process that was killed meanwhile.
const LEFT: Duration = Duration::from_mins(1);

/// Everything that is kept between runs.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Form of the file.
    pub version: u32,
    /// Local and its peers.
    pub servers: Vec<Saved>,
    /// What they share.
    #[serde(default)]
    pub shared: SavedShared,
}

/// What all servers share through etcd, as the watches told it last; also what was deleted and some server may still list,
/// for the next run to see that it is gone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SavedShared {
    /// Resources of CRDs: group, version, plural.
    pub defined: Vec<(String, String, String)>,
    /// Group-versions of APIServices with a backend: group, version.
    pub aggregated: Vec<(String, String)>,
}

/// One server.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    /// A peer's address; none: local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Name for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When its endpoint left; none: it is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub departed_at: Option<Stamp>,
    /// What it served; none: it was never read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<SavedCatalogue>,
}

/// What one server served.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct SavedCatalogue {
    /// When the read began.
    pub at: Stamp,
    /// Its `gitVersion`.
    pub git_version: String,
    /// `/api`.
    pub core: GroupList,
    /// `/apis`.
    pub groups: GroupList,
}

/// Wall-clock time in seconds since 1970: monotonic time does not outlive a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
#[serde(transparent)]
pub struct Stamp(u64);

/// Why the file was not read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody else may have written it.
    #[error("{} belongs to another user or is writable for others", .0.display())]
    Foreign(PathBuf),
    /// Larger than anything mvp writes.
    #[error("{} is larger than {LIMIT} bytes", .0.display())]
    TooLarge(PathBuf),
    /// Not what this version of mvp writes.
    #[error("{} is not a state file of this version: {fault}", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What about it.
        fault: String,
    },
}

impl Stamp {
    /// Now.
    pub fn now() -> Self {
        Self::ago(Duration::ZERO)
    }

    /// The time that was `age` ago.
    pub fn ago(age: Duration) -> Self {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(now.saturating_sub(age).as_secs())
    }

    /// How long ago it was; zero for a time in the future (the clock was set back).
    pub fn age(self) -> Duration {
        Duration::from_secs(Self::now().0.saturating_sub(self.0))
    }
}

impl Snapshot {
    /// A snapshot in the present form.
    pub const fn new(servers: Vec<Saved>, shared: SavedShared) -> Self {
        Self {
            version: VERSION,
            servers,
            shared,
        }
    }
}

/// Reads the file; none if there is no file.
pub fn load(path: &Path) -> Result<Option<Snapshot>, StateError> {
    let unreadable = |source| StateError::Read {
        path: path.to_owned(),
        source,
    };
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(
            (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC)
                .bits()
                .cast_signed(),
        )
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let metadata = file.metadata().map_err(unreadable)?;
    let ours =
        metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !ours || !metadata.is_file() {
        return Err(StateError::Foreign(path.to_owned()));
    }
    let mut text = Vec::new();
    file.take(LIMIT + 1)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > LIMIT {
        return Err(StateError::TooLarge(path.to_owned()));
    }
    let malformed = |fault| StateError::Malformed {
        path: path.to_owned(),
        fault,
    };
    let snapshot: Snapshot =
        serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    if snapshot.version == VERSION {
        Ok(Some(snapshot))
    } else {
        Err(malformed(format!("it has version {}", snapshot.version)))
    }
}

/// Writes the file whole or not at all: beside it first (mode 0600), then renamed over it. Blocks.
pub fn save(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    // Two processes share the path while one replaces the other, so each writes beside it under a name that no other
    // has: in containers both are process 1. `RandomState` is seeded by the system.
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(
        ".{:016x}.tmp",
        RandomState::new().build_hasher().finish()
    ));
    let beside = PathBuf::from(beside);
    let written = write_new(&beside, snapshot).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        drop(fs::remove_file(&beside));
    } else {
        sweep(path);
    }
    written
}

/// Removes what processes that were killed left beside the file.
fn sweep(path: &Path) {
    let prefix = path.file_name().and_then(|name| name.to_str());
    let entries = path.parent().and_then(|it| fs::read_dir(it).ok());
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().zip(prefix).is_some_and(|(name, prefix)| {
            let middle = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".tmp"));
            middle.is_some_and(|it| it.len() == 16 && it.bytes().all(|it| it.is_ascii_hexdigit()))
        });
        let is_left = || {
            let modified = entry.metadata().and_then(|it| it.modified()).ok();
            modified.is_some_and(|at| at.elapsed().is_ok_and(|age| age > LEFT))
        };
        if is_ours
            && is_left()
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::debug!(file = %entry.path().display(), %error, "A left over file stays");
        }
    }
}

fn write_new(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let mut out = io::BufWriter::new(file);
    serde_json::to_writer(&mut out, snapshot)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::api::discovery::{Group, GroupMeta};

    fn snapshot() -> Snapshot {
        let shared = SavedShared {
            defined: vec![("example.com".into(), "v1".into(), "foos".into())],
            aggregated: vec![("metrics.k8s.io".into(), "v1beta1".into())],
        };
        let servers = vec![
            Saved {
                address: None,
                name: Some("cp1".into()),
                departed_at: None,
                read: None,
            },
            Saved {
                address: Some("[fd00::2]:6443".parse().unwrap()),
                name: None,
                departed_at: Some(Stamp::ago(Duration::from_mins(1))),
                read: Some(SavedCatalogue {
                    at: Stamp::now(),
                    git_version: "v1.36.2".into(),
                    core: GroupList::default(),
                    groups: GroupList::new(vec![Group {
                        metadata: GroupMeta {
                            name: "batch".into(),
                            ..GroupMeta::default()
                        },
                        versions: Vec::new(),
                    }]),
                }),
            },
        ];
        Snapshot::new(servers, shared)
    }

    #[test]
    fn what_is_saved_is_loaded_and_only_its_owner_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        assert!(load(&path).unwrap().is_none());
        save(&path, &Snapshot::new(Vec::new(), SavedShared::default())).unwrap();
        save(&path, &snapshot()).unwrap();
        assert_eq!(load(&path).unwrap().unwrap(), snapshot());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "left-overs");
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_another_one_writes_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let hour = Duration::from_hours(1);
        for (name, age) in [
            ("state.json.0123456789abcdef.tmp", hour),
            ("state.json.fedcba9876543210.tmp", Duration::ZERO),
            ("state.json.tmp", hour),
            ("other.json.0123456789abcdef.tmp", hour),
        ] {
            let file = fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        save(&dir.path().join("state.json"), &snapshot()).unwrap();
        let mut names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let wanted = [
            "other.json.0123456789abcdef.tmp",
            "state.json",
            "state.json.fedcba9876543210.tmp",
            "state.json.tmp",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn a_file_that_is_bad_foreign_or_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write("{\"version\":1,\"servers\":", 0o600);
        assert!(matches!(load(&path), Err(StateError::Malformed { .. })));
        write("{\"version\":7,\"servers\":[]}", 0o600);
        assert!(matches!(load(&path), Err(StateError::Malformed { .. })));
        write("{\"version\":1,\"servers\":[]}", 0o666);
        assert!(matches!(load(&path), Err(StateError::Foreign(_))));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(matches!(load(&path), Err(StateError::Read { .. })));
    }
}
