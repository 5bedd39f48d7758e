//! The identity of the supervisor: which user it is, and which namespaces it is in.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, ThreadNameSpaceType, move_into_thread_name_spaces,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// Users from this one on are for machines of a host that runs as root.
const FIRST_USER: u32 = 0x6000_0000;

/// Becomes a user that owns nothing, if the host runs as root: the kernel does not limit the processes of root, and
/// files of root stay out of reach whatever else goes wrong. Each machine has a user of its own.
pub(super) fn leave_root() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    if geteuid().is_root() {
        let user = FIRST_USER + std::process::id();
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    // A child shares the memory and the program file of the supervisor until it executes a command. Without this, other
    // processes of the machine could trace it or write to the program file.
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Joins the namespaces of a process, gives up all capabilities, and goes to the work directory.
pub(super) fn join_namespaces(process: &impl AsFd, network: bool) -> io::Result<()> {
    let mut spaces = ThreadNameSpaceType::USER
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::PROCESS_ID
        | ThreadNameSpaceType::CONTROL_GROUP
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    if !network {
        spaces |= ThreadNameSpaceType::NETWORK;
    }
    move_into_thread_name_spaces(process.as_fd(), spaces)?;
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            // A kernel older than the capability.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none)?;
    set_no_new_privs(true)?;
    std::env::set_current_dir("/work")
}
