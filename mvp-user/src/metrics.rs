//! The registry that is scraped, and its text forms. Families live in the room that counts them: each has a
//! `register(&mut Registry)`. Not for what is read at scrape time from other rooms (`admin::collect`).

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{EncodeLabelSet, prometheus_text, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Everything that `/metrics` shows.
#[derive(Debug)]
pub struct Exposition {
    registry: Registry,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// A form of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Prometheus text, 0.0.4.
    Prometheus,
    /// `OpenMetrics`, 1.0.0.
    OpenMetrics,
}

impl Format {
    /// What a scraper's `Accept` asks for: Prometheus' own prefers `OpenMetrics`, everything else gets plain text.
    pub fn of(accept: Option<&str>) -> Self {
        if accept.is_some_and(|it| it.contains("application/openmetrics-text")) {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Its `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Default for Exposition {
    fn default() -> Self {
        let mut registry = Registry::default();
        let build = Family::<Build, Gauge>::default();
        let version = env!("CARGO_PKG_VERSION");
        build.get_or_create(&Build { version }).set(1);
        registry.register(
            "mvp_build_info",
            "Version of mvp; the value is always 1",
            build,
        );
        Self { registry }
    }
}

impl Exposition {
    /// Where rooms register their families.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Adds something that is read at scrape time.
    pub fn collect(&mut self, collector: impl Collector) {
        self.registry.register_collector(Box::new(collector));
    }

    /// All metrics as text.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        let mut out = String::with_capacity(16 << 10);
        match format {
            Format::Prometheus => prometheus_text::encode(&mut out, &self.registry)?,
            Format::OpenMetrics => text::encode(&mut out, &self.registry)?,
        }
        Ok(out)
    }
}

/// Shows a counter from the start for each of `labels`: the first event of its kind is then an increase that alerts see.
pub fn begin<L>(family: &Family<L, Counter>, labels: impl IntoIterator<Item = L>)
where
    L: Clone + std::hash::Hash + Eq,
{
    for labels in labels {
        drop(family.get_or_create(&labels));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_show_what_was_registered() {
        let mut exposition = Exposition::default();
        let counter: Counter = Counter::default();
        counter.inc_by(3);
        exposition
            .registry()
            .register("mvp_things", "Things", counter);
        for (accept, end) in [
            (None, ""),
            (
                Some("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
                "# EOF\n",
            ),
        ] {
            let text = exposition.encode(Format::of(accept)).unwrap();
            assert!(text.contains("mvp_things_total 3\n"), "{text}");
            assert!(text.contains("mvp_build_info{version="), "{text}");
            assert!(text.ends_with(end), "{text}");
        }
    }
}
