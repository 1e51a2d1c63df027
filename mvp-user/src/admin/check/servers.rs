//! One kube-apiserver after the other: reached and verified, ready, takes forwarded identities, shows what it serves;
//! and whether its clock agrees with this node's.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{StatusCode, header};
use rustls::CertificateError;

use super::{Ground, fail, finding, ok, warn};
use crate::{
    admin::wire::{Finding, Grade},
    api::ServerId,
    health::{
        link::{Answer, Link, LinkError, Marker},
        proof::{self, Verdict},
    },
    peers,
    table::{Documents, Server},
    upstream::DialError,
};

/// How long each step may take.
const WITHIN: Duration = Duration::from_secs(5);
/// More than this between two clocks shows in certificates and tokens that are "not valid yet"; `Date` has whole seconds.
const APART: u64 = 5;
/// So far apart that something is refused for sure: tokens have a leeway of minutes at most.
const TOO_FAR: u64 = 60;

/// What one look showed.
pub(super) struct Look {
    pub(super) finding: Finding,
    /// What it serves; none: not read.
    pub(super) documents: Option<Arc<Documents>>,
    /// Its clock minus this node's, in seconds.
    offset: Option<i64>,
}

/// What to call it.
pub(super) fn title(server: &Server) -> String {
    let title = match server.id {
        ServerId::Local => format!("local {}", server.address),
        ServerId::Peer(address) => format!("peer {address}"),
    };
    match server.name.load().as_deref() {
        Some(name) => format!("{title} ({name})"),
        None => title,
    }
}

/// Goes as far as it can get.
pub(super) async fn look(ground: &Ground, server: &Server, marker: &Marker) -> Look {
    let mut offset = None;
    let result = steps(ground, server, marker, &mut offset).await;
    let (finding, documents) = match result {
        Ok((version, documents)) => {
            let found = format!("up, {version}, takes the identities that mvp forwards");
            (ok(title(server), found), Some(documents))
        }
        Err(finding) => (finding, None),
    };
    Look {
        finding,
        documents,
        offset,
    }
}

async fn steps(
    ground: &Ground,
    server: &Server,
    marker: &Marker,
    offset: &mut Option<i64>,
) -> Result<(String, Arc<Documents>), Finding> {
    let open = || Link::open(&ground.dialer, server, marker, WITHIN);
    let broke = |error: LinkError| unreachable(server, &error);
    let mut link = open().await.map_err(broke)?;
    let forwards = link.forwards();
    let ready = link.get("/readyz", "*/*", None).await.map_err(broke)?;
    *offset = clock(&ready);
    // A server that does not take the front-proxy certificate says so to this question already.
    if !matches!(ready.status, StatusCode::OK | StatusCode::UNAUTHORIZED) {
        return Err(fail(
            title(server),
            format!("not ready: /readyz answers {}", ready.status),
            "kubectl get --raw '/readyz?verbose' there says what it waits for",
        ));
    }
    if forwards {
        let mut link = open().await.map_err(broke)?;
        match proof::prove(&mut link).await.map_err(broke)? {
            Verdict::Echoed => {}
            Verdict::Refused => return Err(refused(server)),
            Verdict::Absent | Verdict::Unknown => {
                return Err(warn(
                    title(server),
                    "up, but whether it takes forwarded identities cannot be told now",
                    "check again; if it stays so, look for rejected SelfSubjectReviews of mvp:probe in its audit log",
                ));
            }
        }
    }
    let mut link = open().await.map_err(broke)?;
    match peers::read_once(&mut link, &ground.table).await {
        Ok((documents, version)) if forwards => Ok((version.to_string(), documents)),
        Ok(_) => Err(fail(
            title(server),
            "up, but without a front-proxy certificate it cannot be told who asks",
            "give --proxy-client-cert-file and --proxy-client-key-file",
        )),
        Err(error) => Err(fail(
            title(server),
            format!("what it serves cannot be read: {error}"),
            "does anything between the nodes change answers? is it a kube-apiserver?",
        )),
    }
}

