//! What `mvp run` is told, as people tell it.

use std::time::Duration;

use clap::Parser;

use super::*;
use crate::config::Cidr;

mod config_map;

#[derive(Parser)]
struct Run {
    #[command(flatten)]
    flags: Flags,
}

const NEEDED: [&str; 6] = [
    "--kubeadm-manifest=",
    "--tls-cert-file=/pki/apiserver.crt",
    "--tls-private-key-file=/pki/apiserver.key",
    "--client-ca-file=/pki/ca.crt",
    "--proxy-client-cert-file=/pki/front-proxy-client.crt",
    "--proxy-client-key-file=/pki/front-proxy-client.key",
];

fn flags(given: &[&str]) -> Flags {
    let words = std::iter::once("mvp").chain(given.iter().copied());
    Run::try_parse_from(words).unwrap().flags
}

fn run(more: &[&str]) -> Result<Resolved, Vec<String>> {
    let all: Vec<&str> = NEEDED.iter().chain(more).copied().collect();
    resolve(&flags(&all), |_| Vec::new())
}

fn config(more: &[&str]) -> Config {
    run(more).unwrap().config
}

fn setting(resolved: &Resolved, name: &str) -> (String, Origin) {
    let setting = resolved.settings.iter().find(|it| it.name == name).unwrap();
    (setting.value.clone(), setting.origin.clone())
}

const MANIFEST: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: kube-apiserver, namespace: kube-system}
spec:
  containers:
  - name: sidecar
    image: x
  - name: kube-apiserver
    command:
    - kube-apiserver
    - --advertise-address=192.168.10.11
    - --client-ca-file=/etc/kubernetes/pki/ca.crt
    - --proxy-client-cert-file=/etc/kubernetes/pki/front-proxy-client.crt
    - --proxy-client-key-file=/etc/kubernetes/pki/front-proxy-client.key
    - --requestheader-allowed-names=front-proxy-client
    - --requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt
    - --requestheader-extra-headers-prefix=X-Remote-Extra-
    - --requestheader-group-headers=X-Remote-Group
    - --requestheader-username-headers=X-Remote-User
    - --secure-port
    - '7443'
    - --tls-cert-file=/etc/kubernetes/pki/apiserver.crt
    - --tls-private-key-file=/etc/kubernetes/pki/apiserver.key
    - --tls-sni-cert-key=/extra/a.crt,/extra/a.key:*.example.com,example.com
    - --allow-privileged
    volumeMounts:
    - {mountPath: /etc/kubernetes/pki, name: pki}
    - {mountPath: /extra, name: extra}
  volumes:
  - {name: pki, hostPath: {path: /etc/kubernetes/pki, type: DirectoryOrCreate}}
  - {name: extra, hostPath: {path: /srv/certificates}}
";

fn with_manifest(text: &str, more: &[&str]) -> Result<Resolved, Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kube-apiserver.yaml");
    std::fs::write(&path, text).unwrap();
    let manifest = format!("--kubeadm-manifest={}", path.display());
    let all: Vec<&str> = std::iter::once(manifest.as_str())
        .chain(more.iter().copied())
        .collect();
    resolve(&flags(&all), |_| Vec::new())
}

#[test]
fn the_least_that_can_be_said_gives_the_defaults() {
    let config = config(&[]);
    assert_eq!(config.local, "127.0.0.1:6443".parse().unwrap());
    assert_eq!(config.secure_port, 6443);
    assert_eq!(config.steer, SteerMode::Auto);
    assert_eq!(
        config.discovery_interval,
        super::super::DEFAULT_DISCOVERY_INTERVAL
    );
    assert_eq!(config.learn_deadline, super::super::DEFAULT_LEARN_DEADLINE);
    assert_eq!(config.peer_grace, super::super::DEFAULT_PEER_GRACE);
    assert_eq!(config.drain_timeout, super::super::DEFAULT_DRAIN_TIMEOUT);
    assert_eq!(config.exempt_source, super::super::DEFAULT_EXEMPT_SOURCE);
    assert_eq!(
        config.tls.peer_server_name,
        super::super::DEFAULT_PEER_SERVER_NAME
    );
    assert_eq!(config.request_headers.username, ["x-remote-user"]);
    assert_eq!(config.request_headers.extra_prefix, ["x-remote-extra-"]);
    assert_eq!(config.existing_deadline, None);
    assert!(config.threads >= 1);
}

