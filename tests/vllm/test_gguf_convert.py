"""Conversion of tiny GGUF files that `gguf` itself writes. Needs torch: make install-vllm."""

import json

import numpy as np
import pytest

from actors import gguf_convert

gguf = pytest.importorskip("gguf", reason="gguf is not installed: make install-vllm")
torch = pytest.importorskip("torch", reason="torch is not installed: make install-vllm")

pytestmark = pytest.mark.vllm

HIDDEN, INNER, HEADS, KV_HEADS = 32, 64, 4, 2
TOKENS = ["<|im_end|>", *"abcdefgh", "Ġ", *"0123456789", "ab", "<tool>", "12"]
SHAPES = {
    "attn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // 2, HIDDEN),
    "attn_v": (HIDDEN // 2, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}


def write_gguf(path, architecture, pre, tensors):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 3) + [4, 1])
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_tensors():
    random = np.random.default_rng(0)
    shapes = {f"blk.0.{name}.weight": shape for name, shape in SHAPES.items()}
    shapes |= {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    return {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}


def interleaved(values, heads):
    """Rotary order of llama.cpp, as its own converter makes it."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def converted(tmp_path, architecture, pre, tensors):
    from safetensors.torch import load_file

    write_gguf(tmp_path / "m.gguf", architecture, pre, tensors)
    (tmp_path / "out").mkdir()
    seen = []
    gguf_convert.convert(tmp_path / "m.gguf", tmp_path / "out", seen.append)
    assert seen[-1] == gguf_convert.num_parameters(tmp_path / "m.gguf")
    return load_file(tmp_path / "out" / "model.safetensors")


def bf16(values):
    return torch.from_numpy(values).to(torch.bfloat16)


def test_llama_gets_the_published_names_and_rotary_order(tmp_path):
    from transformers import AutoModelForCausalLM

    published = random_tensors()
    stored = dict(published)
    for part, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
        stored[f"blk.0.{part}.weight"] = interleaved(published[f"blk.0.{part}.weight"], heads)
    got = converted(tmp_path, "llama", "smollm", stored)
    layer = "model.layers.0."
    assert torch.equal(
        got[layer + "self_attn.q_proj.weight"], bf16(published["blk.0.attn_q.weight"])
    )
    assert torch.equal(
        got[layer + "self_attn.k_proj.weight"], bf16(published["blk.0.attn_k.weight"])
    )
    assert torch.equal(
        got[layer + "mlp.down_proj.weight"], bf16(published["blk.0.ffn_down.weight"])
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert set(got) == set(model.state_dict()) - {"lm_head.weight"}
    assert model.config.num_key_value_heads == KV_HEADS
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_of_two_copies_of_the_embedding_the_outputs_is_kept(tmp_path):
    tensors = random_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"] + 1
    got = converted(tmp_path, "qwen2", "qwen2", tensors)
    assert torch.equal(got["model.embed_tokens.weight"], bf16(tensors["output.weight"]))
    assert torch.equal(
        got["model.layers.0.self_attn.q_proj.weight"], bf16(tensors["blk.0.attn_q.weight"])
    )


@pytest.mark.parametrize(("architecture", "pre"), [("llama", "smollm"), ("qwen2", "qwen2")])
def test_the_tokenizer_splits_digits_and_keeps_special_tokens(tmp_path, architecture, pre):
    from transformers import AutoTokenizer

    converted(tmp_path, architecture, pre, random_tensors())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer("ab12<|im_end|><tool>", add_special_tokens=False).input_ids
    assert [TOKENS[i] for i in ids] == ["ab", "1", "2", "<|im_end|>", "<tool>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab12<tool>"
    assert tokenizer.eos_token == "<|im_end|>"
    message = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(message, tokenize=False) == "hi"


def test_other_files_are_refused(tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="not a GGUF file"):
        gguf_convert.num_parameters(tmp_path / "no.gguf")
    with pytest.raises(ValueError, match="architecture 'gemma'"):
        gguf_convert.model_config({"general.architecture": "gemma"})
    with pytest.raises(ValueError, match="pre-tokeniser 'bert'"):
        converted(tmp_path, "llama", "bert", random_tensors())


def test_the_config_is_plain_json(tmp_path):
    converted(tmp_path, "llama", "smollm", random_tensors())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rms_norm_eps"] == 1e-6
    assert config["vocab_size"] == len(TOKENS)
