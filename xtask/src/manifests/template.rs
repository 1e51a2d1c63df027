//! The part of Go's `text/template`, and of the functions that Helm adds, that the chart uses: fields, `if`/`else`,
//! `range` over lists and maps, pipelines, and `quote`, `add`, `int`, `printf`, `toYaml`, `nindent`. Everything else is an
//! error, so the chart cannot leave what is rendered here as Helm renders it.

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;

#[derive(Debug)]
enum Node {
    Text(String),
    Output(Vec<Vec<Term>>),
    If(Vec<Vec<Term>>, Vec<Self>, Vec<Self>),
    Range(Option<(String, String)>, Vec<Vec<Term>>, Vec<Self>),
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    /// `.a.b`; empty: the dot itself.
    Field(Vec<String>),
    /// `$name.a`.
    Variable(String, Vec<String>),
    Literal(Value),
    Function(String),
}

/// A piece of the text: outside or inside of `{{ }}`.
enum Piece {
    Text(String),
    Action(String),
}

/// Renders `text` with `context` as the dot.
pub(super) fn render(text: &str, context: &Value) -> Result<String> {
    let mut pieces = pieces(text)?.into_iter();
    let (nodes, end) = parse(&mut pieces)?;
    if let Some(end) = end {
        bail!("{{{{ {end} }}}} without a beginning");
    }
    let mut scope = Scope {
        dot: context.clone(),
        variables: Vec::new(),
        out: String::new(),
    };
    scope.run(&nodes)?;
    Ok(scope.out)
}

fn pieces(text: &str) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut trim = false;
    while let Some(at) = rest.find("{{") {
        let (before, inside) = (&rest[..at], &rest[at + 2..]);
        let before = if trim { before.trim_start() } else { before };
        let end = action_end(inside)
            .with_context(|| format!("no }}}} after {:?}", inside.get(..40).unwrap_or(inside)))?;
        let mut action = &inside[..end];
        let trims_before = action.starts_with("- ");
        if trims_before {
            action = &action[1..];
        }
        trim = action.ends_with(" -");
        if trim {
            action = &action[..action.len() - 1];
        }
        let before = if trims_before {
            before.trim_end()
        } else {
            before
        };
        pieces.push(Piece::Text(before.to_owned()));
        pieces.push(Piece::Action(action.trim().to_owned()));
        rest = &inside[end + 2..];
    }
    let rest = if trim { rest.trim_start() } else { rest };
    pieces.push(Piece::Text(rest.to_owned()));
    Ok(pieces)
}

