//! Merge patch (RFC 7386) and JSON patch (RFC 6902). Strategic merge and server-side apply are treated as merge patch.

use serde_json::{Map, Value};

/// Patch formats by media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Merge,
    Json,
    Apply,
}

impl Kind {
    pub(super) fn of(media_type: &str) -> Option<Self> {
        match media_type {
            "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
                Some(Self::Merge)
            }
            "application/json-patch+json" => Some(Self::Json),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }
}

pub(super) fn apply(kind: Kind, object: &mut Value, change: &Value) -> Result<(), String> {
    match kind {
        Kind::Merge | Kind::Apply => {
            merge(object, change);
            Ok(())
        }
        Kind::Json => change
            .as_array()
            .ok_or("a JSON patch is a list")?
            .iter()
            .try_for_each(|step| operate(object, step)),
    }
}

fn merge(object: &mut Value, change: &Value) {
    let Value::Object(changes) = change else {
        *object = change.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Value::Object(map) = object else { return };
    for (key, value) in changes {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn operate(object: &mut Value, step: &Value) -> Result<(), String> {
    let path = step["path"]
        .as_str()
        .ok_or("a JSON patch operation needs a path")?;
    match step["op"].as_str().unwrap_or_default() {
        "test" => {
            let found = object.pointer(path).unwrap_or(&Value::Null);
            if *found == step["value"] {
                Ok(())
            } else {
                Err(format!("testing path {path} failed"))
            }
        }
        "remove" => take(object, path).map(drop),
        "add" => put(object, path, step["value"].clone(), true),
        "replace" => put(object, path, step["value"].clone(), false),
        "move" => {
            let value = take(object, step["from"].as_str().unwrap_or_default())?;
            put(object, path, value, true)
        }
        "copy" => {
            let from = step["from"].as_str().unwrap_or_default();
            let value = object
                .pointer(from)
                .cloned()
                .ok_or_else(|| format!("there is no {from}"))?;
            put(object, path, value, true)
        }
        other => Err(format!("unknown JSON patch operation {other:?}")),
    }
}

/// The parent of the last step of a pointer, and that step.
fn parent<'a>(object: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), String> {
    let (up, last) = path
        .rsplit_once('/')
        .ok_or_else(|| format!("{path:?} is no JSON pointer"))?;
    let found = object
        .pointer_mut(up)
        .ok_or_else(|| format!("there is no {up}"))?;
    Ok((found, last.replace("~1", "/").replace("~0", "~")))
}

fn put(object: &mut Value, path: &str, value: Value, insert: bool) -> Result<(), String> {
    if path.is_empty() {
        *object = value;
        return Ok(());
    }
    let (holder, last) = parent(object, path)?;
    match holder {
        Value::Object(map) => {
            if !insert && !map.contains_key(&last) {
                return Err(format!("there is no {path}"));
            }
            map.insert(last, value);
        }
        Value::Array(list) => {
            let at = if last == "-" {
                list.len()
            } else {
                last.parse()
                    .map_err(|error| format!("{last:?} is no index: {error}"))?
            };
            if at > list.len() || (!insert && at == list.len()) {
                return Err(format!("there is no {path}"));
            }
            if insert {
                list.insert(at, value);
            } else {
                list[at] = value;
            }
        }
        _ => return Err(format!("nothing can be put at {path}")),
    }
    Ok(())
}

fn take(object: &mut Value, path: &str) -> Result<Value, String> {
    let (holder, last) = parent(object, path)?;
    match holder {
        Value::Object(map) => map.remove(&last),
        Value::Array(list) => last
            .parse()
            .ok()
            .filter(|at: &usize| *at < list.len())
            .map(|at| list.remove(at)),
        _ => None,
    }
    .ok_or_else(|| format!("there is no {path}"))
}
