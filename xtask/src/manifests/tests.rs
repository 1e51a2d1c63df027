//! The chart, what is rendered from it, and what docs and alerts say about it.

use std::collections::BTreeSet;

use serde::Deserialize as _;
use serde_json::json;

use super::*;

const RELEASES: [&str; 3] = ["1.34", "1.35", "1.36"];

/// The objects of a rendered file.
fn objects(text: &str) -> Vec<Value> {
    serde_yaml_ng::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap())
        .filter(|object| !object.is_null())
        .collect()
}

/// The default values, changed.
fn with(changes: &Value) -> Value {
    let mut values = values().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        values[name] = value.clone();
    }
    values
}

/// Values that together reach every branch of every template.
fn variants() -> Vec<Value> {
    vec![
        with(&json!({})),
        with(&json!({
            "oldKernel": true, "foreignFiles": true, "hardened": true, "flowSchema": false,
            "image": {"repository": "registry.example/mvp", "tag": "1", "digest": "sha256:00", "pullPolicy": "Always"},
            "imagePullSecrets": ["key"],
            "extraArgs": ["--steer-percent=10", "--secure-port=16443"],
            "hostPaths": ["/etc/kubernetes", "/var/lib/rancher/rke2/server/tls"],
            "nodeSelector": {}, "steer": "always", "localDown": "refuse", "seccompProfile": "Unconfined",
            "seLinuxType": "spc_t", "traceEndpoint": "127.0.0.1:4318",
            "podAnnotations": {"a": "b"}, "drainTimeoutSeconds": 3_600_000,
            "resources": {"requests": {"cpu": "1"}},
            "monitoring": {"enabled": true, "runbooks": "https://example.org/x", "scrape": true, "labels": {"release": "prometheus"}},
        })),
    ]
}

#[test]
fn the_plain_manifests_are_what_the_chart_gives() {
    for (name, text) in plain().unwrap() {
        let path = root().join("deploy/manifests").join(name);
        let written = fs::read_to_string(path).unwrap();
        assert!(
            written == text,
            "{name} is stale: run `cargo xtask manifests`"
        );
    }
    let known = fs::read_dir(root().join("deploy/manifests"))
        .unwrap()
        .count();
    assert_eq!(
        known,
        PLAIN.len(),
        "a file there is not made from the chart"
    );
}

