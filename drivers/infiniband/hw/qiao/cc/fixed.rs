// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fixed-point arithmetic: no float, no 128-bit, no operation that can overflow or divide by zero.

/// `1.0` in Q16.
pub(crate) const ONE_Q16: u32 = 1 << 16;

/// `1.0` in Q30.
pub(crate) const ONE_Q30: u32 = 1 << 30;

/// A sending rate as a fraction of the port rate in Q24.
///
/// `2^24` is line rate. At 800 Gb/s the step is 48 kb/s, so a floor far below `C / 1024` exists
/// at every speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Rate(u32);

impl Rate {
    /// Line rate.
    pub const LINE: Self = Self(1 << 24);
    /// The smallest rate that a pacer can be given.
    pub const MIN: Self = Self(1);

    /// The rate with the fraction `raw` (Q24), held within [`Rate::MIN`] and [`Rate::LINE`].
    #[inline]
    pub const fn new(raw: u32) -> Self {
        if raw == 0 {
            Self::MIN
        } else if raw > Self::LINE.0 {
            Self::LINE
        } else {
            Self(raw)
        }
    }

    /// `mbps` as a fraction of a port of `link_mbps`.
    #[inline]
    pub const fn from_mbps(mbps: u32, link_mbps: u32) -> Self {
        Self::new(clamp_u32(div((mbps as u64) << 24, link_mbps as u64)))
    }

    /// The fraction of line rate in Q24.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The rate in kb/s on a port of `link_mbps`.
    #[inline]
    pub const fn kbps(self, link_mbps: u32) -> u64 {
        (self.0 as u64).saturating_mul((link_mbps as u64).saturating_mul(1000)) >> 24
    }

    /// The part of `bytes` that corresponds to this fraction of line rate, at least one byte.
    #[inline]
    pub const fn share_of(self, bytes: u32) -> u32 {
        let share = ((bytes as u64).saturating_mul(self.0 as u64) >> 24) as u32;
        if share == 0 {
            1
        } else {
            share
        }
    }

    /// The rate scaled by `num / den`; a zero `den` leaves it unchanged.
    #[inline]
    pub const fn scaled(self, num: u32, den: u32) -> Self {
        if den == 0 {
            return self;
        }
        Self::new(clamp_u32(div(
            (self.0 as u64).saturating_mul(num as u64),
            den as u64,
        )))
    }

    /// The sum, at most line rate.
    #[inline]
    pub const fn plus(self, other: Self) -> Self {
        Self::new(self.0.saturating_add(other.0))
    }

    /// The mean of two rates.
    #[inline]
    pub const fn mean(self, other: Self) -> Self {
        Self::new((self.0 >> 1).saturating_add(other.0 >> 1))
    }

    /// The larger of two rates.
    #[inline]
    pub const fn max(self, other: Self) -> Self {
        if self.0 > other.0 {
            self
        } else {
            other
        }
    }
}

/// `num / den`, and 0 when `den` is 0.
#[inline]
pub(crate) const fn div(num: u64, den: u64) -> u64 {
    match num.checked_div(den) {
        Some(quotient) => quotient,
        None => 0,
    }
}

/// `value` as a `u32`, saturating.
#[inline]
pub(crate) const fn clamp_u32(value: u64) -> u32 {
    if value > u32::MAX as u64 {
        u32::MAX
    } else {
        value as u32
    }
}

/// `a * b / den` with a 64-bit product, saturating, and 0 when `den` is 0.
#[inline]
pub(crate) const fn mul_div(a: u32, b: u32, den: u32) -> u32 {
    clamp_u32(div((a as u64).saturating_mul(b as u64), den as u64))
}

/// `a * b` for two Q16 factors, saturating.
#[inline]
pub(crate) const fn mul_q16(a: u32, b: u32) -> u32 {
    clamp_u32((a as u64).saturating_mul(b as u64) >> 16)
}

/// `a * b` for `b` in Q30.
#[inline]
pub(crate) const fn mul_q30(a: u32, b: u32) -> u32 {
    clamp_u32((a as u64).saturating_mul(b as u64) >> 30)
}

/// `base^exponent` for a Q30 base of at most one, by repeated squaring.
///
/// This is what replaces a periodic timer: `n` missed periods of a decay cost `log2(n)` steps.
#[inline]
pub(crate) const fn pow_q30(base: u32, exponent: u64) -> u32 {
    let mut result = ONE_Q30;
    let mut square = base;
    let mut left = exponent;
    while left != 0 && result != 0 {
        if left & 1 == 1 {
            result = mul_q30(result, square);
        }
        square = mul_q30(square, square);
        left >>= 1;
    }
    result
}

/// `log2(x)` in Q16 for `x` in Q16 of at least one; 0 below.
///
/// The mantissa is a quadratic through both ends, at most 0.009 off.
#[inline]
pub(crate) const fn log2_q16(x: u32) -> u32 {
    let Some(top) = x.checked_ilog2() else {
        return 0;
    };
    if top < 16 {
        return 0;
    }
    // 0.3437 in Q16.
    const CURVE: u32 = 22_525;
    let fraction = (x >> top.saturating_sub(16)) & (ONE_Q16.wrapping_sub(1));
    let bend = mul_q16(CURVE, mul_q16(fraction, ONE_Q16.saturating_sub(fraction)));
    (top.saturating_sub(16) << 16)
        .saturating_add(fraction)
        .saturating_add(bend)
}

/// The largest integer whose square is at most `x`.
#[inline]
pub(crate) const fn isqrt(x: u64) -> u32 {
    x.isqrt() as u32
}

/// Whether sequence number `a` is after `b`, modulo 2^32.
#[inline]
pub(crate) const fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_stay_in_range() {
        assert_eq!(Rate::new(0), Rate::MIN);
        assert_eq!(Rate::new(u32::MAX), Rate::LINE);
        assert_eq!(Rate::from_mbps(1, 0), Rate::MIN);
        assert_eq!(Rate::from_mbps(50_000, 100_000).raw(), 1 << 23);
        assert_eq!(Rate::LINE.scaled(1, 0), Rate::LINE);
        assert_eq!(Rate::LINE.kbps(400_000), 400_000_000);
        assert_eq!(Rate::MIN.share_of(1), 1);
    }

    #[test]
    fn powers_match_repeated_multiplication() {
        let base = ONE_Q30 - (ONE_Q30 >> 8);
        let mut slow = ONE_Q30;
        for n in 0..2000u64 {
            let fast = pow_q30(base, n);
            assert!(slow.abs_diff(fast) < 4096, "n={n}: {slow} and {fast}");
            slow = mul_q30(slow, base);
        }
        assert_eq!(pow_q30(base, u64::MAX), 0);
    }

    #[test]
    fn logarithm_is_close_and_monotone() {
        let mut last = 0;
        for x in (ONE_Q16..(ONE_Q16 << 8)).step_by(97) {
            let exact = (f64::from(x) / 65536.0).log2();
            let got = log2_q16(x);
            assert!((f64::from(got) / 65536.0 - exact).abs() < 0.01, "x={x}");
            assert!(got >= last);
            last = got;
        }
        assert_eq!(log2_q16(0), 0);
    }

    #[test]
    fn sequence_order_wraps() {
        assert!(after(1, u32::MAX));
        assert!(!after(u32::MAX, 1));
        assert!(!after(7, 7));
    }
}
