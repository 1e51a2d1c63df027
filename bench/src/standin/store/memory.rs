//! The store's memory: one map, one revision counter, a bounded history, one wake-up per resource.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Event, StoreError, Stored, Writes, key};

/// How many changes are kept for watches that start in the past; older ones answer 410 Gone.
const HISTORY: usize = 20_000;

#[derive(Debug)]
pub(super) struct Memory(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    objects: BTreeMap<String, Arc<Stored>>,
    history: VecDeque<Event>,
    /// Revision of the newest change that history no longer has.
    compacted: u64,
    writes: HashMap<String, Writes>,
    /// By `group/resource/`: told the revision of each change.
    bells: HashMap<String, watch::Sender<u64>>,
}

/// `group/resource/` of a key or prefix.
fn resource_of(key: &str) -> &str {
    let mut slashes = key.match_indices('/').map(|(at, _)| at);
    match slashes.nth(1) {
        Some(at) => &key[..=at],
        None => key,
    }
}

impl Memory {
    pub(super) fn seeded() -> Self {
        let memory = Self(Mutex::new(Inner::default()));
        let now = crate::standin::clock::rfc3339();
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let object = json!({
                "kind": "Namespace", "apiVersion": "v1",
                "metadata": {
                    "name": name, "uid": crate::standin::clock::uid(), "creationTimestamp": now,
                    "labels": {"kubernetes.io/metadata.name": name},
                },
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
            });
            drop(memory.create(&key("", "namespaces", "", name), object));
        }
        let service = json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {
                "name": "kubernetes", "namespace": "default", "uid": crate::standin::clock::uid(), "creationTimestamp": now,
                "labels": {"component": "apiserver", "provider": "kubernetes"},
            },
            "spec": {
                "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}],
                "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "type": "ClusterIP", "sessionAffinity": "None",
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            },
            "status": {"loadBalancer": {}},
        });
        drop(memory.create(&key("", "services", "default", "kubernetes"), service));
        memory.lock().writes.clear();
        memory
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave the maps half written in a way that matters to a test.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.lock().objects.get(key).cloned()
    }

    pub(super) fn list(&self, prefix: &str) -> (Vec<Arc<Stored>>, u64) {
        let inner = self.lock();
        let found = inner
            .under(prefix)
            .map(|(_, object)| Arc::clone(object))
            .collect();
        (found, inner.revision)
    }

    pub(super) fn writes(&self, key: &str) -> Writes {
        self.lock().writes.get(key).copied().unwrap_or_default()
    }

    pub(super) fn create(&self, key: &str, object: Value) -> Result<Arc<Stored>, StoreError> {
        let mut inner = self.lock();
        if inner.objects.contains_key(key) {
            inner.count(key).repeated_creates += 1;
            return Err(StoreError::Exists);
        }
        inner.count(key).creates += 1;
        Ok(inner.put(key, object))
    }

    pub(super) fn update(
        &self,
        key: &str,
        object: Value,
        expected: Option<u64>,
    ) -> Result<Arc<Stored>, StoreError> {
        let mut inner = self.lock();
        let present = inner.objects.get(key).ok_or(StoreError::Missing)?;
        if expected.is_some_and(|expected| expected != present.revision) {
            return Err(StoreError::Conflict);
        }
        inner.count(key).updates += 1;
        Ok(inner.put(key, object))
    }

    pub(super) fn delete(
        &self,
        key: &str,
        expected: Option<u64>,
        last: Option<Value>,
    ) -> Result<Arc<Stored>, StoreError> {
        let mut inner = self.lock();
        let Some(present) = inner.objects.get(key).cloned() else {
            inner.count(key).repeated_deletes += 1;
            return Err(StoreError::Missing);
        };
        if expected.is_some_and(|expected| expected != present.revision) {
            return Err(StoreError::Conflict);
        }
        inner.count(key).deletes += 1;
        inner.objects.remove(key);
        inner.revision += 1;
        let revision = inner.revision;
        let gone = stored(key, revision, last.unwrap_or_else(|| present.value.clone()));
        inner.record(Event {
            revision,
            object: Arc::clone(&gone),
            previous: Some(present),
            deleted: true,
        });
        drop(inner);
        Ok(gone)
    }

    pub(super) async fn changes(
        &self,
        prefix: &str,
        after: u64,
    ) -> Result<(Vec<Event>, u64), StoreError> {
        let mut bell = self.lock().bell(prefix).subscribe();
        loop {
            bell.borrow_and_update();
            {
                let inner = self.lock();
                if after < inner.compacted {
                    return Err(StoreError::Compacted);
                }
                let start = inner
                    .history
                    .partition_point(|event| event.revision <= after);
                let found: Vec<Event> = inner
                    .history
                    .range(start..)
                    .filter(|event| event.object.key.starts_with(prefix))
                    .cloned()
                    .collect();
                if !found.is_empty() {
                    return Ok((found, inner.revision));
                }
            }
            if bell.changed().await.is_err() {
                return Ok((Vec::new(), after));
            }
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.lock().revision
    }
}

impl Inner {
    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Arc<Stored>)> {
        self.objects
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    fn count(&mut self, key: &str) -> &mut Writes {
        self.writes.entry(key.to_owned()).or_default()
    }

    fn bell(&mut self, key: &str) -> &watch::Sender<u64> {
        self.bells
            .entry(resource_of(key).to_owned())
            .or_insert_with(|| watch::channel(0).0)
    }

    fn put(&mut self, key: &str, object: Value) -> Arc<Stored> {
        self.revision += 1;
        let revision = self.revision;
        let object = stored(key, revision, object);
        let previous = self.objects.insert(key.to_owned(), Arc::clone(&object));
        self.record(Event {
            revision,
            object: Arc::clone(&object),
            previous,
            deleted: false,
        });
        object
    }

    fn record(&mut self, event: Event) {
        let revision = event.revision;
        let resource = resource_of(&event.object.key).to_owned();
        self.history.push_back(event);
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.compacted = oldest.revision;
        }
        if let Some(bell) = self.bells.get(&resource) {
            bell.send_replace(revision);
        }
    }
}

fn stored(key: &str, revision: u64, mut value: Value) -> Arc<Stored> {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(
            "resourceVersion".to_owned(),
            Value::String(revision.to_string()),
        );
    }
    let json = Bytes::from(value.to_string());
    Arc::new(Stored {
        key: key.to_owned(),
        revision,
        value,
        json,
    })
}
