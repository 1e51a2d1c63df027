//! Label and field selectors.

use serde_json::Value;

use super::super::{call::Call, status::Status};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Need {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
}

/// What a list or watch is narrowed to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selection {
    labels: Vec<(String, Need)>,
    /// Path, wanted value, equal or not.
    fields: Vec<(String, String, bool)>,
    /// The name in the path or field selector.
    name: Option<String>,
}

impl Selection {
    pub(super) fn of(call: &Call) -> Result<Self, Status> {
        let labels = call.parameter("labelSelector").unwrap_or_default();
        let fields = call.parameter("fieldSelector").unwrap_or_default();
        let mut selection = Self::parse(labels, fields)?;
        if !call.info.name.is_empty() {
            selection.name = Some(call.info.name.clone());
        }
        Ok(selection)
    }

    pub(super) fn parse(labels: &str, fields: &str) -> Result<Self, Status> {
        let mut selection = Self::default();
        for term in terms(labels) {
            selection.labels.push(label(term).ok_or_else(|| {
                Status::bad_request(format!("unable to parse requirement: found {term:?}"))
            })?);
        }
        for term in fields.split(',').filter(|term| !term.is_empty()) {
            let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) =
                term.split_once("==").or_else(|| term.split_once('='))
            {
                (path, value, true)
            } else {
                return Err(Status::bad_request(format!(
                    "invalid field selector: {term:?}"
                )));
            };
            selection
                .fields
                .push((path.to_owned(), value.to_owned(), equal));
        }
        Ok(selection)
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.name
            .as_ref()
            .is_none_or(|name| metadata["name"] == name.as_str())
            && self.labels.iter().all(|(key, need)| {
                let value = metadata["labels"].get(key).and_then(Value::as_str);
                match need {
                    Need::In(values) => {
                        value.is_some_and(|value| values.iter().any(|wanted| wanted == value))
                    }
                    Need::NotIn(values) => {
                        !value.is_some_and(|value| values.iter().any(|wanted| wanted == value))
                    }
                    Need::Exists => value.is_some(),
                    Need::Missing => value.is_none(),
                }
            })
            && self.fields.iter().all(|(path, wanted, equal)| {
                let found = path.split('.').fold(object, |value, step| &value[step]);
                let text = match found {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                (text == *wanted) == *equal
            })
    }
}

/// Splits at commas that are not inside parentheses.
fn terms(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0, 0, Vec::new());
    for (at, found) in text.char_indices() {
        match found {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out.into_iter()
        .map(str::trim)
        .filter(|term| !term.is_empty())
        .collect()
}

fn label(term: &str) -> Option<(String, Need)> {
    let set = |text: &str| -> Option<Vec<String>> {
        let inner = text.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(
            inner
                .split(',')
                .map(|value| value.trim().to_owned())
                .collect(),
        )
    };
    if let Some(key) = term.strip_prefix('!') {
        return Some((key.trim().to_owned(), Need::Missing));
    }
    if let Some((key, values)) = term.split_once(" notin ") {
        return Some((key.trim().to_owned(), Need::NotIn(set(values)?)));
    }
    if let Some((key, values)) = term.split_once(" in ") {
        return Some((key.trim().to_owned(), Need::In(set(values)?)));
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Some((
            key.trim().to_owned(),
            Need::NotIn(vec![value.trim().to_owned()]),
        ));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Some((
            key.trim().to_owned(),
            Need::In(vec![value.trim().to_owned()]),
        ));
    }
    (!term.contains(' ')).then(|| (term.to_owned(), Need::Exists))
}
