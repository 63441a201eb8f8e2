"""Proves the example on a tiny random model: run pytest where strata-moe[test] and this package are installed.

llama.cpp cannot judge an architecture that it does not have. This one happens to compute what dots1 does, so that the
same tensors under that name give a second opinion. Without such a relative leave `peer` out.
"""

from pathlib import Path

from strata_arch_example.arch import ARCH

from strata.testing import conformance

N_EMBD, N_VOCAB, HEAD, N_FF, N_EXPERT = 64, 272, 32, 32, 8
BLOCK = {
    "attn_norm.weight": [N_EMBD],
    "attn_q.weight": [N_EMBD, 4 * HEAD],
    "attn_k.weight": [N_EMBD, 4 * HEAD],
    "attn_v.weight": [N_EMBD, 4 * HEAD],
    "attn_q_norm.weight": [HEAD],
    "attn_k_norm.weight": [HEAD],
    "attn_output.weight": [4 * HEAD, N_EMBD],
    "ffn_norm.weight": [N_EMBD],
}
DENSE = {"ffn_gate.weight": [N_EMBD, 96], "ffn_up.weight": [N_EMBD, 96], "ffn_down.weight": [96, N_EMBD]}
MOE = {
    "ffn_gate_inp.weight": [N_EMBD, N_EXPERT],
    "exp_probs_b.bias": [N_EXPERT],
    "ffn_gate_exps.weight": [N_EMBD, N_FF, N_EXPERT],
    "ffn_up_exps.weight": [N_EMBD, N_FF, N_EXPERT],
    "ffn_down_exps.weight": [N_FF, N_EMBD, N_EXPERT],
    "ffn_gate_shexp.weight": [N_EMBD, N_FF],
    "ffn_up_shexp.weight": [N_EMBD, N_FF],
    "ffn_down_shexp.weight": [N_FF, N_EMBD],
}
ENDS = {"token_embd.weight": [N_EMBD, N_VOCAB], "output_norm.weight": [N_EMBD], "output.weight": [N_EMBD, N_VOCAB]}
LAYERS = [BLOCK | DENSE, BLOCK | MOE, BLOCK | MOE]
CASE: conformance.Case = {
    "arch": "example-moe",
    "keys": {
        "block_count": 3,
        "context_length": 512,
        "embedding_length": N_EMBD,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 4,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "expert_count": N_EXPERT,
        "expert_used_count": 3,
        "expert_feed_forward_length": N_FF,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.5,
        "leading_dense_block_count": 1,
    },
    "tensors": ENDS | {f"blk.{i}.{stem}": ne for i, layer in enumerate(LAYERS) for stem, ne in layer.items()},
}


def relative() -> conformance.Case:
    """The same case as llama.cpp knows it."""
    return CASE | {"arch": "dots1", "keys": CASE["keys"] | {"expert_gating_func": 2, "expert_weights_norm": True}}


def test_all_readings_agree(tmp_path: Path) -> None:
    path = conformance.write_case(CASE, tmp_path / "tiny.gguf")
    result = conformance.compare(ARCH, path, peer=conformance.write_case(relative(), tmp_path / "relative.gguf"))
    assert result.problems() == []
    assert result.spread > 0.8
    assert result.n_experts_chosen >= N_EXPERT - 2
