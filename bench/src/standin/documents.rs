//! The documents of one catalogue, made when first asked for.

use std::sync::OnceLock;

use bytes::Bytes;

use super::{
    forms::{self, Encoding},
    model::{Catalogue, Group},
    schemas::OpenApi,
};

/// A catalogue with its documents, each made when it is first asked for.
#[derive(Debug)]
pub(crate) struct Documents {
    pub(crate) catalogue: Catalogue,
    aggregated: [OnceLock<(Bytes, String)>; 9],
    openapi: OnceLock<Option<OpenApi>>,
}

/// Which set of groups an aggregated document has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    Core = 0,
    Groups = 1,
    /// What a starting server shows.
    FirstGroups = 2,
}

impl Documents {
    pub(crate) fn new(catalogue: Catalogue) -> Self {
        Self {
            catalogue,
            aggregated: Default::default(),
            openapi: OnceLock::new(),
        }
    }

    /// The OpenAPI documents; none (and a log line): they cannot be made.
    pub(crate) fn openapi(&self) -> Option<&OpenApi> {
        self.openapi
            .get_or_init(|| match OpenApi::new(&self.catalogue) {
                Ok(made) => Some(made),
                Err(error) => {
                    tracing::error!(%error, "The OpenAPI documents cannot be made");
                    None
                }
            })
            .as_ref()
    }

    /// The aggregated document and its entity tag.
    pub(crate) fn aggregated(&self, which: Which, encoding: Encoding) -> (Bytes, String) {
        let slot = which as usize * 3 + encoding as usize;
        self.aggregated[slot]
            .get_or_init(|| {
                let groups: &[Group] = match which {
                    Which::Core => std::slice::from_ref(&self.catalogue.core),
                    Which::Groups => &self.catalogue.groups,
                    Which::FirstGroups => {
                        &self.catalogue.groups[..self.catalogue.groups.len().min(4)]
                    }
                };
                forms::aggregated(groups, encoding)
            })
            .clone()
    }
}
