//! Whether an object is what a kube-apiserver's own OpenAPI v3 document says: types, required and unknown fields, enums.
//! What cannot be said in OpenAPI (validation code) is not checked.

use anyhow::{Context as _, Result, bail};
use bench::standin::recorded_openapi;
use serde_json::Value;

/// Validates one object against the recorded document of `release` (`1.36`); objects of other groups are errors.
pub(super) fn object(release: &str, object: &Value) -> Result<()> {
    let api_version = object["apiVersion"].as_str().context("no apiVersion")?;
    let kind = object["kind"].as_str().context("no kind")?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let file = if group.is_empty() {
        format!("{release}/v3__api_{version}.json")
    } else {
        format!("{release}/v3__apis_{group}_{version}.json")
    };
    let document: Value = serde_json::from_slice(&recorded_openapi(&file)?)?;
    let schemas = document["components"]["schemas"]
        .as_object()
        .context("no schemas")?;
    let schema = schemas
        .values()
        .find(|schema| {
            schema["x-kubernetes-group-version-kind"]
                .as_array()
                .is_some_and(|all| {
                    all.iter().any(|it| {
                        it["group"] == group && it["version"] == version && it["kind"] == kind
                    })
                })
        })
        .with_context(|| format!("{release} has no {kind} in {api_version}"))?;
    check(&document, schema, object, kind)
}

fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<()> {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.strip_prefix('#').context("a foreign reference")?;
        let target = document.pointer(pointer).context("a dangling reference")?;
        return check(document, target, value, at);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        check(document, part, value, at)?;
    }
    if let Some(forms) = schema["oneOf"].as_array() {
        let fits = forms
            .iter()
            .any(|form| check(document, form, value, at).is_ok());
        return if fits {
            Ok(())
        } else {
            bail!("{at}: {value} has none of the forms")
        };
    }
    if schema["x-kubernetes-int-or-string"] == true || schema["format"] == "int-or-string" {
        return match value {
            Value::String(_) | Value::Number(_) => Ok(()),
            other => bail!("{at}: {other} is neither a number nor a string"),
        };
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        bail!("{at}: {value} is none of {allowed:?}");
    }
    let right = match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    if !right {
        bail!("{at}: {value} is no {}", schema["type"]);
    }
    for item in value.as_array().into_iter().flatten() {
        check(document, &schema["items"], item, at)?;
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap_or_default()).is_none() {
            bail!("{at} lacks {name}");
        }
    }
    let Some(fields) = value.as_object() else {
        return Ok(());
    };
    let (properties, more) = (&schema["properties"], &schema["additionalProperties"]);
    for (name, field) in fields {
        let at = format!("{at}.{name}");
        if properties.get(name).is_some() {
            check(document, &properties[name], field, &at)?;
        } else if more.is_object() {
            check(document, more, field, &at)?;
        } else if schema["type"] == "object" && properties.is_object() {
            bail!("{at} is unknown");
        }
    }
    Ok(())
}
