//! YAML as sigs.k8s.io/yaml writes it: keys sorted, sequences not indented, empty strings in double quotes.

use serde_json::Value;

/// The document.
pub(crate) fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, 0, false);
    out
}

/// `inline`: the first line continues a `- `.
fn write(out: &mut String, value: &Value, depth: usize, inline: bool) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            for (at, (key, value)) in entries.into_iter().enumerate() {
                if at > 0 || !inline {
                    out.push_str(&"  ".repeat(depth));
                }
                out.push_str(&scalar(key));
                out.push(':');
                match value {
                    Value::Object(map) if !map.is_empty() => {
                        out.push('\n');
                        write(out, value, depth + 1, false);
                    }
                    Value::Array(items) if !items.is_empty() => {
                        out.push('\n');
                        write(out, value, depth, false);
                    }
                    other => {
                        out.push(' ');
                        leaf(out, other);
                    }
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&"  ".repeat(depth));
                out.push_str("- ");
                match item {
                    Value::Object(map) if !map.is_empty() => write(out, item, depth + 1, true),
                    Value::Array(items) if !items.is_empty() => {
                        out.push('\n');
                        write(out, item, depth + 1, false);
                    }
                    other => leaf(out, other),
                }
            }
        }
        other => leaf(out, other),
    }
}

fn leaf(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => out.push_str(&scalar(text)),
        other => out.push_str(&other.to_string()),
    }
    out.push('\n');
}

/// Plain where YAML 1.1 reads the same string back, quoted (JSON is YAML) otherwise.
fn scalar(text: &str) -> String {
    let reserved = [
        "true", "false", "null", "yes", "no", "on", "off", "y", "n", "~",
    ];
    let plain = !text.is_empty()
        && !text.starts_with(|first: char| " -?:,[]{}#&*!|>'\"%@`=~<".contains(first))
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !text.chars().any(char::is_control)
        && !reserved.contains(&text.to_lowercase().as_str())
        && text.parse::<f64>().is_err();
    if plain {
        text.to_owned()
    } else {
        Value::String(text.to_owned()).to_string()
    }
}
