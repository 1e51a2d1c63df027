//! An attempt at an upgrade: SPDY/3.1 or `WebSocket`, over a connection of its own, tunnelled only after a valid 101.

use std::sync::Arc;

use http::{HeaderValue, Request, StatusCode, header};
use tokio::time::Instant;

use super::{Attempt, Forward, Outbound, clean_answer, headers};
use crate::{
    body::Body, reply::Refusal, request_info::RequestInfo, table::Server, tls::Presenting,
};

const UPGRADE: HeaderValue = HeaderValue::from_static("Upgrade");

impl Forward {
    /// Sends an upgrade, which [`Outbound::request`] made of `outbound`, and judges what comes back.
    pub async fn attempt_upgrade(
        &self,
        server: &Arc<Server>,
        presenting: Presenting,
        info: &RequestInfo,
        outbound: &mut Outbound,
        mut request: Request<Body>,
    ) -> Attempt {
        let Some(protocol) = outbound.upgrade.clone() else {
            return Attempt::Refused(Refusal::UpgradeFailed);
        };
        let began = Instant::now();
        request.headers_mut().insert(header::CONNECTION, UPGRADE);
        request
            .headers_mut()
            .insert(header::UPGRADE, protocol.clone());
        let mut answer = match self.pool.upgrade(server, presenting, request).await {
            Ok(answer) => answer,
            Err(error) => return self.failed(server, outbound, &error),
        };
        let status = answer.status();
        tracing::debug!(server = %server.id, %status, elapsed = ?began.elapsed(), "Answer to an upgrade");
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let agreed = headers::lists(answer.headers(), &header::CONNECTION, "upgrade")
                && answer
                    .headers()
                    .get(header::UPGRADE)
                    .is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()));
            if !agreed {
                return Attempt::Refused(Refusal::UpgradeFailed);
            }
            let upstream = hyper::upgrade::on(&mut answer);
            let mut answer = answer.map(|_| Body::Empty);
            answer.extensions_mut().clear();
            clean_answer(&mut answer);
            let headers = answer.headers_mut();
            headers.insert(header::CONNECTION, UPGRADE);
            headers.insert(header::UPGRADE, protocol);
            return Attempt::Switch(answer, upstream);
        }
        if status.is_redirection() {
            return Attempt::Refused(Refusal::UpgradeRedirected);
        }
        let attempt = self
            .judge(server, info, outbound, answer.map(Body::Incoming))
            .await;
        // The client has sent no byte of the other protocol, but nobody promises that it will not.
        close_after(attempt)
    }
}

fn close_after(mut attempt: Attempt) -> Attempt {
    if let Attempt::Answer(answer) | Attempt::Unknown(answer) | Attempt::Failed(_, Some(answer)) =
        &mut attempt
    {
        answer
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    attempt
}
