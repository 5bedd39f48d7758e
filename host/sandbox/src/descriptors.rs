//! Messages with file descriptors, over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of a message.
const MOST: usize = 2;

/// Sends four bytes, with at most two descriptors.
pub(crate) fn send(socket: &UnixStream, word: [u8; 4], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(
        socket,
        &[IoSlice::new(&word)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    // A socket takes so few bytes at once or not at all.
    match sent == word.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Receives what [`send`] has sent; none once the other end is closed. No program that is executed inherits the
/// descriptors.
pub(crate) fn receive(socket: &UnixStream) -> io::Result<Option<([u8; 4], Vec<OwnedFd>)>> {
    let mut word = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut word)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let fds = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    match received.bytes {
        0 => Ok(None),
        4 => Ok(Some((word, fds))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
