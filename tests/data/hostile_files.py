"""A program that damages good files in many ways and reads them: `test_hostile_files` runs it.

It prints a line of JSON for every file that is neither read nor refused with a UserError, and stops at one
that takes more than its seconds or its memory.
"""

import copy
import faulthandler
import json
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.llm.tokens import chat
from pbr_jax.models import bert, causal_lm, gguf_file, pretrained
from pbr_jax.options import Benchmark
from pbr_jax.text import tokenizing

SECONDS, MEMORY = 60, 1 << 30  # of one file, on a busy machine too; bytes beyond those at the start
HUGE = (10**9, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 10**30)
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "i love tea <|im_end|>"}]
Rng = random.Random


# -- Damage ------------------------------------------------------------------------------------------


def flipped(content: bytes, rng: Rng, most: int | None = None) -> bytes:
    found = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        found[rng.randrange(min(len(found), most or len(found)))] = rng.randrange(256)
    return bytes(found)


def cut(content: bytes, rng: Rng) -> bytes:
    return content[: rng.randrange(len(content))]


def shuffled(content: bytes, rng: Rng) -> bytes:
    """A slice more, less, or elsewhere."""
    start, end, place = sorted(rng.randrange(len(content)) for _ in range(3))
    return rng.choice(
        [
            content[:end] + content[start:],
            content[:start] + content[end:],
            content[:place] + content[start:end],
        ]
    )


def numbered(content: bytes, rng: Rng, most: int = 4000) -> bytes:
    """A huge number in the place of eight or four bytes."""
    size = rng.choice([4, 8])
    place = rng.randrange(max(1, min(len(content) - size, most)))
    number = rng.choice([10**9, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 0, 1]) % 2 ** (8 * size)
    return content[:place] + number.to_bytes(size, "little") + content[place + size :]


ODD = (
    None, True, -1, 0, 0.5, 1e308, float("nan"), "", "x", "\ud83d", "a" * 10**5, [], {}, [[]], {"a": {}},
    [None] * 9, *HUGE,
)  # fmt: skip


def is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def retyped(value: Any, rng: Rng) -> str:
    """The value with one to three odd ones in places of its own, as JSON."""
    value = copy.deepcopy({"root": value})
    for _ in range(rng.randint(1, 3)):
        holder, key = value, "root"
        while True:
            inner = holder[key]
            keys = list(inner if isinstance(inner, dict) else range(len(inner))) if is_nested(inner) else []
            if not keys or (rng.random() < 0.25 and holder is not value):
                break
            holder, key = inner, rng.choice(keys)
        if rng.random() < 0.3 and isinstance(holder, dict) and holder is not value:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(rng.choice(ODD))
    text = json.dumps(value.get("root"))
    if rng.random() < 0.15:
        deep = rng.choice([90, 110, 1000, 50_000])
        text = text.replace(rng.choice(["1", "null", '""', "}"]), "[" * deep + "]" * rng.choice([0, deep]), 1)
    if rng.random() < 0.05:
        text = text.replace("1", str(10**4000) * 2, 1)
    return text


def damaged_json(content: bytes, rng: Rng) -> bytes:
    if rng.random() < 0.75:
        return retyped(json.loads(content), rng).encode()
    return rng.choice([flipped, cut, shuffled])(content, rng)


def damaged_table(content: bytes, rng: Rng) -> bytes:
    if rng.random() < 0.5:
        return rng.choice([flipped, cut, shuffled])(content, rng)
    old = rng.choice([b"(a)", b"(b)", b"[", b"]", b"'", b'"', b"1", b"c,", b"h.json", b"{", b"user"])
    return content.replace(old, rng.choice([b"", b"[" * 9999, b"-1", b"(", b'"', b"../x", b"1e99"]), 1)


def damaged_safetensors(content: bytes, rng: Rng) -> bytes:
    length = int.from_bytes(content[:8], "little")
    if rng.random() < 0.6:
        header = retyped(json.loads(content[8 : 8 + length]), rng).encode()
        return len(header).to_bytes(8, "little") + header + content[8 + length :]
    return rng.choice([flipped, cut, shuffled, numbered])(content, rng)


def damaged_gguf(content: bytes, rng: Rng) -> bytes:
    if rng.random() < 0.6:
        return rng.choice([flipped, numbered])(content, rng, 3000)
    return rng.choice([flipped, cut, shuffled, numbered])(content, rng)


