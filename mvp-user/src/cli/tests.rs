//! The verbs against a control socket that is really there.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use super::*;
use crate::{
    admin::{
        self,
        fixtures::Stage,
        listen::{Control, Exposed},
        wire::{Explanation, Finding, Server, Setting, Status},
    },
    metrics::Exposition,
};

mod tables;

/// Serves a stage; the directory is that of its sockets.
fn served(stage: &Stage) -> (tempfile::TempDir, SocketAddr) {
    let directory = tempfile::tempdir().unwrap();
    let control = Control::bind_in(directory.path()).unwrap();
    let exposed = Exposed::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = exposed.address().unwrap();
    let state = Arc::clone(&stage.state);
    #[expect(clippy::disallowed_methods, reason = "a test; there is no drain")]
    tokio::spawn(admin::run(
        state,
        Exposition::default(),
        control,
        Some(exposed),
    ));
    (directory, address)
}

/// `ask` runs on another thread, as in another process.
async fn asked<T: Send + 'static>(
    socket: &Path,
    ask: impl FnOnce(&Client) -> T + Send + 'static,
) -> T {
    let socket = socket.to_owned();
    tokio::task::spawn_blocking(move || ask(&Client::new(Some(&socket)).unwrap()))
        .await
        .unwrap()
}

async fn announced(directory: &Path) -> PathBuf {
    let link = directory.join("mvp.sock");
    for _ in 0..100 {
        if link.exists() {
            return link;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("mvp.sock is not there");
}

fn page() -> Page {
    Page {
        width: 80,
        wide: false,
        colour: false,
    }
}

#[track_caller]
fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line:?} is too wide");
    }
}

#[tokio::test]
async fn a_ready_mvp_is_found_and_answers() {
    let stage = Stage::new();
    let (directory, _) = served(&stage);
    let link = announced(directory.path()).await;
    let text = asked(&link, |it| it.get("/v1/status").unwrap()).await;
    let status: Status = serde_json::from_slice(&text).unwrap();
    assert!(status.ready, "{:?}", status.not_ready);
    assert_eq!(status.skew, 2);
    let text = show::status(&status, page());
    fits(&text);
    for wanted in [
        "on for 61s (skew), mode auto",
        "7 of 20000",
        "cp-2",
        "v1.36.0",
        "departed",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing from\n{text}");
    }
}

#[tokio::test]
async fn only_its_owner_can_open_the_control_socket() {
    use std::os::unix::fs::PermissionsExt as _;
    let stage = Stage::new();
    let (directory, _) = served(&stage);
    let path = directory
        .path()
        .join(format!("{}.sock", std::process::id()));
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn one_process_does_not_take_anothers_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sock");
    let first = Control::bind(Some(&path)).unwrap();
    let error = Control::bind(Some(&path)).unwrap_err();
    assert!(error.to_string().contains("x.sock"), "{error}");
    drop(first);
    assert!(!path.exists());
    // What a killed process left behind is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Control::bind(Some(&path)).unwrap());
}