fn refused(server: &Server) -> Finding {
    let whose = match server.id {
        ServerId::Local => "nothing is steered until",
        ServerId::Peer(_) => "certificate users are not sent there until",
    };
    fail(
        title(server),
        "up, but refuses the identities that mvp forwards",
        format!(
            "{whose} its --requestheader-client-ca-file and --requestheader-allowed-names accept the certificate of --proxy-client-cert-file"
        ),
    )
}

/// No answer: why, in words that say what to do.
fn unreachable(server: &Server, error: &LinkError) -> Finding {
    let local = server.id == ServerId::Local;
    let hint = match error {
        LinkError::Dial(DialError::Connect { source, .. })
            if source.kind() == io::ErrorKind::ConnectionRefused =>
        {
            if local {
                "nothing listens there: is kube-apiserver running? --local and --secure-port say where it is looked for"
            } else {
                "nothing listens there: is that kube-apiserver running? is its endpoint's port its own?"
            }
        }
        LinkError::Dial(
            DialError::Connect { .. }
            | DialError::ConnectTimeout(_)
            | DialError::HandshakeTimeout(_),
        )
        | LinkError::TimedOut => {
            "control-plane nodes must reach each other's kube-apiservers: look at firewalls, security groups and routes"
        }
        LinkError::Dial(DialError::Handshake { source, .. }) => handshake(source),
        LinkError::Dial(DialError::Prepare { .. }) => {
            "does this node have that address family, and is --exempt-source an address of 127.0.0.0/8?"
        }
        _ => "is it a kube-apiserver? another program may listen there",
    };
    let hint = Some(hint.to_owned());
    finding(title(server), Grade::Fail, error.to_string(), hint)
}

fn handshake(error: &io::Error) -> &'static str {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(about)) = inner else {
        return "is it a kube-apiserver? another program may listen there";
    };
    match about {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "wrong CA: --peer-ca-file must hold the CA that issued its serving certificate (kubeadm: /etc/kubernetes/pki/ca.crt)"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its serving certificate must be for kubernetes.default.svc; --peer-server-name names another"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "renew its serving certificate (kubeadm certs renew apiserver on its node)"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "compare the clocks of both nodes (timedatectl, chronyc tracking): the certificate begins in the future"
        }
        _ => "its serving certificate cannot be used: openssl s_client -connect shows it",
    }
}

/// `Date` minus now (RFC 9110 6.6.1; Go writes it into every answer).
fn clock(answer: &Answer) -> Option<i64> {
    let text = answer.headers.get(header::DATE)?.to_str().ok()?;
    let theirs = httpdate::parse_http_date(text).ok()?;
    let seconds = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        i64::try_from(since.as_secs()).ok()
    };
    Some(seconds(theirs)? - seconds(SystemTime::now())?)
}

/// One finding for all clocks, or one for each that is wrong.
pub(super) fn clocks(servers: &[Arc<Server>], looks: &[Look]) -> Vec<Finding> {
    let known: Vec<_> = servers
        .iter()
        .zip(looks)
        .filter_map(|(server, look)| Some((server, look.offset?)))
        .collect();
    let wrong: Vec<Finding> = known
        .iter()
        .filter(|(_, offset)| offset.unsigned_abs() > APART)
        .map(|(server, offset)| {
            let way = if *offset > 0 { "ahead of" } else { "behind" };
            let far = offset.unsigned_abs();
            finding(
                format!("clock of {}", server.id),
                if far > TOO_FAR { Grade::Fail } else { Grade::Warn },
                format!("{far} s {way} this node's"),
                Some(
                    "set both by NTP (timedatectl, chronyc tracking): certificates and tokens are judged by the clock"
                        .to_owned(),
                ),
            )
        })
        .collect();
    if wrong.is_empty() && !known.is_empty() {
        return vec![ok("clocks", "all kube-apiservers agree with this node")];
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_read_from_any_answer() {
        let ahead = SystemTime::now() + Duration::from_mins(5);
        let mut headers = http::HeaderMap::new();
        let date = httpdate::fmt_http_date(ahead);
        headers.insert(header::DATE, date.parse().unwrap());
        let answer = Answer {
            status: StatusCode::OK,
            headers,
            body: bytes::Bytes::new(),
        };
        assert!((299..=301).contains(&clock(&answer).unwrap()));
    }
}
