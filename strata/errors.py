"""Every error that Strata raises on purpose.

    StrataError                       500 internal_error
      ConfigError                     500 config_error        flags, environment, YAML
      MemoryPlanError                 500 memory_plan_error   the ledger's refusal, with its arithmetic
      ModelError                      500 model_error         the file or what it describes
        BadGguf                       500 bad_gguf
        UnknownArch                   500 unknown_arch
        BindError                     500 bind_error
      ProfileError                    500 profile_error       an expert profile or its sidecar
      TraceError                      500 trace_error         a routing trace
      RequestError                    400 invalid_request
        ContextTooLong                400 context_length_exceeded
        BadSampling                   400 bad_sampling
      Overloaded                      429 overloaded          carries retry_after_s
      NotReady                        503 not_ready
      EngineStopped                   503 engine_stopped
      DeadlineExceeded                504 deadline_exceeded   the request's own deadline
      NativeError                     500 native_error        carries status, where, message
        OutOfDeviceMemory             500 out_of_device_memory
        DeviceLost                    503 device_lost

`http_status` and `code` are part of the wire API: they never change for a class.
"""

from __future__ import annotations

from typing import ClassVar


class StrataError(Exception):
    """Root of the tree."""

    http_status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"


class ConfigError(StrataError):
    """A flag, environment variable or configuration key is unknown or out of range."""

    code = "config_error"


class MemoryPlanError(StrataError):
    """The memory plan does not fit; the message shows the sum and what would fit."""

    code = "memory_plan_error"


class ModelError(StrataError):
    """A model file cannot be used."""

    code = "model_error"


class BadGguf(ModelError):
    """The file is not a well-formed GGUF file."""

    code = "bad_gguf"


class UnknownArch(ModelError):
    """No plugin is registered for the file's architecture."""

    code = "unknown_arch"


class BindError(ModelError):
    """The file's metadata or tensors do not fit its architecture's declaration."""

    code = "bind_error"


class ProfileError(StrataError):
    """An expert profile is malformed or belongs to another model."""

    code = "profile_error"


class TraceError(StrataError):
    """A routing trace is malformed, belongs to another model, or cannot be written."""

    code = "trace_error"


class RequestError(StrataError):
    """The client asked for something that cannot be served as asked."""

    http_status = 400
    code = "invalid_request"


class ContextTooLong(RequestError):
    """Prompt and answer do not fit the context."""

    code = "context_length_exceeded"


class BadSampling(RequestError):
    """A sampling parameter is out of range."""

    code = "bad_sampling"


class Overloaded(StrataError):
    """The queue is full; come back after `retry_after_s` seconds."""

    http_status = 429
    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReady(StrataError):
    """The model is still loading, or the server drains."""

    http_status = 503
    code = "not_ready"


class EngineStopped(StrataError):
    """The engine has ended; no further request can be served by this process."""

    http_status = 503
    code = "engine_stopped"


class DeadlineExceeded(StrataError):
    """The request took longer than it was allowed to."""

    http_status = 504
    code = "deadline_exceeded"


class NativeError(StrataError):
    """The native library refused or failed: `status` is its STRATA_E_* number, `where` the call."""

    code = "native_error"

    def __init__(self, status: int, where: str, message: str) -> None:
        super().__init__(f"{where}: {message} (status {status})")
        self.status = status
        self.where = where
        self.message = message


class OutOfDeviceMemory(NativeError):
    """The accelerator has no room for a planned allocation."""

    code = "out_of_device_memory"


class DeviceLost(NativeError):
    """The accelerator failed; the engine is dead."""

    http_status = 503
    code = "device_lost"
