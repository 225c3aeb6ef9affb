// SPDX-License-Identifier: Apache-2.0
//! Which devices a container may use, on cgroup v2: a small BPF program on its cgroup.
//! (On v1 libcontainer writes the rules into the devices controller.)
//!
//! The rules of the specification are followed by runc's own, and the last one that
//! applies decides; if none does, the device is refused. The program asks them from the
//! last to the first.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

use libcontainer::oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, Spec};

use super::{Failure, io_failure};

// linux/bpf.h
const DEV_BLOCK: i32 = 1;
const DEV_CHAR: i32 = 2;
const ACC_MKNOD: i32 = 1;
const ACC_READ: i32 = 2;
const ACC_WRITE: i32 = 4;
const ACC_ALL: i32 = ACC_MKNOD | ACC_READ | ACC_WRITE;
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;

/// One rule; nothing stands for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    allow: bool,
    kind: Option<i32>,
    major: Option<i32>,
    minor: Option<i32>,
    access: i32,
}

impl Rule {
    const fn allow(kind: i32, major: Option<i32>, minor: Option<i32>, access: i32) -> Self {
        Self {
            allow: true,
            kind: Some(kind),
            major,
            minor,
            access,
        }
    }

    fn of(rule: &LinuxDeviceCgroup) -> Option<Self> {
        let number = |number: Option<i64>| match number {
            None | Some(-1) => Some(None),
            Some(number) => Some(Some(i32::try_from(number).ok()?)),
        };
        let kind = match rule.typ() {
            None | Some(LinuxDeviceType::A) => None,
            Some(LinuxDeviceType::B) => Some(DEV_BLOCK),
            Some(LinuxDeviceType::C | LinuxDeviceType::U) => Some(DEV_CHAR),
            Some(LinuxDeviceType::P) => return None,
        };
        let access = rule.access().as_deref().unwrap_or("rwm");
        Some(Self {
            allow: rule.allow(),
            kind,
            major: number(rule.major())?,
            minor: number(rule.minor())?,
            access: access.chars().fold(0, |all, one| {
                all | match one {
                    'r' => ACC_READ,
                    'w' => ACC_WRITE,
                    'm' => ACC_MKNOD,
                    _ => 0,
                }
            }),
        })
    }
}

/// What every container may use: device nodes that are only made, and null, full, zero,
/// tty, urandom, random, console, the pseudo-terminals and their multiplexer.
const ALWAYS: [Rule; 11] = [
    Rule::allow(DEV_CHAR, None, None, ACC_MKNOD),
    Rule::allow(DEV_BLOCK, None, None, ACC_MKNOD),
    Rule::allow(DEV_CHAR, Some(1), Some(3), ACC_ALL),
    Rule::allow(DEV_CHAR, Some(1), Some(7), ACC_ALL),
    Rule::allow(DEV_CHAR, Some(1), Some(5), ACC_ALL),
    Rule::allow(DEV_CHAR, Some(5), Some(0), ACC_ALL),
    Rule::allow(DEV_CHAR, Some(1), Some(9), ACC_ALL),
    Rule::allow(DEV_CHAR, Some(1), Some(8), ACC_ALL),
    Rule::allow(DEV_CHAR, Some(5), Some(1), ACC_ALL),
    Rule::allow(DEV_CHAR, Some(136), None, ACC_ALL),
    Rule::allow(DEV_CHAR, Some(5), Some(2), ACC_ALL),
];

// eBPF: `opcode:8 dst:4 src:4 off:16 imm:32`.
fn instruction(opcode: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    u64::from(opcode)
        | u64::from(dst | (src << 4)) << 8
        | u64::from(off as u16) << 16
        | u64::from(imm as u32) << 32
}

const TYPE: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const LOAD_WORD: u8 = 0x61;
const MOV: u8 = 0xbc;
const MOV_IMM: u8 = 0xb4;
const AND_IMM: u8 = 0x54;
const RSH_IMM: u8 = 0x74;
const JNE_IMM: u8 = 0x55;
const JEQ_IMM: u8 = 0x15;
const EXIT: u8 = 0x95;

