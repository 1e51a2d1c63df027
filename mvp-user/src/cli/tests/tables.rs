//! What is shown fits, however long the names are, and does nothing to the terminal.

use super::*;

#[test]
fn a_name_from_the_api_cannot_command_the_terminal() {
    let text = show::skew(
        &vec![admin::wire::Difference {
            group: "\u{1b}[2J\u{202e}".to_owned(),
            version: "v1".to_owned(),
            resource: "x".repeat(200),
            subresource: None,
            verbs: vec!["get".to_owned()],
            served_by: vec!["local".to_owned()],
            lacked_by: vec![],
            shared: false,
        }],
        page(),
    );
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    fits(&text);
}

/// Seven servers with long names and IPv6 addresses, and what differs between them.
fn large() -> (Vec<Server>, Vec<admin::wire::Difference>) {
    let id = |number: usize| format!("[fd00:1234:5678:9abc:def0:1234:5678:{number:04x}]:6443");
    let servers = (0..7)
        .map(|number| Server {
            id: if number == 0 {
                "local".to_owned()
            } else {
                id(number)
            },
            address: id(number),
            name: Some(format!(
                "control-plane-{number}.rack-17.eu-central-1.example.internal"
            )),
            version: Some("v1.36.0-rc.1+k3s.987654321".to_owned()),
            health: "draining".to_owned(),
            proof: "unproven".to_owned(),
            membership: "listed".to_owned(),
            catalogue: Some("stale".to_owned()),
            age: Some(93_784),
            resources: 1234,
            latency_us: Some(1500),
            trouble: Some("connection".to_owned()),
            forgotten_in: None,
        })
        .collect();
    let differences = (0..400)
        .map(|number| admin::wire::Difference {
            group: format!("a-rather-long-group-{}.example.internal", number / 10),
            version: "v1alpha1".to_owned(),
            resource: format!("averylongresourcenameindeed{number}s"),
            subresource: (number % 3 == 0).then(|| "status".to_owned()),
            verbs: ["get", "list", "watch"].map(ToOwned::to_owned).into(),
            served_by: (1..7 - number % 5).map(id).collect(),
            lacked_by: (7 - number % 5..7).map(id).collect(),
            shared: number % 7 == 0,
        })
        .collect();
    (servers, differences)
}

#[test]
fn large_clusters_with_long_names_fit_eighty_columns_and_nothing_is_left_out() {
    let (servers, differences) = large();
    let text = show::peers(&servers, page());
    fits(&text);
    assert_eq!(
        text.matches("internal").count(),
        7,
        "names are folded, not cut: {text}"
    );
    let text = show::skew(&differences, page());
    fits(&text);
    assert_eq!(
        text.matches("a-rather-long-group-").count(),
        40,
        "a title for each"
    );
    assert!(
        text.contains("not [fd00"),
        "the shorter list is shown: {text}"
    );
    let wide = Page {
        width: usize::MAX,
        wide: true,
        colour: false,
    };
    assert_eq!(
        show::skew(&differences, wide).lines().count(),
        401,
        "one row a line"
    );
    let routes: Vec<_> = differences
        .iter()
        .map(|it| admin::wire::Route {
            group: it.group.clone(),
            version: it.version.clone(),
            resource: it.resource.clone(),
            subresource: it.subresource.clone(),
            to: it.served_by.first().cloned().unwrap_or_default(),
            because: "peer_serves".to_owned(),
            served_by: it.served_by.clone(),
        })
        .collect();
    fits(&show::routes(&routes, page()));
}

#[test]
fn every_finding_is_named_in_full() {
    let name = "discovery of [fd00:1234:5678:9abc:def0:1234:5678:0001]:6443";
    let finding = |check: &str, found: &str| Finding {
        check: check.to_owned(),
        result: Grade::Warn,
        found: found.to_owned(),
        hint: None,
    };
    let long = "it was read long ago, ".repeat(5);
    for found in ["read 3 s ago", long.as_str()] {
        let text = show::findings(&[finding(name, found), finding("kernel", "6.1")], page());
        fits(&text);
        let rows: Vec<&str> = text.lines().collect();
        let column: String = rows[..rows.len() - 2]
            .iter()
            .map(|row| row.chars().skip(6).take(36).collect::<String>())
            .map(|cell| cell.trim_end().to_owned())
            .collect();
        assert_eq!(column, name, "{text}");
        assert!(text.contains("warn  kernel"), "{text}");
    }
}

#[test]
fn no_difference_is_one_sentence() {
    assert_eq!(
        show::skew(&Vec::new(), page()),
        "all servers that were read serve the same\n"
    );
}

#[test]
fn colour_does_not_shift_columns() {
    let (servers, _) = large();
    let plain = show::peers(&servers, page());
    let coloured = show::peers(
        &servers,
        Page {
            colour: true,
            ..page()
        },
    );
    assert!(
        coloured.contains("\u{1b}[33mdraining\u{1b}[0m"),
        "{coloured}"
    );
    let mut stripped = coloured;
    for code in ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"] {
        stripped = stripped.replace(code, "");
    }
    assert_eq!(stripped, plain);
}
