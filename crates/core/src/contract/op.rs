//! The operations of requests.

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Reads `length` bytes at `offset`.
    Read,
    /// Writes `length` bytes at `offset`.
    Write,
    /// Puts completed writes on stable storage.
    Flush,
    /// Reports to the device that the range is no longer needed; also any other change of the
    /// device's map alone, such as zeroing without a write.
    Discard,
    /// Makes the range read as zeroes; it is assumed that the device writes them.
    WriteZeroes,
}
