//! What a request does.

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Reads `length` bytes at `offset`.
    Read,
    /// Writes `length` bytes at `offset`.
    Write,
    /// Puts completed writes on stable storage.
    Flush,
    /// Tells the device that the range is no longer needed; or any change of the device's map
    /// alone, such as zeroing where nothing is written for it.
    Discard,
    /// Makes the range read as zeroes, by writing them as far as is known.
    WriteZeroes,
}
