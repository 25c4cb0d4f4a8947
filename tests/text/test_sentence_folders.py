"""Folders that sentence-transformers wrote: its own similarities, or one line that says why not."""

import contextlib
import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from pbr_jax.base.types import UserError
from pbr_jax.config import Encoder
from pbr_jax.models import cross_encoder
from pbr_jax.models import fields as known_fields
from pbr_jax.text.encode import TextEncoder, TokenStates
from pbr_jax.text.token_encoder import TokenEncoder
from pbr_jax.text.tokenizing import load_tokenizer

peer: Any = pytest.importorskip("sentence_transformers")
models: Any = pytest.importorskip("sentence_transformers.models")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Tea", "tea", "rain", "Rain", "query", "passage", ":",
         ",", ".", "[unused0]", "[unused1]"]  # fmt: skip
TEXTS = ["Tea Rain", "tea rain, Tea.", "", "rain : tea Tea " * 6]
SMALL: Any = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random cased BERT and its tokenizer, as transformers saves them; two rows are left for markers."""
    folder = tmp_path_factory.mktemp("body")
    torch.manual_seed(0)
    sizes = SMALL | dict(vocab_size=len(WORDS) + 2, max_position_embeddings=48, initializer_range=0.5)
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    tokenizer = transformers.BertTokenizer({word: i for i, word in enumerate(WORDS)}, do_lower_case=False)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def save(body: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function (further modules, options of the model, fields of files) -> a saved folder."""

    def make(*modules: Any, files: Any = None, length: int = 24, **options: Any) -> Path:
        transformer = models.Transformer(str(body), max_seq_length=length)
        made = peer.SentenceTransformer(modules=[transformer, *modules], device="cpu", **options)
        made.save(str(tmp_path), create_model_card=False)
        for name, fields in (files or {}).items():
            file = tmp_path / name
            content = json.loads(file.read_text()) if file.is_file() else {}
            file.write_text(json.dumps(content | fields))
        return tmp_path

    return make


def mean(**options: Any) -> Any:
    return models.Pooling(16, "mean", **options)


def ours(folder: Path, **options: Any) -> TextEncoder:
    return TextEncoder(Encoder(model=str(folder), **options), devices=jax.devices()[:1])


def same(encoder: TextEncoder, theirs: Any, said: str = "") -> None:
    """The similarity of queries and documents, as its own functions give it."""
    queries, documents = theirs.encode_query(TEXTS), theirs.encode_document(TEXTS)
    found = encoder.encode(TEXTS, role="query") @ encoder.encode(TEXTS).T
    np.testing.assert_allclose(found, theirs.similarity(queries, documents).numpy(), atol=3e-5, err_msg=said)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def load(folder: Path) -> Any:
    return peer.SentenceTransformer(str(folder), device="cpu")


@pytest.mark.long
@pytest.mark.parametrize(
    ("modules", "options"),
    [
        (lambda: [mean(), models.Normalize()], {}),
        (lambda: [models.Pooling(16, "cls")], dict(length=6)),
        (lambda: [mean()], dict(prompts={"query": "query: ", "document": "passage: "})),
        (lambda: [mean(include_prompt=False)], dict(prompts={"query": "query: "})),
        (
            lambda: [models.Pooling(16, "cls", include_prompt=False)],
            dict(prompts={"query": "query: ", "document": "rain "}, default_prompt_name="query"),
        ),
    ],
)
def test_what_it_saved_gives_its_own_vectors(modules: Any, options: Any, save: Any) -> None:
    folder = save(*modules(), **options)
    same(ours(folder), load(folder))


@pytest.mark.parametrize(
    "fields",
    [
        {"sentence_bert_config.json": {"max_seq_length": 7, "do_lower_case": True}},
        {"tokenizer_config.json": {"do_lower_case": True}},
        {"tokenizer_config.json": {"truncation_side": "left", "model_max_length": 7}},
    ],
)
def test_fields_of_older_releases_are_obeyed(fields: Any, save: Any) -> None:
    folder = save(mean(), files=fields)
    encoder = ours(folder)
    same(encoder, load(folder))
    lower, upper = encoder.encode(["tea rain", "Tea Rain"])
    assert np.allclose(lower, upper) == ("do_lower_case" in str(fields))
    states = TokenStates(encoder, 5).encode(TEXTS[:1] + TEXTS[3:], role="query")
    assert [len(of_text) for of_text in states] == [4, 5]