/// The program: 1 in r0 allows, 0 refuses.
fn program(rules: &[Rule]) -> Vec<u64> {
    // struct bpf_cgroup_dev_ctx { u32 access_type, major, minor; }, the access in the
    // upper half of the first.
    let mut code = vec![
        instruction(LOAD_WORD, TYPE, 1, 0, 0),
        instruction(MOV, ACCESS, TYPE, 0, 0),
        instruction(RSH_IMM, ACCESS, 0, 0, 16),
        instruction(AND_IMM, TYPE, 0, 0, 0xffff),
        instruction(LOAD_WORD, MAJOR, 1, 4, 0),
        instruction(LOAD_WORD, MINOR, 1, 8, 0),
    ];
    for rule in rules.iter().rev() {
        // Each jumps behind the rule if it does not apply.
        let mut checks: Vec<(u8, u8, i32)> = Vec::new();
        let equal = [(TYPE, rule.kind), (MAJOR, rule.major), (MINOR, rule.minor)];
        for (register, wanted) in equal {
            checks.extend(wanted.map(|wanted| (JNE_IMM, register, wanted)));
        }
        let mut body: Vec<(u8, u8, u8, i32)> = Vec::new();
        if rule.access != ACC_ALL {
            // Allowed is what asks for nothing else, refused what asks for any of it.
            let (mask, jump) = if rule.allow {
                (!rule.access & ACC_ALL, JNE_IMM)
            } else {
                (rule.access, JEQ_IMM)
            };
            body.push((MOV, 0, ACCESS, 0));
            body.push((AND_IMM, 0, 0, mask));
            body.push((jump, 0, 0, 0));
        }
        let applies_always = checks.is_empty() && body.is_empty();
        let all = checks.into_iter().map(|(op, dst, imm)| (op, dst, 0, imm));
        let all: Vec<_> = all.chain(body).collect();
        let count = all.len();
        for (at, (op, dst, src, imm)) in all.into_iter().enumerate() {
            let is_jump = op == JNE_IMM || op == JEQ_IMM;
            // Past the rest, and past the verdict's two.
            let off = if is_jump {
                (count - at - 1 + 2) as i16
            } else {
                0
            };
            code.push(instruction(op, dst, src, off, imm));
        }
        code.push(instruction(MOV_IMM, 0, 0, 0, i32::from(rule.allow)));
        code.push(instruction(EXIT, 0, 0, 0, 0));
        if applies_always {
            // What follows would never be reached, which the verifier refuses.
            return code;
        }
    }
    code.push(instruction(MOV_IMM, 0, 0, 0, 0));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    code
}

fn rules(spec: &Spec) -> Vec<Rule> {
    let linux = spec.linux().as_ref();
    let resources = linux.and_then(|linux| linux.resources().as_ref());
    let devices = resources.and_then(|resources| resources.devices().as_ref());
    let own = devices.into_iter().flatten().filter_map(Rule::of);
    own.chain(ALWAYS).collect()
}

