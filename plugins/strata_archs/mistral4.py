"""Mistral Small 4 and Large 3: DeepSeek V2's layers, whose log multiplier does not cancel YaRN's magnitude.

Routing: softmax scores by default, a selection bias, renormalisation and scale as the file says.
"""

from strata.arch.spec import Case, Key, Mla, Rope, Temperature, Yarn, derive
from strata_archs.deepseek2 import ARCH as DEEPSEEK2

ARCH = derive(
    DEEPSEEK2,
    name="mistral4",
    source="llama.cpp src/models/mistral4.cpp @ 0c1e57098",
    tested_with=("tiny-mistral4",),
    attention=Mla(
        rope=Rope(
            style="norm",
            yarn=Yarn(log_multiplier=Key("rope.scaling.yarn_log_multiplier", 0.0), log_divisor=0.1, cancels=False),
        ),
        q_rank=Key(
            "attention.q_lora_rank",
            fixed=(Case(value=0, n_layer=(26, 27)), Case(value=0, n_layer=(48,), n_vocab=(128256,))),
        ),
        scale="head-yarn",
        temperature=Temperature(),
        legacy_kv_b=True,
    ),
)
