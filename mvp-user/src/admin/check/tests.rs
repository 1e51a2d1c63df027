//! What the looks say, without servers.

use std::sync::atomic::Ordering;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

use super::*;
use crate::{admin::fixtures::Stage, tls::fixtures::Pki};

#[test]
fn an_expired_ca_beside_a_valid_one_is_a_warning_and_alone_a_failure() {
    let pki = Pki::new();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(2002, 1, 1);
    let old = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let of_clients = |text: &str| {
        pki.write("ca.crt", text);
        let (mut findings, _) = files::look(&pki.config());
        findings.retain(|it| it.check == "--client-ca-file");
        findings.iter().map(|it| it.result).collect::<Vec<_>>()
    };
    let both = [old.pem(), pki.ca.pem.clone()].concat();
    assert_eq!(of_clients(&both), [Grade::Warn, Grade::Ok]);
    assert_eq!(of_clients(&old.pem()), [Grade::Fail]);
}

#[test]
fn an_old_kernel_is_named_with_what_to_do() {
    for old in ["5.4.0-150-generic", "4.18.0-477.el8.x86_64", "5.8.18"] {
        let found = node::kernel(old);
        assert_eq!(found.result, Grade::Fail, "{old}");
        assert!(found.found.contains("5.9 or newer"), "{found:?}");
        assert!(found.hint.unwrap().contains("upgrade the node's kernel"));
    }
    for good in [
        "5.9.0",
        "5.10.102.1-microsoft-standard",
        "6.1.0-18-amd64",
        "6.14rc1",
    ] {
        assert_eq!(node::kernel(good).result, Grade::Ok, "{good}");
    }
    assert_eq!(node::kernel("none").result, Grade::Warn);
}

#[test]
fn a_wrong_name_is_not_taken_for_a_wrong_ca_where_one_ca_issues_users_and_front_proxies() {
    let pki = Pki::new();
    pki.write_pair("front-proxy-client", &pki.ca.issue("somebody", &[]));
    let mut config = pki.config();
    config.requestheader_client_ca_file = Some(pki.path("ca.crt"));
    let (findings, _) = files::look(&config);
    let found = findings.iter().find(|it| it.check == "front-proxy trust");
    let found = found.unwrap();
    assert_eq!(found.result, Grade::Fail);
    assert!(found.found.contains("is not among"), "{found:?}");
}

#[tokio::test]
async fn a_full_mvp_names_every_bound_that_it_may_be_at() {
    let stage = Stage::new();
    stage.puppet.full.store(true, Ordering::Relaxed);
    let findings = knowledge::all(&stage.state);
    let found = findings.iter().find(|it| it.check == "steering").unwrap();
    assert_eq!(found.result, Grade::Warn);
    let hint = found.hint.as_deref().unwrap();
    for bound in [
        "--max-connections",
        "memory",
        "--exempt-source",
        "descriptors",
    ] {
        assert!(hint.contains(bound), "{hint}");
    }
}
