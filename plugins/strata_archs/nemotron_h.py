"""Nemotron-H and Nemotron Nano 2: as Nemotron 3, in practice without experts."""

from strata.arch.spec import derive
from strata_archs.nemotron_h_moe import ARCH as NEMOTRON_H_MOE

ARCH = derive(NEMOTRON_H_MOE, name="nemotron_h", tested_with=("tiny-nemotron_h",))