def test_a_default_prompt_stands_before_every_text_without_a_prompt_of_its_own(save: Any) -> None:
    folder = save(mean())
    file = folder / "config_sentence_transformers.json"
    content = json.loads(file.read_text())
    wanted = load(folder)
    file.write_text(
        json.dumps(content | {"prompts": {"s2p": "query: "}, "default_prompt_name": "s2p"})
    )  # as 3.0 wrote it
    encoder, theirs = ours(folder), load(folder)
    for role in ("query", "document"):
        np.testing.assert_allclose(encoder.encode(TEXTS, role=role), unit(theirs.encode(TEXTS)), atol=1e-5)
    other = ours(folder, query_prefix="", document_prefix="rain ")
    np.testing.assert_allclose(other.encode(TEXTS, role="query"), unit(wanted.encode(TEXTS)), atol=1e-5)
    np.testing.assert_allclose(other.encode(TEXTS), unit(wanted.encode(TEXTS, prompt="rain ")), atol=1e-5)
    assert len({each.fingerprint for each in (encoder, other)}) == 2
    prompts = {"query": "query: ", "passage": "passage: "}
    file.write_text(json.dumps(content | {"prompts": prompts, "default_prompt_name": "query"}))
    encoder = ours(folder)
    assert [encoder.prefix("query"), encoder.prefix("document")] == ["query: ", "passage: "]


@pytest.mark.parametrize(
    ("modules", "options", "message"),
    [
        (lambda: [models.Pooling(16, "lasttoken")], {}, "pooling lasttoken is not supported"),
        (lambda: [models.Pooling(16, ("cls", "mean"))], {}, "pooling cls, mean is not supported"),
        (lambda: [mean(), models.Dense(16, 8), models.Normalize()], {}, "module Dense is not supported"),
        (lambda: [mean(), models.Normalize(), models.Normalize()], {}, "Normalize in this order are not"),
        (lambda: [mean()], dict(truncate_dim=8), "found truncate_dim 8"),
        (lambda: [mean()], dict(similarity_fn_name="euclidean"), "found similarity_fn_name 'euclidean'"),
    ],
)
def test_what_is_not_followed_is_refused_by_name(modules: Any, options: Any, message: str, save: Any) -> None:
    with pytest.raises(UserError, match=message) as error:
        ours(save(*modules(), **options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("sentence_bert_config.json", {"do_lower_case": "yes"}, "do_lower_case is 'yes'"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"padding": 1}}}, "processing_kwargs"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "want 'feature-extraction'"),
        ("config_sentence_transformers.json", {"default_prompt_name": "s2p"}, "default_prompt_name is 's2p'"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "an object of texts is wanted"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type 'SparseEncoder'"),
        ("1_Pooling/config.json", {"pooling_mode_median_tokens": True}, "pooling_mode_median_tokens True"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "found module_input_name"),
        ("tokenizer_config.json", {"truncation_side": "middle"}, "truncation_side is 'middle'"),
        ("tokenizer_config.json", {"do_split_on_punc": True}, "found do_split_on_punc True"),
    ],
)
def test_fields_that_are_not_followed_are_named(name: str, fields: Any, message: str, save: Any) -> None:
    with pytest.raises(UserError, match=message) as error:
        ours(save(mean(), models.Normalize(), files={name: fields}))
    assert "\n" not in str(error.value)


