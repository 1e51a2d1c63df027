//! The program in the kernel: loads it, attaches it, and keeps its maps in step with what `Steering` is told.

use std::fs::File;

use aya::{
    Ebpf,
    maps::{Map, MapError},
    programs::SkLookup,
};
use mvp_ebpf::{HAS_CANARY, HAS_EXEMPT, LOGGING_PROGRAM, PROGRAM, Port, SPECIFIC, maps};

use super::{
    Inner, SteerError,
    error::{in_map, in_program},
};
use crate::config::{Cidr, DEFAULT_EXEMPT_SOURCE};

/// Which prefixes are replaced.
#[derive(Clone, Copy)]
pub(super) enum Set {
    Exempt,
    Canary,
}

impl Inner {
    /// Loads the program, or the one with the log where it is wanted and the kernel takes it.
    pub(super) fn load_one(&mut self, log: bool) -> Result<(), SteerError> {
        if log {
            self.name = LOGGING_PROGRAM;
            match self.load() {
                Ok(()) => return Ok(()),
                Err(error) => {
                    // Its end is the reason, after all of the verifier's steps.
                    tracing::warn!(
                        "The steering program keeps no log on this kernel without CAP_PERFMON"
                    );
                    tracing::debug!(%error, "The steering program with a log");
                }
            }
        }
        self.name = PROGRAM;
        self.load()
    }

    fn load(&mut self) -> Result<(), SteerError> {
        program_mut(&mut self.ebpf, self.name)?
            .load()
            .map_err(in_program("load"))
    }

    pub(super) fn attach(&mut self) -> Result<(), SteerError> {
        // Of the thread: tests run several namespaces in one process.
        const NETNS: &str = "/proc/thread-self/ns/net";
        let namespace = File::open(NETNS).map_err(|source| SteerError::File {
            path: NETNS,
            source,
        })?;
        let program = program_mut(&mut self.ebpf, self.name)?;
        let id = program.attach(namespace).map_err(in_program("attach"))?;
        self.link = Some(program.take_link(id).map_err(in_program("attach"))?);
        Ok(())
    }

    pub(super) fn program(&self) -> Result<&SkLookup, SteerError> {
        self.ebpf
            .program(self.name)
            .ok_or(SteerError::NoObject)?
            .try_into()
            .map_err(in_program("find"))
    }

    /// Brings the entry of a port in step with the verdicts.
    pub(super) fn write_port(&mut self, number: u16) -> Result<(), SteerError> {
        let mut port = Port::default();
        let at_port = self.verdicts.iter().filter(|(at, _)| at.port() == number);
        for (at, verdict) in at_port {
            let family = if at.is_ipv4() {
                &mut port.v4
            } else {
                &mut port.v6
            };
            *family |= if at.ip().is_unspecified() {
                verdict.value()
            } else {
                SPECIFIC
            };
        }
        self.ports
            .set(number.into(), port, 0)
            .map_err(in_map(maps::PORTS))
    }

    pub(super) fn write_settings(&mut self) -> Result<(), SteerError> {
        self.settings_map
            .set(0, self.settings, 0)
            .map_err(in_map(maps::SETTINGS))
    }

    /// Replaces one set of prefixes; the caller writes the settings afterwards.
    pub(super) fn set_cidrs(&mut self, set: Set, cidrs: &[Cidr]) -> Result<(), SteerError> {
        let mut cidrs = cidrs.to_vec();
        let (tries, flag) = match set {
            Set::Exempt => {
                cidrs.extend(self.default_source());
                (&mut self.exempt, HAS_EXEMPT)
            }
            Set::Canary => (&mut self.canary, HAS_CANARY),
        };
        tries.replace(&cidrs)?;
        if cidrs.is_empty() {
            self.settings.used &= !flag;
        } else {
            self.settings.used |= flag;
        }
        Ok(())
    }

    /// Where the mvp may come from that this one replaces, or that replaces it, if `--exempt-source` is changed: if neither
    /// knew the other's source, each would take the other's connections to local, and pass them on, for ever.
    fn default_source(&self) -> Option<Cidr> {
        let default = DEFAULT_EXEMPT_SOURCE;
        (self.settings.exempt_source != u32::from_ne_bytes(default.octets())).then_some(Cidr {
            address: default.into(),
            length: 32,
        })
    }
}

pub(super) fn program_mut<'a>(
    ebpf: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut SkLookup, SteerError> {
    ebpf.program_mut(name)
        .ok_or(SteerError::NoObject)?
        .try_into()
        .map_err(in_program("find"))
}

pub(super) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, SteerError> {
    let missing = || MapError::InvalidName { name: name.into() };
    ebpf.take_map(name)
        .ok_or_else(missing)
        .map_err(in_map(name))
}

/// Takes a map out of the object, as the type its values have.
pub(super) fn open<M>(ebpf: &mut Ebpf, name: &'static str) -> Result<M, SteerError>
where
    M: TryFrom<Map, Error = MapError>,
{
    take(ebpf, name)?.try_into().map_err(in_map(name))
}
