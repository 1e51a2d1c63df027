//! `mvp ui`: the status page, on a loopback port, for whoever looks at this node with a browser.
//!
//! A client of the control socket, started by root when it is wanted: it asks mvp every two seconds, renders once, and
//! shows everybody the same. It reads only. Whoever can connect to loopback on this node can read what it shows, as with
//! `/metrics`; there are no names of objects or users in it.

use std::{
    convert::Infallible,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use clap::Args;
use futures_util::stream;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    client::{self, ClientError},
    table,
    terminal::print,
};
use crate::admin::wire::Overview;

mod guard;
mod history;
mod page;
#[cfg(test)]
mod tests;

use guard::{Guard, Refused, Wanted};
use history::History;
use page::{Look, Section};

/// Between two questions to mvp.
const EVERY: Duration = Duration::from_secs(2);
/// An answer takes milliseconds.
const WITHIN: Duration = Duration::from_secs(5);
/// Connections at once.
const CONNECTIONS: usize = 64;
/// Of them, those that watch. A browser opens at most six to one site.
const WATCHERS: usize = 24;
/// A page that is watched says so, so that the other end is known to be there.
const STILL_HERE: Duration = Duration::from_secs(15);
/// Then a watcher has to come again, which browsers do by themselves.
const WATCH_FOR: Duration = Duration::from_hours(1);
/// Head of a request.
const HEAD: Duration = Duration::from_secs(5);

/// Options of `mvp ui`.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Where the page is served: a port, or a loopback address and a port; port 0: any that is free
    #[arg(long, value_name = "[ADDR:]PORT", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub(super) listen: SocketAddr,
    /// Control socket [default: that of the newest ready mvp in /run/mvp]
    #[arg(long, value_name = "FILE", env = "MVP_CONTROL_SOCKET", hide_env = true)]
    pub(super) control_socket: Option<PathBuf>,
}

/// `PORT` or `ADDR:PORT`; only loopback, because the page asks nobody who they are.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = match text.parse::<u16>() {
        Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        Err(_) => text
            .replace("localhost:", "127.0.0.1:")
            .parse::<SocketAddr>()
            .map_err(|_neither| "a port, or ADDR:PORT, is wanted".to_owned())?,
    };
    let ip: IpAddr = address.ip().to_canonical();
    if ip.is_loopback() {
        Ok(address)
    } else {
        Err(format!(
            "{ip} is not a loopback address, and the page asks nobody who they are; from elsewhere, look through \
             `ssh -L PORT:127.0.0.1:PORT`"
        ))
    }
}

/// Everything that is shown, as of one moment.
#[derive(Debug, Default)]
struct View {
    node: String,
    sections: Vec<(&'static str, Arc<str>)>,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What all connections share.
#[derive(Debug)]
struct Site {
    guard: Guard,
    policy: HeaderValue,
    views: watch::Receiver<Arc<View>>,
    watchers: Arc<Semaphore>,
    /// True: the program ends.
    end: watch::Receiver<bool>,
}

/// Serves the page until a signal.
pub(super) fn run(options: &Options) -> Result<ExitCode, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ClientError::Runtime)?;
    runtime.block_on(serve(options))
}

async fn serve(options: &Options) -> Result<ExitCode, ClientError> {
    let mut knowledge = Knowledge::new(options.control_socket.clone());
    // Without an mvp there is nothing to show: said at once, as by every other verb.
    knowledge.ask().await?;
    let failed = |error| ClientError::Listen {
        address: options.listen,
        error,
    };
    let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ClientError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ClientError::Runtime)?;
    let (views, seen) = watch::channel(Arc::new(knowledge.view()));
    let (end, ending) = watch::channel(false);
    let site = Arc::new(Site {
        guard: Guard::new(address),
        policy: HeaderValue::try_from(page::policy())
            .map_err(|error| ClientError::Broken(error.to_string()))?,
        views: seen,
        watchers: Arc::new(Semaphore::new(WATCHERS)),
        end: ending,
    });
    print(&format!("http://{address}/\n"));
    let mut visits = JoinSet::new();
    tokio::select! {
        () = keep_looking(&mut knowledge, &views) => {}
        () = accept(&listener, &site, &mut visits) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    drop(listener);
    end.send_replace(true);
    let rest = async { while visits.join_next().await.is_some() {} };
    // Whoever does not go is cut off.
    drop(tokio::time::timeout(Duration::from_secs(1), rest).await);
    Ok(ExitCode::SUCCESS)
}

