//! Takes OpenAPI documents apart into paths and definitions and puts them together again: v2 and v3, JSON and gnostic's
//! protobuf. Pieces are bytes of the document itself; what nobody asks for is never parsed.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{Deserializer, MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::wireformat::{NotProtobuf, fields, named, put, references, rewrite};

/// Why a document cannot be taken apart.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum SpecError {
    /// Not a JSON document of this kind.
    #[error("it is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Not protobuf.
    #[error(transparent)]
    Wire(#[from] NotProtobuf),
}

/// OpenAPI version of a document.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Dialect {
    V2,
    V3,
}

/// Dialect and representation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Format {
    pub(super) dialect: Dialect,
    pub(super) protobuf: bool,
}

/// A part of a document as it came, or as it was rewritten.
pub(super) type Piece<'a> = Cow<'a, [u8]>;

/// A document, taken apart.
pub(super) struct Doc<'a> {
    /// Path items by path.
    pub(super) paths: BTreeMap<String, Piece<'a>>,
    /// Definitions by reference (`#/definitions/NAME`, `#/components/schemas/NAME`, `#/parameters/NAME`).
    pub(super) definitions: BTreeMap<String, Piece<'a>>,
    /// The rest: entries of the document, and of `components`.
    frame: Vec<(String, &'a [u8])>,
    components: Vec<(String, &'a [u8])>,
}

const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
const SCHEMAS: &str = "#/components/schemas/";
const GVK: &str = "x-kubernetes-group-version-kind";

/// Numbers of gnostic's fields.
struct Numbers {
    paths: u64,
    /// `Paths.path`
    path: u64,
    /// Reference prefix and field of each kind of definition; of v3 within `components`.
    definitions: &'static [(&'static str, u64)],
    /// `Document.components`
    components: Option<u64>,
}

const V2: Numbers = Numbers {
    paths: 8,
    path: 2,
    definitions: &[(DEFINITIONS, 9), (PARAMETERS, 10)],
    components: None,
};
const V3: Numbers = Numbers {
    paths: 4,
    path: 1,
    definitions: &[(SCHEMAS, 1)],
    components: Some(5),
};

impl Format {
    /// The format of an answer by its Content-Type.
    pub(super) fn of(dialect: Dialect, content_type: &str) -> Option<Self> {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let version = match dialect {
            Dialect::V2 => ["spec.v2@v1.0+protobuf", "spec.v2.v1.0+protobuf"],
            Dialect::V3 => ["spec.v3@v1.0+protobuf", "spec.v3.v1.0+protobuf"],
        };
        let protobuf = match essence {
            "application/json" => false,
            _ if version.iter().any(|version| {
                essence.strip_prefix("application/com.github.proto-openapi.") == Some(version)
            }) =>
            {
                true
            }
            _ => return None,
        };
        Some(Self { dialect, protobuf })
    }