#[test]
fn every_object_is_what_each_kubernetes_release_takes() {
    let mut seen = 0;
    for values in variants() {
        for (name, text) in render(&values).unwrap() {
            for object in objects(&text) {
                // Custom resources of the Prometheus operator.
                if object["apiVersion"]
                    .as_str()
                    .unwrap()
                    .starts_with("monitoring.coreos.com/")
                {
                    continue;
                }
                seen += 1;
                for release in RELEASES {
                    validate::object(release, &object)
                        .unwrap_or_else(|error| panic!("{name} in {release}: {error:#}"));
                }
            }
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn the_validator_finds_what_is_wrong() {
    let whole = objects(&render(&values().unwrap()).unwrap()["daemonset.yaml"]).remove(0);
    validate::object("1.36", &whole).unwrap();
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut object = whole.clone();
        change(&mut object);
        validate::object("1.36", &object).unwrap_err().to_string()
    };
    let said = wrong(&|it| it["spec"]["template"]["spec"]["hostNetwork"] = json!("yes"));
    assert!(said.contains("hostNetwork"), "{said}");
    let said = wrong(&|it| it["spec"]["template"]["spec"]["tolerance"] = json!([]));
    assert!(said.contains("tolerance is unknown"), "{said}");
    let said = wrong(&|it| drop(it["spec"].as_object_mut().unwrap().remove("selector")));
    assert!(said.contains("selector"), "{said}");
}

#[test]
fn the_daemon_set_is_made_for_a_control_plane_node() {
    for values in variants() {
        let object = objects(&render(&values).unwrap()["daemonset.yaml"]).remove(0);
        let rolling = &object["spec"]["updateStrategy"]["rollingUpdate"];
        assert_eq!(
            (&rolling["maxSurge"], &rolling["maxUnavailable"]),
            (&json!(1), &json!(0))
        );
        let pod = &object["spec"]["template"]["spec"];
        assert_eq!(pod["hostNetwork"], true);
        assert_eq!(pod["priorityClassName"], "system-node-critical");
        assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
        let drain = values["drainTimeoutSeconds"].as_i64().unwrap();
        assert_eq!(pod["terminationGracePeriodSeconds"], drain + 30);
        let container = &pod["containers"][0];
        // With hostNetwork a port would keep the surge pod from being scheduled.
        assert!(container.get("ports").is_none());
        let security = &container["securityContext"];
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert!(security.get("privileged").is_none());
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
        let mut needs = vec!["BPF", "NET_ADMIN"];
        if values["oldKernel"] == true {
            needs.push("SYS_RESOURCE");
        }
        // mvp keeps it for renewed files, if it has it.
        if values["foreignFiles"] == true {
            needs.push("DAC_READ_SEARCH");
        }
        assert_eq!(security["capabilities"]["add"], json!(needs));
        assert_eq!(security["seccompProfile"]["type"], values["seccompProfile"]);
        let selinux = security["seLinuxOptions"]["type"].as_str();
        assert_eq!(selinux.unwrap_or(""), values["seLinuxType"]);
        let mut arguments = container["args"].as_array().unwrap().iter();
        let collector =
            arguments.find_map(|it| it.as_str().unwrap().strip_prefix("--trace-endpoint="));
        assert_eq!(collector.unwrap_or(""), values["traceEndpoint"]);
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let command = container[probe]["exec"]["command"].as_array().unwrap();
            assert_eq!(command[..2], [json!("/mvp"), json!("probe")], "{probe}");
        }
        // One that hangs is not waited for as one that drains.
        let liveness = &container["livenessProbe"];
        assert_eq!(liveness["terminationGracePeriodSeconds"], 30);
        // Both pods of a replacement have pid 1 and share /run/mvp.
        let socket = container["env"]
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["name"] == "MVP_CONTROL_SOCKET");
        assert_eq!(socket.unwrap()["value"], "/run/mvp/$(POD_NAME).sock");
        for mount in container["volumeMounts"].as_array().unwrap() {
            assert!(
                mount["mountPath"] == "/run/mvp" || mount["readOnly"] == true,
                "{mount}"
            );
        }
    }
}

#[test]
fn the_account_may_only_list_and_watch_what_mvp_reads() {
    let text = &render(&values().unwrap()).unwrap()["rbac.yaml"];
    let mut rules = Vec::new();
    for object in objects(text) {
        for rule in object["rules"].as_array().into_iter().flatten() {
            assert_eq!(rule["verbs"], json!(["list", "watch"]), "{rule}");
            rules.push(rule["resources"].as_array().unwrap().clone());
        }
        if let Some(role) = object["roleRef"]["name"].as_str() {
            let ours = role.starts_with("mvp");
            assert!(
                ours || role == "extension-apiserver-authentication-reader",
                "{role}"
            );
        }
    }
    let wanted = [
        ["customresourcedefinitions"],
        ["apiservices"],
        ["endpointslices"],
        ["leases"],
    ];
    let wanted: Vec<Vec<Value>> = wanted
        .iter()
        .map(|it| it.map(Value::from).to_vec())
        .collect();
    assert_eq!(rules, wanted);
}

#[test]
fn what_mvp_asks_of_servers_does_not_wait_behind_users() {
    let schema = objects(&render(&values().unwrap()).unwrap()["flowcontrol.yaml"]).remove(0);
    let spec = &schema["spec"];
    assert_eq!(spec["priorityLevelConfiguration"]["name"], "exempt");
    // kube-apiserver's own for all who are authenticated has 9900.
    assert!(spec["matchingPrecedence"].as_u64().unwrap() < 9900);
    let rule = &spec["rules"][0];
    let user = rule["subjects"][0]["user"]["name"].as_str().unwrap();
    let asks = fs::read_to_string(root().join("mvp-user/src/health/link.rs")).unwrap();
    assert!(asks.contains(&format!("PROBE_USER: &str = {user:?};")));
    let reviews = &rule["resourceRules"][0];
    assert_eq!(reviews["resources"], json!(["selfsubjectreviews"]));
    let paths = rule["nonResourceRules"][0]["nonResourceURLs"].as_array();
    for path in ["/readyz", "/api", "/apis", "/apis/*", "/mvp-probe"] {
        assert!(paths.unwrap().contains(&json!(path)), "{path}");
    }
    let without = render(&with(&json!({"flowSchema": false}))).unwrap();
    assert!(objects(&without["flowcontrol.yaml"]).is_empty());
}