#[test]
fn local_and_secure_port_follow_from_each_other() {
    let rows = [
        (
            vec!["--local=https://127.0.0.1:7443"],
            "127.0.0.1:7443",
            7443,
        ),
        (vec!["--local=https://[::1]:7443/"], "[::1]:7443", 7443),
        (vec!["--local=10.0.0.1"], "10.0.0.1:6443", 6443),
        (vec!["--secure-port=8443"], "127.0.0.1:8443", 8443),
        (
            vec!["--local=https://10.0.0.1", "--secure-port=8443"],
            "10.0.0.1:8443",
            8443,
        ),
        (
            vec!["--local=https://10.0.0.1:1", "--secure-port=2"],
            "10.0.0.1:1",
            2,
        ),
    ];
    for (given, local, port) in rows {
        let config = config(&given);
        assert_eq!(config.local, local.parse().unwrap(), "{given:?}");
        assert_eq!(config.secure_port, port, "{given:?}");
    }
}

#[test]
fn lists_are_given_often_or_cut_at_commas() {
    let config = config(&[
        "--peer=https://10.0.0.2:6443,https://[fd00::3]:6443",
        "--peer=https://10.0.0.4",
        "--peer=https://10.0.0.2:6443",
        "--tls-sni-cert-key=/a.crt,/a.key",
        "--tls-sni-cert-key=/b.crt, /b.key:*.b.example,b.example",
        "--steer-cidr=10.0.0.0/8,fd00::/8",
        "--exempt-cidr=192.168.1.1",
    ]);
    let peers = ["10.0.0.2:6443", "[fd00::3]:6443", "10.0.0.4:6443"];
    assert_eq!(config.peers, peers.map(|peer| peer.parse().unwrap()));
    assert_eq!(config.tls.sni.len(), 2);
    assert_eq!(config.tls.sni[0].names, [""; 0]);
    assert_eq!(config.tls.sni[1].key, PathBuf::from("/b.key"));
    assert_eq!(config.tls.sni[1].names, ["*.b.example", "b.example"]);
    let wanted = [("10.0.0.0", 8), ("fd00::", 8)].map(|(address, length)| Cidr {
        address: address.parse().unwrap(),
        length,
    });
    assert_eq!(config.steer_cidrs, wanted);
    assert_eq!(config.exempt_cidrs[0].length, 32);
}

#[test]
fn all_errors_come_together_and_each_names_its_flag() {
    let errors = resolve(
        &flags(&[
            "--kubeadm-manifest=/nowhere/at/all.yaml",
            "--tls-cert-file=/pki/apiserver.crt",
            "--proxy-client-cert-file=/pki/front-proxy-client.crt",
            "--local=https://0.0.0.0:6443",
            "--secure-port=0",
            "--steer=sometimes",
            "--peer=https://10.0.0.2:x",
            "--discovery-interval=0s",
            "--learn-deadline=soon",
            "--exempt-source=10.0.0.1",
            "--steer-percent=101",
            "--steer-cidr=10.0.0.1/8",
            "--metrics-listen=9740",
            "--trace-endpoint=10.0.0.9:4318",
            "--requestheader-username-headers=X Y",
            "--advertise-address=node-1",
            "--peer-server-name=a b",
            "--tls-min-version=1.2",
            "--tls-sni-cert-key=/only.crt",
            "--threads=0",
        ]),
        |_| panic!("the TLS part is wrong already"),
    )
    .unwrap_err();
    let wanted = [
        "--kubeadm-manifest: cannot read /nowhere/at/all.yaml",
        "--local: \"https://0.0.0.0:6443\" names no particular host",
        "--secure-port: \"0\" is not a port",
        "--tls-private-key-file: is needed",
        "--proxy-client-key-file: is needed",
        "--peer-ca-file: is needed",
        "--peer-server-name: \"a b\" is not a name",
        "--tls-min-version: \"1.2\" is none of",
        "--tls-sni-cert-key: \"/only.crt\" is not CERT,KEY",
        "--requestheader-username-headers: \"X Y\" is not the name of a header",
        "--steer: \"sometimes\" is none of auto, always, never",
        "--peer: \"https://10.0.0.2:x\" is not https://HOST:PORT",
        "--advertise-address: \"node-1\" is not an IP address",
        "--discovery-interval: must be more than nothing",
        "--learn-deadline: \"soon\" is not a duration",
        "--exempt-source: \"10.0.0.1\" is not an address of 127.0.0.0/8",
        "--metrics-listen: \"9740\" is not ADDR:PORT",
        "--trace-endpoint: \"10.0.0.9:4318\" is not on this node's loopback",
        "--threads: \"0\" is not a number from 1",
        "--steer-percent: \"101\" is not a number from 0 to 100",
        "--steer-cidr: \"10.0.0.1/8\" has bits behind its length; the network is 10.0.0.0/8",
    ];
    for start in wanted {
        assert!(
            errors.iter().any(|error| error.starts_with(start)),
            "{start} is missing from {errors:#?}"
        );
    }
    assert_eq!(errors.len(), wanted.len(), "{errors:#?}");
}

