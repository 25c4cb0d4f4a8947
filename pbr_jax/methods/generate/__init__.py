"""Slot 6: generates the answer from question, documents and the prompt writer (slot 5)."""

from pbr_jax.methods.generate.ipa import Ipa, Nothing
from pbr_jax.methods.generate.label import Auto, Label
from pbr_jax.methods.generate.token_level import IcRalm, Replug

METHODS = (Auto, Nothing, Ipa, Label, Replug, IcRalm)

__all__ = ["METHODS", "Auto", "IcRalm", "Ipa", "Label", "Nothing", "Replug"]
