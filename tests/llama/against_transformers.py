"""Compares meshtorch-llama with transformers' LlamaForCausalLM on tiny random checkpoints.

Usage: against_transformers.py MESHTORCH_LLAMA MESHTORCH_RUN
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from safetensors.torch import load_file
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

LLAMA, RUN = sys.argv[1:3]
PROMPT = [1, 5, 7, 30, 2, 9, 63, 4, 11, 8, 5, 5]
TOLERANCE = 1e-4


def make_checkpoint(directory, dtype=torch.float32, max_shard_size="5GB", **changes):
    """A random model, saved. Weights are larger than at the start of training, so that logits differ."""
    fields = dict(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, initializer_range=0.2, bos_token_id=1,
        eos_token_id=None, pad_token_id=None, attn_implementation="eager")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**fields, **changes})).to(dtype)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def run(*words, launcher=()):
    return subprocess.run([*launcher, LLAMA, *map(str, words)], capture_output=True, text=True, timeout=120)


def ids_of(prompts):
    return [word for prompt in prompts for word in ("--ids", ",".join(map(str, prompt)))]


def logits_of(directory, prompts, tp, *more, launcher=()):
    out = pathlib.Path(directory) / "logits.safetensors"
    done = run("logits", "--model", directory, *ids_of(prompts), "--tp", tp, "--out", out, *more, launcher=launcher)
    assert done.returncode == 0, done.stderr
    return load_file(out)["logits"]


def generated(directory, prompts, count, *more):
    done = run("generate", "--model", directory, *ids_of(prompts), "--max-new-tokens", count, "--json", *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("}\n") and done.stdout.count("\n") == 1, done.stdout
    return json.loads(done.stdout)["ids"]


class Llama(unittest.TestCase):
    def check(self, tps=(1, 2, 4), prompt=PROMPT, edit_config=None, **changes):
        """Logits for each tp, and eight greedy tokens for the last."""
        with tempfile.TemporaryDirectory() as directory:
            model = make_checkpoint(directory, **changes)
            if edit_config:
                path = pathlib.Path(directory) / "config.json"
                path.write_text(json.dumps(edit_config(json.loads(path.read_text()))))
            with torch.no_grad():
                expected = model(torch.tensor([prompt])).logits
                text = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt):]
            self.assertGreater(expected.std().item(), 0.1)
            for tp in tps:
                with self.subTest(tp=tp):
                    logits = logits_of(directory, [prompt], tp)
                    self.assertEqual((logits.dtype, logits.shape), (torch.float32, expected.shape))
                    torch.testing.assert_close(logits, expected, rtol=TOLERANCE, atol=TOLERANCE)
            self.assertEqual(generated(directory, [prompt], 8, "--greedy", "--tp", tps[-1]), text.tolist())

    def test_heads_that_divide(self):
        self.check()

    def test_grouped_heads_and_llama3_rotation(self):
        rope = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=16)
        self.check(num_attention_heads=8, num_key_value_heads=4, rope_parameters=rope, eos_token_id=[2, 3])

    def test_heads_vocabulary_and_hidden_units_that_do_not_divide(self):
        self.check(hidden_size=36, num_attention_heads=6, num_key_value_heads=6, vocab_size=101, intermediate_size=50)

    def test_groups_that_do_not_divide(self):
        self.check(hidden_size=40, num_attention_heads=10, num_key_value_heads=5, head_dim=6, vocab_size=67,
                   intermediate_size=47)

    def test_tied_output_and_biases(self):
        self.check(tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=16)

    def test_tied_output_and_biases_that_do_not_divide(self):
        self.check(tie_word_embeddings=True, attention_bias=True, mlp_bias=True, hidden_size=30,
                   num_attention_heads=6, num_key_value_heads=3, head_dim=8, vocab_size=65, tps=(1, 2, 3))

    def test_linear_rotation(self):
        self.check(rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=2.0), tps=(1, 2))

    def test_dynamic_rotation_beyond_the_trained_length(self):
        rope = dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)
        self.check(rope_parameters=rope, max_position_embeddings=8, tps=(1, 2))

    def test_old_fields_of_the_rotation(self):
        def old(config):
            rope = config.pop("rope_parameters")
            config["rope_theta"] = rope.pop("rope_theta")
            config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
            config["torch_dtype"] = config.pop("dtype")
            return config

        rope = dict(rope_type="linear", rope_theta=2000.0, factor=3.0)
        self.check(rope_parameters=rope, edit_config=old, tps=(2,))
        rope = dict(rope_type="default", rope_theta=777.0)
        self.check(rope_parameters=rope, edit_config=lambda c: {**old(c), "rope_scaling": None}, tps=(1,))

    def test_fields_that_old_files_lack(self):
        def oldest(config):
            for name in ("head_dim", "attention_bias", "mlp_bias", "num_key_value_heads", "rope_parameters", "dtype",
                         "tie_word_embeddings"):
                config.pop(name)
            return config

        self.check(edit_config=oldest, tps=(2,))

    def test_several_files(self):
        self.check(max_shard_size="20KB", tps=(1, 4))

    def test_bfloat16_files(self):
        self.check(dtype=torch.bfloat16, tps=(1, 2))

    def test_float16_files(self):
        self.check(dtype=torch.float16, tps=(2,))

    def test_batches_of_prompts(self):
        prompts = [[1, 5, 7, 30], [2], [9, 63, 4, 11, 8, 5]]
        with tempfile.TemporaryDirectory() as directory:
            model = make_checkpoint(directory, num_attention_heads=8, num_key_value_heads=4)
            for more in (["--tp", "2"], ["--tp", "2", "--dp", "2"], ["--tp", "3"]):
                logits = logits_of(directory, prompts, more[1], *more[2:])
                texts = generated(directory, prompts, 5, "--greedy", *more)
                for row, prompt in enumerate(prompts):
                    ids = torch.tensor([prompt])
                    with torch.no_grad():
                        expected = model(ids).logits[0]
                        text = model.generate(ids, max_new_tokens=5, do_sample=False)[0, len(prompt):]
                    torch.testing.assert_close(logits[row, -len(prompt):], expected, rtol=TOLERANCE, atol=TOLERANCE)
                    self.assertEqual(texts[row], text.tolist())

    def test_end_tokens_stop_generation(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_checkpoint(directory)
            ids = torch.tensor([PROMPT])
            free = model.generate(ids, max_new_tokens=8, do_sample=False)[0, len(PROMPT):].tolist()
            end = free[3]
            for name in ("config.json", "generation_config.json"):
                path = pathlib.Path(directory) / name
                before = path.read_text()
                path.write_text(json.dumps({**json.loads(before), "eos_token_id": [end, 999]}))
                stopped = model.generate(ids, generation_config=GenerationConfig(
                    max_new_tokens=8, do_sample=False, eos_token_id=end))[0, len(PROMPT):].tolist()
                self.assertEqual(generated(directory, [PROMPT], 8, "--greedy", "--tp", "2"), stopped)
                path.write_text(before)

    def test_processes_of_the_launcher(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_checkpoint(directory, num_attention_heads=8, num_key_value_heads=4)
            logits = logits_of(directory, [PROMPT], 2, "--dp", "2", launcher=[RUN, "-n", "4", "--timeout", "100"])
            with torch.no_grad():
                torch.testing.assert_close(logits, model(torch.tensor([PROMPT])).logits, rtol=TOLERANCE, atol=TOLERANCE)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
