"""What this machine's memories and link give, measured once and kept in a file beside the compiled kernels."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from strata.engine.prediction import Rates
from strata.ffi.library import Library
from strata.machine import cache_folder, describe_machine

__all__ = ["calibrate"]

_log = logging.getLogger(__name__)
_READ_BYTES = 512 << 20  # several times any cache


def calibrate(library: Library, ordinal: int, folder: Path | None = None) -> Rates:
    """Rates with GPU number `ordinal`; measures for about four seconds when this machine is not known yet.

    Raises: NativeError when the GPU cannot be used.
    """
    machine = describe_machine(library.cpu_tier, library.cpu_count)
    key = f"{machine.cpu}, {machine.n_cpu} CPUs, {library.gpu(ordinal).name}, GPU {ordinal}"
    path = (folder or cache_folder()) / "rates.json"
    known = _read(path)
    if key not in known:
        known[key] = _measure(library, ordinal)
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2))
        except OSError as error:
            _log.warning("the measured rates could not be kept in %s: %s", path, error)
    return known[key]


def _read(path: Path) -> dict[str, Rates]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Rates])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s is measured anew: %s", path, error)
        return {}


def _measure(library: Library, ordinal: int) -> Rates:
    vram, link = library.gpu_rates(ordinal)
    n = library.cpu_count
    counts = sorted({max(1, n), max(1, n - 2), max(1, 3 * n // 4)})
    found = {count: library.measure_read(count, _READ_BYTES) for count in counts}
    best = max(found, key=lambda count: found[count])
    return Rates(ram=found[best], n_threads=best, vram=vram, link=link)
