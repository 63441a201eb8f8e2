"""What the system says about this machine and this process: memory, processor, sizes. Reads /proc and /sys."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import msgspec

from strata.engine.budget import MachineMemory

_MEMINFO = Path("/proc/meminfo")
_CGROUP_V2 = Path("/sys/fs/cgroup")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Stands in benchmark records, so that a figure is never without its machine."""

    cpu: str
    n_cpu: int
    tier: str
    ram_gib: float
    kernel: str


def machine_memory() -> MachineMemory:
    """Total and available RAM, and the tightest cgroup limit of this process."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())

    def kib(name: str) -> int:
        return int(fields[name].split()[0]) << 10

    limit = _cgroup_limit()
    return MachineMemory(total_bytes=kib("MemTotal"), available_bytes=kib("MemAvailable"), cgroup_limit_bytes=limit)


def resident_bytes() -> int:
    """Anonymous and private memory of this process that is in RAM now (mapped model files are not counted)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return (int(fields["RssAnon"].split()[0]) + int(fields["RssShmem"].split()[0])) << 10


def nvrtc_folder() -> str | None:
    """Folder of the installed NVRTC package (the extra strata-moe[cuda]); None: not installed."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return str(Path(next(iter(spec.submodule_search_locations))) / "lib")


def cache_folder(name: str = "") -> Path:
    """The user's folder of what can be made again, or one inside it; made when it is missing."""
    folder = Path.home() / ".cache" / "strata" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def describe_machine(tier: str, n_cpu: int) -> Machine:
    """Name this machine for a benchmark record."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return Machine(
        cpu=models[0] if models else "unknown",
        n_cpu=n_cpu,
        tier=tier,
        ram_gib=round(machine_memory().total_bytes / (1 << 30), 1),
        kernel=Path("/proc/sys/kernel/osrelease").read_text().strip(),
    )


def source_commit() -> str:
    """Commit of the source tree this package runs from, "" when it was installed from a wheel."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cgroup_limit() -> int | None:
    """Smallest memory limit on the way from this process's cgroup to the root."""
    found: list[int] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = _CGROUP_V2, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = _CGROUP_V1, "memory.limit_in_bytes"
        else:
            continue
        here = base / path.lstrip("/")
        for folder in (here, *here.parents):
            file = folder / name
            if file.is_file() and (text := file.read_text().strip()).isdigit():
                found.append(int(text))
            if folder == base:
                break
    limits = [limit for limit in found if limit < 1 << 62]
    return min(limits) if limits else None
