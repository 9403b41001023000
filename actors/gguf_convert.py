"""GGUF to a folder that vLLM and transformers load: bfloat16 safetensors, config, tokenizer.

Only what the local pool needs: the ``llama`` and ``qwen2`` architectures with byte-level BPE. The
header is read here with ``struct``: ``gguf.GGUFReader`` takes 10 s for a vocabulary of 150,000
tokens and transformers' own loader builds the whole model twice. Blocks are dequantised by
``gguf``. The format: the GGUF specification, version 3, in the ggml project.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

_SCALAR = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_OUTER = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the file; ``shape`` is row-major, ``offset`` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalars(self, code: str, count: int = 1) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def string(self) -> str:
        (length,) = self.scalars("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalars(_SCALAR[kind])[0]
        (inner,), (count,) = self.scalars("I"), self.scalars("Q")
        if inner == _STRING:
            return [self.string() for _ in range(count)]
        return list(self.scalars(_SCALAR[inner], count))


def read_header(data: mmap.mmap) -> tuple[dict[str, Any], list[TensorEntry]]:
    """Metadata and tensor table of a GGUF file. Raises ``ValueError`` for anything else."""
    if data[:4] != b"GGUF":
        raise ValueError("not a GGUF file")
    cursor = _Cursor(data)
    cursor.at = 4
    (version,) = cursor.scalars("I")
    if version != 3:
        raise ValueError(f"GGUF version {version}; only 3 is read")
    num_tensors, num_fields = cursor.scalars("Q", 2)
    fields = {cursor.string(): cursor.value(*cursor.scalars("I")) for _ in range(num_fields)}
    table = [_tensor_entry(cursor) for _ in range(num_tensors)]
    alignment = fields.get("general.alignment", 32)
    start = -(-cursor.at // alignment) * alignment
    return fields, [TensorEntry(n, s, t, start + o) for n, s, t, o in table]


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    (num_dims,) = cursor.scalars("I")
    shape = tuple(reversed(cursor.scalars("Q", num_dims)))
    (ggml_type,), (offset,) = cursor.scalars("I"), cursor.scalars("Q")
    return name, shape, ggml_type, offset


def convert(gguf_path: Path, folder: Path, update: Callable[[int], None]) -> None:
    """Write ``model.safetensors``, ``config.json`` and the tokenizer's files into ``folder``.

    ``update(n)`` is told how many parameters are converted so far. Raises ``ValueError`` when the
    file is not a GGUF of a known architecture.
    """
    from safetensors.torch import save_file

    with gguf_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        fields, table = read_header(data)
        config = model_config(fields)
        tensors, done = {}, 0
        for entry in _without_twin(table):
            tensors[_target_name(entry.name)] = _load(data, entry, config)
            done += prod(entry.shape)
            update(done)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer(fields, folder)


def num_parameters(gguf_path: Path) -> int:
    """How many parameters ``convert`` will report; reads the header only."""
    with gguf_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return sum(prod(entry.shape) for entry in _without_twin(read_header(data)[1]))


def _without_twin(table: list[TensorEntry]) -> list[TensorEntry]:
    """The published models tie input and output embeddings; a file that carries both holds two
    quantisations of one matrix, and the output's is the finer. Keep that one."""
    has_output = any(entry.name == "output.weight" for entry in table)
    return [e for e in table if not (has_output and e.name == "token_embd.weight")]


def _target_name(name: str) -> str:
    if name in ("output.weight", *_OUTER):
        return "model." + _OUTER.get(name, "embed_tokens.weight")
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_INNER[part]}.{kind}"


def _load(data: mmap.mmap, entry: TensorEntry, config: dict[str, Any]) -> Any:
    import torch
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(entry.ggml_type)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    num_bytes = prod(entry.shape) // block * block_bytes
    raw = np.frombuffer(data[entry.offset : entry.offset + num_bytes], dtype=np.uint8)
    rows = raw.reshape(*entry.shape[:-1], -1)
    values = np.array(dequantize(rows, kind), dtype=np.float32).reshape(entry.shape)
    if config["model_type"] == "llama":
        values = _undo_rope_order(entry.name, values, config)
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)


def _undo_rope_order(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """llama.cpp stores the rotary halves of Q and K interleaved; the published order has them
    one after the other."""
    part = name.split(".")[-2]
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(part)
    if heads is None:
        return values
    halves = values.reshape(config[heads], -1, 2, values.shape[-1])
    return halves.swapaxes(1, 2).reshape(values.shape)


def model_config(fields: dict[str, Any]) -> dict[str, Any]:
    """``config.json`` of the published model, from the file's metadata."""
    kind = fields["general.architecture"]
    if kind not in _ARCHITECTURES:
        raise ValueError(f"GGUF architecture {kind!r}; known: {sorted(_ARCHITECTURES)}")
    get = {key.removeprefix(f"{kind}."): value for key, value in fields.items()}.__getitem__
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": round(get("attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": get("rope.freq_base"),
        "tie_word_embeddings": True,
        "vocab_size": len(get("tokenizer.ggml.tokens")),
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"),
        "dtype": "bfloat16",
        "transformers_version": "4.56.0",  # the layout; without it transformers warns of Mistral
    }


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    ggml = {k.removeprefix("tokenizer.ggml."): v for k, v in fields.items() if "ggml." in k}
    tokens: list[str] = ggml["tokens"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in ggml["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    _set_splitting(tokenizer, ggml["pre"])
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, ggml["token_type"], strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            added = AddedToken(token, normalized=False, special=kind == _CONTROL)
            (tokenizer.add_special_tokens if kind == _CONTROL else tokenizer.add_tokens)([added])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    named = {"bos": "bos", "eos": "eos", "pad": "padding"}
    config = {f"{k}_token": tokens[ggml[f"{v}_token_id"]] for k, v in named.items()}
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": fields["tokenizer.chat_template"],
        "model_max_length": fields[f"{fields['general.architecture']}.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def _set_splitting(tokenizer: Any, pre: str) -> None:
    """The published tokenizers' normaliser and pre-tokeniser, which GGUF only names."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    if pre == "qwen2":
        split: pre_tokenizers.PreTokenizer = pre_tokenizers.Split(
            Regex(_QWEN2_SPLIT), behavior="isolated"
        )
        tokenizer.normalizer = normalizers.NFC()
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    elif pre == "smollm":
        split = pre_tokenizers.Digits(individual_digits=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        raise ValueError(f"GGUF pre-tokeniser {pre!r}; known: ['qwen2', 'smollm']")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
