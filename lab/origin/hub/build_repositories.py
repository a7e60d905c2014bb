#!/usr/bin/env python3
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the lab hub's model repositories: small copies of gpt-oss, the same bytes on each run.

Usage: build_repositories.py OUTDIR

    OUTDIR/<owner>/<name>/repository.json      {"gated": bool, "refs": {"main": commit}, "commits": [oldest, ...]}
    OUTDIR/<owner>/<name>/snapshots/<commit>/  the files; two commits share the inodes of equal files
    OUTDIR/<owner>/<name>/main -> snapshots/<commit>
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

# The harmony tokens and their numbers in the o200k_harmony vocabulary.
SPECIAL_TOKENS = {
    "<|startoftext|>": 199998,
    "<|endoftext|>": 199999,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
    "<|endofprompt|>": 200018,
}
PLAIN_TOKENS = 4096
VOCABULARY = 201088

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|start|>{{ message.role }}
{%- if message.role == 'assistant' -%}<|channel|>final{%- endif -%}
<|message|>
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content or [] -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

GITATTRIBUTES = """\
*.safetensors filter=lfs diff=lfs merge=lfs -text
*.bin filter=lfs diff=lfs merge=lfs -text
tokenizer.json filter=lfs diff=lfs merge=lfs -text
"""


class Shape(NamedTuple):
    """Dimensions of a gpt-oss model; `width` replaces the hidden size of 2880 to keep the files small.

    `quantized`: whether config.json has MXFP4. A fine-tune without it has other weights.
    """

    layers: int
    experts: int
    shards: int
    width: int
    quantized: bool = True


class Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the size on disk in bytes."""
        width = {"BF16": 2, "U8": 1}[self.dtype]
        for extent in self.shape:
            width *= extent
        return width


# 120b: about 40 MB, with two shards above 10 MiB, because the hf client writes and resumes in steps of 10 MiB.
SHAPES = {
    "gpt-oss-120b": Shape(layers=36, experts=128, shards=15, width=32),
    "gpt-oss-20b": Shape(layers=24, experts=32, shards=3, width=16),
}


def config(shape: Shape) -> dict[str, object]:
    """Return config.json with the published keys and values."""
    found: dict[str, object] = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": SPECIAL_TOKENS["<|return|>"],
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(shape.layers)],
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": 8,
        "num_local_experts": shape.experts,
        "output_router_logits": False,
        "pad_token_id": SPECIAL_TOKENS["<|endoftext|>"],
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "transformers_version": "4.55.0.dev0",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
    if not shape.quantized:
        del found["quantization_config"]
    return found


def generation_config() -> dict[str, object]:
    """Return generation_config.json with the published keys and values."""
    return {
        "bos_token_id": SPECIAL_TOKENS["<|startoftext|>"],
        "do_sample": True,
        "eos_token_id": [SPECIAL_TOKENS[token] for token in ("<|return|>", "<|endoftext|>", "<|call|>")],
        "pad_token_id": SPECIAL_TOKENS["<|endoftext|>"],
        "transformers_version": "4.55.0.dev0",
    }


def byte_alphabet() -> list[str]:
    """Return the printable character that byte-level BPE writes for each of the 256 bytes."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = itertools.count(256)
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def tokenizer() -> dict[str, Any]:
    """Return tokenizer.json: byte-level BPE over invented syllables, which encodes all text."""
    space, consonants, vowels = byte_alphabet()[ord(" ")], "bcdfghjklmnprstvwxyz", "aeiou"
    open_syllables = [(a, b) for a in consonants for b in vowels]
    closed_syllables = [(a + b, c) for a, b in open_syllables for c in consonants]
    # Alternate syllables inside a word and at its start, so that random ids decode to words of about two syllables.
    merges = open_syllables + [(space, a + b) for a, b in open_syllables]
    for left, right in closed_syllables:
        merges += [(left, right), (space + left, right)]
    del merges[PLAIN_TOKENS - 256 :]
    tokens = byte_alphabet() + [left + right for left, right in merges]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token, number in SPECIAL_TOKENS.items()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            # Special tokens too: without its number here a loader gives an added token the next free one.
            "vocab": {token: number for number, token in enumerate(tokens)} | SPECIAL_TOKENS,
            "merges": [list(merge) for merge in merges],
        },
    }


