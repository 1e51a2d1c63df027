//! Whether a listener on the steered port is kube-apiserver's: by the certificate that it shows (design 2). Not for
//! what follows from that (`listeners`).

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::listeners::{Listener, Whose};
use crate::{
    api::ServerId,
    table::Server,
    tls::{Presenting, Protocol, Tls},
    upstream::Dialer,
};

/// How long a listener may take to show its certificate.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// A handshake as an ordinary client's without SNI, verified against the peer CA.
pub async fn handshake(tls: &Arc<Tls>, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let material = tls.current();
    let config = material
        .client(Presenting::Nothing, Protocol::Inward)
        .ok_or_else(|| io::Error::other("no client configuration"))?;
    TlsConnector::from(config)
        .connect(material.server_name().clone(), stream)
        .await
}

/// Whose a listener is: kube-apiserver's if it shows the configured serving certificate to a client without SNI
/// (design 2), and listens at `local`, where mvp dials local. A balancer that passes TLS through (`HAProxy` on a VIP)
/// shows the certificate of whichever server is behind it, this node's among them.
pub async fn whose(dialer: &Dialer, local: IpAddr, listener: &Listener) -> Whose {
    let at = listener.address.ip();
    if !at.is_unspecified() && at != local.to_canonical() {
        return Whose::Other;
    }
    let server = Server::new(ServerId::Local, listener.dial_address());
    let look = async {
        let stream = dialer.raw(&server).await.ok()?;
        Some(handshake(dialer.certificates(), stream).await)
    };
    match timeout(LOOK_WITHIN, look).await {
        // No answer says nothing: it may be starting.
        Err(_) | Ok(None) => Whose::Unknown,
        Ok(Some(Err(error))) if error.kind() == io::ErrorKind::UnexpectedEof => Whose::Unknown,
        Ok(Some(Err(_))) => Whose::Other,
        Ok(Some(Ok(stream))) => {
            let material = dialer.certificates().current();
            let leaf = stream
                .get_ref()
                .1
                .peer_certificates()
                .and_then(|chain| chain.first());
            if leaf.is_some_and(|leaf| material.is_serving(leaf)) {
                Whose::Local
            } else {
                Whose::Other
            }
        }
    }
}
