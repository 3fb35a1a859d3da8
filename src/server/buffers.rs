//! Buffers that connections borrow while they have something to read or to say.
//!
//! An idle connection holds no buffer at all, so ten thousand of them cost little; a busy one finds a warm buffer of its
//! thread. A buffer that grew for one large request is not kept.

use std::cell::RefCell;

/// How much a connection asks the socket for at once, in bytes: a pipeline of 2 000 short requests.
pub(super) const READ_SIZE: usize = 64 * 1024;

/// The largest buffer that is kept for the next user, in bytes.
const MAX_KEPT: usize = 512 * 1024;

/// How many buffers a thread keeps: a connection has two while its requests are answered, and few are in the middle of that.
const MAX_FREE: usize = 8;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, with the capacity it had in its last life.
pub(super) fn take() -> Vec<u8> {
    FREE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Gives a buffer back.
pub(super) fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > MAX_KEPT {
        return;
    }
    buffer.clear();
    FREE.with_borrow_mut(|free| {
        if free.len() < MAX_FREE {
            free.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_a_huge_one_not_at_all() {
        give(Vec::with_capacity(MAX_KEPT + 1));
        assert_eq!(take().capacity(), 0);
        let mut buffer = Vec::with_capacity(100);
        buffer.push(1);
        give(buffer);
        let again = take();
        assert!(again.is_empty() && again.capacity() >= 100);
    }
}