/// What mvp said last.
struct Knowledge {
    socket: Option<PathBuf>,
    history: History,
    last: Option<(Overview, Instant, SystemTime)>,
    trouble: Option<String>,
}

impl Knowledge {
    fn new(socket: Option<PathBuf>) -> Self {
        Self {
            socket,
            history: History::default(),
            last: None,
            trouble: None,
        }
    }

    /// Asks the process that is the newest ready one now: after a rolling update it is another one.
    async fn ask(&mut self) -> Result<(), ClientError> {
        let socket = client::socket(self.socket.as_deref());
        let text = client::get(&socket, "/v1/overview", WITHIN).await?;
        let mut answer = serde_json::from_slice(&text).map_err(ClientError::Answer)?;
        clean(&mut answer);
        let overview: Overview = serde_json::from_value(answer).map_err(ClientError::Answer)?;
        let now = Instant::now();
        self.history.look(now, &overview);
        self.last = Some((overview, now, SystemTime::now()));
        Ok(())
    }

    fn view(&self) -> View {
        let Some((overview, at, time)) = &self.last else {
            return View::default();
        };
        let paces = self
            .history
            .paces(&overview.traffic.bounds, overview.status.uptime);
        let sections = page::sections(&Look {
            overview,
            paces: &paces,
            time: &clock(*time),
            trouble: self
                .trouble
                .clone()
                .map(|why| (why, at.elapsed().as_secs())),
        });
        View {
            node: overview.status.node.clone(),
            sections: sections
                .into_iter()
                .map(|Section { id, html }| (id, html.into()))
                .collect(),
        }
    }
}

/// Takes out of every text what would turn or break the text around it; markup is escaped where it is shown.
fn clean(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::String(text) => *text = text.chars().map(table::clean).collect(),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(members) => {
            let cleaned = std::mem::take(members)
                .into_iter()
                .map(|(name, mut value)| {
                    clean(&mut value);
                    (name.chars().map(table::clean).collect(), value)
                })
                .collect();
            *members = cleaned;
        }
        _ => {}
    }
}

/// `HH:MM:SS UTC`.
fn clock(time: SystemTime) -> String {
    let seconds = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02} UTC", seconds % 60)
}

#[expect(clippy::infinite_loop, reason = "ends with the program")]
async fn keep_looking(knowledge: &mut Knowledge, views: &watch::Sender<Arc<View>>) {
    loop {
        sleep(EVERY).await;
        knowledge.trouble = knowledge.ask().await.err().map(|error| error.to_string());
        views.send_replace(Arc::new(knowledge.view()));
    }
}