def special_tokens_map() -> dict[str, str]:
    return {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"}


def tokenizer_config() -> dict[str, object]:
    """Return tokenizer_config.json, with the chat template for readers that do not use chat_template.jinja."""
    return special_tokens_map() | {
        "added_tokens_decoder": {
            str(number): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token, number in SPECIAL_TOKENS.items()
        },
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": {},
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def tensors(shape: Shape) -> Iterator[Tensor]:
    """Return the published tensor names with shapes scaled to `shape.width` and a sixteenth of the experts."""
    yield Tensor("model.embed_tokens.weight", "BF16", (VOCABULARY, shape.width))
    for layer in range(shape.layers):
        block, experts = f"model.layers.{layer}", shape.experts // 16
        yield Tensor(f"{block}.input_layernorm.weight", "BF16", (shape.width,))
        yield Tensor(f"{block}.mlp.experts.down_proj_bias", "BF16", (experts, shape.width))
        yield Tensor(f"{block}.mlp.experts.down_proj_blocks", "U8", (experts, shape.width, 16, 16))
        yield Tensor(f"{block}.mlp.experts.down_proj_scales", "U8", (experts, shape.width, 16))
        yield Tensor(f"{block}.mlp.experts.gate_up_proj_bias", "BF16", (experts, 2 * shape.width))
        yield Tensor(f"{block}.mlp.experts.gate_up_proj_blocks", "U8", (experts, 2 * shape.width, 16, 16))
        yield Tensor(f"{block}.mlp.experts.gate_up_proj_scales", "U8", (experts, 2 * shape.width, 16))
        yield Tensor(f"{block}.mlp.router.bias", "BF16", (experts,))
        yield Tensor(f"{block}.mlp.router.weight", "BF16", (experts, shape.width))
        yield Tensor(f"{block}.post_attention_layernorm.weight", "BF16", (shape.width,))
        for projection in ("k_proj", "o_proj", "q_proj", "v_proj"):
            yield Tensor(f"{block}.self_attn.{projection}.bias", "BF16", (shape.width,))
            yield Tensor(f"{block}.self_attn.{projection}.weight", "BF16", (shape.width, shape.width))
        yield Tensor(f"{block}.self_attn.sinks", "BF16", (64,))
    yield Tensor("model.norm.weight", "BF16", (shape.width,))
    yield Tensor("lm_head.weight", "BF16", (VOCABULARY, shape.width))


def safetensors(contents: list[Tensor], seed: str) -> bytes:
    """Return a safetensors file: header length, JSON header padded to 8 bytes, pseudo-random bytes from `seed`."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in contents:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [end, end := end + tensor.size],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + random.Random(seed).randbytes(end)


def weights(name: str, shape: Shape, last_seed: str) -> dict[str, bytes]:
    """Return the shards and their index; `last_seed` determines the last shard."""
    everything = list(tensors(shape))
    per_shard = -(-len(everything) // shape.shards)
    files: dict[str, bytes] = {}
    index: dict[str, str] = {}
    for number in range(shape.shards):
        contents = everything[number * per_shard : (number + 1) * per_shard]
        shard = f"model-{number:05d}-of-{shape.shards - 1:05d}.safetensors"
        files[shard] = safetensors(contents, last_seed if number == shape.shards - 1 else f"{name} {number}")
        index |= dict.fromkeys((tensor.name for tensor in contents), shard)
    total = sum(tensor.size for tensor in everything)
    files["model.safetensors.index.json"] = as_json({"metadata": {"total_size": total}, "weight_map": index})
    return files


def as_json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def stand_in(title: str) -> bytes:
    return (
        f"# {title}\n\nA stand-in made by the trtllm.fleet lab. The real repository has the real text here.\n".encode()
    )


def repository_files(name: str, shape: Shape, edition: int) -> dict[str, bytes]:
    """Return the files of a commit; editions differ in README.md and in the last shard, as after a repaired upload."""
    original = [Tensor("embedding.weight", "BF16", (VOCABULARY, 2))]
    return {
        ".gitattributes": GITATTRIBUTES.encode(),
        "LICENSE": stand_in("License"),
        "README.md": stand_in(f"{name}, edition {edition}"),
        "USAGE_POLICY": stand_in("Usage policy"),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
        "config.json": as_json(config(shape)),
        "generation_config.json": as_json(generation_config()),
        "special_tokens_map.json": as_json(special_tokens_map()),
        "tokenizer.json": as_json(tokenizer()),
        "tokenizer_config.json": as_json(tokenizer_config()),
        **weights(name, shape, f"{name} last {edition}"),
        "metal/model.bin": random.Random(f"{name} metal").randbytes(1_000_000),
        "original/config.json": as_json({"num_hidden_layers": shape.layers, "num_experts": shape.experts}),
        "original/dtypes.json": as_json({"embedding.weight": "BF16"}),
        "original/model.safetensors": safetensors(original, f"{name} original"),
    }


def draft_files(name: str, _shape: Shape, edition: int) -> dict[str, bytes]:
    """Return the files of a draft model for gpt-oss-120b. It has no tokenizer; shapes are scaled as those of models."""
    contents = [
        Tensor("fc.weight", "BF16", (32, 96)),
        Tensor("midlayer.self_attn.q_proj.weight", "BF16", (32, 64)),
        Tensor("norm.weight", "BF16", (32,)),
        Tensor("lm_head.weight", "BF16", (32000, 32)),
    ]
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 32000,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [24, 30, 36]},
        "head_dim": 64,
        "hidden_size": 2880,
        "intermediate_size": 17280,
        "max_position_embeddings": 131072,
        "model_type": "llama",
        "num_attention_heads": 64,
        "num_hidden_layers": 1,
        "num_key_value_heads": 8,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
    }
    return {
        ".gitattributes": GITATTRIBUTES.encode(),
        "README.md": stand_in(f"{name}, edition {edition}"),
        "config.json": as_json(config),
        "model.safetensors": safetensors(contents, f"{name} {edition}"),
    }


QWEN3_CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content or [] -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def dense_files(name: str, shape: Shape, edition: int) -> dict[str, bytes]:
    """Return the files of Qwen3-8B, a dense model. Its tokenizer is that of the others, without harmony tokens."""
    tokens, vocabulary = tokenizer(), {"<|im_start|>": 151644, "<|im_end|>": 151645, "<|endoftext|>": 151643}
    plain = {token: number for token, number in tokens["model"]["vocab"].items() if token not in SPECIAL_TOKENS}
    tokens["model"]["vocab"] = plain | vocabulary
    added = tokens["added_tokens"][0]
    tokens["added_tokens"] = [{**added, "id": number, "content": token} for token, number in vocabulary.items()]
    settings = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    contents = [Tensor("model.embed_tokens.weight", "BF16", (151936, shape.width))]
    contents += [
        Tensor(f"model.layers.{layer}.mlp.{matrix}_proj.weight", "BF16", (shape.width, 3 * shape.width))
        for layer in range(shape.layers)
        for matrix in ("down", "gate", "up")
    ]
    found = {
        "architectures": ["Qwen3ForCausalLM"],
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_position_embeddings": 40960,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
    }
    return {
        ".gitattributes": GITATTRIBUTES.encode(),
        "LICENSE": stand_in("License"),
        "README.md": stand_in(f"{name}, edition {edition}"),
        "config.json": as_json(found),
        "generation_config.json": as_json({"eos_token_id": [151645, 151643], "pad_token_id": 151643}),
        "tokenizer.json": as_json(tokens),
        "tokenizer_config.json": as_json(
            {**settings, "chat_template": QWEN3_CHAT_TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
        ),
        "model.safetensors": safetensors(contents, f"{name} {edition}"),
    }


def commit_id(files: dict[str, bytes], parent: str) -> str:
    """Return 40 hexadecimal digits derived from the contents and the parent."""
    digest = hashlib.sha1(parent.encode())
    for path in sorted(files):
        digest.update(f"{path} {hashlib.sha1(files[path]).hexdigest()}\n".encode())
    return digest.hexdigest()


def build_repository(
    target: Path, shape: Shape, name: str, gated: bool, contents: Callable[..., dict[str, bytes]] = repository_files
) -> None:
    """Write a repository of two commits to the new folder `target`."""
    commits: list[str] = []
    older: dict[str, bytes] = {}
    for edition in (1, 2):
        files = contents(name, shape, edition)
        commits.append(commit_id(files, "".join(commits[-1:])))
        for path, content in files.items():
            destination = target / "snapshots" / commits[-1] / path
            destination.parent.mkdir(parents=True, exist_ok=True)
            if older.get(path) == content:
                os.link(target / "snapshots" / commits[-2] / path, destination)
            else:
                destination.write_bytes(content)
        older = files
    (target / "main").symlink_to(f"snapshots/{commits[-1]}")
    (target / "repository.json").write_bytes(
        as_json({"gated": gated, "refs": {"main": commits[-1]}, "commits": commits})
    )


def build(outdir: Path) -> None:
    """Write all repositories under `outdir` and replace existing ones."""
    large, small = SHAPES["gpt-oss-120b"], SHAPES["gpt-oss-20b"]
    for full_name, name, shape, gated in (
        ("openai/gpt-oss-120b", "gpt-oss-120b", large, False),
        ("openai/gpt-oss-20b", "gpt-oss-20b", small, False),
        ("lab/gpt-oss-20b-gated", "gpt-oss-20b", small, True),
        # Fine-tunes: the same shapes, other weights.
        ("openai/gpt-oss-safeguard-120b", "gpt-oss-safeguard-120b", large._replace(width=8), False),
        ("openai/gpt-oss-safeguard-20b", "gpt-oss-safeguard-20b", small._replace(width=8), False),
        ("lab/gpt-oss-20b-support", "gpt-oss-20b-support", small._replace(width=8), False),
        ("lab/gpt-oss-20b-bf16", "gpt-oss-20b-bf16", small._replace(width=4, quantized=False), False),
    ):
        shutil.rmtree(outdir / full_name, ignore_errors=True)
        build_repository(outdir / full_name, shape, name, gated)
    for full_name, shape, contents in (
        ("nvidia/gpt-oss-120b-Eagle3-v3", large, draft_files),
        ("Qwen/Qwen3-8B", Shape(layers=36, experts=0, shards=1, width=4), dense_files),
    ):
        shutil.rmtree(outdir / full_name, ignore_errors=True)
        build_repository(outdir / full_name, shape, full_name.rpartition("/")[2], False, contents)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: build_repositories.py OUTDIR")
    build(Path(sys.argv[1]))
