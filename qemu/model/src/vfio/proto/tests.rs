// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;

fn header(command: u16, body: &[u8]) -> Header {
    Header {
        id: 7,
        command,
        size: (HEADER_SIZE + body.len()) as u32,
        flags: 0,
        error: 0,
    }
}

fn reply_to(header: &Header, result: Result<(), Errno>) -> Header {
    let mut reply = Reply::default();
    reply.start(header);
    Header::read_from_prefix(reply.finish(result)).unwrap().0
}

#[test]
fn the_version_of_qemu_is_understood() {
    let mut body = vec![0, 0, 0, 0];
    body.extend_from_slice(
        br#"{"capabilities":{"pgsizes":4096,"max_msg_fds":16,"max_dma_maps":65535,
        "max_data_xfer_size":1048576,"migration":{"pgsize":4096},"write_multiple":true}}"#,
    );
    body.push(0);
    let request = Request::parse(&header(command::VERSION, &body), &body);
    let want = Request::Version {
        major: 0,
        minor: 0,
        max_fds: 16,
    };
    assert_eq!(request, Ok(want));
}

#[test]
fn what_is_not_known_gets_an_error_and_not_silence() {
    // DEVICE_FEATURE, which QEMU 11 may ask for.
    let asked = header(16, &[0; 24]);
    assert_eq!(Request::parse(&asked, &[0; 24]), Err(Errno::NOTSUP));
    let answer = reply_to(&asked, Err(Errno::NOTSUP));
    assert_eq!((answer.id, answer.command), (7, 16));
    assert_eq!(answer.flags, TYPE_REPLY | FLAG_ERROR);
    assert_eq!(answer.error, Errno::NOTSUP.raw_os_error() as u32);
    assert_eq!(answer.size as usize, HEADER_SIZE);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let mut bad = header(command::DEVICE_RESET, &[]);
    for size in [0, HEADER_SIZE as u32 - 1, MAX_MESSAGE as u32 + 1, u32::MAX] {
        bad.size = size;
        let bytes = bad.as_bytes().try_into().unwrap();
        assert!(Header::parse(bytes).is_err(), "{size}");
    }
}

#[test]
fn truncated_bodies_are_refused() {
    for command in [
        command::DMA_MAP,
        command::DMA_UNMAP,
        command::DEVICE_GET_REGION_INFO,
        command::DEVICE_GET_IRQ_INFO,
        command::DEVICE_SET_IRQS,
        command::REGION_READ,
        command::REGION_WRITE,
    ] {
        let body = [0; 7];
        let request = Request::parse(&header(command, &body), &body);
        assert_eq!(request, Err(Errno::INVAL), "{command}");
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(
        command in 0u16..32, body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let header = header(command, &body);
        let _ = Request::parse(&header, &body);
    }

    #[test]
    fn garbage_headers_never_panic(bytes: [u8; HEADER_SIZE]) {
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!((HEADER_SIZE..=MAX_MESSAGE).contains(&(header.size as usize)));
        }
    }
}