#[test]
fn what_is_wrong_with_files_comes_with_the_rest() {
    let all: Vec<&str> = NEEDED.iter().copied().chain(["--steer=x"]).collect();
    let errors = resolve(&flags(&all), |tls| {
        vec![format!("{}: no such file", tls.cert_file.display())]
    })
    .unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors.contains(&"/pki/apiserver.crt: no such file".to_owned()));
}

#[test]
fn the_kubeadm_manifest_is_all_that_a_node_needs() {
    let resolved = with_manifest(MANIFEST, &[]).unwrap();
    let config = &resolved.config;
    assert_eq!(config.local, "127.0.0.1:7443".parse().unwrap());
    assert_eq!(config.secure_port, 7443);
    assert_eq!(
        config.advertise_address,
        Some("192.168.10.11".parse().unwrap())
    );
    assert_eq!(
        config.tls.cert_file,
        PathBuf::from("/etc/kubernetes/pki/apiserver.crt")
    );
    assert_eq!(
        config.tls.requestheader_allowed_names,
        ["front-proxy-client"]
    );
    assert_eq!(
        config.tls.sni[0].certificate,
        PathBuf::from("/srv/certificates/a.crt")
    );
    assert_eq!(
        config.tls.sni[0].key,
        PathBuf::from("/srv/certificates/a.key")
    );
    assert_eq!(config.tls.sni[0].names, ["*.example.com", "example.com"]);
    let origins = [
        ("secure-port", Origin::Manifest),
        ("tls-cert-file", Origin::Manifest),
        ("steer", Origin::Default),
        ("kubeadm-manifest", Origin::Flag),
    ];
    for (name, origin) in origins {
        assert_eq!(setting(&resolved, name).1, origin, "{name}");
    }
}

#[test]
fn flags_override_the_manifest() {
    let more = [
        "--tls-cert-file=/mine.crt",
        "--requestheader-allowed-names=",
    ];
    let resolved = with_manifest(MANIFEST, &more).unwrap();
    assert_eq!(resolved.config.tls.cert_file, PathBuf::from("/mine.crt"));
    assert!(resolved.config.tls.requestheader_allowed_names.is_empty());
    let wanted = ("/mine.crt".to_owned(), Origin::Flag);
    assert_eq!(setting(&resolved, "tls-cert-file"), wanted);
}

#[test]
fn a_bind_address_tells_where_local_is() {
    for (bind, local) in [
        ("10.0.0.1", "10.0.0.1:6443"),
        ("0.0.0.0", "127.0.0.1:6443"),
        ("::", "127.0.0.1:6443"),
        ("fd00::1", "[fd00::1]:6443"),
    ] {
        let manifest = MANIFEST.replace(
            "--secure-port\n    - '7443'",
            &format!("'--bind-address={bind}'"),
        );
        let resolved = with_manifest(&manifest, &[]).unwrap();
        assert_eq!(resolved.config.local, local.parse().unwrap(), "{bind}");
        assert_eq!(setting(&resolved, "local").1, Origin::Manifest);
        let flag = format!("--bind-address={bind}");
        assert_eq!(config(&[&flag]).local, local.parse().unwrap(), "{bind}");
    }
    assert_eq!(config(&[]).local, "127.0.0.1:6443".parse().unwrap());
    let errors = run(&["--bind-address=here"]).unwrap_err();
    assert!(errors[0].starts_with("--bind-address: "), "{errors:?}");
}

