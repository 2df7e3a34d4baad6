"""The exponential function in single precision, without branches, so that loops over it are vectorised."""

from __future__ import annotations

from typing import Any

import numpy as np

from regbayes.kernels._compile import compiled_as_written

LOWEST = np.float32(-50.0)
"""The lowest exponent, relative to the highest. Products of much smaller numbers leave the normal numbers of single
precision, on which arithmetic is slow; a weight of exp(-50) is never drawn."""

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to the nearest integer and leaves that in the low bits
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ONE = np.float32(1.0)


@compiled_as_written
def exp(x: Any) -> Any:
    """Return exp(x) for x up to 80 (Cephes' polynomial), at least exp(LOWEST)."""
    x = max(x, LOWEST)
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    bits = np.float32(shifted).view(np.int32)
    power_of_two = np.int32((bits + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * r * r + r + _ONE) * power_of_two