/// Puts the rules of a specification in force for a cgroup v2 directory.
pub(super) fn restrict(spec: &Spec, cgroup: &Path) -> Result<(), Failure> {
    let dir = File::open(cgroup).map_err(io_failure("open", cgroup))?;
    load(&program(&rules(spec)))
        .and_then(|program| attach(&program, &dir))
        .map_err(io_failure("restrict the devices of", cgroup))
}

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`; the rest is zero.
#[repr(C)]
struct LoadAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
}

/// The same for `BPF_PROG_ATTACH`.
#[repr(C)]
struct AttachAttributes {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

fn load(code: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let attributes = LoadAttributes {
        prog_type: PROG_TYPE_CGROUP_DEVICE,
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
    };
    let size = size_of::<LoadAttributes>();
    // SAFETY: the structure and what it points to live until the call returns; their
    // sizes are told.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const attributes, size) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn attach(program: &OwnedFd, cgroup: &File) -> io::Result<()> {
    let attributes = AttachAttributes {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_bpf_fd: program.as_raw_fd() as u32,
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: ALLOW_MULTI,
    };
    let size = size_of::<AttachAttributes>();
    // SAFETY: the structure lives until the call returns, and its size is told.
    let done = unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, &raw const attributes, size) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would make of it: this program has jumps ahead only.
    fn run(code: &[u64], kind: i32, major: i32, minor: i32, access: i32) -> bool {
        let context = [(access << 16) | kind, major, minor];
        let mut registers = [0i32; 11];
        let mut at = 0;
        loop {
            let word = code[at];
            let (op, dst) = (word as u8, (word >> 8) as usize & 0xf);
            let src = (word >> 12) as usize & 0xf;
            let (off, imm) = ((word >> 16) as i16, (word >> 32) as i32);
            at += 1;
            match op {
                LOAD_WORD => registers[dst] = context[off as usize / 4],
                MOV => registers[dst] = registers[src],
                MOV_IMM => registers[dst] = imm,
                AND_IMM => registers[dst] &= imm,
                RSH_IMM => registers[dst] = ((registers[dst] as u32) >> imm) as i32,
                JNE_IMM if registers[dst] != imm => at += off as usize,
                JEQ_IMM if registers[dst] == imm => at += off as usize,
                JNE_IMM | JEQ_IMM => {}
                EXIT => return registers[0] == 1,
                _ => panic!("opcode {op:#x}"),
            }
        }
    }

    fn spec(devices: serde_json::Value) -> Spec {
        serde_json::from_value(serde_json::json!({
            "ociVersion": "1.1.0",
            "root": {"path": "rootfs"},
            "linux": {"resources": {"devices": devices}},
        }))
        .unwrap()
    }

    #[test]
    fn the_last_rule_that_applies_decides() {
        let spec = spec(serde_json::json!([
            {"allow": false, "access": "rwm"},
            {"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"},
            {"allow": true, "type": "b", "major": 8, "access": "r"},
            {"allow": true, "type": "c", "major": 4, "minor": 64},
            {"allow": false, "type": "c", "major": 4, "minor": 64, "access": "w"},
        ]));
        let code = program(&rules(&spec));
        let may = |kind, major, minor, access| run(&code, kind, major, minor, access);
        assert!(may(DEV_CHAR, 1, 3, ACC_READ | ACC_WRITE), "/dev/null");
        assert!(may(DEV_CHAR, 136, 7, ACC_WRITE), "a terminal");
        assert!(may(DEV_BLOCK, 253, 0, ACC_MKNOD), "only made");
        assert!(!may(DEV_BLOCK, 253, 0, ACC_READ), "not opened");
        assert!(
            !may(DEV_BLOCK, 1, 3, ACC_READ),
            "the number of another kind"
        );
        assert!(
            may(DEV_CHAR, 10, 229, ACC_READ | ACC_WRITE),
            "/dev/fuse, allowed"
        );
        assert!(!may(DEV_CHAR, 10, 228, ACC_READ));
        assert!(may(DEV_BLOCK, 8, 1, ACC_READ));
        assert!(!may(DEV_BLOCK, 8, 1, ACC_READ | ACC_WRITE));
        assert!(may(DEV_CHAR, 4, 64, ACC_READ));
        assert!(!may(DEV_CHAR, 4, 64, ACC_READ | ACC_WRITE));
    }

    #[test]
    fn a_privileged_container_may_use_all_and_one_without_rules_little() {
        let all = program(&rules(&spec(serde_json::json!([
            {"allow": false, "access": "rwm"}, {"allow": true, "access": "rwm"},
        ]))));
        assert!(run(&all, DEV_BLOCK, 8, 0, ACC_ALL));
        let none = program(&rules(&spec(serde_json::json!([]))));
        assert!(!run(&none, DEV_BLOCK, 8, 0, ACC_READ));
        assert!(run(&none, DEV_CHAR, 1, 5, ACC_READ));
    }

    #[test]
    fn the_kernel_takes_the_program() {
        let rules = rules(&spec(
            serde_json::json!([{"allow": false, "access": "rwm"}]),
        ));
        match load(&program(&rules)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                println!("skipped: loading BPF programs is not allowed here");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