VALUES = (
    True, None, 7, "cosine", "dot", "query", "left", ["tea"], ["input_ids", "attention_mask"],
    {"query": "tea "},
)  # fmt: skip
FILES: dict[str, known_fields.FileFields] = {
    "config_sentence_transformers.json": known_fields.MODEL,
    "sentence_bert_config.json": known_fields.TRANSFORMER,
    "1_Pooling/config.json": known_fields.POOLING,
    "2_Normalize/config.json": known_fields.NORMALIZE,
    "tokenizer_config.json": known_fields.TOKENIZER,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "normalized"),
    [
        pytest.param(name, on, marks=[pytest.mark.long] * (on or name != "sentence_bert_config.json"))
        for name in FILES
        for on in (False, True)
    ],
)
def test_every_known_field_is_followed_or_refused(name: str, normalized: bool, save: Any) -> None:
    """Those of the table and those that are written, with many values: the owner's similarities, or an
    error of one side."""
    if "Normalize" in name and not normalized:
        return
    folder = save(mean(), *([models.Normalize()] if normalized else []))
    file, known = folder / name, FILES[name]
    written = json.loads(file.read_text())
    listed = {*(known.names or "").split(), *known.neutral, *known.refused.split()}
    ends = {f"pooling_mode_{end}" for end in known.endings}
    compared = 0
    for field in sorted({*written, *listed, *ends} - NOT_OURS):
        for value in (*VALUES, *known.neutral.get(field, ())):
            file.write_text(json.dumps(written | {field: value}))
            with contextlib.suppress(UserError):
                encoder = ours(folder)
                try:
                    theirs = load(folder)
                    theirs.encode(TEXTS)
                except Exception:  # it refuses the value
                    continue
                same(encoder, theirs, f"{field} {value!r}")
                compared += 1
    assert compared >= 3


NOT_OURS = {
    "auto_map", "backend", "model_max_length",  # its own program; a length that is no number is none
}  # fmt: skip


@pytest.mark.parametrize("similarity", ["cosine", "dot", None])
@pytest.mark.parametrize("normalized", [False, True])
def test_documents_are_ordered_as_the_folder_says(similarity: Any, normalized: bool, save: Any) -> None:
    folder = save(
        mean(), *([models.Normalize()] if normalized else []),
        files={"config_sentence_transformers.json": {"similarity_fn_name": similarity}},
    )  # fmt: skip
    same(ours(folder), load(folder))
    lengths = np.linalg.norm(ours(folder).encode(TEXTS), axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == (normalized or similarity != "dot")
    assert not np.allclose(np.linalg.norm(ours(folder, normalize="no").encode(TEXTS), axis=1), 1)


def test_a_token_beyond_the_embedding_is_named(save: Any) -> None:
    """In a text, a pair, and a marker of a ColBERT."""
    folder = save(mean())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["zebra", "yak", "xerus"])  # two rows are left
    tokenizer.save(str(folder / "tokenizer.json"))
    encoder = ours(folder)
    assert np.isfinite(encoder.encode(["tea zebra yak"])).all()
    with pytest.raises(
        UserError, match="the tokenizer gives token 18, and the model knows 18; put the model's"
    ):
        encoder.encode(["tea", "a xerus"])
    with pytest.raises(UserError, match="gives token 18"):
        load_tokenizer(folder).encode_pairs([("tea", "rain"), ("tea", "xerus")])
    with pytest.raises(IndexError):
        load(folder).encode(["xerus"])


def test_a_models_own_code_and_a_body_elsewhere_are_refused(save: Any) -> None:
    folder = save(mean())
    file = folder / "modules.json"
    content = json.loads(file.read_text())
    for change, message in (
        ({"type": "custom_st.Transformer"}, "found module 'custom_st.Transformer'"),
        ({"path": "0_Transformer"}, "found the Transformer in '0_Transformer'"),
        ({"kwargs": ["task"]}, r"found kwargs \['task'\]"),
    ):
        file.write_text(json.dumps([content[0] | change, *content[1:]]))
        with pytest.raises(UserError, match=message):
            ours(folder)


