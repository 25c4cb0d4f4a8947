"""Slot 6: generates the answer from question, documents and the prompt writer (slot 5)."""

from pbr_jax.methods.generate.auto import Auto
from pbr_jax.methods.generate.ic_ralm import IcRalm
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.methods.generate.label import Label
from pbr_jax.methods.generate.none import Nothing
from pbr_jax.methods.generate.replug import Replug

METHODS = (Auto, Nothing, Ipa, Label, Replug, IcRalm)

__all__ = ["METHODS", "Auto", "IcRalm", "Ipa", "Label", "Nothing", "Replug"]