#[test]
fn every_value_is_described_by_the_schema_and_by_a_comment() {
    fn walk(values: &Value, schema: &Value, at: &str) {
        let described = schema["properties"].as_object();
        let Some(described) = described else { return };
        assert_eq!(schema["additionalProperties"], false, "{at}");
        let values = values.as_object().unwrap();
        let names = |map: &serde_json::Map<String, Value>| -> BTreeSet<String> {
            map.keys().cloned().collect()
        };
        assert_eq!(names(values), names(described), "{at}");
        for (name, value) in values {
            let schema = &described[name];
            assert!(
                schema["description"].is_string(),
                "{at}.{name} has no description"
            );
            if let Some(allowed) = schema["enum"].as_array() {
                assert!(allowed.contains(value), "{at}.{name}");
            }
            walk(value, schema, &format!("{at}.{name}"));
        }
    }
    let schema: Value = serde_json::from_str(&chart("values.schema.json").unwrap()).unwrap();
    walk(&values().unwrap(), &schema, "values");
    let text = chart("values.yaml").unwrap();
    let mut before = "";
    for line in text.lines() {
        if line.starts_with(|it: char| it.is_ascii_lowercase()) {
            assert!(before.starts_with('#'), "no comment above {line:?}");
        }
        before = line;
    }
}

#[test]
fn further_arguments_come_last_so_that_they_replace_what_the_chart_says() {
    let further = json!(["--steer=never", "--log-format=text"]);
    let values = with(&json!({"extraArgs": further, "traceEndpoint": "127.0.0.1:4318"}));
    let pod = objects(&render(&values).unwrap()["daemonset.yaml"]).remove(0);
    let arguments = &pod["spec"]["template"]["spec"]["containers"][0]["args"];
    let arguments = arguments.as_array().unwrap();
    assert!(
        arguments.ends_with(further.as_array().unwrap()),
        "{arguments:?}"
    );
}

#[test]
fn systemd_waits_longer_than_mvp_drains() {
    let unit = fs::read_to_string(root().join("deploy/systemd/mvp.service")).unwrap();
    let stop = unit
        .lines()
        .find_map(|line| line.strip_prefix("TimeoutStopSec="));
    let drain = values().unwrap()["drainTimeoutSeconds"].as_u64().unwrap();
    assert!(stop.unwrap().parse::<u64>().unwrap() > drain);
}

#[test]
fn systemd_starts_mvp_again_however_often_it_fails() {
    let unit = fs::read_to_string(root().join("deploy/systemd/mvp.service")).unwrap();
    let (about, service) = unit.split_once("[Service]").unwrap();
    let has = |part: &str, line: &str| part.lines().any(|it| it == line);
    assert!(has(about, "StartLimitIntervalSec=0"), "{about}");
    assert!(has(service, "Restart=always"), "{service}");
}

#[test]
fn what_is_scraped_is_where_metrics_are_served() {
    let values = with(&json!({
        "metricsListen": "0.0.0.0:19740",
        "monitoring": {"enabled": true, "runbooks": "https://example.org", "scrape": true, "labels": {}},
    }));
    let rendered = render(&values).unwrap();
    let pod = objects(&rendered["daemonset.yaml"]).remove(0);
    let arguments = &pod["spec"]["template"]["spec"]["containers"][0]["args"];
    let flag = json!("--metrics-listen=0.0.0.0:19740");
    assert!(arguments.as_array().unwrap().contains(&flag));
    let scrape = objects(&rendered["monitoring.yaml"]).remove(1);
    assert_eq!(scrape["kind"], "ScrapeConfig");
    // As the pods are scheduled.
    let nodes = &scrape["spec"]["kubernetesSDConfigs"][0]["selectors"][0]["label"];
    let wanted = "kubernetes.io/os=linux,node-role.kubernetes.io/control-plane=";
    assert_eq!(nodes, wanted);
    let steps = scrape["spec"]["relabelings"].as_array().unwrap();
    assert_eq!(steps[0]["replacement"], "0.0.0.0:19740");
    // One for each family, anchored by Prometheus: an IPv6 address needs brackets before the port.
    let addresses: Vec<_> = steps
        .iter()
        .filter(|step| step["targetLabel"] == "__address__")
        .map(|step| step["replacement"].as_str().unwrap())
        .collect();
    assert_eq!(addresses, ["$1:$2", "[$1]:$2"]);
}

