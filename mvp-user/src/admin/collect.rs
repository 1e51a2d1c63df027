//! What `/metrics` reads from other rooms at scrape time: servers, knowledge, steering, certificates, the process.

use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet},
    metrics::MetricType,
};

use super::State;

/// The collector of one [`State`].
pub(super) struct Scrape(pub(super) Arc<State>);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

/// Labels of one sample.
type Labels = Vec<(&'static str, String)>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.servers(&mut encoder)?;
        self.certificates(&mut encoder)?;
        self.steering(&mut encoder)?;
        self.process(&mut encoder)
    }
}

impl Scrape {
    /// What `health` and `peers` do not show themselves.
    fn servers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let table = &self.0.table;
        let members = table.members();
        let (mut ages, mut sizes) = (Vec::new(), Vec::new());
        for server in std::iter::once(&members.local).chain(members.peers.iter()) {
            let labels = vec![("server", server.id.to_string())];
            let known = table.look(server.id, |it| (it.read_at.elapsed(), it.resources.len()));
            if let Some((age, size)) = known {
                ages.push((labels.clone(), age.as_secs_f64()));
                sizes.push((labels, real(size)));
            }
        }
        gauges(
            encoder,
            "mvp_catalogue_age_seconds",
            "Since the server's discovery was last read",
            &ages,
        )?;
        gauges(
            encoder,
            "mvp_catalogue_resources",
            "Resources that the server serves",
            &sizes,
        )
    }

    /// One sample for each file: of a bundle of CAs, the one that expires next. Those that have expired are left over there
    /// as long as any has not.
    fn certificates(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
        let rank = |expiry: i64| (expiry <= now, expiry);
        let material = self.0.tls.current();
        let mut next = BTreeMap::new();
        for it in &material.certificates {
            let expiry = next.entry((it.flag, &it.file)).or_insert(it.not_after);
            if rank(it.not_after) < rank(*expiry) {
                *expiry = it.not_after;
            }
        }
        let expiries: Vec<(Labels, f64)> = next
            .into_iter()
            .map(|((flag, file), expiry)| {
                let labels = vec![
                    ("flag", flag.to_owned()),
                    ("file", file.display().to_string()),
                ];
                #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit")]
                let expiry = expiry as f64;
                (labels, expiry)
            })
            .collect();
        gauges(
            encoder,
            "mvp_certificate_expiry_timestamp_seconds",
            "When the certificate expires; of several in one file, the next that does",
            &expiries,
        )
    }

    fn steering(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let steering = self.0.daemon.steering();
        let on = [(Labels::new(), flag(steering.state == "on"))];
        gauges(
            encoder,
            "mvp_steering",
            "Whether new connections are steered to mvp",
            &on,
        )?;
        let why = [(
            vec![
                ("reason", steering.why.clone()),
                ("mode", steering.mode.clone()),
            ],
            1.0,
        )];
        gauges(
            encoder,
            "mvp_steering_reason",
            "Why steering is on or off; the value is always 1",
            &why,
        )?;
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let since = [(Labels::new(), steering.since as f64)];
        gauges(
            encoder,
            "mvp_steering_unchanged_seconds",
            "Since steering, or its reason, last changed",
            &since,
        )?;
        let share = [(Labels::new(), f64::from(steering.percent) / 100.0)];
        gauges(
            encoder,
            "mvp_steering_ratio",
            "Share of client addresses that is steered, from 0 to 1",
            &share,
        )?;
        let lookups: Vec<(Labels, u64)> = steering
            .lookups
            .iter()
            .map(|(outcome, count)| (vec![("outcome", outcome.clone())], *count))
            .collect();
        counters(
            encoder,
            "mvp_steer_lookups",
            "New connections to the steered port, by what the kernel did",
            &lookups,
        )?;
        if let Some(older) = steering.older_connections {
            #[expect(clippy::cast_precision_loss, reason = "a number of connections")]
            let older = [(Labels::new(), older as f64)];
            gauges(
                encoder,
                "mvp_older_connections",
                "Direct connections that are older than steering",
                &older,
            )?;
        }
        let beats: Vec<(Labels, f64)> = self
            .0
            .daemon
            .beats()
            .iter()
            .enumerate()
            .map(|(thread, beat)| (vec![("thread", thread.to_string())], beat.as_secs_f64()))
            .collect();
        gauges(
            encoder,
            "mvp_heartbeat_age_seconds",
            "Since each thread gave a sign of life; above 2 steering ends",
            &beats,
        )?;
        if let Some(since) = self.0.daemon.answered_itself() {
            let since = [(Labels::new(), since.as_secs_f64())];
            gauges(
                encoder,
                "mvp_self_request_age_seconds",
                "Since mvp last answered its request to itself; above 2 steering ends",
                &since,
            )?;
        }
        let bound = self.0.daemon.connections().bound;
        let bound = [(Labels::new(), real(bound))];
        gauges(
            encoder,
            "mvp_client_connections_limit",
            "Bound on client connections",
            &bound,
        )
    }

    /// The names that every exporter has.
    fn process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let started = [(Labels::new(), self.0.process.started_unix)];
        gauges(
            encoder,
            "process_start_time_seconds",
            "When the process started",
            &started,
        )?;
        let Some(process) = Process::read() else {
            return Ok(());
        };
        let resident = [(Labels::new(), process.resident)];
        gauges(
            encoder,
            "process_resident_memory_bytes",
            "Resident memory",
            &resident,
        )?;
        let files = [(Labels::new(), process.files)];
        gauges(encoder, "process_open_fds", "Open file descriptors", &files)?;
        let mut cpu = encoder.encode_descriptor(
            "process_cpu_seconds",
            "CPU time, user and system",
            None,
            MetricType::Counter,
        )?;
        cpu.encode_counter::<NoLabelSet, _, f64>(&process.cpu, None)
    }
}

struct Process {
    resident: f64,
    files: f64,
    cpu: f64,
}

impl Process {
    fn read() -> Option<Self> {
        let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
        let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // Behind the command, which may hold spaces and parentheses: utime is the 12th, stime the 13th.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: usize =
            fields.get(11)?.parse::<usize>().ok()? + fields.get(12)?.parse::<usize>().ok()?;
        let per_second = usize::try_from(rustix::param::clock_ticks_per_second()).ok()?;
        Some(Self {
            resident: real(pages * rustix::param::page_size()),
            files: real(std::fs::read_dir("/proc/self/fd").ok()?.count()),
            cpu: real(ticks) / real(per_second),
        })
    }
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of things that fit into memory"
)]
fn real(count: usize) -> f64 {
    count as f64
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: &[(Labels, f64)],
) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        family.encode_family(&Set(labels))?.encode_gauge(value)?;
    }
    Ok(())
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: &[(Labels, u64)],
) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        family
            .encode_family(&Set(labels))?
            .encode_counter::<NoLabelSet, _, f64>(value, None)?;
    }
    Ok(())
}

struct Set<'a>(&'a Labels);

impl EncodeLabelSet for Set<'_> {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
    ) -> fmt::Result {
        self.0.encode(encoder)
    }
}
