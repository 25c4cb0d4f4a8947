"""What stands beside `tokenizer.json`, in folders that transformers saved: read as transformers reads it."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pbr_jax.base.types import UserError
from pbr_jax.llm.tokens import chat
from pbr_jax.models import fields, tokenizer_file

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}</s>{% endfor %}"
NAMES = ["<s>", "</s>", "<pad>", "<tool>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
TEXTS = ["tea</s>rain<s>", "<tool> <new>x", "<pad>", "<other>tea"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of bytes, saved: its first tokens are words like any other in tokenizer.json."""
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(NAMES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    change(tmp_path / "tokenizer_config.json", chat_template=TEMPLATE)
    return tmp_path


def change(file: Path, **fields: Any) -> None:
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(content | fields))


def same(folder: Path) -> chat.Codec:
    """The codec, compared with transformers' tokenizer of the folder."""
    codec, peer = chat.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "tea"}]
    assert codec.render(messages) == peer.apply_chat_template(messages, tokenize=False)
    own = tokenizer_file.read_folder(folder)[0]
    assert [own.encode(text).ids for text in TEXTS] == peer(TEXTS)["input_ids"]
    assert codec.stops == ({peer.eos_token_id} - {None})
    return codec


@pytest.mark.parametrize("as_object", [False, True])
def test_special_tokens_of_the_map_open_and_end_texts(as_object: bool, folder: Path) -> None:
    token = dict(content="</s>", lstrip=False, normalized=False, rstrip=False, single_word=False)
    change(folder / "tokenizer_config.json", bos_token="<pad>")  # the map comes before it
    change(folder / "special_tokens_map.json", bos_token="<s>", eos_token=token if as_object else "</s>")
    codec = same(folder)
    assert codec.stops == {1}
    assert codec.decode([5, 1, 6]) == codec.decode([5])
    assert codec.count("</s>") == 4  # what a user spells out is text


def test_the_map_does_not_count_where_the_config_lists_its_tokens(folder: Path) -> None:
    token = dict(content="<s>", lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
    change(folder / "tokenizer_config.json", added_tokens_decoder={"0": token}, bos_token="<s>")
    change(folder / "special_tokens_map.json", bos_token="<pad>", eos_token="</s>")
    assert same(folder).stops == frozenset()


def test_further_special_and_added_tokens(folder: Path) -> None:
    change(folder / "special_tokens_map.json", eos_token="</s>", additional_special_tokens=["<tool>"])
    change(folder / "added_tokens.json", **{"<new>": len(NAMES)})
    same(folder)
    change(folder / "added_tokens.json", **{"<new>": len(NAMES) + 5})
    with pytest.raises(
        UserError, match=f"token '<new>' has number {len(NAMES) + 5} .* and {len(NAMES)} in it"
    ):
        chat.load(folder)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("special_tokens_map", {"eos_token": "<end>"}, "found eos_token '<end>', which is no token"),
        ("tokenizer_config", {"eos_token": "</s>", "add_eos_token": True}, "found add_eos_token True"),
        ("tokenizer_config", {"add_prefix_space": True}, "found add_prefix_space True"),
        ("tokenizer_config", {"split_special_tokens": True}, "found split_special_tokens True"),
        ("tokenizer_config", {"chat_template": [{"name": "rag", "template": "x"}]}, "chat templates rag and"),
        ("generation_config", {"suppress_tokens": [7]}, "found suppress_tokens"),
        ("generation_config", {"stop_strings": ["\n"]}, "found stop_strings"),
        ("generation_config", {"guidance_scale": 1.5}, r"found guidance_scale 1\.5.*want 1"),
    ],
)
def test_what_is_not_followed_is_named(name: str, fields: Any, message: str, folder: Path) -> None:
    change(folder / f"{name}.json", **fields)
    with pytest.raises(UserError, match=message) as error:
        chat.load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tokenizer_config", dict(torch_dtype="auto", model_max_length=10**30, cache_dir="x")),
        ("generation_config", {"_commit_hash": "x", "transformers.js_config": {"a": 1}}),
    ],
)
def test_what_changes_no_answer_is_taken(name: str, fields: Any, folder: Path) -> None:
    before = chat.load(folder)
    change(folder / f"{name}.json", **fields)
    after = chat.load(folder)
    assert after.encode("a b") == before.encode("a b")
    assert after.stops == before.stops


