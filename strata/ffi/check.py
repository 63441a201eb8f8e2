"""Turns a status of the library into an exception that carries the library's own words."""

from __future__ import annotations

from typing import Any

from strata.errors import DeviceLost, EngineStopped, ModelError, NativeError, OutOfDeviceMemory, StrataError

__all__ = ["Checker", "error_of"]


class Checker:
    """Checks statuses of calls made on this thread just before."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._ffi = ffi
        self._lib = lib

    def check(self, status: int, where: str) -> None:
        """Raise what `error_of` makes of a negative status and the thread's last error."""
        if status < 0:
            raise error_of(
                self._ffi, status, where, self._ffi.string(self._lib.strata_last_error()).decode("utf-8", "replace")
            )


def error_of(ffi: Any, status: int, where: str, message: str) -> StrataError:
    """The exception for a failure.

    STRATA_E_IO is about a model file: ModelError. STRATA_E_INTERNAL means that the engine is dead: EngineStopped.
    STRATA_E_DEVICE and STRATA_E_DEVICE_MEMORY have classes of their own; all others are NativeError.
    """

    def is_(name: str) -> bool:
        return status == ffi.integer_const(name)

    if is_("STRATA_E_IO"):
        return ModelError(message)
    if is_("STRATA_E_INTERNAL"):
        return EngineStopped(message)
    if is_("STRATA_E_DEVICE"):
        return DeviceLost(status, where, message)
    if is_("STRATA_E_DEVICE_MEMORY"):
        return OutOfDeviceMemory(status, where, message)
    return NativeError(status, where, message)
