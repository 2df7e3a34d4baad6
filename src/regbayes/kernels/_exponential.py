"""Branch-free exponential function in single precision for vectorized loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from regbayes.kernels._compile import compiled_as_written

LOWEST = np.float32(-50.0)
"""The lowest exponent, relative to the highest. Products of much smaller numbers leave the normal numbers of single
precision, on which arithmetic is slow; a weight of exp(-50) is never drawn."""

# 1 / log(2), log(2) in two parts, and 1.5 * 2^23: adding it rounds and puts the integer in the low bits
_REDUCTION = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4), np.float32(12582912.0)
_P = tuple(
    map(np.float32, (1.98756915e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 0.16666665459, 0.50000001201))
)


@compiled_as_written
def exp(x: Any) -> Any:
    """Return exp(x) for x up to 80 (Cephes' polynomial), at least exp(LOWEST)."""
    log2_e, ln2_high, ln2_low, rounding = _REDUCTION
    x = max(x, LOWEST)
    shifted = x * log2_e + rounding
    n = shifted - rounding
    r = (x - n * ln2_high) - n * ln2_low
    p = ((((_P[0] * r + _P[1]) * r + _P[2]) * r + _P[3]) * r + _P[4]) * r + _P[5]
    bits = np.float32(shifted).view(np.int32)
    power_of_two = np.int32((bits + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * r * r + r + np.float32(1.0)) * power_of_two