NAMED = [f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "image", "tool_call")]
OTHERS = ("extra_special_tokens", "additional_special_tokens", "model_input_names", "add_bos_token", "legacy",
          "add_eos_token", "add_prefix_space", "do_lower_case", "errors", "use_fast", "padding_side",
          "truncation_side", "spaces_between_special_tokens", "name_or_path")  # fmt: skip
VALUES = (True, False, None, 7, "tea", "<tool>", "<new>", "<other>", "left", ["<tool>"], ["<other>", "<new>"],
          {"content": "<new>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False,
           "__type": "AddedToken", "special": True})  # fmt: skip


@pytest.mark.parametrize("name", [*NAMED, *OTHERS, *fields.TOKENIZER.refused.split()])
def test_every_field_of_a_tokenizers_config_is_followed_or_refused(name: str, folder: Path) -> None:
    """With values of many kinds: transformers' tokens, or an error of one side."""
    file = folder / "tokenizer_config.json"
    before, compared = json.loads(file.read_text()), 0
    for value in VALUES:
        file.write_text(json.dumps(before | {name: value}))
        with contextlib.suppress(UserError):
            own, _ = tokenizer_file.read_folder(folder)
            chat.load(folder)
            try:
                peer = transformers.AutoTokenizer.from_pretrained(folder)
                wanted = peer(TEXTS)["input_ids"]
            except Exception:  # it refuses the value
                continue
            assert [own.encode(text).ids for text in TEXTS] == wanted, value
            compared += 1
    assert compared


def test_further_templates_without_a_default_are_refused(folder: Path) -> None:
    more = folder / "additional_chat_templates"
    more.mkdir()
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    change(folder / "tokenizer_config.json", chat_template=None)
    (more / "rag.jinja").write_text("x")
    with pytest.raises(UserError, match="found chat templates rag and no default"):
        chat.load(folder)
    (folder / "chat_template.jinja").write_text("y")
    assert chat.load(folder).template == "y"


def test_every_end_of_a_saved_generation_config_is_a_stop(folder: Path) -> None:
    sampled = dict(do_sample=True, temperature=0.6, top_p=0.9, repetition_penalty=1.1)
    transformers.GenerationConfig(eos_token_id=[1, 2], bos_token_id=0, **sampled).save_pretrained(folder)
    assert chat.load(folder).stops == {1, 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"do_lower_case": True},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": False, "tokenize_chinese_chars": False},
        {"tokenizer_class": "BertTokenizerFast"},  # lower case is that class's own default
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True},  # this one has no such field
    ],
)
def test_a_berts_fields_come_before_its_normaliser(fields: dict[str, Any], tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Tea", "tea", "café", "cafe", "茶", "茶x", "x"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    change(tmp_path / "tokenizer_config.json", **({"tokenizer_class": "BertTokenizer"} | fields))
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["Tea café", "茶x", "tea cafe"]
    found, _ = tokenizer_file.read_folder(tmp_path)
    assert [found.encode(text).ids for text in texts] == peer(texts)["input_ids"]
    change(tmp_path / "tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case="yes")
    with pytest.raises(UserError, match=r"are \['yes', .*true or false is wanted"):
        tokenizer_file.read_folder(tmp_path)


@pytest.mark.parametrize("cleaned", [False, True])
def test_spaces_before_punctuation(cleaned: bool, tmp_path: Path) -> None:
    words = ["<unk>", "tea", ",", "rain", ".", "it", "'s"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    peer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=cleaned, unk_token="<unk>"
    )
    peer.save_pretrained(tmp_path)
    ids = [1, 2, 3, 4, 5, 6]
    assert chat.load(tmp_path).decode(ids) == peer.decode(ids)


def test_bytes_keep_their_spaces_whatever_the_folder_says(folder: Path) -> None:
    change(folder / "tokenizer_config.json", clean_up_tokenization_spaces=True)
    codec = chat.load(folder)
    assert codec.decode(codec.encode("tea , rain")) == "tea , rain"