#[test]
fn of_several_ports_in_the_manifest_the_last_counts() {
    let manifest = MANIFEST.replace("    - --allow-privileged\n", "    - --secure-port=8443\n");
    let config = with_manifest(&manifest, &[]).unwrap().config;
    assert_eq!((config.secure_port, config.local.port()), (8443, 8443));
}

#[test]
fn of_a_flag_that_is_given_twice_the_last_counts() {
    // As the chart has it, and behind it its `extraArgs`.
    let config = config(&[
        "--log-format=json",
        "--drain-timeout=900s",
        "--log-format=text",
        "--drain-timeout=5s",
    ]);
    assert_eq!(config.log_format, LogFormat::Text);
    assert_eq!(config.drain_timeout, Duration::from_secs(5));
}

#[test]
fn there_are_no_more_threads_than_heartbeat_slots() {
    assert_eq!(
        (threads_for(2), threads_for(63), threads_for(192)),
        (2, 63, 63)
    );
    assert_eq!(config(&["--threads=63"]).threads, 63);
    let errors = run(&["--threads=64"]).unwrap_err();
    assert!(errors[0].contains("from 1 to 63"), "{errors:?}");
}

#[test]
fn spans_stay_on_this_node() {
    assert_eq!(config(&[]).trace_endpoint, None);
    assert_eq!(config(&["--trace-endpoint="]).trace_endpoint, None);
    for good in ["127.0.0.1:4318", "127.9.9.9:1", "[::1]:4318"] {
        let flag = format!("--trace-endpoint={good}");
        let wanted = Some(good.parse().unwrap());
        assert_eq!(config(&[&flag]).trace_endpoint, wanted);
    }
    for bad in [
        "0.0.0.0:4318",
        "10.0.0.1:4318",
        "[fd00::1]:4318",
        "localhost:4318",
        "127.0.0.1",
        "127.0.0.1:0",
        "http://127.0.0.1:4318",
    ] {
        let errors = run(&[&format!("--trace-endpoint={bad}")]).unwrap_err();
        assert!(errors[0].starts_with("--trace-endpoint: "), "{errors:?}");
    }
}

#[test]
fn a_broken_manifest_is_named() {
    let rows = [
        ("nonsense", "not the manifest of a pod"),
        (
            "spec: {containers: [{name: etcd}]}",
            "no container in it runs kube-apiserver",
        ),
    ];
    for (text, wanted) in rows {
        let errors = with_manifest(text, &[]).unwrap_err();
        assert!(errors.iter().any(|it| it.contains(wanted)), "{errors:?}");
    }
    let manifest = MANIFEST.replace("'7443'", "'none'");
    let errors = with_manifest(&manifest, &[]).unwrap_err();
    assert!(
        errors[0].starts_with("--secure-port of kube-apiserver's manifest: "),
        "{errors:?}"
    );
}

#[test]
fn every_flag_is_read_and_shown_in_the_order_of_the_help() {
    let resolved = run(&[]).unwrap();
    let shown: Vec<_> = resolved.settings.iter().map(|it| it.name).collect();
    let flags: Vec<_> = FLAGS.iter().map(|it| it.name).collect();
    assert_eq!(shown, flags);
}

#[test]
fn environment_variables_are_named_after_their_flags() {
    for flag in FLAGS {
        let name = flag.name.to_uppercase().replace('-', "_");
        assert_eq!(flag.env, format!("MVP_{name}"));
    }
}

#[test]
fn durations_are_written_as_in_go() {
    let rows = [
        ("15s", Some(15_000)),
        ("1h30m", Some(5_400_000)),
        ("500ms", Some(500)),
        ("0", Some(0)),
        ("10", None),
        ("", None),
        ("s", None),
        ("-5s", None),
        ("5 s", None),
        ("99999999999999999999h", None),
        ("18446744073709551615h", None),
    ];
    for (text, milliseconds) in rows {
        let wanted = milliseconds.map(Duration::from_millis);
        assert_eq!(values::duration(text).ok(), wanted, "{text}");
    }
}

#[test]
fn networks_may_be_as_wide_and_as_narrow_as_they_like() {
    for text in ["0.0.0.0/0", "::/0", "1.2.3.4/32", "fd00::1/128", "fd00::1"] {
        values::cidr(text).unwrap();
    }
    for text in ["0.0.0.0/33", "::/129", "1.2.3/8", "x", "1.2.3.4/-1"] {
        values::cidr(text).unwrap_err();
    }
}