#[tokio::test]
async fn steering_is_ordered_and_refused() {
    let stage = Stage::new();
    let (directory, _) = served(&stage);
    let link = announced(directory.path()).await;
    let order = |mode, percent| SteerOrder { mode, percent };
    let now = asked(&link, move |it| {
        it.post("/v1/steer", &order(Some(Mode::Off), None))
    })
    .await;
    let now: Steering = serde_json::from_slice(&now.unwrap()).unwrap();
    assert_eq!((&*now.mode, &*now.state), ("never", "off"));
    let now = asked(&link, move |it| {
        it.post("/v1/steer", &order(None, Some(25)))
    })
    .await;
    let now: Steering = serde_json::from_slice(&now.unwrap()).unwrap();
    assert_eq!(now.percent, 25);
    fits(&show::steering(&now, page()));
    for (bad, wanted) in [
        (order(None, Some(13)), "does not steer"),
        (order(None, Some(101)), "from 0 to 100"),
        (order(None, None), "from 0 to 100"),
        (order(Some(Mode::On), Some(1)), "from 0 to 100"),
    ] {
        let error = asked(&link, move |it| it.post("/v1/steer", &bad))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

#[tokio::test]
async fn explanations_travel_with_any_path() {
    let stage = Stage::new();
    let (directory, _) = served(&stage);
    let link = announced(directory.path()).await;
    let ask = |path: &'static str, caller: &'static str| {
        let link = link.clone();
        async move {
            asked(&link, move |it| {
                let mut query = Query::of("/v1/explain");
                query.add("method", "GET");
                query.add("path", path);
                query.add("as", caller);
                it.get(&query.finish())
            })
            .await
        }
    };
    let path = "/api/v1/namespaces/d/pods/a%2Fb/resize?x=1&y=a b+c".replace(' ', "%20");
    let text = ask(Box::leak(path.into_boxed_str()), "token")
        .await
        .unwrap();
    let it: Explanation = serde_json::from_slice(&text).unwrap();
    // The decoded path is split, as kube-apiserver does: the name is `a`.
    assert_eq!(
        (it.name.as_deref(), it.subresource.as_deref()),
        (Some("a"), Some("b"))
    );
    assert_eq!(it.caller, "token");
    fits(&show::explanation(&it, page()));
    let it: Explanation =
        serde_json::from_slice(&ask("/api/v1/pods", "user").await.unwrap()).unwrap();
    let text = show::explanation(&it, page());
    let said = |words: &str| text.lines().any(|line| line.contains(words));
    assert!(said("local (authority_serves): it serves it"), "{text}");
    assert!(
        said("10.0.0.2:6443 (authority_serves): it answers"),
        "{text}"
    );
    for (path, caller, wanted) in [
        ("pods", "user", "begins with /"),
        ("/%", "user", "invalid URL escape"),
        ("/", "root", "none of"),
    ] {
        let error = ask(path, caller).await.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[tokio::test]
async fn other_answers_fit_eighty_columns_too() {
    let stage = Stage::new();
    let (directory, _) = served(&stage);
    let link = announced(directory.path()).await;
    let get = |path: &'static str| {
        let link = link.clone();
        async move { asked(&link, move |it| it.get(path).unwrap()).await }
    };
    let servers: Vec<Server> = serde_json::from_slice(&get("/v1/peers").await).unwrap();
    let text = show::peers(&servers, page());
    fits(&text);
    assert_eq!(text.lines().count(), 4);
    let text = show::skew(
        &serde_json::from_slice(&get("/v1/skew").await).unwrap(),
        page(),
    );
    fits(&text);
    assert!(text.contains("pods/resize"), "{text}");
    let text = show::routes(
        &serde_json::from_slice(&get("/v1/routes").await).unwrap(),
        page(),
    );
    fits(&text);
    assert!(text.contains("10.0.0.2:6443  peer_serves"), "{text}");
    let findings: Vec<Finding> = serde_json::from_slice(&get("/v1/check").await).unwrap();
    let text = show::findings(&findings, page());
    fits(&text);
    assert!(
        findings
            .iter()
            .any(|it| it.check == "peer 10.0.0.3:6443" && it.found.contains("has left")),
        "{text}"
    );
}

#[tokio::test]
async fn what_a_running_mvp_was_told_is_shown() {
    let stage = Stage::new();
    let (directory, _) = served(&stage);
    let link = announced(directory.path()).await;
    let answer = asked(&link, |it| it.get("/v1/config").unwrap()).await;
    let settings: Vec<Setting> = serde_json::from_slice(&answer).unwrap();
    let text = show::settings(&settings, page());
    fits(&text);
    let wide = Page {
        width: usize::MAX,
        ..page()
    };
    let text = show::settings(&settings, wide);
    let line = |start: &str| text.lines().find(|it| it.starts_with(start)).unwrap();
    let file = stage.pki.path("ca.crt").display().to_string();
    let said = line("--peer-ca-file ");
    assert!(said.contains(" flag ") && said.ends_with(&file), "{said}");
    assert!(line("--local ").contains(" default "), "{text}");
    // The same as a process that starts with it would print.
    let own: Vec<Setting> = stage.state.settings.iter().map(Into::into).collect();
    assert_eq!(settings, own);
    assert!(Cli::try_parse_from(["mvp", "config", "-o", "json"]).is_ok());
}

#[tokio::test]
async fn who_did_not_leave_cannot_be_forgotten() {
    let stage = Stage::new();
    let (directory, _) = served(&stage);
    let link = announced(directory.path()).await;
    let order = serde_json::json!({ "address": "10.0.0.2:6443" });
    let error = asked(&link, move |it| it.post("/v1/peers/forget", &order)).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("not a departed kube-apiserver"), "{error}");
}

#[tokio::test]
async fn the_metrics_port_shows_metrics_and_probes_and_nothing_else() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let stage = Stage::new();
    let (_directory, address) = served(&stage);
    for (path, status, wanted) in [
        ("/livez", "200 OK", "ok"),
        ("/readyz", "200 OK", "ok"),
        ("/metrics", "200 OK", "mvp_steering 1"),
        ("/v1/status", "404 Not Found", ""),
        ("/v1/steer", "404 Not Found", ""),
    ] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {answer}"
        );
        assert!(answer.contains(wanted), "{path}: {answer}");
    }
    // A second process takes over the port while the first still listens.
    drop(Exposed::bind(address).unwrap());
}

