"""GGUF reading: files written by the gguf library, against Hugging Face's own reading of them."""

from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.models import causal_lm, gguf_file, pretrained
from pbr_jax.types import UserError

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
    return transformers.LlamaForCausalLM(config).eval()


def write(path: Path, model: Any, kind: QUANT, **metadata: Any) -> None:
    """A llama GGUF as a converter writes it: interleaved query and key rows, matrices of one type."""
    config = model.config
    writer = gguf.GGUFWriter(path, str(metadata.get("architecture", "llama")))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:
                array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        array, stored = np.ascontiguousarray(array), kind if array.ndim == 2 else QUANT.F32
        stem, suffix = name.rsplit(".", 1)
        writer.add_tensor(
            f"{names.get_name(stem)}.{suffix}", gguf.quants.quantize(array, stored), raw_dtype=stored
        )
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


@pytest.mark.parametrize(
    ("kind", "tied", "error"),
    [
        (QUANT.F32, True, 0.0),
        (QUANT.F16, False, 2e-3),
        (QUANT.Q8_0, True, 1e-2),
        (QUANT.Q4_1, False, 1e-1),
    ],
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
    model, params, found = causal_lm.load(path)
    assert (found.tied, found.rope_theta, found.context, found.num_kv_heads) == (tied, 777.0, 64, 2)
    ids = np.random.default_rng(0).integers(0, 96, (2, 11))
    hidden = jax.jit(model.apply)(
        params, jnp.asarray(ids), jnp.broadcast_to(jnp.arange(11), ids.shape), jnp.ones(ids.shape, bool)
    ).hidden
    wanted = reference(torch.tensor(ids)).logits.detach().numpy()
    np.testing.assert_allclose(causal_lm.logits(params, hidden), wanted, atol=1e-4)


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


def test_another_architecture_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    write(path, weights(config(num_hidden_layers=1)), QUANT.F32, architecture="qwen2")
    with pytest.raises(UserError, match="'qwen2'"):
        gguf_file.read(path)


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


@pytest.mark.parametrize(
    ("text", "alone", "together"),
    [
        ("a   12", ["a", "ĠĠĠ", "1", "2"], ["a", "ĠĠ", "Ġ", "1", "2"]),
        ("a ²", ["a", "Ġ", "Â²"], ["a", "ĠÂ", "²"]),
    ],
)
def test_digits_stand_alone_as_the_file_says(smollm, reference_tokenizer, text, alone, together):
    """The `smollm` split gives every numeric character a piece of its own, without the space before it.

    Hugging Face's reader of GGUF ignores `tokenizer.ggml.pre` and leaves the space with the digit.
    """
    tokenizer = gguf_file.read(smollm).tokenizer
    assert tokenizer.encode(text).tokens == alone
    assert reference_tokenizer.tokenize(text) == together
