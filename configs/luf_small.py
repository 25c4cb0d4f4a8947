"""LUF for a CPU core: a linear map of query vectors is trained on gold labels (supervision).

It differs from configs/luf.py as follows; all of this is ours. `retrieve.moves map` trains in seconds. Its
learning rate was chosen on Chinese and English questions, not on the German ones that are reported.
`labels.kind gold` is used because the labels of a model with 135 million parameters are no better than
chance. Nothing is answered, so rows are compared by recall.

pbr-jax run luf_small --benchmark.name xquad --benchmark.root FOLDER --benchmark.split de \
    --benchmark.passages en --out DIR
"""

from pbr_jax.config import Config, Eval
from pbr_jax.methods import generate, retrieve
from pbr_jax.options import Labels, Stream


def get_config() -> Config:
    return Config(
        system="luf, gold labels",
        collaboration="signals",
        stream=Stream(size=200, order="shuffled"),
        retrieve=retrieve.Luf(
            k=40,
            moves="map",
            labels=Labels(kind="gold"),
        ),
        generate=generate.Nothing(),
        eval=Eval(likelihood="off"),
    )
