"""Damaged files of every kind are read or refused in one line, in bounded time and memory."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest
import test_personamem as personamem

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(path: Path) -> None:
    """A Llama of one layer with a tokenizer and a template."""
    from tokenizers import pre_tokenizers

    random, width, kinds = np.random.default_rng(0), 32, gguf.GGMLQuantizationType
    tokens = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "te"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, 3, *[1] * 257])
    writer.add_token_merges(["t e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (len(tokens), width), "output_norm": (width,), "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,), "blk.0.attn_q": (width, width), "blk.0.attn_k": (width // 2, width),
        "blk.0.attn_v": (width // 2, width), "blk.0.attn_output": (width, width),
        "blk.0.ffn_gate": (width, width), "blk.0.ffn_up": (width, width), "blk.0.ffn_down": (width, width),
    }  # fmt: skip
    for name, shape in shapes.items():
        values = random.normal(size=shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            blocks = gguf.quants.quantize(values, kinds.Q8_0)
            writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kinds.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def good(tiny_models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    llm, encoder = folder / "llm", folder / "encoder"
    shutil.copytree(tiny_models["llm.model"], llm)
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "model_max_length": 4096}
    (llm / "tokenizer_config.json").write_text(json.dumps(settings))
    (llm / "chat_template.jinja").write_text(TEMPLATE)
    shutil.copytree(tiny_models["encoder.model"], encoder)
    (encoder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    (encoder / "modules.json").write_text(json.dumps(modules))
    (folder / "personamem").mkdir()
    personamem.first(folder / "personamem", personamem.row())
    personamem.second(folder / "personamem", personamem.asked(1), personamem.asked(2))
    (folder / "gguf").mkdir()
    write_gguf(folder / "gguf" / "model.gguf")
    return folder


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_450_damaged_files_are_read_or_refused(good: Path, tmp_path: Path) -> None:
    program = Path(__file__).with_name("hostile_files.py")
    command = [sys.executable, str(program), str(good), str(tmp_path), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = list(map(json.loads, done.stdout.splitlines()))
    assert done.returncode == 0, (lines[-1:], done.stderr[-3000:])
    outcomes = {line["file"]: line["outcome"] for line in lines if "outcome" in line}
    others = {file: told for file, told in outcomes.items() if told not in ("read", "refused")}
    assert not others, next(iter(others.items()))
    counts = Counter(outcomes.values())
    assert counts.total() == 450
    assert min(counts["read"], counts["refused"]) > 50  # the damage is neither none nor all
