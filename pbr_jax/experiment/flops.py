"""Floating-point operations of a model, from its config: a product of [a b] and [b c] matrices has 2 a b c.

Only products are counted, which are nearly all of the work: norms, softmax and activations are not.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pbr_jax.models.attention import LONG, QUERY_BLOCK, QUERY_BLOCKS
from pbr_jax.models.bert import BertConfig
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.long_attention import BLOCK
from pbr_jax.models.t5_config import T5Config

Lengths = Int[np.ndarray, "n"]
Flops = Float[np.ndarray, "n"]


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """Operations of a language model.

    Args:
      read: of a token of a prompt, without attention.
      write: of a token of an answer, without attention and logits.
      head: of the logits of a token.
      attention: of a token that attends to one token of its own text, in all layers.
      cross: of a token of an answer that attends to one of the prompt, where prompts have an encoder of their
        own; 0 in decoder-only models, whose answers go on with the prompt.
    """

    read: float
    write: float
    head: float
    attention: float
    cross: float = 0.0

    def scored(self, prompts: Lengths, targets: Lengths) -> Flops:
        """Of reading prompts of so many tokens with the targets behind them."""
        if self.cross:
            own = self.attention * prompts**2.0 + self.read * prompts
            answer = self.write * targets + self.attention * targets**2.0 + self.cross * prompts * targets
            return own + answer + self.head * targets
        both = prompts + targets
        return self.read * both + self.attention * _seen(both) + self.head * targets

    def prefilled(self, prompts: Lengths) -> Flops:
        """Of reading prompts, before the first token of an answer."""
        seen = prompts**2.0 if self.cross else _seen(prompts)
        return self.read * prompts + self.attention * seen

    def decoded(self, prompts: Lengths, answers: Lengths) -> Flops:
        """Of writing answers of so many tokens, one after another."""
        before = self.cross * prompts if self.cross else self.attention * prompts
        return (self.write + self.head + before) * answers + self.attention * answers**2.0 / 2


def _seen(tokens: Lengths) -> Flops:
    """Pairs of tokens for which scores are computed: blocks attend to what stands before their end."""
    short, long = np.clip(-(-tokens // (2 * QUERY_BLOCK)), 1, QUERY_BLOCKS), -(-tokens // BLOCK)
    blocks = np.where(tokens > LONG, long, short)
    return tokens**2.0 * (blocks + 1) / (2 * blocks)


def causal_lm(config: CausalLMConfig) -> LanguageModel:
    """Of a decoder-only model. Windows are not counted, so long texts of models with some take less."""
    heads = config.num_heads * config.head_width
    keys = config.num_kv_heads * config.head_width
    layer = config.width * (2 * heads + 2 * keys + 3 * config.mlp_width)
    token = 2.0 * config.num_layers * layer
    return LanguageModel(
        read=token,
        write=token,
        head=2.0 * config.vocab_size * config.width,
        attention=4.0 * config.num_layers * heads,
    )


def t5(config: T5Config) -> LanguageModel:
    """Of an encoder-decoder. Keys and values that answers read of the prompt count to the prompt."""
    heads = config.num_heads * config.head_width
    mlp = (3 if config.gated else 2) * config.width * config.mlp_width
    projection, decoders = config.width * heads, config.num_decoder_layers
    return LanguageModel(
        read=2.0 * (config.num_layers * (4 * projection + mlp) + 2 * decoders * projection),
        write=2.0 * decoders * (6 * projection + mlp),
        head=2.0 * config.vocab_size * config.width,
        attention=4.0 * config.num_layers * heads,
        cross=4.0 * decoders * heads,
    )


def bert(config: BertConfig, tokens: Lengths) -> Flops:
    """Of encoding texts, each in a row of so many tokens."""
    width, layers = config.hidden_size, config.num_hidden_layers
    linear = 2.0 * layers * (4 * width**2 + 2 * width * config.intermediate_size)
    return linear * tokens + 4.0 * layers * width * tokens**2.0