#[expect(clippy::infinite_loop, reason = "ends with the program")]
async fn accept(listener: &TcpListener, site: &Arc<Site>, visits: &mut JoinSet<()>) {
    loop {
        while visits.try_join_next().is_some() {}
        while visits.len() >= CONNECTIONS {
            visits.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let site = Arc::clone(site);
                visits.spawn(async move { site.welcome(stream).await });
            }
            // Out of descriptors, or the visitor has left again.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

impl Site {
    async fn welcome(self: Arc<Self>, stream: tokio::net::TcpStream) {
        let mut end = self.end.clone();
        let service = service_fn(move |request| {
            let site = Arc::clone(&self);
            async move { Ok::<_, Infallible>(site.answer(&request)) }
        });
        let mut connection = std::pin::pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(stream), service)
        );
        // A visitor that leaves early is no news.
        tokio::select! {
            done = connection.as_mut() => drop(done),
            () = ended(&mut end) => {
                connection.as_mut().graceful_shutdown();
                drop(connection.await);
            }
        }
    }

    fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Response<Body> {
        let wanted = self
            .guard
            .judge(request.method(), request.uri(), request.headers());
        let answer = wanted.and_then(|wanted| match wanted {
            Wanted::Page => Ok(self.page()),
            Wanted::Events => self.events(),
        });
        let mut answer = answer.unwrap_or_else(refuse);
        if request.method() == http::Method::HEAD {
            *answer.body_mut() = Empty::new().boxed_unsync();
        }
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        for (name, value) in FIXED {
            headers.insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    fn page(&self) -> Response<Body> {
        let view = Arc::clone(&self.views.borrow());
        let sections: Vec<Section> = view
            .sections
            .iter()
            .map(|(id, html)| Section {
                id,
                html: html.to_string(),
            })
            .collect();
        let text = page::document(&view.node, &sections);
        respond(StatusCode::OK, "text/html; charset=utf-8", text)
    }

    #[expect(
        clippy::significant_drop_tightening,
        reason = "the slot goes with the stream"
    )]
    fn events(&self) -> Result<Response<Body>, Refused> {
        let slot = Arc::clone(&self.watchers).try_acquire_owned();
        let watcher = Watcher {
            views: self.views.clone(),
            end: self.end.clone(),
            until: Instant::now() + WATCH_FOR,
            sent: None,
            _slot: slot.map_err(|_full| Refused::Full)?,
        };
        let frames = stream::unfold(watcher, |mut watcher| async move {
            let text = watcher.next().await?;
            Some((Ok(Frame::data(Bytes::from(text))), watcher))
        });
        let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
        answer.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        Ok(answer)
    }
}

async fn ended(end: &mut watch::Receiver<bool>) {
    // An error: whoever would tell is gone, which is an end too.
    drop(end.wait_for(|end| *end).await);
}

/// Headers of every answer.
const FIXED: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

fn respond(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    let mut answer = Response::new(Full::from(text).boxed_unsync());
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn refuse(why: Refused) -> Response<Body> {
    let text = why.message().to_owned();
    let mut answer = respond(why.status(), "text/plain; charset=utf-8", text);
    if why == Refused::Method {
        let methods = HeaderValue::from_static("GET, HEAD");
        answer.headers_mut().insert(header::ALLOW, methods);
    }
    answer
}

/// One that watches the page.
struct Watcher {
    views: watch::Receiver<Arc<View>>,
    end: watch::Receiver<bool>,
    until: Instant,
    /// The view that it has; none: it has just come.
    sent: Option<Arc<View>>,
    _slot: OwnedSemaphorePermit,
}

impl Watcher {
    /// The next piece of the stream: what changed since the last one. None: it ends.
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.sent.is_some() {
                tokio::select! {
                    changed = self.views.changed() => changed.ok()?,
                    () = sleep(STILL_HERE) => return Some(": still here\n\n".to_owned()),
                    () = sleep_until(self.until) => return None,
                    () = ended(&mut self.end) => return None,
                }
            }
            let now = Arc::clone(&self.views.borrow_and_update());
            let text = events(self.sent.as_deref(), &now);
            let first = self.sent.replace(now).is_none();
            if first {
                return Some(format!("retry: 2000\n\n{text}"));
            }
            if !text.is_empty() {
                return Some(text);
            }
        }
    }
}

/// One event for each section that is not as `before`. JSON, so that no text can end a line of the stream.
fn events(before: Option<&View>, now: &View) -> String {
    let mut text = String::new();
    for (id, html) in &now.sections {
        let known = before.is_some_and(|before| {
            before
                .sections
                .iter()
                .any(|(other, known)| other == id && known == html)
        });
        if !known {
            let data = serde_json::json!({ "id": id, "html": &**html });
            // Writing to a String cannot fail.
            write!(text, "event: section\ndata: {data}\n\n").unwrap_or_default();
        }
    }
    text
}
