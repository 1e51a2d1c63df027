//! What etcd is to a cluster: objects with revisions, history for watches, shared by all servers. It knows nothing of HTTP,
//! versions or validation; keys are `group/resource/namespace/name` as text (empty group: core; empty namespace: cluster).
//!
//! A [`Store`] is either memory or a connection to another process's store over a unix socket ([`Store::connect`]);
//! servers cannot tell the difference, and a server that is killed leaves the store as it was.

mod memory;
mod remote;
#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use memory::Memory;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An object at one revision.
#[derive(Debug, Clone)]
pub struct Stored {
    /// `group/resource/namespace/name`.
    pub key: String,
    /// Revision of the last write; also in `metadata.resourceVersion`.
    pub revision: u64,
    /// The object.
    pub value: Value,
    /// The object as compact JSON.
    pub json: Bytes,
}

/// One change.
#[derive(Debug, Clone)]
pub struct Event {
    /// The revision it made.
    pub revision: u64,
    /// The object after the change; of a deletion: the last state, with the deletion's revision.
    pub object: Arc<Stored>,
    /// The object before the change.
    pub previous: Option<Arc<Stored>>,
    /// The object is gone.
    pub deleted: bool,
}

/// Why an operation was not done.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreError {
    /// Create of something that exists.
    #[error("the object exists")]
    Exists,
    /// Update or delete of something that does not.
    #[error("the object does not exist")]
    Missing,
    /// The expected revision is not the present one.
    #[error("the object has another revision")]
    Conflict,
    /// History from that revision is gone.
    #[error("the revision is too old")]
    Compacted,
    /// The store's process cannot be reached.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
}

/// How often an object's key was written, and tried to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// Creates that succeeded.
    pub creates: u64,
    /// Creates that found the object there: a write that arrived twice shows here.
    pub repeated_creates: u64,
    /// Updates and patches.
    pub updates: u64,
    /// Deletions that succeeded.
    pub deletes: u64,
    /// Deletions that found nothing.
    pub repeated_deletes: u64,
}

/// One operation, as it also crosses the socket.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Op {
    Get {
        key: String,
    },
    List {
        prefix: String,
    },
    Create {
        key: String,
        object: Value,
    },
    Update {
        key: String,
        object: Value,
        expected: Option<u64>,
    },
    Delete {
        key: String,
        expected: Option<u64>,
        last: Option<Value>,
    },
    Writes {
        key: String,
    },
    Poll {
        prefix: String,
        after: u64,
    },
}

/// The store of a cluster. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Store(Backend);

#[derive(Debug, Clone)]
enum Backend {
    Memory(Arc<Memory>),
    Remote(Arc<remote::Client>),
}

impl Default for Store {
    fn default() -> Self {
        Self::memory()
    }
}

impl Store {
    /// An empty store in this process, with the four namespaces every cluster has and the `kubernetes` service.
    pub fn memory() -> Self {
        Self(Backend::Memory(Arc::new(Memory::seeded())))
    }

    /// A store that another process serves on the unix socket `path` ([`Store::serve`]).
    pub fn connect(path: &Path) -> Self {
        Self(Backend::Remote(Arc::new(remote::Client::new(path))))
    }

    /// Serves this store on a unix socket until the future is dropped.
    pub async fn serve(&self, path: &Path) -> std::io::Result<()> {
        remote::serve(self.clone(), path).await
    }

    /// The object, if it is there.
    pub async fn get(&self, key: &str) -> Result<Option<Arc<Stored>>, StoreError> {
        match &self.0 {
            Backend::Memory(memory) => Ok(memory.get(key)),
            Backend::Remote(client) => client.get(key).await,
        }
    }

    /// All objects whose key starts with `prefix`, in key order, and the revision of that view.
    pub async fn list(&self, prefix: &str) -> Result<(Vec<Arc<Stored>>, u64), StoreError> {
        match &self.0 {
            Backend::Memory(memory) => Ok(memory.list(prefix)),
            Backend::Remote(client) => client.list(prefix).await,
        }
    }

    /// Adds an object; the store sets its resourceVersion.
    pub async fn create(&self, key: &str, object: Value) -> Result<Arc<Stored>, StoreError> {
        match &self.0 {
            Backend::Memory(memory) => memory.create(key, object),
            Backend::Remote(client) => {
                client
                    .write(Op::Create {
                        key: key.to_owned(),
                        object,
                    })
                    .await
            }
        }
    }

    /// Replaces an object, if it still has the `expected` revision.
    pub async fn update(
        &self,
        key: &str,
        object: Value,
        expected: Option<u64>,
    ) -> Result<Arc<Stored>, StoreError> {
        match &self.0 {
            Backend::Memory(memory) => memory.update(key, object, expected),
            Backend::Remote(client) => {
                client
                    .write(Op::Update {
                        key: key.to_owned(),
                        object,
                        expected,
                    })
                    .await
            }
        }
    }

    /// Removes an object and returns its last state. `last`: that state, if it differs from the stored one.
    pub async fn delete(
        &self,
        key: &str,
        expected: Option<u64>,
        last: Option<Value>,
    ) -> Result<Arc<Stored>, StoreError> {
        match &self.0 {
            Backend::Memory(memory) => memory.delete(key, expected, last),
            Backend::Remote(client) => {
                client
                    .write(Op::Delete {
                        key: key.to_owned(),
                        expected,
                        last,
                    })
                    .await
            }
        }
    }

    /// How often `key` was written.
    pub async fn writes(&self, key: &str) -> Result<Writes, StoreError> {
        match &self.0 {
            Backend::Memory(memory) => Ok(memory.writes(key)),
            Backend::Remote(client) => client.writes(key).await,
        }
    }

    /// Changes under `prefix` after revision `after`: waits until there is at least one. The second value is the revision up
    /// to which the answer is complete. Under a remote store the wait is at most some seconds; the list may then be empty.
    pub async fn changes(&self, prefix: &str, after: u64) -> Result<(Vec<Event>, u64), StoreError> {
        match &self.0 {
            Backend::Memory(memory) => memory.changes(prefix, after).await,
            Backend::Remote(client) => client.changes(prefix, after).await,
        }
    }
}

/// The key of an object.
pub fn key(group: &str, resource: &str, namespace: &str, name: &str) -> String {
    format!("{group}/{resource}/{namespace}/{name}")
}
