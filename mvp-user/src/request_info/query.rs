//! The few query parameters that change a request's meaning, read as Go's `url.ParseQuery` and kube-apiserver's
//! parameter codec read them. Not for anything that is forwarded: the raw query goes upstream.

use std::borrow::Cow;

/// What RequestInfo takes from `ListOptions`.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct ListOptions {
    /// `watch`.
    pub(super) watch: bool,
    /// `metadata.name` in `fieldSelector`.
    pub(super) name: Option<Box<str>>,
}

/// The options of a GET of a collection.
pub(super) fn list_options(query: &str) -> ListOptions {
    ListOptions {
        watch: is_true(query, "watch"),
        // Looking twice keeps lists without a selector, nearly all, free of decoding.
        name: if query.contains("fieldSelector") && integers_parse(query) {
            first(query, "fieldSelector").and_then(|selector| selected_name(&selector))
        } else {
            None
        },
    }
}

/// Whether the first value of `key` is neither `false` nor `0` (apimachinery `Convert_Slice_string_To_bool`).
fn is_true(query: &str, key: &str) -> bool {
    first(query, key).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

/// A parameter that cannot be decoded makes kube-apiserver forget the selector, but not the watch.
fn integers_parse(query: &str) -> bool {
    ["limit", "timeoutSeconds"]
        .into_iter()
        .all(|key| first(query, key).is_none_or(|value| value.parse::<i64>().is_ok()))
}

/// The first value of `key`. Pairs with a raw `;` or a bad escape are dropped, as Go drops them.
fn first<'a>(query: &'a str, key: &str) -> Option<Cow<'a, str>> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'))
        .find_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescape(value)?;
            (unescape(name)? == key).then_some(value)
        })
}

fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    super::decode(&spaced)
        .ok()
        .map(|decoded| Cow::Owned(decoded.into_string()))
}

/// `fields.ParseSelector` and `RequiresExactMatch("metadata.name")`: all terms must be valid, the name a path segment.
fn selected_name(selector: &str) -> Option<Box<str>> {
    let mut name = None;
    for term in split_unescaped(selector, ',') {
        if term.is_empty() {
            continue;
        }
        let (field, operator, value) = split_term(term)?;
        let value = unescape_value(value)?;
        if name.is_none() && operator != "!=" && field == "metadata.name" {
            name = Some(value);
        }
    }
    name.filter(|name| {
        !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%'])
    })
    .map(String::into_boxed_str)
}

/// At the first `!=`, `==` or `=` that is not escaped.
fn split_term(term: &str) -> Option<(&str, &str, &str)> {
    let bytes = term.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'\\' {
            at += 2;
            continue;
        }
        for operator in ["!=", "==", "="] {
            if bytes[at..].starts_with(operator.as_bytes()) {
                return Some((&term[..at], operator, &term[at + operator.len()..]));
            }
        }
        at += 1;
    }
    None
}

fn split_unescaped(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |character| {
        let cut = !escaped && character == separator;
        escaped = !escaped && character == '\\';
        cut
    })
}

/// `fields.UnescapeValue`: only `\\`, `\,` and `\=` are escapes; a raw `,` or `=` is an error.
fn unescape_value(value: &str) -> Option<String> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(
                characters
                    .next()
                    .filter(|next| matches!(next, '\\' | ',' | '='))?,
            ),
            ',' | '=' => return None,
            other => plain.push(other),
        }
    }
    Some(plain)
}
