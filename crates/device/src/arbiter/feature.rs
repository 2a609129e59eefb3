//! Arbitration in the form that the NVMe specification gives it: the Arbitration feature (01h) and
//! queue priorities.

use fairq_core::{Class, ClassWeights};

/// The most commands that one submission queue starts in its turn (the Arbitration Burst, 2^n
/// commands or without limit).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst(u8);

impl Burst {
    /// One command.
    pub const ONE: Burst = Burst(0);
    /// No limit.
    pub const UNLIMITED: Burst = Burst(7);

    /// 2^`exponent` commands; 7 and above is no limit, as in the feature.
    pub const fn power(exponent: u8) -> Burst {
        Burst(if exponent > 7 { 7 } else { exponent })
    }

    /// The number of commands; `None` is no limit.
    pub const fn commands(self) -> Option<u32> {
        if self.0 == 7 { None } else { Some(1 << self.0) }
    }
}

/// The value of the Arbitration feature.
///
/// ```text
///   CDW11   31        24 23        16 15         8 7      3 2       0
///           | high - 1  | medium - 1 | low - 1    | 0      | log2 of |
///           |           |            |            |        | burst   |
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arbitration {
    /// The most commands of each queue's turn.
    pub burst: Burst,
    /// Commands per class and round, 1 to 256.
    pub weights: ClassWeights,
}

impl Arbitration {
    /// One command per turn and class: the value after a reset.
    pub const RESET: Arbitration =
        Arbitration { burst: Burst::ONE, weights: ClassWeights { high: 1, medium: 1, low: 1 } };

    /// Decodes CDW11 of Set Features, in which weights are one less; every value is legal.
    pub fn from_cdw11(cdw11: u32) -> Arbitration {
        let weight = |byte: u32| (byte & 0xff) as u16 + 1;
        let weights = ClassWeights {
            high: weight(cdw11 >> 24),
            medium: weight(cdw11 >> 16),
            low: weight(cdw11 >> 8),
        };
        Arbitration { burst: Burst((cdw11 & 7) as u8), weights }
    }

    /// CDW11 of Set Features, which is also dword 0 of the completion of Get Features.
    ///
    /// # Panics
    /// When a weight is not 1 to 256.
    pub fn cdw11(self) -> u32 {
        assert!(legal(self.weights), "{:?}: weights are 1 to 256", self.weights);
        let ClassWeights { high, medium, low } = self.weights;
        let field = |weight: u16| u32::from(weight) - 1;
        field(high) << 24 | field(medium) << 16 | field(low) << 8 | u32::from(self.burst.0)
    }
}

/// Whether each weight is 1 to 256.
pub(super) fn legal(weights: ClassWeights) -> bool {
    [weights.high, weights.medium, weights.low].iter().all(|weight| (1..=256).contains(weight))
}

/// The class in the two bits QPRIO (Create I/O Submission Queue, CDW11 bits 2:1); higher bits are
/// ignored.
pub const fn class_of_qprio(qprio: u32) -> Class {
    match qprio & 3 {
        0 => Class::Urgent,
        1 => Class::High,
        2 => Class::Medium,
        _ => Class::Low,
    }
}

/// QPRIO of a class.
pub const fn qprio(class: Class) -> u32 {
    match class {
        Class::Urgent => 0,
        Class::High => 1,
        Class::Medium => 2,
        Class::Low => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_where_the_specification_has_them() {
        let weights = ClassWeights { high: 256, medium: 16, low: 1 };
        let arbitration = Arbitration { burst: Burst::power(3), weights };
        assert_eq!(arbitration.cdw11(), 0xff0f_0003);
        assert_eq!(Arbitration::from_cdw11(0xff0f_0003), arbitration);
        assert_eq!(Arbitration::from_cdw11(0), Arbitration::RESET);
        assert_eq!(Arbitration::from_cdw11(7).burst, Burst::UNLIMITED);
        assert_eq!(Arbitration::from_cdw11(0xf8).burst, Burst::ONE, "bits 7:3 are reserved");
    }

    #[test]
    fn each_value_comes_back() {
        for weight in 1..=256 {
            for exponent in 0..=7 {
                let weights = ClassWeights { high: weight, medium: 257 - weight, low: weight };
                let arbitration = Arbitration { burst: Burst::power(exponent), weights };
                assert_eq!(Arbitration::from_cdw11(arbitration.cdw11()), arbitration);
            }
        }
    }

    #[test]
    fn bursts_are_powers_of_two() {
        let commands: Vec<_> = (0..=8).map(|exponent| Burst::power(exponent).commands()).collect();
        assert_eq!(
            commands,
            [Some(1), Some(2), Some(4), Some(8), Some(16), Some(32), Some(64), None, None]
        );
    }

    #[test]
    fn priorities_are_two_bits() {
        for class in [Class::Urgent, Class::High, Class::Medium, Class::Low] {
            assert_eq!(class_of_qprio(qprio(class)), class);
            assert_eq!(class_of_qprio(qprio(class) | 4), class);
        }
    }

    #[test]
    #[should_panic(expected = "1 to 256")]
    fn a_weight_of_0_has_no_field() {
        let _ =
            Arbitration { burst: Burst::ONE, weights: ClassWeights { high: 0, medium: 1, low: 1 } }
                .cdw11();
    }
}
