"""Token ids against transformers, truncation, and the settings that folders name."""

import json
from pathlib import Path
from typing import Literal

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from pbr_jax.base.types import UserError
from pbr_jax.models.pretrained import locate
from pbr_jax.text.tokenizing import Settings, Tokenizer, load_tokenizer, read_settings

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "red", "cat", "sat", "##s", "##ing", ",", "é"]
TEXTS = ["The red cats sat, the cat sating", "", "the", "unknown words", "cat " * 30]


def word_pieces() -> Backend:
    backend = Backend(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return backend


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json that pads and cuts by itself, as the released all-MiniLM-L6-v2 does."""
    path = tmp_path_factory.mktemp("tokenizer")
    backend = word_pieces()
    backend.enable_truncation(5)
    backend.enable_padding(length=5)
    backend.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("max_length", [None, 4, 9])
def test_ids_equal_transformers(max_length: int | None, folder: Path) -> None:
    peer = transformers.PreTrainedTokenizerFast(tokenizer_object=word_pieces())
    wanted = peer(TEXTS, truncation=max_length is not None, max_length=max_length, padding=False)["input_ids"]
    assert load_tokenizer(folder, max_length=max_length).encode_batch(TEXTS) == wanted
    cut = wanted[-1]
    assert (cut[0], cut[-1]) == (2, 3)  # special tokens stay


def test_folder_without_tokenizer_json_goes_through_transformers(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    ours = load_tokenizer(tmp_path, max_length=6).encode_batch(TEXTS)
    assert ours == load_tokenizer(folder, max_length=6).encode_batch(TEXTS)


def test_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="no vocabulary"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"no tokenizer\.json") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_malformed_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(tmp_path)


def test_max_length_must_leave_room(folder: Path) -> None:
    with pytest.raises(UserError, match="at least 3"):
        load_tokenizer(folder, max_length=2)


def test_count_and_truncate(folder: Path) -> None:
    tokenizer = load_tokenizer(folder, max_length=4)
    text = "The  RED cats, sat"  # the red cat ##s , sat
    assert tokenizer.count(text) == 6
    assert tokenizer.count("") == 0
    pieces = [tokenizer.truncate(text, n) for n in range(8)]
    assert pieces == ["", "The", "The  RED", "The  RED cat", "The  RED cats", "The  RED cats,", text, text]


def exact() -> Tokenizer:
    return Tokenizer(word_pieces())


@settings(deadline=None)
@given(st.text(alphabet="tredcasing, é\n", max_size=40), st.integers(0, 12))
def test_truncated_text_is_a_beginning_that_fits(text: str, n: int) -> None:
    tokenizer = exact()
    piece = tokenizer.truncate(text, n)
    assert text.startswith(piece)
    assert tokenizer.count(piece) <= n
    if tokenizer.count(text) <= n and n:
        assert piece == text


# -- Settings ----------------------------------------------------------------------------------------


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        file = folder / {"pooling": "1_Pooling/config.json"}.get(name, f"{name}.json")
        file.parent.mkdir(exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def modules(*kinds: str) -> list[dict[str, str]]:
    paths = {"Pooling": "1_Pooling"}
    return [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, "")} for kind in kinds]


def test_plain_folder_pools_the_mean(tmp_path: Path) -> None:
    assert read_settings(tmp_path, 512) == Settings(512, "mean", False)
    write(tmp_path, tokenizer_config={"model_max_length": 10**30})  # how transformers writes "unlimited"
    assert read_settings(tmp_path, 512) == Settings(512, "mean", False)
    write(tmp_path, tokenizer_config={"model_max_length": 128})
    assert read_settings(tmp_path, 512) == Settings(128, "mean", False)


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": "mean", "include_prompt": True}, "mean"),
    ],
)
def test_sentence_transformers_folder(pooling: dict, wanted: Literal["mean", "cls"], tmp_path: Path) -> None:
    write(
        tmp_path,
        modules=modules("Transformer", "Pooling", "Normalize"),
        pooling=pooling,
        sentence_bert_config={"max_seq_length": 100},
        tokenizer_config={"model_max_length": 300},
    )
    assert read_settings(tmp_path, 512) == Settings(100, wanted, True)
    assert read_settings(tmp_path, 64).max_length == 64
    write(tmp_path, modules=modules("Transformer", "Pooling"), sentence_bert_config={})
    assert read_settings(tmp_path, 512) == Settings(300, wanted, True)  # cosine is the library's default
    (tmp_path / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "dot"}')
    assert read_settings(tmp_path, 512) == Settings(300, wanted, False)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pooling": {"pooling_mode_max_tokens": True}}, "pooling max_tokens is not supported"),
        ({"pooling": {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}}, "not supported"),
        ({"pooling": {}}, "pooling missing"),
        ({"pooling": "{"}, "cannot be read as JSON"),
        ({"modules": modules("Transformer", "Dense")}, "module Dense is not supported"),
        ({"modules": [{"path": ""}]}, "type and path"),
        ({"sentence_bert_config": {"max_seq_length": "long"}}, "max_seq_length is 'long'"),
        ({"sentence_bert_config": []}, "holds a list; an object is wanted"),
    ],
)
def test_settings_that_do_not_fit(files: dict, message: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        **({"modules": modules("Transformer", "Pooling"), "pooling": {"pooling_mode": "mean"}} | files),
    )
    with pytest.raises(UserError, match=message) as error:
        read_settings(tmp_path, 512)
    assert "\n" not in str(error.value)


def test_the_embedded_encoder() -> None:
    try:
        folder = locate("all-MiniLM-L6-v2")
    except UserError as error:
        pytest.skip(str(error))
    assert read_settings(folder, 512) == Settings(256, "mean", True)
    tokenizer = load_tokenizer(folder, max_length=256)
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Naïve café, 東京!", "a" * 300, "word " * 400, ""]
    assert tokenizer.encode_batch(texts) == peer(texts, truncation=True, max_length=256)["input_ids"]