#[tokio::test]
async fn who_drains_leaves_the_metrics_port_to_the_next_and_still_answers_root() {
    let stage = Stage::new();
    let (directory, address) = served(&stage);
    let link = announced(directory.path()).await;
    drop(tokio::net::TcpStream::connect(address).await.unwrap());
    stage.puppet.draining.store(true, Ordering::Relaxed);
    for _ in 0..100 {
        if tokio::net::TcpStream::connect(address).await.is_err() {
            asked(&link, |it| it.get("/metrics").unwrap()).await;
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("it still listens at {address}");
}

#[test]
fn no_mvp_is_one_clear_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mvp.sock");
    let error = Client::new(Some(&path))
        .unwrap()
        .get("/v1/status")
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("no mvp answers at ")
            && text.contains("mvp.sock")
            && text.contains("is `mvp run` running")
            && text.contains("-- /mvp "),
        "{text}"
    );
}

#[test]
fn a_log_filter_that_is_none_is_named_and_an_empty_one_says_nothing() {
    let error = log_filter(Some("info,mvp_user::health=loud")).unwrap_err();
    assert!(
        error.starts_with("MVP_LOG: ") && error.contains("loud"),
        "{error}"
    );
    let info = EnvFilter::new("info").to_string();
    for said in [None, Some("")] {
        assert_eq!(log_filter(said).unwrap().to_string(), info);
    }
    drop(log_filter(Some("info,mvp_user::health=debug")).unwrap());
}

#[test]
fn a_wrong_command_line_is_64() {
    let code = |words: &[&str]| {
        let words = words.iter().map(OsString::from);
        dispatch(words, |_| panic!("must not run"))
    };
    let usage = ExitCode::from(USAGE);
    for words in [
        vec!["mvp"],
        vec!["mvp", "fly"],
        vec!["mvp", "run", "--nonsense"],
        vec!["mvp", "steer", "percent", "101"],
        vec!["mvp", "run", "--kubeadm-manifest=", "--steer=x"],
    ] {
        assert_eq!(
            format!("{:?}", code(&words)),
            format!("{usage:?}"),
            "{words:?}"
        );
    }
    for words in [
        vec!["mvp", "--help"],
        vec!["mvp", "--version"],
        vec!["mvp", "run", "--help"],
    ] {
        let good = format!("{:?}", ExitCode::SUCCESS);
        assert_eq!(format!("{:?}", code(&words)), good, "{words:?}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn completions_and_man_pages_know_every_verb() {
    let command = Cli::command();
    let verbs: Vec<&str> = command
        .get_subcommands()
        .map(clap::Command::get_name)
        .collect();
    assert!(verbs.len() >= 12, "{verbs:?}");
    for shell in clap_complete::Shell::value_variants() {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut Cli::command(), "mvp", &mut script);
        let script = String::from_utf8(script).unwrap();
        for verb in &verbs {
            assert!(script.contains(verb), "{shell} does not know {verb}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(Cli::command(), directory.path()).unwrap();
    for verb in &verbs {
        let page = std::fs::read_to_string(directory.path().join(format!("mvp-{verb}.1"))).unwrap();
        assert!(page.contains(&format!(".TH mvp-{verb} 1")), "{page}");
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    let run = std::fs::read_to_string(directory.path().join("mvp-run.1")).unwrap();
    assert!(run.contains("drain\\-timeout"), "{run}");
}

#[test]
fn every_verb_and_flag_has_a_help_text_that_fits() {
    let mut commands = vec![Cli::command()];
    let mut seen = 0;
    while let Some(mut command) = commands.pop() {
        command.build();
        for part in command.get_subcommands() {
            assert!(part.get_about().is_some(), "{}", part.get_name());
            commands.push(part.clone());
        }
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{} {}",
                command.get_name(),
                argument.get_id()
            );
        }
        let help = command.term_width(80).render_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
        seen += 1;
    }
    assert!(seen >= 12, "{seen}");
}