#[test]
fn every_alert_has_a_runbook_that_exists() {
    let values = with(
        &json!({"monitoring": {"enabled": true, "runbooks": "RUNBOOKS", "scrape": true, "labels": {}}}),
    );
    let rules = render(&values).unwrap().remove("monitoring.yaml").unwrap();
    let docs = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    // As GitHub and most others make them.
    let anchors: Vec<String> = docs
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .replace(' ', "-")
        })
        .collect();
    let mut seen = 0;
    for object in objects(&rules) {
        for group in object["spec"]["groups"].as_array().into_iter().flatten() {
            for rule in group["rules"].as_array().unwrap() {
                let url = rule["annotations"]["runbook_url"].as_str().unwrap();
                let anchor = url.strip_prefix("RUNBOOKS#").unwrap();
                assert!(
                    anchors.iter().any(|it| it == anchor),
                    "{url}: no such heading"
                );
                assert!(rule["annotations"]["summary"].is_string(), "{rule}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 10, "{seen}");
}

#[test]
fn a_thread_that_hangs_raises_an_alert_before_the_kubelet_ends_the_process() {
    let values = with(
        &json!({"monitoring": {"enabled": true, "runbooks": "https://example.org", "scrape": false, "labels": {}}}),
    );
    let rendered = render(&values).unwrap();
    let pod = objects(&rendered["daemonset.yaml"]).remove(0);
    let probe = &pod["spec"]["template"]["spec"]["containers"][0]["livenessProbe"];
    let number = |name: &str| probe[name].as_u64().unwrap();
    let ends_after = number("periodSeconds") * number("failureThreshold");
    let rules = objects(&rendered["monitoring.yaml"]).remove(0);
    let rules = rules["spec"]["groups"][0]["rules"].as_array().unwrap();
    let rule = rules.iter().find(|it| it["alert"] == "MvpHeartbeatOld");
    let rule = rule.unwrap();
    let seconds = |text: &str| text.strip_suffix('s').and_then(|it| it.parse::<u64>().ok());
    let waits = rule.get("for").map(|it| it.as_str().unwrap());
    assert!(
        waits.is_none_or(|it| seconds(it).is_some_and(|it| it < ends_after)),
        "{rule}"
    );
    // And what one scrape has shown is not forgotten with the process.
    assert!(rule["expr"].as_str().unwrap().contains("max_over_time("));
}

#[test]
fn what_the_chart_does_not_use_is_refused() {
    let context = json!({"a": {"b": "x"}, "list": [1, 2], "n": 3});
    let say = |text: &str| template::render(text, &context).map_err(|error| format!("{error:#}"));
    assert_eq!(say("{{ .a.b | quote }}-{{ add .n 4 }}").unwrap(), "\"x\"-7");
    assert_eq!(
        say("a\n{{- range $i, $x := .list }}\n{{ $i }}={{ $x }}\n{{- end }}\nb").unwrap(),
        "a\n0=1\n1=2\nb"
    );
    assert_eq!(say("{{ if .a }}yes{{ else }}no{{ end }}").unwrap(), "yes");
    assert_eq!(
        say("{{ \"{{ $labels.x }}\" | quote }}").unwrap(),
        "\"{{ $labels.x }}\""
    );
    assert_eq!(say("x:{{ toYaml .a | nindent 2 }}").unwrap(), "x:\n  b: x");
    for bad in [
        "{{ .missing }}",
        "{{ include \"x\" . }}",
        "{{ if .a }}",
        "{{ end }}",
        "{{ .a",
        "{{ .a }}",
        "{{ (add 1 2) }}",
    ] {
        assert!(say(bad).is_err(), "{bad}");
    }
}
