"""Small random models and a tokenizer of bytes, in folders as Hugging Face writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2,
)  # fmt: skip
T5: dict[str, Any] = dict(
    vocab_size=97, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_decoder_layers=3, num_heads=4,
    decoder_start_token_id=0, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0,
)  # fmt: skip


def save_byte_tokenizer(folder: Path, special: Sequence[str] = ("<s>", "</s>"), end: str = "") -> int:
    """Saves a tokenizer whose tokens are special ones and bytes; how many there are.

    Args:
      end: a special token that is put after every text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: place for place, name in enumerate(names)}, merges=[]))
    tokenizer.add_special_tokens([*special])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if end:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, names.index(end))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(names)


def save_llama(folder: Path) -> Any:
    """Torch's model, which is saved without a tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).eval()
    model.save_pretrained(folder)
    return model


def save_t5(folder: Path) -> Any:
    """Torch's model, which is saved without a tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    return model
