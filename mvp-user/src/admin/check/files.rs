//! Certificates, keys and CAs: there, readable, matching, valid now and for a while, with the right names, and whether
//! the front-proxy certificate is one that a kube-apiserver with these settings accepts.

use std::{sync::Arc, time::SystemTime};

use http::{HeaderMap, HeaderValue};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use super::{fail, finding, ok, warn};
use crate::{
    admin::wire::{Finding, Grade},
    config::{RequestHeaders, TlsConfig},
    identity::{Caller, Presented, Reason},
    tls::{CertificateInfo, Fault, Material, Tls, TlsError},
};

/// A certificate that ends within this deserves a word: renewals are monthly chores.
const SOON: i64 = 30 * DAY;
const DAY: i64 = 24 * 3600;

/// Reads every file now. Without the second part no server can be verified.
pub(super) fn look(config: &TlsConfig) -> (Vec<Finding>, Option<Arc<Tls>>) {
    let tls = match Tls::load(config) {
        Ok(tls) => tls,
        Err(errors) => return (errors.iter().map(broken).collect(), None),
    };
    let material = tls.current();
    let mut findings = validity(&material, config);
    findings.extend(trust(&material, config));
    (findings, Some(tls))
}

/// The periods and names of the certificates in use.
pub(super) fn validity(material: &Material, config: &TlsConfig) -> Vec<Finding> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|it| i64::try_from(it.as_secs()).ok())
        .unwrap_or_default();
    let valid = |it: &CertificateInfo| it.not_before <= now && now < it.not_after;
    let mut findings: Vec<Finding> = material
        .certificates
        .iter()
        .map(|it| {
            let in_its_file =
                |other: &&CertificateInfo| other.flag == it.flag && other.file == it.file;
            let mut others = material.certificates.iter().filter(in_its_file);
            if valid(it) || !others.any(valid) {
                return period(it, now);
            }
            // While CAs are replaced the old and the new one stand there together; kube-apiserver works with both.
            let found = format!("{}: {}", it.subject, period(it, now).found);
            let hint = "another CA in the file is valid: only what this one issued is refused";
            warn(it.flag, found, hint)
        })
        .collect();
    let others = material.warnings.iter().filter(|it| {
        // Those were just told.
        !matches!(it.fault, Fault::Expired(..) | Fault::NotYetValid(..))
    });
    findings.extend(others.map(|it| {
        let hint = "take it out of the file, or replace it by a CA certificate";
        warn(it.flag, told(it), hint)
    }));
    let serving = material
        .certificates
        .iter()
        .find(|it| it.flag == "--tls-cert-file");
    findings.extend(serving.map(|it| names(it, &config.peer_server_name)));
    if !material.can_forward() {
        findings.push(fail(
            "front-proxy certificate",
            "there is none, so nothing is steered",
            "give --proxy-client-cert-file and --proxy-client-key-file, as kube-apiserver has them",
        ));
    }
    findings
}

fn period(it: &CertificateInfo, now: i64) -> Finding {
    let left = it.not_after - now;
    let file = it.file.display();
    let renew =
        "renew it (kubeadm certs renew all, or your PKI); mvp takes new files over by itself";
    if it.not_before > now {
        return fail(
            it.flag,
            format!(
                "{file} is not valid yet: it begins in {}",
                span(it.not_before - now)
            ),
            "is this node's clock right (timedatectl, chronyc tracking)? else the certificate was made on a node whose clock is ahead",
        );
    }
    if left <= 0 {
        let found = format!("{file} has expired {} ago", span(-left));
        fail(it.flag, found, renew)
    } else if left < SOON {
        let found = format!("{file} expires in {}", span(left));
        warn(it.flag, found, renew)
    } else {
        ok(it.flag, format!("valid for {}", span(left)))
    }
}

fn span(seconds: i64) -> String {
    match seconds {
        it if it >= 2 * DAY => format!("{} days", it / DAY),
        it if it >= 2 * 3600 => format!("{} hours", it / 3600),
        it => format!("{} minutes", (it + 59) / 60),
    }
}

