//! Random inputs, biased to what a scanner takes for requests. Shared with the tests of the commands, by its path.

/// What inputs are made of: pieces of requests, right and wrong.
const PARTS: [&[u8]; 40] = [
    b"\r\n",
    b"\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"*",
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"*4\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*11\r\n",
    b"*1026\r\n",
    b"*99999999999\r\n",
    b"$",
    b"$0\r\n",
    b"$1\r\n",
    b"$4\r\n",
    b"$5\r\n",
    b"$12\r\n",
    b"$13\r\n",
    b"$-1\r\n",
    b"$16385\r\n",
    b"$65537\r\n",
    b"$4\r\nPING\r\n",
    b"$5\r\norder\r\n",
    b"$12\r\n0123456789ab\r\n",
    b"PING",
    b"IDGET order",
    b" ",
    b"\"",
    b"'",
    b"\\x4",
    b"\\",
    b"POST ",
    b"GET / HTTP/1.1\r\n",
    b"\x16\x03",
    b"\0",
    b"0123456789abcdef",
];

/// `SplitMix64`: fast, and good enough to choose inputs.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }
}

/// One to eight parts, or a few right requests with one byte changed, taken out or put in.
pub(crate) fn fill(input: &mut Vec<u8>, random: &mut Random) {
    input.clear();
    if random.below(3) > 0 {
        for _ in 0..=random.below(8) {
            input.extend_from_slice(PARTS[random.below(PARTS.len())]);
        }
        return;
    }
    for _ in 0..=random.below(3) {
        match random.below(3) {
            0 => input.extend_from_slice(b"*2\r\n$5\r\nIDGET\r\n$5\r\norder\r\n"),
            1 => input.extend_from_slice(b"*3\r\n$6\r\nIDMGET\r\n$1\r\na\r\n$10\r\n0000000100\r\n"),
            _ => input.extend_from_slice(b"IDGET \"or\\x64er\" 'STR'\r\n"),
        }
    }
    let (place, byte) = (random.below(input.len()), random.next().to_le_bytes()[0]);
    match random.below(4) {
        0 => input[place] = byte,
        1 => drop(input.remove(place)),
        2 => input.insert(place, byte),
        _ => input.truncate(place),
    }
}
