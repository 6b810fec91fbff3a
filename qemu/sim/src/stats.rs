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

/// `count` buckets with the same number of messages, by size.
pub fn buckets(done: &[Done], count: usize) -> Vec<Bucket> {
    let mut sorted: Vec<(u64, f64)> = done
        .iter()
        .map(|d| (d.message.bytes, slowdown(d)))
        .collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    (0..count)
        .filter_map(|i| {
            let part = sorted.get(i * sorted.len() / count..(i + 1) * sorted.len() / count)?;
            let bytes = part.last()?.0;
            let mut slow: Vec<f64> = part.iter().map(|&(_, slow)| slow).collect();
            slow.sort_by(f64::total_cmp);
            let at = |q| quantile(&slow, q);
            Some(Bucket {
                bytes,
                p50: at(0.5),
                p95: at(0.95),
                p99: at(0.99),
            })
        })
        .collect()
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