/// Peers, and mvp towards local, verify the serving certificate for one name.
fn names(it: &CertificateInfo, wanted: &str) -> Finding {
    const NAME: &str = "names of the serving certificate";
    let matches = |name: &String| {
        name.eq_ignore_ascii_case(wanted)
            || name.strip_prefix("*.").is_some_and(|suffix| {
                wanted
                    .split_once('.')
                    .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(suffix))
            })
    };
    if it.names.iter().any(matches) {
        return ok(NAME, format!("{wanted} is among them"));
    }
    fail(
        NAME,
        format!("{} is not for {wanted}", it.file.display()),
        "issue it with that name (kubeadm does), or say with --peer-server-name which one all kube-apiservers' certificates have",
    )
}

fn told(error: &TlsError) -> String {
    match &error.file {
        Some(file) => format!("{}: {}", file.display(), error.fault),
        None => error.fault.to_string(),
    }
}

/// A file that cannot be used at all.
fn broken(error: &TlsError) -> Finding {
    let hint = match &error.fault {
        Fault::Unreadable(_) => {
            "does the path exist on this node (in a pod: is its directory mounted?), and may this user read it? run as root; of another user's file root needs CAP_DAC_READ_SEARCH in a pod or unit"
        }
        Fault::Mismatch(_) => {
            "put the key beside it that it was issued for, or renew both (kubeadm certs renew)"
        }
        Fault::NoKey | Fault::Key(_) => "it must hold an unencrypted private key in PEM",
        Fault::NoIssuer => "it must hold the CA certificate itself, in PEM",
        Fault::Value(_) | Fault::Alone(_) => {
            "mvp run --print-config shows every value and where it is from"
        }
        _ => "it must hold certificates in PEM",
    };
    fail(error.flag, told(error), hint)
}

/// Whether this node's own settings accept the front-proxy certificate; the other nodes' are asked by their servers.
fn trust(material: &Material, config: &TlsConfig) -> Option<Finding> {
    const NAME: &str = "front-proxy trust";
    let file = config.proxy_client_cert_file.as_ref()?;
    if material.authorities.requestheader.is_none() {
        return Some(warn(
            NAME,
            "no --requestheader-client-ca-file: identities that front proxies forward are removed",
            "give it as kube-apiserver has it; without it aggregated API servers cannot act for users through mvp",
        ));
    }
    let chain: Vec<_> = CertificateDer::pem_file_iter(file)
        .ok()?
        .filter_map(Result::ok)
        .collect();
    let headers = RequestHeaders {
        username: vec![http::HeaderName::from_static("x-remote-user")],
        ..RequestHeaders::default()
    };
    let mut sent = HeaderMap::new();
    sent.insert("x-remote-user", HeaderValue::from_static("mvp:probe"));
    let mut presented = Presented::new(&chain)?;
    let caller = presented.caller(&sent, &material.authorities, &headers, SystemTime::now());
    if matches!(caller, Caller::FrontProxy) {
        return Some(ok(
            NAME,
            "--requestheader-client-ca-file issued mvp's certificate",
        ));
    }
    let file = file.display();
    // Not only of one that is refused: with one CA for both it is a user's certificate all the same.
    let (found, hint) = match presented.fault() {
        Some(Reason::NameNotAllowed) => (
            format!("the CN of {file} is not among --requestheader-allowed-names"),
            "add it there on every kube-apiserver, or take the certificate whose CN is",
        ),
        // Told with its period.
        Some(Reason::Expired | Reason::NotYetValid) => return None,
        Some(Reason::WrongUsage) => (
            format!("{file} is not for client authentication"),
            "issue it with the extended key usage clientAuth",
        ),
        _ => (
            format!("{file} was not issued by --requestheader-client-ca-file"),
            "wrong CA: take the certificate that this CA issued, or the CA that issued it; all kube-apiservers must have the same",
        ),
    };
    Some(finding(NAME, Grade::Fail, found, Some(hint.to_owned())))
}
