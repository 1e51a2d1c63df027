//! How a load process and its conductor keep step.

use std::future::{Future, ready};
use std::pin::Pin;

use anyhow::{Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Stdin, Stdout};

/// Says that everything is ready, and waits until it is to go on.
pub trait Gate {
    /// Called once, before what is measured.
    fn ready(&mut self) -> Pin<Box<dyn Future<Output = Result<()>> + '_>>;
}

/// Nobody conducts.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Gate for Silent {
    fn ready(&mut self) -> Pin<Box<dyn Future<Output = Result<()>> + '_>> {
        Box::pin(ready(Ok(())))
    }
}

/// Lines over standard input and output.
#[derive(Debug)]
pub struct Lines {
    input: BufReader<Stdin>,
    output: Stdout,
}

impl Lines {
    /// Those of this process.
    pub fn standard() -> Self {
        Self {
            input: BufReader::new(tokio::io::stdin()),
            output: tokio::io::stdout(),
        }
    }

    /// The next line; an error if there is none any more.
    pub async fn read(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.input.read_line(&mut line).await? == 0 {
            bail!("the conductor is gone");
        }
        Ok(line)
    }

    /// Says a line.
    pub async fn say(&mut self, line: &str) -> Result<()> {
        self.output.write_all(line.as_bytes()).await?;
        self.output.write_all(b"\n").await?;
        Ok(self.output.flush().await?)
    }
}

impl Gate for Lines {
    fn ready(&mut self) -> Pin<Box<dyn Future<Output = Result<()>> + '_>> {
        Box::pin(async {
            self.say("ready").await?;
            self.read().await.map(drop)
        })
    }
}
