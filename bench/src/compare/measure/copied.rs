//! What a proxy copies for each byte that it forwards: two lives of it under valgrind, of which one forwards bodies.

use anyhow::{Result, bail};

use super::{Metric, Run, Sample, Watched};
use crate::{
    compare::{
        copies::Copies,
        ground::Ground,
        target::{Target, Who},
    },
    load::Work,
};

impl Run<'_> {
    pub(super) async fn copied(&self, who: Who, ground: &Ground) -> Result<Sample> {
        let (idle, _) = self.counted(who, ground, Work::Idle).await?;
        let (busy, watched) = self.counted(who, ground, self.work(None)?).await?;
        let outcome = watched.outcome;
        if outcome.bytes == 0 {
            bail!("no body arrived: {}", outcome.failure.unwrap_or_default());
        }
        let mut sample = Sample {
            failed: outcome.failed,
            failure: outcome.failure,
            ..Sample::default()
        };
        let (each, places) = busy.per_byte(outcome.bytes, &idle);
        sample.set(Metric::CopiedPerByte, each);
        sample.copied = places;
        Ok(sample)
    }

    /// One life. One thread: valgrind runs no two at a time.
    async fn counted(&self, who: Who, ground: &Ground, work: Work) -> Result<(Copies, Watched)> {
        let target = Target::start(who, ground, Some(1)).await?;
        let watched = self.watch(&target, ground, work).await?;
        target.end().await?;
        Ok((Copies::collect(ground.directory())?, watched))
    }
}
