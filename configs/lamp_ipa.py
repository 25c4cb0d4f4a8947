"""LaMP's own pipeline: documents by BM25 in the prompt, and a generator tuned to answer from such prompts.

In-prompt augmentation (IPA): Salemi et al., "LaMP: When Large Language Models Meet Personalization", ACL
2024, https://arxiv.org/abs/2304.11406. All weights of the generator are tuned on every training question with
the documents that this pipeline finds; rate, decay, schedule, epochs, batch, beams and lengths are the
released code's. Its generator is FLAN-T5-base: `--llm.model` takes its folder; the embedded model learns
as well, slowly on a CPU. The code chooses the step by the split it reports; here held-out training users do.

pbr-jax run lamp_ipa --benchmark.name lamp_7 --benchmark.root FOLDER --llm.model FOLDER --out DIR
"""

from pbr_jax.config import Config, Optimizer, Prompt, Training, TunedGenerator
from pbr_jax.methods import generate, retrieve


def get_config() -> Config:
    optimizer = Optimizer(name="adamw", learning_rate=5e-5, weight_decay=1e-4, schedule="linear", warmup=0.05)
    return Config(
        system="lamp_ipa",
        collaboration="signals",
        retrieve=retrieve.BM25Lamp(k=4),
        prompt=Prompt(max_tokens=256),
        generate=generate.Ipa(max_new_tokens=128, num_beams=4),
        generator=TunedGenerator(
            method="full",
            documents=("pipeline",),
            k=4,
            limit=None,
            training=Training(epochs=10, batch_size=16, optimizer=optimizer),
        ),
    )
