//! The mean of a figure over several seeds, and the confidence interval of the mean.

/// Student's t for a two-sided interval of 95 %, by degrees of freedom from 1 on.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
/// The same quantile of the normal distribution, which approximates t with more degrees of freedom.
const NORMAL: f64 = 1.960;

/// A mean and its interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spread {
    pub(super) mean: f64,
    /// Half of the interval that contains the mean of all seeds with a probability of 95 %
    /// (Student's t); `None` for one seed.
    pub(super) half: Option<f64>,
}

impl Spread {
    /// The spread of at least one value.
    pub(super) fn of(values: &[f64]) -> Spread {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        // n values have n - 1 degrees of freedom, and the table begins with one.
        let half = values.len().checked_sub(2).map(|index| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let student = STUDENT.get(index).copied().unwrap_or(NORMAL);
            student * (squares / (count - 1.0) / count).sqrt()
        });
        Spread { mean, half }
    }

    /// The mean and its interval, formatted by `show`: `75.0 %`, or `75.0 % ± 0.2 %`.
    pub(super) fn told(&self, show: impl Fn(f64) -> String) -> String {
        match self.half {
            None => show(self.mean),
            Some(half) => format!("{} ± {}", show(self.mean), show(half)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // An example of textbooks: 10 values with a standard deviation of 2; 2.262 * 2 / sqrt(10).
        let values = [8.0, 12.0, 8.0, 12.0, 8.0, 12.0, 8.0, 12.0, 10.0, 10.0];
        let Spread { mean, half } = Spread::of(&values);
        let deviation = (32.0_f64 / 9.0).sqrt();
        assert_eq!(mean, 10.0);
        assert!((half.unwrap() - 2.262 * deviation / 10.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(Spread::of(&[3.0]), Spread { mean: 3.0, half: None });
        assert_eq!(Spread::of(&[3.0, 3.0]).half, Some(0.0));
    }

    #[test]
    fn half_of_it_is_told_beside_the_mean() {
        let show = |value: f64| format!("{value:.1} %");
        assert_eq!(Spread { mean: 75.0, half: Some(0.25) }.told(show), "75.0 % ± 0.2 %");
        assert_eq!(Spread { mean: 75.0, half: None }.told(show), "75.0 %");
    }
}
