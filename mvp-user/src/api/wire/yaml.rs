//! Writes YAML that every reader takes as it is meant, in the layout of kube-apiserver's (`sigs.k8s.io/yaml`).
//!
//! The library's writer leaves words bare that YAML 1.1 readers, Go's among them, take for truth values: `no`, the short
//! name of nodes. Reading is the library's.

use serde_json::Value;

/// The document, with its keys in the order of the map.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => entries(&mut out, map, 0),
        Value::Array(items) if !items.is_empty() => sequence(&mut out, items, 0),
        other => scalar(&mut out, other),
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

fn entries(out: &mut String, map: &serde_json::Map<String, Value>, depth: usize) {
    let mut first = true;
    for (key, value) in map {
        // The first entry of a map in a sequence stands behind the dash.
        if !(first && out.ends_with("- ")) {
            indent(out, depth);
        }
        first = false;
        text(out, key);
        out.push(':');
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                entries(out, map, depth + 1);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                sequence(out, items, depth);
            }
            other => {
                out.push(' ');
                scalar(out, other);
            }
        }
    }
}

fn sequence(out: &mut String, items: &[Value], depth: usize) {
    for item in items {
        if !out.ends_with("- ") {
            indent(out, depth);
        }
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => entries(out, map, depth + 1),
            Value::Array(items) if !items.is_empty() => sequence(out, items, depth + 1),
            other => scalar(out, other),
        }
    }
}

fn scalar(out: &mut String, value: &Value) {
    match value {
        Value::String(string) => text(out, string),
        Value::Array(_) => out.push_str("[]"),
        // Null, truth values, numbers and the empty map are the same in JSON.
        other => out.push_str(&other.to_string()),
    }
    out.push('\n');
}

fn indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn text(out: &mut String, string: &str) {
    if is_plain(string) {
        out.push_str(string);
    } else {
        // A JSON string is a double-quoted YAML scalar.
        out.push_str(&Value::from(string).to_string());
    }
}

/// Whether it can stand bare: no reader takes it for anything but text.
fn is_plain(string: &str) -> bool {
    const WORDS: [&str; 10] = [
        "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan",
    ];
    let safe = string.bytes().all(|byte| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'/' | b'-' | b'+' | b'=')
    }) || string.split_once(':').is_some_and(|(host, port)| {
        // host:port
        !port.is_empty()
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
    });
    let Some(first) = string.bytes().next() else {
        return false;
    };
    let text = if first.is_ascii_alphabetic() {
        !WORDS.iter().any(|word| string.eq_ignore_ascii_case(word))
    } else {
        // Numbers, dates and sexagesimals have neither of these.
        first.is_ascii_digit() && (string.contains('/') || string.matches('.').count() > 2)
    };
    safe && text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_written_is_read_back_the_same() {
        let value = serde_json::json!({
            "a": [], "b": {}, "c": [[1, [2]], {"x": {"y": [{"z": "no"}]}, "w": ""}], "d": null, "e": true,
            "f": ["1", "1.5", "0x1f", "1e3", "12:30", "2001-01-01", "a: b", "- a", "#", "a #b", "\u{e9}\n\"", "~", "*a", "&a", "!a", "%a", "@a", "`", "NaN", ".inf"],
            "true": "10.0.0.1:6443", "g": -1.5, "h": "0.0.0.0/0", "i": "apps/v1", "j": "Y", "k": "=", "l": "<<",
        });
        let text = write(&value);
        assert_eq!(
            serde_yaml_ng::from_str::<Value>(&text).unwrap(),
            value,
            "{text}"
        );
        assert!(text.contains("z: \"no\""));
        assert_eq!(write(&Value::Array(vec![])), "[]\n");
    }
}
