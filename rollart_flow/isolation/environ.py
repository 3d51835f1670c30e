"""The environment variables that the process of an environment or a reward gets.

What a model or a task makes such a process print ends in a table. Therefore the process gets a
variable only if its name is known to hold no key, or if the pipeline names it.
"""

import os
from collections.abc import Iterable

_NAMES = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP",
    "TMP", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "JAVA_HOME",
    "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE",
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "TOKENIZERS_PARALLELISM",
}  # fmt: skip
_PREFIXES = ("LC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "KMP_", "XDG_", "MALLOC_")


def child_environ(more: Iterable[str] = ()) -> dict[str, str]:
    """Return this process's variables that a child gets, with those of the names in `more`."""
    wanted = _NAMES.union(more)
    return {
        name: value
        for name, value in os.environ.items()
        if name in wanted or name.startswith(_PREFIXES)
    }