LOOPS = (
    "{% for i in range(99999) %}", "{% for m in messages %}", "{% endfor %}", "{{ 'x' * 10 ** 9 }}",
    "{{ x.y.z }}", "{{ messages | map(attribute='content') | join(' ' * 10 ** 6) }}",
    "{{ range(10 ** 12) }}", "{{ [[]] * 10 ** 9 }}", "{{ '%1000000000d' % 1 }}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
)  # fmt: skip


def damaged_template(content: bytes, rng: Rng) -> bytes:
    if rng.random() < 0.4:
        return rng.choice([flipped, cut, shuffled])(content, rng)
    place = rng.choice([i for i, byte in enumerate(content) if byte in b"{"] or [0])
    return content[:place] + rng.choice(LOOPS).encode() + content[place:]


# -- Reading -----------------------------------------------------------------------------------------


def read_chat(folder: Path) -> None:
    codec = chat.load(folder)
    codec.encode("i love tea </s>")
    codec.encode(CHAT)
    codec.decode(codec.encode_target("tea"))
    codec.truncate("i love tea", 2)


def read_tensors(folder: Path) -> None:
    tensors = pretrained.read_tensors(folder)
    for name in tensors:
        np.sum(tensors[name], dtype=np.float64)


def read_encoder(folder: Path) -> None:
    bert.load(folder)


def read_tokenizer(folder: Path) -> None:
    settings = tokenizing.read_settings(folder, 64)
    tokenizer = tokenizing.load_tokenizer(folder, max_length=settings.max_length)
    tokenizer.encode_batch(["i love tea", "tea 4"])
    tokenizer.truncate("i love tea", 2)


def read_llm(folder: Path) -> None:
    causal_lm.load(folder)


def read_gguf(folder: Path) -> None:
    path = folder / "model.gguf"
    gguf_file.read(path)
    for read in (read_chat, causal_lm.load):
        try:
            read(path)
        except UserError:
            continue


def read_personamem(folder: Path) -> None:
    data.validate(Benchmark(name="personamem", root=str(folder)))


Damage = Callable[[bytes, Rng], bytes]
Read = Callable[[Path], None]
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
ENCODER = ("tokenizer.json", "sentence_bert_config.json", "modules.json")
CASES: tuple[tuple[int, str, tuple[str, ...], Damage, Read], ...] = (  # how many, whose, which files
    (60, "llm", ("model.safetensors",), damaged_safetensors, read_tensors),
    (30, "llm", ("model.safetensors",), damaged_safetensors, read_llm),
    (60, "llm", ("config.json",), damaged_json, read_llm),
    (60, "llm", TOKENIZER, damaged_json, read_chat),
    (50, "llm", ("chat_template.jinja",), damaged_template, read_chat),
    (40, "encoder", ("config.json",), damaged_json, read_encoder),
    (50, "encoder", ENCODER, damaged_json, read_tokenizer),
    (80, "gguf", ("model.gguf",), damaged_gguf, read_gguf),
    (20, "personamem", ("questions_32k.csv", "benchmark/text/benchmark.csv"), damaged_table, read_personamem),
)


def limit_memory() -> None:
    """So much more than now; what asks for more fails, and is told."""
    import resource

    status = Path("/proc/self/status").read_text()
    now = int(status.partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (now + MEMORY, now + MEMORY))


def main(good: Path, work: Path, seed: int) -> None:
    for _, folder, _, _, read in CASES:
        read(good / folder)  # what is not damaged is read, and compiled
    limit_memory()
    for kind, (count, folder, files, damage, read) in enumerate(CASES):
        for number in range(count):
            rng = Rng(f"{seed} {kind} {number}")
            place = work / f"{kind}-{number}"
            shutil.copytree(good / folder, place)
            file = place / rng.choice(files)
            file.write_bytes(damage(file.read_bytes(), rng))
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            print(json.dumps({"file": str(file)}), flush=True)
            try:
                read(place)
                outcome = "read"
            except UserError as error:
                outcome = "refused" if "\n" not in str(error) else f"several lines: {error}"
            except BaseException:
                outcome = traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"file": str(file), "outcome": outcome}), flush=True)
            shutil.rmtree(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
