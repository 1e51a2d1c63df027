//! The store's promises, in memory and across a socket.

use serde_json::json;

use super::{Store, StoreError, key};

async fn promises(store: Store) {
    let at = key("batch", "jobs", "default", "one");
    let first = store
        .create(&at, json!({"metadata": {"name": "one"}}))
        .await
        .unwrap();
    assert_eq!(
        first.value["metadata"]["resourceVersion"],
        first.revision.to_string()
    );
    assert_eq!(
        store.create(&at, json!({})).await.unwrap_err(),
        StoreError::Exists
    );
    let second = store
        .update(
            &at,
            json!({"metadata": {"name": "one"}, "x": 1}),
            Some(first.revision),
        )
        .await
        .unwrap();
    assert_eq!(
        store
            .update(&at, json!({}), Some(first.revision))
            .await
            .unwrap_err(),
        StoreError::Conflict
    );
    let (listed, revision) = store.list("batch/jobs/").await.unwrap();
    assert_eq!((listed.len(), revision >= second.revision), (1, true));
    let (events, _) = store.changes("batch/jobs/", first.revision).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0].previous.as_ref().unwrap().revision,
        first.revision
    );
    store.delete(&at, None, None).await.unwrap();
    assert_eq!(
        store.delete(&at, None, None).await.unwrap_err(),
        StoreError::Missing
    );
    let writes = store.writes(&at).await.unwrap();
    assert_eq!(
        (writes.creates, writes.repeated_creates, writes.updates),
        (1, 1, 1)
    );
    assert_eq!((writes.deletes, writes.repeated_deletes), (1, 1));
}

#[tokio::test]
async fn memory_keeps_its_promises() {
    promises(Store::memory()).await;
}

#[tokio::test]
async fn another_process_would_see_the_same_through_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sock");
    let store = Store::memory();
    let server = store.serve(&path);
    let client = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
        promises(Store::connect(&path)).await;
    };
    tokio::select! {
        ended = server => panic!("the store's server ended: {ended:?}"),
        () = client => {}
    }
}

#[tokio::test]
async fn a_watcher_is_woken_by_a_later_write_and_only_of_its_resource() {
    let store = Store::memory();
    let (_, now) = store.list("batch/jobs/").await.unwrap();
    let waiting = store.clone();
    let watcher = async move { waiting.changes("batch/jobs/", now).await.unwrap().0 };
    let writer = async {
        store
            .create(&key("", "pods", "default", "p"), json!({"metadata": {}}))
            .await
            .unwrap();
        tokio::task::yield_now().await;
        store
            .create(
                &key("batch", "jobs", "default", "j"),
                json!({"metadata": {}}),
            )
            .await
            .unwrap();
    };
    let (events, ()) = tokio::join!(watcher, writer);
    assert_eq!(
        events
            .iter()
            .map(|event| event.object.key.as_str())
            .collect::<Vec<_>>(),
        ["batch/jobs/default/j"]
    );
}
