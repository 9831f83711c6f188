"""Keep freed memory in the process, so that a step on the CPU does not fetch its pages anew each time."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 2**30


@cache
def keep_freed_memory() -> bool:
    """Tell the C library not to give freed blocks of up to 1 GiB back to the kernel; once per process.

    A step allocates and frees the same hundreds of megabytes again and again. By default the GNU C library
    unmaps blocks of over 32 MiB at once and trims the heap's end, and the kernel then zeroes every page of
    the next step: 5 to 10 % of the time of a small model's step on two cores. The peak stays what it was.

    Returns:
        Whether this C library took the setting (others keep their own defaults).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGE))