    /// What to ask a server for, to get this format.
    pub(super) const fn accept(self) -> &'static str {
        match (self.dialect, self.protobuf) {
            (_, false) => "application/json",
            // Both spellings: servers before 1.27 know only the one with `@`.
            (Dialect::V2, true) => {
                "application/com.github.proto-openapi.spec.v2.v1.0+protobuf,application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
            }
            (Dialect::V3, true) => {
                "application/com.github.proto-openapi.spec.v3.v1.0+protobuf,application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
            }
        }
    }

    const fn numbers(self) -> &'static Numbers {
        match self.dialect {
            Dialect::V2 => &V2,
            Dialect::V3 => &V3,
        }
    }

    /// Takes a document apart.
    pub(super) fn parse(self, bytes: &[u8]) -> Result<Doc<'_>, SpecError> {
        if self.protobuf {
            self.parse_protobuf(bytes)
        } else {
            self.parse_json(bytes)
        }
    }

    fn parse_json(self, bytes: &[u8]) -> Result<Doc<'_>, SpecError> {
        let mut doc = Doc::empty();
        for (key, value) in entries(bytes)? {
            match (self.dialect, key.as_str()) {
                (_, "paths") => {
                    for (path, item) in entries(value)? {
                        doc.paths.insert(path, Cow::Borrowed(item));
                    }
                }
                (Dialect::V2, "definitions") => doc.define(DEFINITIONS, value)?,
                (Dialect::V2, "parameters") => doc.define(PARAMETERS, value)?,
                (Dialect::V3, "components") => {
                    for (key, value) in entries(value)? {
                        if key == "schemas" {
                            doc.define(SCHEMAS, value)?;
                        } else {
                            doc.components.push((key, value));
                        }
                    }
                }
                _ => doc.frame.push((key, value)),
            }
        }
        Ok(doc)
    }

    fn parse_protobuf(self, bytes: &[u8]) -> Result<Doc<'_>, SpecError> {
        let numbers = self.numbers();
        let mut doc = Doc::empty();
        for field in fields(bytes)? {
            let Some(payload) = field.payload else {
                doc.frame.push((String::new(), field.whole));
                continue;
            };
            if field.number == numbers.paths {
                for entry in fields(payload)? {
                    if let (true, Some(entry)) = (entry.number == numbers.path, entry.payload) {
                        let (path, item) = named(entry)?;
                        doc.paths.insert(path, Cow::Borrowed(item));
                    }
                }
            } else if numbers.components == Some(field.number) {
                for part in fields(payload)? {
                    match (definition(numbers, part.number), part.payload) {
                        (Some(prefix), Some(payload)) => doc.define_protobuf(prefix, payload)?,
                        _ => doc.components.push((String::new(), part.whole)),
                    }
                }
            } else if let (None, Some(prefix)) =
                (numbers.components, definition(numbers, field.number))
            {
                doc.define_protobuf(prefix, payload)?;
            } else {
                doc.frame.push((String::new(), field.whole));
            }
        }
        Ok(doc)
    }

    /// Puts a document together.
    pub(super) fn write(self, doc: &Doc<'_>) -> Vec<u8> {
        if self.protobuf {
            self.write_protobuf(doc)
        } else {
            self.write_json(doc)
        }
    }

    fn write_json(self, doc: &Doc<'_>) -> Vec<u8> {
        let mut document = Object::new();
        for (key, value) in &doc.frame {
            document.put(key, value);
        }
        document.put(
            "paths",
            &object(doc.paths.iter().map(|(path, item)| (path.as_str(), item))),
        );
        match self.dialect {
            Dialect::V2 => {
                document.put("definitions", &object(doc.defined(DEFINITIONS)));
                document.put("parameters", &object(doc.defined(PARAMETERS)));
            }
            Dialect::V3 => {
                let mut components = Object::new();
                components.put("schemas", &object(doc.defined(SCHEMAS)));
                for (key, value) in &doc.components {
                    components.put(key, value);
                }
                document.put("components", &components.close());
            }
        }
        document.close()
    }

    fn write_protobuf(self, doc: &Doc<'_>) -> Vec<u8> {
        let numbers = self.numbers();
        let mut out = Vec::new();
        for (_, field) in &doc.frame {
            out.extend_from_slice(field);
        }
        let mut paths = Vec::new();
        for (path, item) in &doc.paths {
            put(&mut paths, numbers.path, &entry(path, item));
        }
        put(&mut out, numbers.paths, &paths);
        let mut components = Vec::new();
        for (prefix, number) in numbers.definitions {
            let mut definitions = Vec::new();
            for (name, piece) in doc.defined(prefix) {
                put(&mut definitions, 1, &entry(name, piece));
            }
            let to = if numbers.components.is_some() {
                &mut components
            } else {
                &mut out
            };
            put(to, *number, &definitions);
        }
        if let Some(number) = numbers.components {
            for (_, field) in &doc.components {
                components.extend_from_slice(field);
            }
            put(&mut out, number, &components);
        }
        out
    }

    /// The operations of a path item (and whatever else it has), by name or number.
    pub(super) fn operations(self, item: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, SpecError> {
        let mut operations: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        if self.protobuf {
            for field in fields(item)? {
                let key = format!("{:03}", field.number);
                operations
                    .entry(key)
                    .or_default()
                    .extend_from_slice(field.whole);
            }
        } else {
            for (key, value) in entries(item)? {
                operations.insert(key, value.to_vec());
            }
        }
        Ok(operations)
    }

    /// A path item of these operations.
    pub(super) fn item(self, operations: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
        if self.protobuf {
            return operations.values().flatten().copied().collect();
        }
        let mut item = Object::new();
        for (key, value) in operations {
            item.put(key, value);
        }
        item.close()
    }

    /// Every definition that a piece refers to.
    pub(super) fn references(self, piece: &[u8]) -> Result<Vec<String>, SpecError> {
        let mut found = Vec::new();
        if self.protobuf {
            references(piece, &mut |reference| found.push(reference.to_owned()));
        } else if memchr::memmem::find(piece, b"\"$ref\"").is_some() {
            visit(&serde_json::from_slice(piece)?, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The piece with its references renamed and, if wanted, without what says which kind it describes.
    pub(super) fn rewrite(
        self,
        piece: &[u8],
        rename: &impl Fn(&str) -> Option<String>,
        strip: bool,
    ) -> Result<Vec<u8>, SpecError> {
        if self.protobuf {
            return Ok(rewrite(piece, rename, strip).unwrap_or_else(|| piece.to_vec()));
        }
        let mut value: Value = serde_json::from_slice(piece)?;
        if strip && let Some(map) = value.as_object_mut() {
            map.remove(GVK);
        }
        rename_in(&mut value, rename);
        Ok(serde_json::to_vec(&value)?)
    }
}

impl<'a> Doc<'a> {
    const fn empty() -> Self {
        Self {
            paths: BTreeMap::new(),
            definitions: BTreeMap::new(),
            frame: Vec::new(),
            components: Vec::new(),
        }
    }

    /// Whether it says that it is one of this dialect.
    pub(super) fn is_openapi(&self, format: Format) -> bool {
        let name = match format.dialect {
            Dialect::V2 => "swagger",
            Dialect::V3 => "openapi",
        };
        // Field 1 of both in protobuf.
        self.frame.iter().any(|(key, value)| {
            if format.protobuf {
                value.first() == Some(&0x0a)
            } else {
                key == name
            }
        })
    }

    fn define(&mut self, prefix: &str, object: &'a [u8]) -> Result<(), SpecError> {
        for (name, value) in entries(object)? {
            self.definitions
                .insert(format!("{prefix}{name}"), Cow::Borrowed(value));
        }
        Ok(())
    }

    fn define_protobuf(&mut self, prefix: &str, list: &'a [u8]) -> Result<(), SpecError> {
        for payload in fields(list)?.into_iter().filter_map(|field| field.payload) {
            let (name, piece) = named(payload)?;
            self.definitions
                .insert(format!("{prefix}{name}"), Cow::Borrowed(piece));
        }
        Ok(())
    }

    fn defined<'b>(&'b self, prefix: &'b str) -> impl Iterator<Item = (&'b str, &'b Piece<'a>)> {
        self.definitions
            .range(prefix.to_owned()..)
            .map_while(move |(reference, piece)| Some((reference.strip_prefix(prefix)?, piece)))
    }
}

fn definition(numbers: &Numbers, number: u64) -> Option<&'static str> {
    numbers
        .definitions
        .iter()
        .find(|(_, known)| *known == number)
        .map(|(prefix, _)| *prefix)
}

fn entry(name: &str, value: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(name.len() + value.len() + 16);
    put(&mut entry, 1, name.as_bytes());
    put(&mut entry, 2, value);
    entry
}

/// Entries of a JSON object in their order, values unparsed.
fn entries(json: &[u8]) -> Result<Vec<(String, &[u8])>, SpecError> {
    struct Entries<'a>(Vec<(String, &'a [u8])>);
    impl<'de> Deserialize<'de> for Entries<'de> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Collect;
            impl<'de> Visitor<'de> for Collect {
                type Value = Entries<'de>;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                    let mut entries = Vec::new();
                    while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                        entries.push((key, value.get().as_bytes()));
                    }
                    Ok(Entries(entries))
                }
            }
            deserializer.deserialize_map(Collect)
        }
    }
    Ok(serde_json::from_slice::<Entries<'_>>(json)?.0)
}

/// A JSON object in the making.
struct Object(Vec<u8>);

impl Object {
    fn new() -> Self {
        Self(vec![b'{'])
    }

    fn put(&mut self, key: &str, value: &[u8]) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        self.0
            .extend_from_slice(Value::from(key).to_string().as_bytes());
        self.0.push(b':');
        self.0.extend_from_slice(value);
    }

    fn close(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}

fn object<'b>(entries: impl Iterator<Item = (&'b str, &'b Piece<'b>)>) -> Vec<u8> {
    let mut object = Object::new();
    for (key, value) in entries {
        object.put(key, value);
    }
    object.close()
}

fn visit(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                found.push(reference.clone());
            }
            map.values().for_each(|value| visit(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| visit(value, found)),
        _ => {}
    }
}

fn rename_in(value: &mut Value, rename: &impl Fn(&str) -> Option<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref")
                && let Some(renamed) = rename(reference)
            {
                *reference = renamed;
            }
            map.values_mut().for_each(|value| rename_in(value, rename));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| rename_in(value, rename)),
        _ => {}
    }
}
