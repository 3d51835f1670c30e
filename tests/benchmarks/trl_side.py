"""TRL's side of `bench_trl`: the same job with `GRPOTrainer`, run in a venv that has TRL.

Usage: python trl_side.py JOB, where JOB is a JSON file with the arguments of `main`. Each line of
the output is a JSON object: the time after the imports, then the time at the end of each batch.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from datasets import Dataset  # type: ignore[import-not-found]  # it is in TRL's venv
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def main(
    folder: str, problems: list[str], answers: list[int], first_ids: list[int], penalty: float,
    steps: int, updates: int, minibatches: int, output: str, settings: dict[str, Any],
) -> None:  # fmt: skip
    """Train for some batches.

    Args:
        folder: the initial policy.
        problems: user messages, in the order in which they are trained on.
        answers: the right number for each problem.
        first_ids: token ids of the first prompt, which must be those that the other side uses.
        penalty: deduction if an answer holds no number.
        steps: number of batches.
        updates: optimizer updates of each batch.
        minibatches: parts of a batch.
        output: an empty folder.
        settings: further settings of `GRPOConfig`.
    """
    tell(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [[{"role": "user", "content": problem}] for problem in problems]
    encoded: Any = tokenizer.apply_chat_template(prompts[0], add_generation_prompt=True)
    assert encoded["input_ids"] == first_ids, encoded

    def reward(completions: list[list[dict[str, str]]], answer: list[int], **_: Any) -> list[float]:
        texts = (completion[0]["content"] for completion in completions)
        return [score(text, right, penalty) for text, right in zip(texts, answer, strict=True)]

    class Told(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % updates == 0:
                tell(state.global_step // updates)

    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": prompts, "answer": answers}),
        callbacks=[Told()],
        args=GRPOConfig(
            output_dir=output,
            max_steps=steps * updates,
            steps_per_generation=minibatches,
            num_iterations=updates // minibatches,
            gradient_accumulation_steps=1,
            lr_scheduler_type="constant",
            beta=0.0,
            shuffle_dataset=False,
            logging_steps=updates,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **settings,
        ),
    ).train()


def tell(batch: int) -> None:
    """Print a batch that ended, and the time [s]."""
    print(json.dumps({"batch": batch, "at": time.time()}), flush=True)


def score(text: str, right: int, penalty: float) -> float:
    """The reward of `rollart_flow.envs.Arithmetic`."""
    numbers = re.findall(r"-?\d+", text)
    if not numbers:
        return -penalty
    return float(int(numbers[-1]) == right)


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text()))
