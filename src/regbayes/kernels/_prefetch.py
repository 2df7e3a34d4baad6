"""Ask for memory before it is needed.

Coordinate steps visit rows in random order, which no hardware prefetcher foresees: without a hint most of the time
goes into waiting for the next row. A prefetch has no effect on any value.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from regbayes.kernels._compile import compiled_inline

AHEAD = 6
"""How many rows ahead to ask: far enough to hide the memory's latency, near enough to stay in the first cache."""

_LINE_BYTES = 64
_MOST_LINES = 16  # of a longer row the rest follows by itself: the hardware sees a stream


@intrinsic
def _prefetch(_context: Any, array: Any, row: Any, column: Any) -> Any:  # noqa: ARG001 (part of the signature)
    """Hint at the cache line that holds ``array[row, column]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from llvmlite import ir  # type: ignore[import-untyped]  # comes with Numba

        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, arguments[0])
        item = cgutils.get_item_pointer(context, builder, array_type, data, arguments[1:], wraparound=False)  # type: ignore[no-untyped-call]
        byte_pointer, integer = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint_type = ir.FunctionType(ir.VoidType(), (byte_pointer, integer, integer, integer))
        hint = builder.module.declare_intrinsic("llvm.prefetch", (byte_pointer,), hint_type)
        read, keep_near, data_cache = integer(0), integer(3), integer(1)
        builder.call(hint, (builder.bitcast(item, byte_pointer), read, keep_near, data_cache))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@compiled_inline
def prefetch_row(array: NDArray[Any], row: int) -> None:
    """Ask for the first cache lines of ``array[row]``."""
    per_line = _LINE_BYTES // array.itemsize
    for column in range(0, min(array.shape[1], _MOST_LINES * per_line), per_line):
        _prefetch(array, row, column)  # type: ignore[call-arg]