@pytest.mark.long
@pytest.mark.parametrize("inputs", [None, ["input_ids", "attention_mask"], ["input_ids", "token_type_ids"]])
def test_a_saved_reranker_scores_as_it_does(inputs: Any, body: Path, tmp_path: Path) -> None:
    """With token types, unless the folder says that the model gets none."""
    theirs = peer.CrossEncoder(str(body), num_labels=1, device="cpu", max_length=12)
    theirs.save(str(tmp_path), create_model_card=False)
    if inputs is not None:
        settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_input_names": inputs}))
        theirs = peer.CrossEncoder(str(tmp_path), device="cpu")
    model, params, _ = cross_encoder.load(tmp_path, jax.random.key(0))
    for text in (TEXTS[1], TEXTS[3]):
        [(ids, types)] = load_tokenizer(tmp_path, max_length=12).encode_pairs([(TEXTS[0], text)])
        ones = np.ones((1, len(ids)), bool)
        found = model.relevance(params, np.array([ids]), mask=ones, types=np.array([types]))
        wanted = theirs.predict([(TEXTS[0], text)], activation_fn=torch.nn.Identity())
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    file = tmp_path / "config_sentence_transformers.json"
    content = json.loads(file.read_text()) | {"prompts": {"web": "query: "}, "default_prompt_name": "web"}
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="found default_prompt_name 'web'"):
        cross_encoder.load(tmp_path, jax.random.key(0))


# -- one vector a token ----------------------------------------------------------------------------------


def several_vectors(folder: Path) -> Any:
    if not hasattr(peer, "MultiVectorEncoder"):
        pytest.skip("this sentence-transformers has no MultiVectorEncoder")
    return peer.MultiVectorEncoder(str(folder), device="cpu")


def same_tokens(folder: Path, theirs: Any = None) -> list[np.ndarray]:
    """The token vectors of queries and documents, compared; those of the queries come back."""
    theirs, encoder = theirs or several_vectors(folder), TokenEncoder(str(folder))
    for role in ("document", "query"):
        found = encoder.encode(TEXTS, role)
        wanted = [np.asarray(vectors) for vectors in getattr(theirs, f"encode_{role}")(TEXTS)]
        assert [len(vectors) for vectors in found] == [len(vectors) for vectors in wanted]
        for vectors, other in zip(found, wanted):
            np.testing.assert_allclose(vectors, other, atol=1e-5)
    return found


def projection(folder: Path) -> None:
    """As PyLate 1 saves it."""
    (folder / "1_Dense").mkdir()
    torch.manual_seed(1)
    save_file({"linear.weight": torch.randn(8, 16)}, folder / "1_Dense" / "model.safetensors")
    fields = dict(in_features=16, out_features=8, bias=False, use_residual=False)
    fields |= dict(activation_function="torch.nn.modules.linear.Identity")
    (folder / "1_Dense" / "config.json").write_text(json.dumps(fields))


