"""Fields of a model's JSON and GGUF files: sizes are checked, and what would change results is refused.

A file of few fields refuses what it does not list. A file that mostly says how it was made or how it is to
be used (`TOKENIZER`, `GENERATION`, `ARTIFACT`) refuses what it lists. A field is refused unless its value
changes nothing: null, false, empty, or one that is listed with it.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.base.types import UserError
from pbr_jax.models.pretrained import read_json

MOST = 1 << 24
"""The largest width, vocabulary or context that is believed; released models stay below 11 million."""

MOST_LAYERS = MOST_HEADS = MOST_HEAD_WIDTH = 1 << 14
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})


def size(fields: Mapping[str, Any], name: str, source: str, *, default: Any = None, most: int = MOST) -> int:
    """A field that says how many or how wide; `default` where it is absent, null or 0.

    Raises:
      KeyError: absent without a default.
      UserError: no whole number from 1 to `most`.
    """
    value = fields[name] if default is None else fields.get(name) or default
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if not whole or not 1 <= value <= most:
        raise UserError(f"{source}: {name} is {value!r:.40}; a whole number from 1 to {most} is wanted")
    return int(value)


def check_object(content: Any, source: str) -> None:
    """UserError where a JSON file does not hold an object."""
    if not isinstance(content, Mapping):
        raise UserError(f"{source} holds a {type(content).__name__}; an object is wanted, fetch it again")


def read_object(file: Path, *, absent: bool = False) -> dict[str, Any]:
    """The object in a JSON file; with `absent`, an empty one where there is no such file."""
    if absent and not file.is_file():
        return {}
    content = read_json(file)
    check_object(content, str(file))
    return content


@contextlib.contextmanager
def sound(source: str) -> Iterator[None]:
    """What goes wrong while a config is read as a `UserError` that names the file."""
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{source} has no field {error}; a model's config names its sizes") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{source}: a field is not of the kind that a model's config has ({reason:.200}); fetch it again"
        ) from error


class FileFields(NamedTuple):
    """The fields of a kind of file, as names separated by spaces.

    `names`: with any value; None: every name of no other list. `neutral`: with the values that change
    nothing. `refused`: with any value that says something. `endings`: of further names.
    """

    names: str | None = ""
    neutral: Mapping[str, Collection[Any]] = {}
    endings: tuple[str, ...] = ()
    refused: str = ""


# sentence-transformers 2 to 6, and PyLate (https://github.com/lightonai/pylate)

MODULES = FileFields("idx name path type")
_TEXTS = "max_seq_length do_lower_case unpad_inputs backend "


def _texts(task: str, output: str, method: str, more: str = "") -> FileFields:
    """The fields of sentence_bert_config.json of a model for a task."""
    modality = {"text": {"method": "forward", "method_output_name": method}}
    values = {"transformer_task": [task], "module_output_name": [output], "modality_config": [modality]}
    return FileFields(_TEXTS + more, values)


_STATES = "feature-extraction", "token_embeddings", "last_hidden_state"
TRANSFORMER = _texts(*_STATES)
TOKENS_TRANSFORMER = _texts(*_STATES, "query_length document_length query_expansion")  # a vector a token
RERANKER_TRANSFORMER = _texts("sequence-classification", "scores", "logits")
RERANKER = FileFields("__version__ prompts activation_fn", {"model_type": ["CrossEncoder"]})
MODEL = FileFields(  # config_sentence_transformers.json
    "__version__ prompts default_prompt_name query_prefix document_prefix query_length document_length "
    "attend_to_expansion_tokens attend_to_mask_tokens skiplist_words do_query_expansion query_expansion",
    {
        "model_type": ["SentenceTransformer", "ColBERT", "MultiVectorEncoder"],
        "similarity_fn_name": ["cosine", "dot", "dot_product", "MaxSim", "maxsim"],
    },
)
POOLING = FileFields(
    "word_embedding_dimension embedding_dimension pooling_mode include_prompt",
    endings=("cls_token", "mean_tokens", "max_tokens", "sqrt_len_tokens", "weightedmean_tokens", "lasttoken"),
)
NORMALIZE, NORMALIZE_TOKENS = (
    FileFields("", {"module_input_name": [name], "module_output_name": [name]})
    for name in ("sentence_embedding", "token_embeddings")
)
PROJECTION = FileFields(
    "in_features out_features",
    {**NORMALIZE_TOKENS.neutral, "activation_function": ["torch.nn.modules.linear.Identity"]},
)
MASK = FileFields("skiplist_words", {"skiplist_tasks": [["document"]]})
ARTIFACT = FileFields(None, {"similarity": ["cosine"], "interaction": ["colbert"]})  # of ColBERT's release

# transformers: how to decode is the run's to say (generate.*), and never the folder's

GENERATION = FileFields(
    None,
    {"guidance_scale": (1, 1.0)},
    refused="bad_words_ids begin_suppress_tokens constraints dola_layers sequence_bias suppress_tokens "
    "exponential_decay_length_penalty force_words_ids forced_bos_token_id forced_decoder_ids "
    "forced_eos_token_id stop_strings token_healing watermarking_config",
)
TOKENIZER = FileFields(  # tokenizer.json holds everything else
    None,
    refused="split_special_tokens split_by_punct do_split_on_punc normalization phonemize do_phonemize "
    "add_blank do_lowercase_and_remove_accent do_subword_tokenize do_word_tokenize is_uroman src_lang "
    "tgt_lang language task predict_timestamps",
)

# GGUF, of the architectures that are read: names without the architecture or `tokenizer.ggml`

_GGUF_MODEL = FileFields(
    "vocab_size context_length embedding_length block_count feed_forward_length attention.head_count "
    "attention.head_count_kv attention.key_length attention.value_length attention.layer_norm_rms_epsilon "
    "attention.sliding_window attn_logit_softcapping final_logit_softcapping rope.dimension_count "
    "rope.freq_base rope.freq_base_swa rope.scaling.type rope.scaling.factor rope.scaling.attn_factor "
    "rope.scaling.original_context_length rope.scaling.finetuned tensor_data_layout",
    dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale"), (0.0, 1.0))
    | dict.fromkeys(("expert_count", "expert_used_count", "pooling_type"), (0,))
    | dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias"), (0.0,))
    | {"attention.causal": [True], "attention.sliding_window_pattern": [6]},
)
_GGUF_TOKENIZER = FileFields(
    "model pre tokens token_type token_type_count scores merges add_bos_token add_space_prefix",
    endings=("_token_id",),
)


def check_gguf(metadata: Mapping[str, Any], architecture: str, source: str) -> None:
    """Raises UserError for the first field of a GGUF file's metadata that is refused."""
    for prefix, fields in ((architecture, _GGUF_MODEL), ("tokenizer.ggml", _GGUF_TOKENIZER)):
        start = f"{prefix}."
        inner = {name.removeprefix(start): metadata[name] for name in metadata if name.startswith(start)}
        check(inner, fields, f"{source}, {prefix}")


def read(file: Path, fields: FileFields) -> dict[str, Any]:
    """The object in a JSON file, nothing where there is no such file. Raises UserError: it is no JSON
    object, or has a field that is refused."""
    content = read_object(file, absent=True)
    check(content, fields, str(file))
    return content


def check(content: Mapping[str, Any], fields: FileFields, source: str) -> None:
    """Raises UserError for the first field that is refused."""
    names = None if fields.names is None else fields.names.split()
    for name, value in content.items():
        neutral = () if name in fields.refused.split() else fields.neutral.get(name)
        if neutral is None and (names is None or name in names or name.endswith(fields.endings)):
            continue
        if not any(type(value) is type(each) and value == each for each in (*_NOTHING, *(neutral or ()))):
            instead = " or ".join(f"{each!r:.80}" for each in neutral or ()) or "no such field"
            raise UserError(
                f"{source}: found {name} {value!r:.80}, which may change results and is not followed; want "
                f"{instead}: use a model that was made without it"
            )
