"""Files beside a model's weights: the fields that are read here, or change no vector, score or answer.

A field that is in no list is refused, unless its value changes nothing: null, false, empty, or one that is
named below.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.base.types import UserError
from pbr_jax.models.pretrained import read_json
from pbr_jax.models.sizes import check_object

_NOTHING: tuple[Any, ...] = (None, False, "", [], {})


class Known(NamedTuple):
    """Of a kind of file: names of fields with any value, and by name the values that change nothing."""

    fields: frozenset[str]
    neutral: Mapping[str, Collection[Any]] = {}
    endings: tuple[str, ...] = ()  # of further names


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# -- sentence-transformers 2 to 6, and PyLate, https://github.com/lightonai/pylate ----------------------

MODULES = Known(_words("idx name path type"))
TRANSFORMER = Known(  # sentence_bert_config.json
    _words("max_seq_length do_lower_case query_length document_length query_expansion unpad_inputs backend"),
    {
        "transformer_task": ["feature-extraction"],
        "module_output_name": ["token_embeddings"],
        "modality_config": [{"text": {"method": "forward", "method_output_name": "last_hidden_state"}}],
    },
)
MODEL = Known(  # config_sentence_transformers.json
    _words(
        "__version__ prompts default_prompt_name query_prefix document_prefix query_length document_length "
        "attend_to_expansion_tokens attend_to_mask_tokens skiplist_words do_query_expansion query_expansion"
    ),
    {
        "model_type": ["SentenceTransformer", "ColBERT", "MultiVectorEncoder"],
        "similarity_fn_name": ["cosine", "dot", "dot_product", "MaxSim", "maxsim"],
    },
)
RERANKER_TRANSFORMER = Known(
    TRANSFORMER.fields,
    {
        "transformer_task": ["sequence-classification"],
        "module_output_name": ["scores"],
        "modality_config": [{"text": {"method": "forward", "method_output_name": "logits"}}],
    },
)
RERANKER = Known(_words("__version__ prompts activation_fn"), {"model_type": ["CrossEncoder"]})
POOLING = Known(
    _words("word_embedding_dimension embedding_dimension pooling_mode include_prompt"),
    endings=("cls_token", "mean_tokens", "max_tokens", "sqrt_len_tokens", "weightedmean_tokens", "lasttoken"),
)
_PLACES = ("module_input_name", "module_output_name")
NORMALIZE = Known(frozenset(), {name: ["sentence_embedding"] for name in _PLACES})
NORMALIZE_TOKENS = Known(frozenset(), {name: ["token_embeddings"] for name in _PLACES})
PROJECTION = Known(
    _words("in_features out_features"),
    {
        "activation_function": ["torch.nn.modules.linear.Identity"],
        **{name: ["token_embeddings"] for name in _PLACES},
    },
)
MASK = Known(_words("skiplist_words"), {"skiplist_tasks": [["document"]]})

# -- ColBERT's first release, https://github.com/stanford-futuredata/ColBERT -----------------------------

ARTIFACT = Known(
    _words(
        "query_maxlen doc_maxlen attend_to_mask_tokens mask_punctuation query_token_id doc_token_id dim meta "
        "query_token doc_token bsize accumsteps lr maxsteps save_every warmup warmup_bert nway "
        "use_ib_negatives reranker distillation_alpha ignore_scores model_name index_path index_bsize "
        "index_name index_root nbits kmeans_niters resume ncells centroid_score_threshold ndocs "
        "load_index_with_mmap checkpoint triples collection queries overwrite root experiment name rank "
        "nranks amp gpus avoid_fork_if_possible total_visible_gpus num_partitions_max pool_factor "
        "clustering_mode protected_tokens"
    ),
    {"similarity": ["cosine"], "interaction": ["colbert"]},
)

# -- transformers ----------------------------------------------------------------------------------------

SPECIAL_TOKENS = Known(
    _words("additional_special_tokens extra_special_tokens model_specific_special_tokens"),
    endings=("_token",),
)
TOKENIZER = Known(  # tokenizer_config.json
    SPECIAL_TOKENS.fields
    | _words(
        "tokenizer_class backend added_tokens_decoder model_max_length max_len chat_template do_lower_case "
        "strip_accents tokenize_chinese_chars do_basic_tokenize never_split truncation_side "
        "clean_up_tokenization_spaces add_prefix_space spaces_between_special_tokens "
        # of padding, of cutting that a caller asks for, and where the files came from
        "padding_side pad_token_type_id pad_to_multiple_of padding max_length stride truncation_strategy "
        "truncation model_input_names return_token_type_ids name_or_path _name_or_path _commit_hash revision "
        "special_tokens_map_file tokenizer_file vocab_file merges_file processor_class auto_map is_local "
        "local_files_only use_fast from_slow trust_remote_code init_inputs device_map response_schema "
        "_from_auto _from_pipeline cache_dir force_download resume_download proxies subfolder user_agent "
        "use_auth_token token torch_dtype dtype device attn_implementation low_cpu_mem_usage verbose "
        "max_seq_length pretraining_tp model_type tokenizer_type architectures "
        # what tokenizer.json holds already
        "errors trim_offsets keep_accents legacy sp_model_kwargs use_default_system_prompt extra_ids "
        "wordpieces_prefix vocab_size unk_id byte_fallback fix_mistral_regex config_class "
        "transformers_version spm_model_file full_tokenizer_file remove_space keep_new_lines"
    ),
    endings=("_token", "_token_id", "_tokens_map"),
)
GENERATION = Known(
    _words(
        "eos_token_id bos_token_id pad_token_id decoder_start_token_id transformers_version "
        "_from_model_config use_cache cache_implementation return_dict_in_generate output_attentions "
        "output_hidden_states output_scores output_logits "
        # how to decode is the run's to say (generate.*), and never the folder's
        "do_sample temperature top_k top_p min_p typical_p epsilon_cutoff eta_cutoff num_beams "
        "num_beam_groups diversity_penalty penalty_alpha repetition_penalty encoder_repetition_penalty "
        "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size min_length min_new_tokens "
        "max_length max_new_tokens max_time early_stopping num_return_sequences renormalize_logits "
        "remove_invalid_values prompt_lookup_num_tokens num_assistant_tokens top_h "
        "num_assistant_tokens_schedule assistant_confidence_threshold chat_format max_window_size "
        # of speed, of guesses that are checked, and where the file came from
        "assistant_lookbehind target_lookbehind assistant_early_exit assistant_ensemble_weight "
        "max_matching_ngram_size is_assistant use_mtp speculation_type cache_config max_cache_len "
        "return_legacy_cache low_memory compile_config disable_compile prefill_chunk_size "
        "continuous_batching_config use_model_defaults trust_remote_code _commit_hash _name_or_path "
        "torch_dtype dtype transformers.js_config"
    ),
    {"guidance_scale": [1, 1.0]},
)

# -- GGUF, of the architectures that are read: names without the architecture or `tokenizer.ggml` ------------

_GGUF_MODEL = Known(
    _words(
        "vocab_size context_length embedding_length block_count feed_forward_length attention.head_count "
        "attention.head_count_kv attention.key_length attention.value_length "
        "attention.layer_norm_rms_epsilon attention.sliding_window attn_logit_softcapping "
        "final_logit_softcapping rope.dimension_count rope.freq_base rope.freq_base_swa rope.scaling.type "
        "rope.scaling.factor rope.scaling.original_context_length rope.scaling.attn_factor "
        "rope.scaling.finetuned tensor_data_layout"
    ),
    {
        "expert_count": [0], "expert_used_count": [0], "attention.causal": [True], "logit_scale": [0.0, 1.0],
        "embedding_scale": [0.0, 1.0], "residual_scale": [0.0, 1.0], "attention.clamp_kqv": [0.0],
        "attention.max_alibi_bias": [0.0], "pooling_type": [0], "attention.sliding_window_pattern": [6],
    },
)  # fmt: skip
_GGUF_TOKENIZER = Known(
    _words(
        "model pre tokens token_type token_type_count scores merges add_bos_token add_space_prefix "
        "mask_token_id"
    ),
    endings=("_token_id",),
)


def check_gguf(metadata: Mapping[str, Any], architecture: str, source: str) -> None:
    """Raises UserError for the first field of a GGUF file's metadata that is refused."""
    for prefix, known in ((architecture, _GGUF_MODEL), ("tokenizer.ggml", _GGUF_TOKENIZER)):
        start = f"{prefix}."
        inner = {name.removeprefix(start): metadata[name] for name in metadata if name.startswith(start)}
        check(inner, known, f"{source}, {prefix}")


def read(file: Path, known: Known) -> dict[str, Any]:
    """The object in a JSON file, nothing where there is no such file. Raises UserError: it is no JSON
    object, or has a field that is refused."""
    if not file.is_file():
        return {}
    content = read_json(file)
    check_object(content, str(file))
    check(content, known, str(file))
    return content


def check(content: Mapping[str, Any], known: Known, source: str) -> None:
    """Raises UserError for the first field that is refused."""
    for name, value in content.items():
        if name in known.fields or (known.endings and name.endswith(known.endings)):
            continue
        wanted = known.neutral.get(name, ())
        if not any(type(value) is type(each) and value == each for each in (*_NOTHING, *wanted)):
            instead = " or ".join(f"{each!r:.80}" for each in wanted) or "no such field"
            raise UserError(
                f"{source}: found {name} {value!r:.80}, which may change results and is not followed; want "
                f"{instead}: use a model that was made without it"
            )
