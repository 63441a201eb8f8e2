"""The ledger: who gets how much memory, decided before anything is allocated (contract C6). Pure arithmetic.

A ledger is a list of lines and one limit per place. It is printed by `strata plan` and at start, shown in /props,
and compared with the process's resident memory after the pages were touched.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from strata.engine.backend import KV_BLOCK_TOKENS
from strata.errors import MemoryPlanError

GIB = 1 << 30
MIB = 1 << 20
KEEP_FREE_FRAC = 0.10  # of all RAM stays with the rest of the machine
KEEP_FREE_MIN_BYTES = 1 * GIB
GPU_CONTEXT_MAX_BYTES = 1024 * MIB  # more than this beside us belongs to other programs
GPU_KERNELS_BYTES = 96 * MIB  # loaded kernels and captured graphs; the device checks the real figure
UNPINNED_MIN_BYTES = 4 * GIB
UNPINNED_FRAC = 0.10
VRAM_KEEP_FRAC = 0.03
VRAM_KEEP_MIN_BYTES = 384 * MIB
MAX_KV_TOKENS = 1 << 30  # what block numbers can count
DEFAULT_CTX_MAX = 32768  # without --ctx-size: the model's own context, at most this


class Place(StrEnum):
    RAM = "ram"  # ordinary memory, resident
    MAPPED = "mapped"  # page cache of the model file: can be dropped by the system, never counted as resident
    PINNED = "pinned"  # page-locked RAM
    VRAM = "vram"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One owner of memory."""

    name: str
    place: Place
    n_bytes: int
    note: str = ""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan. `limits` names the bytes that may be used in each place and where the number comes from."""

    lines: tuple[Line, ...]
    ram_limit_bytes: int
    ram_limit_source: str
    vram_limit_bytes: int = 0  # 0: there is no device
    vram_limit_source: str = ""
    notes: tuple[str, ...] = ()  # what was reduced, and why

    def total(self, place: Place) -> int:
        return sum(line.n_bytes for line in self.lines if line.place is place)

    def check(self) -> None:
        """Raise MemoryPlanError with the arithmetic when a place is overdrawn."""
        self._check_vram()
        need = self.total(Place.RAM) + self.total(Place.PINNED)
        if need <= self.ram_limit_bytes:
            return
        parts = self._parts(Place.RAM, Place.PINNED)
        raise MemoryPlanError(
            f"the plan needs {gib_text(need)} of RAM ({parts}), {gib_text(self.ram_limit_bytes)} may be used "
            f"({self.ram_limit_source}): {gib_text(need - self.ram_limit_bytes)} too much. A smaller --ctx-size or "
            "--kv-type q8_0 shrinks the cache; --load-mode mapped leaves the experts in the file (slower)"
        )

    def _check_vram(self) -> None:
        need = self.total(Place.VRAM)
        if need <= self.vram_limit_bytes:
            return
        raise MemoryPlanError(
            f"the plan needs {gib_text(need)} on the GPU ({self._parts(Place.VRAM)}), "
            f"{gib_text(self.vram_limit_bytes)} may be used ({self.vram_limit_source}): "
            f"{gib_text(need - self.vram_limit_bytes)} too much. A smaller --ctx-size, --batch-size "
            "or --kv-type q8_0 shrinks it; --backend cpu needs no GPU"
        )

    def _parts(self, *places: Place) -> str:
        return " + ".join(f"{line.name} {gib_text(line.n_bytes)}" for line in self.lines if line.place in places)

    def text(self) -> str:
        """The plan as it is printed."""
        rows = [
            f"  {line.name:<26} {line.place:<7} {gib_text(line.n_bytes):>12}  {line.note}".rstrip()
            for line in self.lines
        ]
        rows.append(
            f"  {'resident in RAM':<26} {'':<7} {gib_text(self.total(Place.RAM) + self.total(Place.PINNED)):>12}"
        )
        rows.append(f"  {'may be used':<26} {'':<7} {gib_text(self.ram_limit_bytes):>12}  {self.ram_limit_source}")
        if self.vram_limit_bytes:
            rows.append(f"  {'on the GPU':<26} {'':<7} {gib_text(self.total(Place.VRAM)):>12}")
            rows.append(
                f"  {'may be used':<26} {'':<7} {gib_text(self.vram_limit_bytes):>12}  {self.vram_limit_source}"
            )
        rows.extend(f"  note: {note}" for note in self.notes)
        return "\n".join(rows)


class MachineMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the system says; None where it says nothing."""

    total_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int = 0