@pytest.fixture
def pylate(body: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function (fields of the model's config) -> a folder in PyLate's layout, markers as tokens."""

    def make(listed: bool = True, **fields: Any) -> Path:
        transformers.BertModel.from_pretrained(body).save_pretrained(tmp_path)
        tokenizer = transformers.BertTokenizer.from_pretrained(body)
        tokenizer.add_tokens(["[Q] ", "[D] "])
        tokenizer.save_pretrained(tmp_path)
        projection(tmp_path)
        (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 19, "do_lower_case": false}')
        content = dict(
            model_type="ColBERT", __version__={"sentence_transformers": "5.1.1"}, prompts={},
            default_prompt_name=None, similarity_fn_name="MaxSim", query_prefix="[Q] ",
            document_prefix="[D] ", query_length=12, document_length=20, attend_to_expansion_tokens=False,
            skiplist_words=list(string.punctuation), do_query_expansion=True,
        )  # fmt: skip
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(content | fields))
        if listed:
            kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
            modules = [
                {"idx": i, "name": str(i), "path": path, "type": kinds[path]} for i, path in enumerate(kinds)
            ]
            (tmp_path / "modules.json").write_text(json.dumps(modules))
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("fields", "queries"),
    [
        ({}, [12, 12, 12, 12]),
        ({"do_query_expansion": False}, [5, 8, 3, 12]),
        ({"attend_to_expansion_tokens": True, "skiplist_words": ["tea"]}, [12, 12, 12, 12]),
        ({"query_prefix": "[unused0]", "document_prefix": "[unused1]", "skiplist_words": []}, [12] * 4),
        ({"prompts": {"query": "query: ", "document": "passage: "}}, [12] * 4),
    ],
)
def test_pylates_layout_reads_as_its_reader_reads_it(fields: Any, queries: list[int], pylate: Any) -> None:
    assert [len(vectors) for vectors in same_tokens(pylate(**fields))] == queries


def test_pylates_layout_without_a_list_of_modules(pylate: Any) -> None:
    encoder = TokenEncoder(str(pylate(listed=False, do_query_expansion=False)))
    assert [len(vectors) for vectors in encoder.encode(TEXTS, "query")] == [5, 8, 3, 12]


def test_what_a_several_vector_encoder_saved(pylate: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("saved")
    several_vectors(pylate()).save(str(folder), create_model_card=False)
    assert (folder / "2_MultiVectorMask").is_dir()
    same_tokens(folder)
    file = folder / "sentence_bert_config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"query_expansion": None, "query_length": 9}))
    assert [len(vectors) for vectors in same_tokens(folder)] == [5, 8, 3, 9]
    file.write_text(json.dumps(content | {"query_expansion": {"strategy": "min", "length": 9}}))
    with pytest.raises(UserError, match="found query_expansion"):
        TokenEncoder(str(folder))


def test_the_first_releases_layout(body: Path, tmp_path: Path) -> None:
    transformers.BertTokenizer.from_pretrained(body).save_pretrained(tmp_path)
    weights = {f"bert.{name}": tensor for name, tensor in load_file(body / "model.safetensors").items()}
    torch.manual_seed(1)
    save_file(weights | {"linear.weight": torch.randn(8, 16)}, tmp_path / "model.safetensors")
    config = json.loads((body / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "artifact.metadata"
    told = dict(query_maxlen=9, doc_maxlen=14, attend_to_mask_tokens=True, mask_punctuation=False, nbits=1)
    for fields in (
        {},
        {"similarity": "cosine", "dim": 8, "query_token_id": "[unused0]", "query_token": "[Q]"},
        # of indexes; answerai-colbert-small-v1 and colbertv2.0 state some of them
        dict(pool_factor=1, clustering_mode="hierarchical", protected_tokens=0, num_partitions_max=10**7),
    ):
        file.write_text(json.dumps(told | fields))
        assert [len(vectors) for vectors in same_tokens(tmp_path)] == [9, 9, 9, 9]
    file.write_text(json.dumps(told | {"similarity": "l2"}))
    with pytest.raises(UserError, match=r"artifact\.metadata: found similarity 'l2'.*want 'cosine'"):
        TokenEncoder(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("1_Dense/config.json", {"bias": True}, "found bias True"),
        ("1_Dense/config.json", {"use_residual": True}, "found use_residual True"),
        ("1_Dense/config.json", {"activation_function": "torch.nn.modules.activation.Tanh"}, "Tanh"),
        ("config_sentence_transformers.json", {"skiplist_words": ","}, "skiplist_words is ','; a list"),
        ("config_sentence_transformers.json", {"query_length": "12"}, "query_length is '12'; int is wanted"),
        ("config_sentence_transformers.json", {"query_prefix": "[A] "}, r"vocabulary has no '\[A\] '"),
        ("config_sentence_transformers.json", {"pool_factor": 2}, "found pool_factor 2"),
    ],
)
def test_a_colberts_fields_that_are_not_followed(file: str, fields: Any, message: str, pylate: Any) -> None:
    path = pylate() / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(UserError, match=message) as error:
        TokenEncoder(str(path.parents[file.count("/")]))
    assert "\n" not in str(error.value)


def test_one_vector_a_text_is_not_read_from_a_colbert_with_modules(pylate: Any) -> None:
    with pytest.raises(UserError, match="module Dense is not supported"):
        ours(pylate())
