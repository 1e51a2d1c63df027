//! What mvp's metrics say of its tunnels: how many bytes it has moved inside the kernel, and how many it has copied. A tunnel
//! counts when it has ended.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

/// How long tunnels may take to end when their client has.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of all tunnels that have ended, both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tunnelled {
    spliced: u64,
    copied: u64,
}

impl Tunnelled {
    /// As `mvp run` says at `metrics`.
    pub(super) async fn look(metrics: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(metrics).await.context("mvp's metrics")?;
        // HTTP/1.0: no chunks.
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(Self::read(&text))
    }

    /// Bytes spliced since, when at least `bytes` have gone one way or the other.
    pub(super) async fn spliced_since(self, metrics: SocketAddr, bytes: u64) -> Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Self::look(metrics).await?;
            if now.spliced + now.copied >= self.spliced + self.copied + bytes {
                return Ok(now.spliced - self.spliced);
            }
            if Instant::now() > deadline {
                bail!("mvp counts fewer bytes in tunnels than arrived");
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn read(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else {
                continue;
            };
            if !name.starts_with("mvp_tunnel_up_bytes")
                && !name.starts_with("mvp_tunnel_down_bytes")
            {
                continue;
            }
            let bytes: u64 = value.parse().unwrap_or(0);
            if name.contains(r#"way="spliced""#) {
                all.spliced += bytes;
            } else if name.contains(r#"way="copied""#) {
                all.copied += bytes;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_of_either_way_are_added() {
        let text = "HTTP/1.0 200 OK\r\n\r\n# TYPE mvp_tunnel_up_bytes counter\n\
            mvp_tunnel_up_bytes_total{way=\"spliced\"} 5\nmvp_tunnel_up_bytes_total{way=\"copied\"} 7\n\
            mvp_tunnel_down_bytes_total{way=\"spliced\"} 100\nmvp_tunnels 3\n# EOF\n";
        let (spliced, copied) = (105, 7);
        assert_eq!(Tunnelled::read(text), Tunnelled { spliced, copied });
    }
}