def ram_limit(machine: MachineMemory, asked_bytes: int | None) -> tuple[int, str]:
    """Bytes that this process may hold, and the reason. An explicit --ram-limit is taken at its word."""
    if asked_bytes is not None:
        return asked_bytes, "--ram-limit"
    if machine.cgroup_limit_bytes is not None and machine.cgroup_limit_bytes < machine.total_bytes:
        room = machine.cgroup_limit_bytes - max(KEEP_FREE_MIN_BYTES // 2, int(machine.cgroup_limit_bytes * 0.05))
        return max(room, 0), "cgroup limit less a reserve"
    keep = max(KEEP_FREE_MIN_BYTES, int(machine.total_bytes * KEEP_FREE_FRAC))
    return max(machine.available_bytes - keep, 0), f"available now less {gib_text(keep)} for the rest of the machine"


def pin_limit(total_bytes: int, other_pinned_bytes: int) -> int:
    """RAM that may be page-locked for experts: a part always stays the system's to move."""
    keep = max(UNPINNED_MIN_BYTES, int(total_bytes * UNPINNED_FRAC))
    return max(total_bytes - keep - other_pinned_bytes, 0)


def gpu_context_bytes(free_bytes: int, total_bytes: int) -> int:
    """What the driver holds for us beside our own memory. free_bytes: with our context open."""
    return min(total_bytes - free_bytes, GPU_CONTEXT_MAX_BYTES) + GPU_KERNELS_BYTES


def vram_limit(free_bytes: int, total_bytes: int, asked_bytes: int | None) -> tuple[int, str]:
    """Bytes of the GPU that this process may hold, context included, and the reason.

    free_bytes: with our context open. Without a wish a reserve stays for the display and other programs.
    """
    if asked_bytes is not None:
        return asked_bytes, "--vram-limit"
    keep = max(VRAM_KEEP_MIN_BYTES, int(total_bytes * VRAM_KEEP_FRAC))
    room = max(free_bytes + min(total_bytes - free_bytes, GPU_CONTEXT_MAX_BYTES) - keep, 0)
    return room, f"free on the GPU less {gib_text(keep)} for the display and other programs"


def choose_ctx(n_ctx_train: int, asked: int | None, kv_bytes_per_block: int, room_bytes: int) -> tuple[int, str | None]:
    """Positions of the longest sequence, and a note when the choice was narrowed.

    Without a wish: the model's context, at most DEFAULT_CTX_MAX, and at most what fits in half the room that is left
    beside the weights.
    """
    if asked is not None:
        return asked, None
    n_ctx = min(n_ctx_train, DEFAULT_CTX_MAX)
    fits = max(room_bytes // 2 // max(kv_bytes_per_block, 1), 1) * KV_BLOCK_TOKENS
    if fits < n_ctx:
        return fits, f"context cut to {fits} tokens: its cache may take half of the room left beside the weights"
    if n_ctx < n_ctx_train:
        return n_ctx, f"context is {n_ctx} tokens; the model allows {n_ctx_train} (--ctx-size N asks for more)"
    return n_ctx, None


def n_kv_blocks(n_ctx: int) -> int:
    """Blocks for one longest sequence; several sequences share them. Raises: MemoryPlanError beyond any memory."""
    if n_ctx > MAX_KV_TOKENS:
        raise MemoryPlanError(f"a context or cache of {n_ctx} tokens is asked for; accepted: up to {MAX_KV_TOKENS}")
    return (n_ctx + KV_BLOCK_TOKENS - 1) // KV_BLOCK_TOKENS


def gib_text(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.2f} GiB" if abs(n_bytes) >= GIB // 10 else f"{n_bytes / MIB:.1f} MiB"
