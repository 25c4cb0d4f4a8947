"""LUF with the values of the paper's Table 10 for SQuAD, as close to the paper as possible.

- SQuAD and TriviaQA: an update after every 4,000 questions, 4 epochs, learning rate 1e-5. For the others
  set, in this order: Natural Questions 2,000, 4, 5e-6; WebQuestions 1,000, 1, 5e-6; WebQA 2,000, 3, 5e-6.
- The paper's encoder is Contriever: set `--encoder.model FOLDER`.
- The encoder is trained for queries and passages, and the passages are then encoded again. For 21 million
  passages this takes some 53 hours on a CPU: use an accelerator, or `--retrieve.moves query_tower`.
- A question's own irrelevant documents are negatives. In a closed collection this lowers the scores of
  documents that later questions need, and costs half of the gain (docs/papers/luf.md).
- One user's remark is enough for the shared store: the paper has no quorum.

pbr-jax run luf_as_paper --benchmark.name squad --benchmark.root FOLDER --benchmark.passages FILE --out DIR
"""

from pbr_jax.config import Config, Optimizer
from pbr_jax.methods import retrieve, select
from pbr_jax.options import LUFLoss, Remarks, Stream, adapting


def get_config() -> Config:
    return Config(
        system="luf_as_paper",
        collaboration="signals",
        stream=Stream(size=4000),
        retrieve=retrieve.Luf(
            k=40,
            moves="both",
            starts="last",
            least_own=0.5,
            loss=LUFLoss(negatives="labelled"),
            update=adapting(optimizer=Optimizer(learning_rate=1e-5)),
        ),
        select=select.MultiLevel(),
        remarks=Remarks(quorum=1),
    )
