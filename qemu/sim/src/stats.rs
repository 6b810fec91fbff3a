// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Statistics as the reference defines them.

use crate::world::Done;

/// Element at quantile `q` of a sorted slice, index rounded down; 0 if it is empty.
pub fn quantile<T: Copy + Default>(sorted: &[T], q: f64) -> T {
    let index = (sorted.len() as f64 * q) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// Jain's index of fairness.
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (squares * values.len() as f64)
}

/// Slowdown of a complete message, at least one.
pub fn slowdown(done: &Done) -> f64 {
    (done.fct as f64 / done.ideal as f64).max(1.0)
}

/// Slowdowns of one bucket of flow sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Largest size.
    pub bytes: u64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Slowdowns of many messages, by size.
#[derive(Clone, Debug)]
pub struct Slowdowns(Vec<(u64, f64)>);

impl Slowdowns {
    /// Those of `done`.
    pub fn new(done: &[Done]) -> Self {
        let of = |done: &Done| (done.message.bytes, slowdown(done));
        let mut sorted: Vec<(u64, f64)> = done.iter().map(of).collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        Self(sorted)
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The messages between two percentiles of size.
    pub fn part(&self, from: f64, to: f64) -> Bucket {
        let index = |percent: f64| (self.0.len() as f64 * percent / 100.0) as usize;
        let part = self.0.get(index(from)..index(to)).unwrap_or_default();
        let mut slow: Vec<f64> = part.iter().map(|&(_, slow)| slow).collect();
        slow.sort_by(f64::total_cmp);
        Bucket {
            bytes: part.last().map_or(0, |last| last.0),
            p50: quantile(&slow, 0.5),
            p95: quantile(&slow, 0.95),
            p99: quantile(&slow, 0.99),
        }
    }

    /// `count` parts with the same number of messages.
    pub fn parts(&self, count: usize) -> impl Iterator<Item = Bucket> + '_ {
        let step = 100.0 / count as f64;
        (0..count).map(move |i| self.part(i as f64 * step, (i + 1) as f64 * step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_fairness() {
        let values: Vec<u32> = (0..100).collect();
        assert_eq!(
            (
                quantile(&values, 0.5),
                quantile(&values, 0.99),
                quantile(&values, 1.0)
            ),
            (50, 99, 99)
        );
        assert_eq!(quantile::<u32>(&[], 0.5), 0);
        assert_eq!(jain(&[2.0, 2.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0]), 0.5);
    }
}
