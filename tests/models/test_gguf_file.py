"""GGUF reading: files written by the gguf library, against Hugging Face's own reading of them."""

from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from pbr_jax.base.types import UserError
from pbr_jax.llm.tokens import chat
from pbr_jax.models import causal_lm, gguf_file, pretrained

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

QUANT = gguf.GGMLQuantizationType
TEXTS = (
    "Hello, world!",
    "  leading and trailing  ",
    "It's 2024, and I've 3.14159 reasons; 100,000 more.",
    "naïve café Zürich — «quoted» …",
    "日本語のテキスト 한국어 العربية हिन्दी",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈!!",
    "def f(x):\n    return {'a': x**2}  # comment\n\n\n\tend",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "a\r\nb\u00a0c\u200bd\u3000e",
    "AAAA aaaa ### @user #tag http://t.co/a1B2c3",
    "",
)


def weights(config: Any) -> Any:
    torch.manual_seed(1)
    # Other implementations of attention leave the cap of scores out.
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def write(path: Path, model: Any, kind: QUANT, **changes: Any) -> None:
    """A GGUF as a converter writes it; matrices of one type."""
    config = model.config
    family = config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(path, changes.get("architecture", family))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if family == "phi3":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        width = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(width * rope["partial_rotary_factor"]))
        for name in ("short", "long"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if family in ("phi3", "gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    write_tensors(writer, model, family, kind)


def write_tensors(writer: Any, model: Any, family: str, kind: QUANT) -> None:
    """Rows of query and key interleaved for Llama, 1 added to the norms of Gemma."""
    config = model.config
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        part = name.split(".")[-2]
        if family == "llama" and part in heads:
            array = array.reshape(heads[part], 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        if family.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        array, stored = np.ascontiguousarray(array), kind if array.ndim == 2 else QUANT.F32
        stem, suffix = name.rsplit(".", 1)
        writer.add_tensor(
            f"{names.get_name(stem)}.{suffix}", gguf.quants.quantize(array, stored), raw_dtype=stored
        )
    close(writer)


def close(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def config(**changes: Any) -> Any:
    sizes: dict[str, Any] = dict(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 777.0}, rms_norm_eps=1e-5,
    )  # fmt: skip
    return transformers.LlamaConfig(**sizes | changes)


def logits_of(path: Path, ids: np.ndarray) -> np.ndarray:
    model, params, found = causal_lm.load(path)
    places = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden = jax.jit(model.apply)(params, jnp.asarray(ids, jnp.int32), places).hidden
    return np.asarray(causal_lm.logits(params, hidden, cap=found.logit_cap))


@pytest.mark.parametrize(
    ("kind", "tied", "error"), [(QUANT.F32, True, 0.0), (QUANT.F16, False, 2e-3), (QUANT.Q4_1, False, 1e-1)]
)
def test_round_trip(tmp_path, kind, tied, error):
    """Expanded weights are near the originals, and the model equals torch's with those weights."""
    reference = weights(config(tie_word_embeddings=tied))
    path = tmp_path / "model.gguf"
    write(path, reference, kind)
    tensors = gguf_file.read(path).tensors()
    state = reference.state_dict()
    assert set(tensors) == {name for name in state if not (tied and name == "lm_head.weight")}
    for name, tensor in tensors.items():
        np.testing.assert_allclose(tensor, state[name].numpy(), atol=error, err_msg=name)
    missing, unexpected = reference.load_state_dict(
        {name: torch.tensor(tensor) for name, tensor in tensors.items()}, strict=False
    )
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    found = causal_lm.read_config(path)
    assert (found.tied, found.rope.theta, found.context, found.num_kv_heads) == (tied, 777.0, 64, 2)
    ids = np.random.default_rng(0).integers(0, 96, (2, 11))
    np.testing.assert_allclose(
        logits_of(path, ids), reference(torch.tensor(ids)).logits.detach().numpy(), atol=1e-4
    )


SIZES: dict[str, Any] = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=True,
    rms_norm_eps=1e-5, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
LONGROPE: dict[str, Any] = dict(
    rope_type="longrope", rope_theta=500.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3],
    long_factor=[1.5, 4.0, 9.0], original_max_position_embeddings=16,
)  # fmt: skip
FAMILIES = {
    "qwen2": transformers.Qwen2Config(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES | {"tie_word_embeddings": False}, head_dim=12),
    "phi3": transformers.Phi3Config(
        **SIZES, sliding_window=6, rope_parameters=LONGROPE, original_max_position_embeddings=16
    ),
    "gemma2": transformers.Gemma2Config(
        **SIZES, head_dim=12, query_pre_attn_scalar=12, sliding_window=6, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 7}, head_dim=12, query_pre_attn_scalar=12, sliding_window=6,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_family_equal_torch(family, tmp_path):
    reference = weights(FAMILIES[family])
    write(tmp_path / "model.gguf", reference, QUANT.F32)
    ids = np.random.default_rng(0).integers(0, 96, (2, 20))
    wanted = reference(torch.tensor(ids)).logits.detach().numpy()
    assert wanted.std() > 0.5
    np.testing.assert_allclose(logits_of(tmp_path / "model.gguf", ids), wanted, atol=1e-4)


@pytest.mark.parametrize(("family", "layers", "per_head"), [("gemma2", 46, 16), ("gemma3", 62, 16)])
def test_the_largest_gemmas_scale_scores_by_their_width(family, layers, per_head, tmp_path):
    """Its files do not say so; heads here are 12 wide, and 64 / 4 is 16."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", family)
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_key_length(12)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(8)
    writer.add_tensor("token_embd.weight", np.ones((96, 64), np.float32))
    close(writer)
    found = causal_lm.read_config(tmp_path / "model.gguf")
    assert found.attention_scale == pytest.approx(per_head**-0.5)
    assert found.windows[:6] == ((8, 0, 8, 0, 8, 0) if family == "gemma2" else (8, 8, 8, 8, 8, 0))


# -- Quantised types ---------------------------------------------------------------------------------


def expanded(path: Path, blocks: np.ndarray, kind: QUANT) -> np.ndarray:
    """One tensor of raw blocks, written to a file and read back."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("output.weight", blocks, raw_dtype=kind)
    close(writer)
    return gguf_file.read(path).tensors()["lm_head.weight"]


@pytest.mark.parametrize(
    ("kind", "steps"),  # of equal width, between the smallest and the largest value of a block
    [("F32", 2**23), ("F16", 2**10), ("BF16", 2**7), ("Q8_0", 254), ("Q5_0", 31), ("Q5_1", 31),
     ("Q4_0", 15), ("Q4_1", 15)],
)  # fmt: skip
def test_quantised_values_are_within_a_step(kind, steps, tmp_path):
    values = np.random.default_rng(0).uniform(-1, 1, (3, 64)).astype(np.float32)
    blocks = gguf.quants.quantize(values, QUANT[kind])
    found = expanded(tmp_path / "model.gguf", blocks, QUANT[kind])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values, atol=2.2 / steps)


# -- Damaged and foreign files -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write(path, weights(config()), QUANT.F32)
    return path


def test_a_file_cut_anywhere_is_a_user_error(written, tmp_path):
    content = written.read_bytes()
    cut = tmp_path / "cut.gguf"
    for share in (0.0, 0.0001, 0.001, 0.002, 0.01, 0.3, 0.7, 0.999):
        cut.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(UserError, match=r"cut\.gguf .*fetch it again"):
            gguf_file.read(cut)


def test_a_foreign_file_is_a_user_error(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b'{"not": "a model"}' * 50)
    with pytest.raises(UserError, match="not a GGUF file"):
        gguf_file.read(path)
    with pytest.raises(UserError, match="cannot be opened"):
        gguf_file.read(tmp_path / "absent.gguf")


def test_a_part_of_a_split_file_says_how_to_join_them(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    for place in range(5):
        writer.add_tensor(f"blk.{place}.attn_norm.weight", np.ones(4, np.float32))
    close(writer)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 3
    for part in parts:
        with pytest.raises(UserError, match=rf"one of 3 parts .*{part.name}|{part.name} is one of 3 parts"):
            gguf_file.read(part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda writer: writer.add_logit_scale(0.5), r"llama: found logit_scale 0\.5"),
        (lambda writer: writer.add_causal_attention(False), None),
        (lambda writer: writer.add_clamp_kqv(8.0), r"llama: found attention\.clamp_kqv 8\.0"),
        (lambda writer: writer.add_expert_count(4), "llama: found expert_count 4"),
        (lambda writer: writer.add_add_eos_token(True), r"tokenizer\.ggml: found add_eos_token True"),
        (lambda writer: writer.add_type("adapter"), r"found general\.type 'adapter'"),
        (lambda writer: writer.add_type("model"), None),
        (lambda writer: writer.add_logit_scale(1.0), None),
        (lambda writer: writer.add_author("somebody"), None),
        (lambda writer: writer.add_uint16("split.count", 0), None),  # as llama-gguf-split --merge leaves it
        (lambda writer: writer.add_quantization_version(2), None),
        (lambda writer: writer.add_add_sep_token(False), None),
    ],
)
def test_fields_that_are_not_followed_are_named(change, message, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_context_length(64)
    change(writer)
    close(writer)
    if message is None:
        assert gguf_file.read(tmp_path / "model.gguf").get("{arch}.context_length") == 64
        return
    with pytest.raises(UserError, match=message) as error:
        gguf_file.read(tmp_path / "model.gguf")
    assert "\n" not in str(error.value)


# -- Tokenizers --------------------------------------------------------------------------------------


def test_a_file_without_tokenizer_is_named(written):
    with pytest.raises(UserError, match="tokenizer None with pre-tokenizer None"):
        _ = gguf_file.read(written).tokenizer


@pytest.fixture(scope="module")
def smollm() -> Path:
    try:
        return pretrained.locate("SmolLM2-135M-Instruct")
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def reference_tokenizer(smollm):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm.parent, gguf_file=smollm.name)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_equal_hugging_face(smollm, reference_tokenizer, text):
    tokenizer = gguf_file.read(smollm).tokenizer
    ids = tokenizer.encode(text).ids
    assert ids == reference_tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def vocabulary_file(path: Path, kind: str, tokens: list[str], types: list[int], **fields: Any) -> Path:
    writer = gguf.GGUFWriter(path, fields.pop("architecture", "llama"))
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    close(writer)
    return path


@pytest.mark.parametrize(
    ("split", "pieces"),
    [
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", " NASAisHere", "/\n\n", " ", " x"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", " NASAisHere", "/\n\n", " ", " x"]),
        ("dbrx", ["It", "'s", " ", "123", "4", " NASAisHere", "/\n\n", " ", " x"]),
        ("gpt-4o", ["It's", " ", "123", "4", " NASAis", "Here", "/\n\n", " ", " x"]),
        ("gpt-2", ["It", "'s", " 1234", " NASAisHere", "/", "\n\n ", " x"]),
    ],
)
def test_text_is_cut_as_the_file_says(split, pieces, tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    path = vocabulary_file(
        tmp_path / "v.gguf", "gpt2", alphabet, [1] * 256, tokenizer_pre=split, token_merges=["a b"],
        add_bos_token=False,
    )  # fmt: skip
    with pytest.raises(UserError, match="inconsistent"):
        _ = gguf_file.read(path).tokenizer  # "ab" is no token
    path = vocabulary_file(
        tmp_path / "w.gguf", "gpt2", [*alphabet, "ab"], [1] * 257, tokenizer_pre=split, token_merges=["a b"],
        add_bos_token=False,
    )  # fmt: skip
    tokenizer = gguf_file.read(path).tokenizer
    text = "It's 1234 NASAisHere/\n\n  x"
    found = [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert found == pieces
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


PIECES = [
    "\u2581",
    *"abcde",
    "ab",
    "cd",
    "\u2581a",
    "abc",
    "de",
    "\u2581ab",
    "bc",
    "cde",
    "abcd",
    "\u2581\u2581",
]
SPECIAL = ["<unk>", "<s>", "<|end|>"]
TOKENS = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\n\n", *PIECES]
TYPES = [2, 3, 3, *[6] * 256, 4, *[1] * len(PIECES)]
SCORES = [0.0] * 260 + [-float(place) for place in range(len(PIECES))]


def sentencepiece_file(path: Path, **fields: Any) -> Path:
    return vocabulary_file(
        path, "llama", TOKENS, TYPES, token_scores=SCORES, bos_token_id=1, unk_token_id=0, **fields
    )


def joined(text: str) -> list[str]:
    """SentencePiece's BPE: joins the neighbours that make the best piece, the leftmost of equals."""
    score = dict(zip(PIECES, SCORES[260:]))
    pieces = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [
            (-score[pair], i) for i in range(len(pieces) - 1) if (pair := pieces[i] + pieces[i + 1]) in score
        ]
        if not pairs:
            return pieces
        _, i = min(pairs)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_joins_the_best_pieces_first(prefix, tmp_path):
    tokenizer = gguf_file.read(sentencepiece_file(tmp_path / "v.gguf", add_space_prefix=prefix)).tokenizer
    generator = np.random.default_rng(0)
    for _ in range(200):
        text = "".join(generator.choice(list("abcde "), generator.integers(1, 15)))
        encoding = tokenizer.encode(text)
        assert encoding.tokens == ["<s>", *joined(" " * prefix + text)]
        assert tokenizer.decode(encoding.ids) == text


def test_sentencepiece_spells_unknown_characters_in_bytes_and_keeps_marked_tokens_whole(tmp_path):
    tokenizer = gguf_file.read(sentencepiece_file(tmp_path / "v.gguf", add_space_prefix=False)).tokenizer
    encoding = tokenizer.encode("aé\n\nb<|end|> c", add_special_tokens=False)
    assert encoding.tokens == ["a", "<0xC3>", "<0xA9>", "\n\n", "b", "<|end|>", "\u2581", "c"]
    assert tokenizer.decode(encoding.ids) == "aé\n\nb c"


@pytest.mark.parametrize("number", [len(TOKENS), 2**31, 2**32 - 1])
def test_an_end_of_turn_that_is_no_token_is_named(number, tmp_path):
    assert chat.load(sentencepiece_file(tmp_path / "v.gguf", eot_token_id=2)).stops == {2}
    path = sentencepiece_file(tmp_path / "w.gguf", eot_token_id=number)
    wanted = f"ends texts or turns is {number}, want an id from 0 to {len(TOKENS) - 1}; "
    with pytest.raises(UserError, match=wanted):
        chat.load(path)


def test_an_end_of_message_ends_an_answer_too(tmp_path):
    path = sentencepiece_file(tmp_path / "v.gguf", eot_token_id=2, eom_token_id=3)
    assert chat.load(path).stops == {2, 3}


def test_named_templates_without_a_default_are_refused(tmp_path):
    templates = [
        {"name": "tool_use", "template": "a"},
        {"name": "default", "template": "b{{ messages[0].content }}"},
    ]
    for kept, name in ((templates, "v"), (templates[:1], "w")):
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", "llama")
        writer.add_tokenizer_model("llama")
        writer.add_token_list(TOKENS)
        writer.add_token_scores([0.0] * len(TOKENS))
        writer.add_token_types(TYPES)
        writer.add_bos_token_id(1)
        writer.add_chat_template(kept)
        close(writer)
    assert chat.load(tmp_path / "v.gguf").render([{"role": "user", "content": "x"}]) == "bx"
    with pytest.raises(UserError, match="found chat templates tool_use and no default; convert the model"):
        chat.load(tmp_path / "w.gguf")


def test_control_tokens_of_phi3_swallow_the_space_after_them(tmp_path):
    path = sentencepiece_file(tmp_path / "v.gguf", add_space_prefix=False, architecture="phi3")
    ids = gguf_file.read(path).tokenizer.encode("<s> a<|end|>\n b", add_special_tokens=False).ids
    assert [TOKENS[token] for token in ids] == ["<s>", "\u2581a", "<|end|>", "b"]


def test_a_tokenizer_of_another_kind_is_named(tmp_path):
    path = vocabulary_file(tmp_path / "v.gguf", "t5", TOKENS, TYPES)
    with pytest.raises(UserError, match="tokenizer 't5' with pre-tokenizer None is not supported"):
        _ = gguf_file.read(path).tokenizer
    path = vocabulary_file(tmp_path / "w.gguf", "llama", TOKENS, TYPES)
    with pytest.raises(UserError, match=r"no metadata field 'tokenizer\.ggml\.scores'"):
        _ = gguf_file.read(path).tokenizer
