//! A headless Chromium, spoken to by its DevTools protocol over two pipes (`--remote-debugging-pipe`).

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::{Value, json};

/// The browser and its one page.
pub(crate) struct Chromium {
    process: Child,
    to: File,
    from: BufReader<File>,
    session: String,
    asked: u64,
    /// Errors of the page: of scripts, of the policy, of the network.
    pub(crate) complaints: Vec<String>,
    loads: usize,
    _profile: tempfile::TempDir,
}

impl Chromium {
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = profile.path().join(name);
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
            path
        };
        let (to, from) = (pipe("to"), pipe("from"));
        let program = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
        // The shell opens the descriptors that Chromium wants, 3 and 4, and becomes it. No sandbox: tests may be root.
        let process = Command::new("sh")
            .arg("-c")
            .arg("exec \"$0\" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run \
                  --disable-background-networking --disable-component-update --remote-debugging-pipe --user-data-dir=\"$1\" \
                  about:blank 3<\"$2\" 4>\"$3\"")
            .args([Path::new(&program), profile.path(), &to, &from])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(profile.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        // In the order of the shell; each waits for the other end.
        let to = File::options().write(true).open(to).unwrap();
        let from = BufReader::new(File::open(from).unwrap());
        let mut browser = Self {
            process,
            to,
            from,
            session: String::new(),
            asked: 0,
            complaints: Vec::new(),
            loads: 0,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = target["targetId"].clone();
        let attach = json!({ "targetId": target, "flatten": true });
        let session = browser.call("Target.attachToTarget", &attach);
        session["sessionId"]
            .as_str()
            .unwrap()
            .clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(message.to_string().as_bytes()).unwrap();
        self.to.write_all(b"\0").unwrap();
        loop {
            let message = self.hear();
            if message["id"] == json!(id) {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    fn hear(&mut self) -> Value {
        let mut text = Vec::new();
        self.from.read_until(0, &mut text).unwrap();
        assert_eq!(text.pop(), Some(0), "Chromium has ended");
        let message: Value = serde_json::from_slice(&text).unwrap();
        match message["method"].as_str() {
            Some("Page.loadEventFired") => self.loads += 1,
            Some("Runtime.exceptionThrown") => self.complaints.push(message["params"].to_string()),
            Some("Log.entryAdded") if message["params"]["entry"]["level"] == "error" => {
                self.complaints.push(message["params"]["entry"].to_string());
            }
            _ => {}
        }
        message
    }

    /// What the page is shown on.
    pub(crate) fn screen(&mut self, width: u32, dark: bool, script: bool) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if dark { "dark" } else { "light" };
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", &scheme);
        let off = json!({ "value": !script });
        self.call("Emulation.setScriptExecutionDisabled", &off);
    }

    /// Loads a page.
    pub(crate) fn open(&mut self, url: &str) {
        let loads = self.loads;
        self.call("Page.navigate", &json!({ "url": url }));
        while self.loads == loads {
            self.hear();
        }
    }

    /// The value of an expression in the page; a promise is awaited.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let ask = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", &ask);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&mut self, expression: &str) {
        for _ in 0..200 {
            if self.eval(expression) == json!(true) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!(
            "never: {expression}\n{}",
            self.eval("document.body.innerText")
        );
    }

    /// A picture of the whole page.
    pub(crate) fn picture(&mut self, file: &Path) {
        let size = self.call("Page.getLayoutMetrics", &json!({}))["cssContentSize"].clone();
        let clip =
            json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let ask = json!({ "captureBeyondViewport": true, "clip": clip });
        let picture = self.call("Page.captureScreenshot", &ask);
        let picture = BASE64_STANDARD
            .decode(picture["data"].as_str().unwrap())
            .unwrap();
        std::fs::write(file, picture).unwrap();
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