/// Where the action ends; `}}` within a string does not count.
fn action_end(inside: &str) -> Option<usize> {
    let bytes = inside.as_bytes();
    let (mut at, mut quoted) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => quoted = !quoted,
            b'\\' if quoted => at += 1,
            b'}' if !quoted && bytes.get(at + 1) == Some(&b'}') => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Up to an `end` or `else`, which is returned, or to the end of the text.
fn parse(pieces: &mut impl Iterator<Item = Piece>) -> Result<(Vec<Node>, Option<String>)> {
    let mut nodes = Vec::new();
    while let Some(piece) = pieces.next() {
        let action = match piece {
            Piece::Text(text) => {
                nodes.push(Node::Text(text));
                continue;
            }
            Piece::Action(action) => action,
        };
        if action == "end" || action == "else" {
            return Ok((nodes, Some(action)));
        }
        if action.starts_with("/*") {
            continue;
        }
        if let Some(condition) = action.strip_prefix("if ") {
            let (then, end) = parse(pieces)?;
            let (other, end) = if end.as_deref() == Some("else") {
                parse(pieces)?
            } else {
                (Vec::new(), end)
            };
            close(&action, end.as_deref())?;
            nodes.push(Node::If(pipeline(condition)?, then, other));
        } else if let Some(what) = action.strip_prefix("range ") {
            let (names, what) = match what.split_once(":=") {
                Some((names, what)) => (Some(pair(names)?), what),
                None => (None, what),
            };
            let (body, end) = parse(pieces)?;
            close(&action, end.as_deref())?;
            nodes.push(Node::Range(names, pipeline(what)?, body));
        } else {
            nodes.push(Node::Output(pipeline(&action)?));
        }
    }
    Ok((nodes, None))
}

fn close(action: &str, end: Option<&str>) -> Result<()> {
    if end == Some("end") {
        return Ok(());
    }
    bail!("{{{{ {action} }}}} has no end")
}

fn pair(names: &str) -> Result<(String, String)> {
    let name = |text: &str| text.trim().strip_prefix('$').map(str::to_owned);
    names
        .split_once(',')
        .and_then(|(first, second)| Some((name(first)?, name(second)?)))
        .with_context(|| format!("{names:?} is not $key, $value"))
}

fn pipeline(text: &str) -> Result<Vec<Vec<Term>>> {
    let mut commands = vec![Vec::new()];
    for token in tokens(text)? {
        if token == "|" {
            commands.push(Vec::new());
        } else if let Some(command) = commands.last_mut() {
            command.push(term(&token)?);
        }
    }
    if commands.iter().any(Vec::is_empty) {
        bail!("{text:?} has an empty command");
    }
    Ok(commands)
}

fn tokens(text: &str) -> Result<Vec<String>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let length = if rest.starts_with('"') {
            let mut escaped = false;
            let end = rest.char_indices().skip(1).find(|(_, it)| {
                let ends = *it == '"' && !escaped;
                escaped = *it == '\\' && !escaped;
                ends
            });
            end.with_context(|| format!("{rest:?} does not end"))?.0 + 1
        } else {
            rest.find(char::is_whitespace).unwrap_or(rest.len())
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn term(token: &str) -> Result<Term> {
    let path = |text: &str| -> Vec<String> {
        text.split('.')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect()
    };
    if token.starts_with('"') || token.starts_with(|it: char| it.is_ascii_digit()) {
        // Go's strings and numbers are written as JSON's, as far as they are used here.
        return serde_json::from_str(token)
            .map(Term::Literal)
            .map_err(|error| anyhow!("{token}: {error}"));
    }
    if let Some(name) = token.strip_prefix('$') {
        let (name, fields) = name.split_once('.').unwrap_or((name, ""));
        return Ok(Term::Variable(name.to_owned(), path(fields)));
    }
    if token.starts_with('.') {
        return Ok(Term::Field(path(token)));
    }
    if token.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Ok(Term::Function(token.to_owned()));
    }
    bail!("{token:?} is not understood here")
}

struct Scope {
    dot: Value,
    variables: Vec<(String, Value)>,
    out: String,
}

impl Scope {
    fn run(&mut self, nodes: &[Node]) -> Result<()> {
        for node in nodes {
            match node {
                Node::Text(text) => self.out.push_str(text),
                Node::Output(pipeline) => {
                    let value = self.value(pipeline)?;
                    self.out.push_str(&shown(&value)?);
                }
                Node::If(condition, then, other) => {
                    let holds = truth(&self.value(condition)?);
                    self.run(if holds { then } else { other })?;
                }
                Node::Range(names, what, body) => self.range(names.as_ref(), what, body)?,
            }
        }
        Ok(())
    }

    fn range(
        &mut self,
        names: Option<&(String, String)>,
        what: &[Vec<Term>],
        body: &[Node],
    ) -> Result<()> {
        let items: Vec<(Value, Value)> = match self.value(what)? {
            Value::Array(list) => (0..).map(|at: usize| Value::from(at)).zip(list).collect(),
            Value::Object(map) => map
                .into_iter()
                .map(|(key, value)| (Value::from(key), value))
                .collect(),
            Value::Null => Vec::new(),
            other => bail!("range over {other}"),
        };
        let (outer, depth) = (self.dot.clone(), self.variables.len());
        for (key, value) in items {
            if let Some((first, second)) = names {
                self.variables.push((first.clone(), key));
                self.variables.push((second.clone(), value.clone()));
            }
            self.dot = value;
            self.run(body)?;
            self.variables.truncate(depth);
        }
        self.dot = outer;
        Ok(())
    }

    fn value(&self, pipeline: &[Vec<Term>]) -> Result<Value> {
        let mut piped = None;
        for command in pipeline {
            let (first, rest) = command.split_first().context("an empty command")?;
            piped = Some(match first {
                Term::Function(name) => {
                    let mut arguments = rest
                        .iter()
                        .map(|term| self.term(term))
                        .collect::<Result<Vec<_>>>()?;
                    arguments.extend(piped);
                    call(name, &arguments)?
                }
                term if rest.is_empty() && piped.is_none() => self.term(term)?,
                _ => bail!("{first:?} is no function"),
            });
        }
        piped.context("an empty pipeline")
    }

    fn term(&self, term: &Term) -> Result<Value> {
        let (start, fields) = match term {
            Term::Literal(value) => return Ok(value.clone()),
            Term::Function(name) => return call(name, &[]),
            Term::Field(fields) => (&self.dot, fields),
            Term::Variable(name, fields) if name.is_empty() => (&self.dot, fields),
            Term::Variable(name, fields) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                (
                    &known.with_context(|| format!("${name} is unknown"))?.1,
                    fields,
                )
            }
        };
        let mut value = start;
        for field in fields {
            // Helm prints nothing for a missing value; in this chart it is a mistake.
            value = value
                .get(field)
                .with_context(|| format!("there is no .{}", fields.join(".")))?;
        }
        Ok(value.clone())
    }
}

fn call(name: &str, arguments: &[Value]) -> Result<Value> {
    let number = |value: &Value| {
        value
            .as_i64()
            .with_context(|| format!("{value} is no number"))
    };
    Ok(match (name, arguments) {
        ("quote", [value]) => Value::from(Value::from(shown(value)?).to_string()),
        ("int", [value]) => Value::from(number(value)?),
        ("add", [first, second]) => Value::from(number(first)? + number(second)?),
        ("printf", [Value::String(format), rest @ ..]) => Value::from(printf(format, rest)?),
        ("toYaml", [value]) => Value::from(serde_yaml_ng::to_string(value)?.trim_end()),
        ("nindent", [depth, Value::String(text)]) => {
            let depth = usize::try_from(number(depth)?)?;
            let lines = text.lines().map(|line| format!("\n{:depth$}{line}", ""));
            Value::from(lines.collect::<String>())
        }
        _ => bail!(
            "the function {name} with {} arguments is not known here",
            arguments.len()
        ),
    })
}

fn printf(format: &str, arguments: &[Value]) -> Result<String> {
    let mut arguments = arguments.iter();
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let value = arguments.next().context("printf has too few arguments")?;
        match after.as_bytes().first() {
            Some(b's' | b'd') => out.push_str(&shown(value)?),
            _ => bail!("printf {format:?} is not known here"),
        }
        rest = &after[1..];
    }
    out.push_str(rest);
    Ok(out)
}

fn shown(value: &Value) -> Result<String> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        other => bail!("{other} cannot be printed; toYaml can"),
    })
}

/// Empty values are false (`text/template`, "if").
fn truth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(it) => *it,
        Value::Number(it) => it.as_i64() != Some(0),
        Value::String(it) => !it.is_empty(),
        Value::Array(it) => !it.is_empty(),
        Value::Object(it) => !it.is_empty(),
    }
}
