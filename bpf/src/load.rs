// SPDX-License-Identifier: Apache-2.0
//! Loads a set, pins its maps and programs, and attaches it.

use std::path::Path;

use aya::maps::Array;
use aya::programs::links::FdLink;
use aya::programs::{Program, ProgramError};
use aya::{Btf, BtfError, Ebpf, EbpfLoader};

use crate::ftrace;
use crate::pins::{MAPS, OpenError, PATCHES, link_name, program_name};
use crate::sets::Set;
use crate::symbols;

/// Fills this directory, which lies on a BPF file system.
pub(crate) fn into(new: &Path, set: &Set) -> Result<(), OpenError> {
    let btf = Btf::from_sys_fs()?;
    let mut object = EbpfLoader::new().btf(Some(&btf)).load(set.object)?;
    for name in MAPS.iter().chain(set.own_maps).copied() {
        let path = new.join(name);
        object
            .map(name)
            .ok_or(OpenError::Missing { name })?
            .pin(&path)
            .map_err(|source| OpenError::Pin { path, source })?;
    }
    if let Some(name) = set.on_demand {
        load(new, name, name, &mut object, &btf)?;
    }
    for name in set.optional {
        // Without it, what it would count stays at rest.
        if let Ok(program) = load(new, name, name, &mut object, &btf) {
            attach(new, name, program)?;
        }
    }
    functions(new, set, &mut object, &btf)?;
    // Last, so that nothing is counted by a set that is not made.
    for name in set.tracepoints {
        let program = load(new, name, name, &mut object, &btf)?;
        attach(new, name, program)?;
    }
    Ok(())
}

/// Leaves out those of which the kernel has nothing to count. Attaches none before it is
/// known that it takes all: to detach them takes it long.
fn functions(new: &Path, set: &Set, object: &mut Ebpf, btf: &Btf) -> Result<(), OpenError> {
    if set.is_at_functions() && ftrace::is_off() {
        return Err(OpenError::FtraceOff);
    }
    let (mut loaded, mut unknown) = (Vec::new(), Vec::new());
    for function in set.functions() {
        match load(new, function.program, function.function, object, btf) {
            Ok(_) => loaded.push(function.program),
            Err(OpenError::Program {
                source: source @ ProgramError::Btf(BtfError::UnknownBtfTypeName { .. }),
                ..
            }) => unknown.push((function, source)),
            Err(reason) => return Err(reason),
        }
    }
    if !unknown.is_empty() {
        let symbols = unknown.iter().filter_map(|(f, _)| f.unless_without);
        let there = symbols::present(&symbols.collect::<Vec<_>>()).map_err(OpenError::Symbols)?;
        if let Some((function, source)) = unknown.into_iter().find(|(f, _)| f.is_needed(&there)) {
            return Err(OpenError::program("load", function.function, source));
        }
    }
    for name in loaded {
        let program = object
            .program_mut(name)
            .ok_or(OpenError::Missing { name })?;
        attach(new, name, program)?;
    }
    forget_patches(object)
}

/// Where another set sits at the same functions, to attach the second of the two programs
/// that count patches is a patch of which only one has seen anything.
fn forget_patches(object: &mut Ebpf) -> Result<(), OpenError> {
    let name = PATCHES;
    let failed = |source| OpenError::Map { name, source };
    let map = object.map_mut(name).ok_or(OpenError::Missing { name })?;
    let mut patches: Array<_, u64> = Array::try_from(map).map_err(failed)?;
    for index in 0..patches.len() {
        patches.set(index, 0, 0).map_err(failed)?;
    }
    Ok(())
}

/// `target`: the tracepoint or function that it is for.
fn load<'a>(
    new: &Path,
    name: &'static str,
    target: &'static str,
    object: &'a mut Ebpf,
    btf: &Btf,
) -> Result<&'a mut Program, OpenError> {
    let program = object
        .program_mut(name)
        .ok_or(OpenError::Missing { name })?;
    match program {
        Program::BtfTracePoint(program) => program.load(target, btf),
        Program::FEntry(program) => program.load(target, btf),
        Program::FExit(program) => program.load(target, btf),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
    .map_err(|source| OpenError::program("load", name, source))?;
    let path = new.join(program_name(name));
    program
        .pin(&path)
        .map_err(|source| OpenError::Pin { path, source })?;
    Ok(program)
}

fn attach(set: &Path, name: &'static str, program: &mut Program) -> Result<(), OpenError> {
    let link = match program {
        Program::BtfTracePoint(program) => program
            .attach()
            .and_then(|id| program.take_link(id))
            .map(FdLink::from),
        Program::FEntry(program) => program
            .attach()
            .and_then(|id| program.take_link(id))
            .map(FdLink::from),
        Program::FExit(program) => program
            .attach()
            .and_then(|id| program.take_link(id))
            .map(FdLink::from),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    pin_link(set, name, link)
}

/// Keeps a program attached by a pin.
pub(crate) fn pin_link(
    set: &Path,
    name: &'static str,
    link: Result<FdLink, ProgramError>,
) -> Result<(), OpenError> {
    let link = link.map_err(|source| OpenError::program("attach", name, source))?;
    let path = set.join(link_name(name));
    link.pin(&path)
        .map_err(|source| OpenError::Pin { path, source })?;
    Ok(())
}
