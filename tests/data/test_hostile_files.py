"""Damaged files of every kind are read or refused in one line, in bounded time and memory."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


PERSONAMEM = {
    "questions_32k.csv": "persona_id,question_id,question_type,user_question_or_message,correct_answer,"
    "all_options,shared_context_id,end_index_in_shared_context\n"
    """1,q,t,what?,(b),"['(a) x', '(b) y']",c,1\n""",
    "benchmark/text/t.csv": "persona_id,chat_history_32k_link,user_query,correct_answer,incorrect_answers,"
    """pref_type\n1,h.json,"{'role': 'user', 'content': 'what?'}",y,"[""x""]",t\n""",
}


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


def write_conversations(folder: Path) -> None:
    """LoCoMo, REALTALK, LUCid and PersonaMem, a conversation or question each."""
    turn = {"speaker": "Ann", "dia_id": "D1:1", "text": "tea", "blip_caption": "a cup"}
    asked = {"question": "what?", "answer": "tea", "evidence": ["D1:1; D:1:2"], "category": 2}
    said = {"session_1": [turn, {**turn, "dia_id": "D1:2"}], "session_1_date_time": "1:00 pm on 1 May, 2023"}
    record = {"sample_id": "c", "conversation": said, "qa": [asked]}
    names = {"speaker_1": "Ann", "speaker_2": "bob"}
    message = {"speaker": "Ann", "dia_id": "D1:1", "clean_text": "tea", "date_time": "01.01.2024, 10:00:00"}
    later = [{**message, "dia_id": f"D1:{i}", "speaker": name} for i, name in ((3, "Bob"), (4, "ann"))]
    chat = {"name": names, "session_1": [message], "session_2": later, "qa": [asked]}
    for one, day in zip(later, (2, 3)):
        one["date_time"] = f"0{day}.01.2024, 10:00:00"
    told = [{"role": "user", "content": "tea", "has_answer": True}]
    latent = {
        "query_id": "q", "query": "what?", "query_dimension": "age", "answer_session_ids": ["s"],
        "haystack_session_ids": ["s", "t"], "haystack_sessions": [told, told],
    }  # fmt: skip
    files: dict[str, Any] = {
        "locomo/locomo10.json": [record],
        "realtalk/Chat_1.json": chat,
        "lucid/l.json": [latent],
        "personamem/shared_contexts_32k.jsonl": {"c": told},
        "personamem/h.json": {"chat_history": told},
    }
    for name, value in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    (folder / "personamem" / "benchmark" / "text").mkdir(parents=True)
    for name, table in PERSONAMEM.items():
        (folder / "personamem" / name).write_text(table)


@pytest.fixture(scope="module")
def good(tiny_models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    llm, encoder, lamp = folder / "llm", folder / "encoder", folder / "lamp"
    shutil.copytree(tiny_models["llm.model"], llm)
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "model_max_length": 4096}
    (llm / "tokenizer_config.json").write_text(json.dumps(settings))
    (llm / "chat_template.jinja").write_text(TEMPLATE)
    shutil.copytree(tiny_models["encoder.model"], encoder)
    (encoder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    (encoder / "modules.json").write_text(json.dumps(modules))
    lamp.mkdir()
    questions: list[dict[str, Any]] = [
        {
            "id": str(user), "input": "Paraphrase the following tweet: tea",
            "profile": [{"id": f"{user}{i}", "text": f"i love tea {i}"} for i in range(3)],
        }
        for user in range(4)
    ]  # fmt: skip
    (lamp / "dev_questions.json").write_text(json.dumps(questions))
    golds = [{"id": str(user), "output": "tea!"} for user in range(4)]
    (lamp / "dev_outputs.json").write_text(json.dumps({"task": "LaMP_7", "golds": golds}))
    (folder / "xquad").mkdir()
    asked = {"id": "q", "question": "what tea?", "answers": [{"text": "green", "answer_start": 0}]}
    paragraphs = [{"context": "green tea", "qas": [asked]}, {"context": "cats", "qas": []}]
    for language in ("en", "de"):
        text = json.dumps({"version": "1.1", "data": [{"title": "Tea", "paragraphs": paragraphs}]})
        (folder / "xquad" / f"xquad.{language}.json").write_text(text)
    (folder / "web_qa").mkdir()
    evidence = {"evidence_tokens": ["茶", "green"], "golden_answers": [["茶"]], "type": "positive"}
    line = {
        "q_key": "q",
        "question_tokens": ["什么", "?"],
        "evidences": [evidence, {**evidence, "type": "x"}],
    }
    (folder / "web_qa" / "validation.ann.json").write_text(json.dumps(line))
    write_conversations(folder)
    (folder / "gguf").mkdir()
    write_gguf(folder / "gguf" / "model.gguf")
    return folder


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_640_damaged_files_are_read_or_refused(good: Path, tmp_path: Path) -> None:
    program = Path(__file__).with_name("hostile_files.py")
    command = [sys.executable, str(program), str(good), str(tmp_path), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = list(map(json.loads, done.stdout.splitlines()))
    assert done.returncode == 0, (lines[-1:], done.stderr[-3000:])
    outcomes = {line["file"]: line["outcome"] for line in lines if "outcome" in line}
    others = {file: told for file, told in outcomes.items() if told not in ("read", "refused")}
    assert not others, next(iter(others.items()))
    counts = Counter(outcomes.values())
    assert counts.total() == 640
    assert min(counts["read"], counts["refused"]) > 50  # the damage is neither none nor all
