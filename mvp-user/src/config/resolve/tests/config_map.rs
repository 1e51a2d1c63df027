//! What every kube-apiserver publishes, where neither flags nor a manifest say it.

use super::*;

fn published() -> Published {
    let access = Access {
        kubeconfig: None,
        local: None,
        server_name: String::new(),
    };
    // As kube-apiserver writes it.
    let map = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "extension-apiserver-authentication"},
        "data": {
            "client-ca-file": "PEM of clients",
            "requestheader-client-ca-file": "PEM of front proxies",
            "requestheader-allowed-names": "[\"front-proxy-client\",\"other\"]",
            "requestheader-username-headers": "[\"X-Remote-User\",\"X-User\"]",
        },
    }));
    Published::new(access, &map.unwrap()).unwrap()
}

/// What is needed, but for CAs.
const NO_CA: [&str; 4] = [
    "--kubeadm-manifest=",
    "--tls-cert-file=/pki/apiserver.crt",
    "--tls-private-key-file=/pki/apiserver.key",
    "--peer-ca-file=/pki/ca.crt",
];

#[test]
fn the_config_map_gives_what_neither_flags_nor_manifest_do() {
    let mut given = NO_CA.to_vec();
    given.push("--requestheader-allowed-names=only-me");
    given.push("--kubeconfig=/root/config");
    let resolved = resolve_with(
        &flags(&given),
        |_| Vec::new(),
        |access| {
            assert_eq!(access.kubeconfig, Some("/root/config".into()));
            assert_eq!(access.local, Some("127.0.0.1:6443".parse().unwrap()));
            assert_eq!(access.server_name, "kubernetes.default.svc");
            Ok(Some(published()))
        },
    );
    let resolved = resolved.unwrap();
    let tls = &resolved.config.tls;
    let read = |path: &Option<PathBuf>| std::fs::read_to_string(path.as_ref().unwrap()).unwrap();
    assert_eq!(read(&tls.client_ca_file), "PEM of clients");
    assert_eq!(
        read(&tls.requestheader_client_ca_file),
        "PEM of front proxies"
    );
    assert_eq!(tls.requestheader_allowed_names, ["only-me"]);
    assert_eq!(
        resolved.config.request_headers.username,
        ["x-remote-user", "x-user"]
    );
    let name = "kube-system/extension-apiserver-authentication".to_owned();
    assert_eq!(
        setting(&resolved, "client-ca-file"),
        (name, Origin::ConfigMap)
    );
    let (_, origin) = setting(&resolved, "requestheader-allowed-names");
    assert_eq!(origin, Origin::Flag);
}

#[test]
fn the_config_map_is_asked_for_only_if_it_is_needed() {
    let never = |_: &Access| -> Result<Option<Published>, String> { panic!("it was asked for") };
    let mut given = NO_CA.to_vec();
    given.push("--client-ca-file=/pki/ca.crt");
    // Said to be none.
    given.push("--requestheader-client-ca-file=");
    resolve_with(&flags(&given), |_| Vec::new(), never).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kube-apiserver.yaml");
    std::fs::write(&path, MANIFEST).unwrap();
    let manifest = format!("--kubeadm-manifest={}", path.display());
    resolve_with(&flags(&[&manifest]), |_| Vec::new(), never).unwrap();
}

#[test]
fn who_may_be_a_front_proxy_is_asked_for_where_only_their_ca_is_given() {
    let mut given = NO_CA.to_vec();
    given.push("--client-ca-file=/pki/ca.crt");
    given.push("--requestheader-client-ca-file=/pki/ca.crt");
    let there = |_: &Access| -> Result<Option<Published>, String> { Ok(Some(published())) };
    let resolved = resolve_with(&flags(&given), |_| Vec::new(), there).unwrap();
    let tls = &resolved.config.tls;
    assert_eq!(
        tls.requestheader_allowed_names,
        ["front-proxy-client", "other"]
    );
    assert_eq!(tls.client_ca_file, Some(PathBuf::from("/pki/ca.crt")));
    let away = |_: &Access| -> Result<Option<Published>, String> { Err("refused".to_owned()) };
    let errors = resolve_with(&flags(&given), |_| Vec::new(), away).unwrap_err();
    assert!(
        errors[0].starts_with("--requestheader-allowed-names: not given"),
        "{errors:?}"
    );
    // Any name, for that is what was said.
    given.push("--requestheader-allowed-names=");
    let resolved = resolve_with(&flags(&given), |_| Vec::new(), away).unwrap();
    assert_eq!(resolved.config.tls.requestheader_allowed_names, [""; 0]);
}

#[test]
fn the_names_of_every_source_are_taken_from_clients() {
    let manifest = MANIFEST.replace("=X-Remote-User", "=X-Remote-User,X-Auth-User");
    let given = ["--requestheader-username-headers=X-User"];
    let names = with_manifest(&manifest, &given).unwrap();
    let names = names.config.request_headers;
    assert_eq!(names.username, ["x-user"]);
    assert_eq!(names.others.load().names, ["x-remote-user", "x-auth-user"]);

    let mut given = NO_CA.to_vec();
    given.push("--requestheader-username-headers=X-Remote-User");
    let there = |_: &Access| -> Result<Option<Published>, String> { Ok(Some(published())) };
    let resolved = resolve_with(&flags(&given), |_| Vec::new(), there).unwrap();
    let names = resolved.config.request_headers;
    assert_eq!(names.username, ["x-remote-user"]);
    assert_eq!(names.others.load().names, ["x-user"]);
}

#[test]
fn a_config_map_that_cannot_be_read_is_one_of_the_errors() {
    let mut given = NO_CA.to_vec();
    given.push("--steer=sometimes");
    let errors = resolve_with(
        &flags(&given),
        |_| Vec::new(),
        |_| Err("forbidden".to_owned()),
    );
    let errors = errors.unwrap_err();
    assert!(errors.iter().any(|it| it.contains("extension-apiserver-authentication")
        && it.contains("forbidden")), "{errors:?}");
    assert!(
        errors.iter().any(|it| it.contains("sometimes")),
        "{errors:?}"
    );
    // Nobody to ask as: as before.
    resolve_with(&flags(&NO_CA), |_| Vec::new(), |_| Ok(None)).unwrap();
}
